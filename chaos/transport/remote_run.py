"""Runs on a node, sent as ``python3 -c``: one program with a limit, which leaves nothing behind.

Arguments: a word that is written to both streams, on a line of its own, before anything of the program's; the limit
in seconds; the program and its arguments. When the limit is over, or our input ends since the
controller has gone, the program is killed with everything that it has started, even what has put itself into a
session of its own. What it leaves running when it ends by itself goes the same way. Exit status: the program's, 128 + n
where signal n has ended it, 124 when the limit was over, 127 where it cannot be started.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_OVER = 124
_LAST = 2.0  # seconds; what is still there then cannot be killed


def is_child(pid: str) -> bool:
    """Whether we are a process's parent: it is our own, or an orphan of theirs."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1]) == os.getpid()
    except OSError:
        return False


def end_all(group: int) -> None:
    """SIGKILL, again and again: whoever loses its parent becomes our child, and its turn comes."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    end = time.monotonic() + _LAST
    while time.monotonic() < end:
        for name in os.listdir("/proc"):
            if name.isdigit() and is_child(name):
                with contextlib.suppress(OSError):  # it runs as somebody else
                    os.kill(int(name), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def main(ready: str, limit: str, *argv: str) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    end = time.monotonic() + float(limit)
    for stream in (1, 2):
        os.write(stream, b"\n" + ready.encode() + b"\n")
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write("%s: %s\n" % (argv[0], error.strerror))
        return 127
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(reader, select.POLLIN)
    code = None
    gone = False
    while code is None and not gone and time.monotonic() < end:
        for fd, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000 + 1):
            if fd == reader:
                os.read(reader, 4096)
            else:
                gone = not os.read(0, 4096)
        code = process.poll()
    end_all(process.pid)
    if code is None:
        return _OVER
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
