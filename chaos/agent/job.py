"""The training job's end on a node: starts its command, sends back its output and step events, ends it when told to.
Or it observes a job that runs already, which it neither starts nor ends.

``python -m chaos.agent.job``, a process of its own beside the agent, with a channel of its own, so that no step event
can delay a fault. The job writes into files and never into a pipe that somebody must read: whoever observes it cannot
stop it.

Input: lines. An empty one is answered with ``{"event": "time", "t"}`` (CLOCK_MONOTONIC), at any time; the first other
one is the order, in JSON: ``argv``, ``env`` (added to this process's own), ``cwd`` or null; or ``attach``, the folder
into which a job that runs already writes. The end of input ends a job that was started here.

Output, JSON lines: ``{"event": "started", "pid"}`` (null for a job that runs already); ``{"event": "step", "file",
"line"}`` for every line that a process of the job appends to a ``*.jsonl`` file in the folder named by its
``CHAOS_EVENTS``; ``{"event": "output", "text"}`` for what it prints; ``{"event": "exit", "code"}`` (128 + number for a
signal); or ``{"event": "error", "error"}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Set, Union

from chaos.agent.places import state_folder
from chaos.agent.wakeup import readable_at
from injectors import kernel

POLL = 0.02  # seconds; a step event is on its way this much later at the most
GRACE = 3.0  # seconds from asking a job to end to killing it
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 16  # bytes; longer ones are no step events
_MEMBERSHIP = (b'"member"', b'"fenced"', b'"bye"')
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _File:
    """A file that grows; what it has grown by since the last look."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._rest = b""
        self._garbage = False

    def grown(self) -> bytes:
        """At most a chunk, so that one file that grows fast holds up no other."""
        return os.read(self._fd, _CHUNK)

    def lines(self) -> List[bytes]:
        """Complete lines, without their ends."""
        data = self.grown()
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._garbage and lines:
            del lines[0]
            self._garbage = False
        if len(self._rest) > _LONGEST_LINE:
            self._rest, self._garbage = b"", True
        return [line for line in lines if len(line) <= _LONGEST_LINE]

    def standing(self) -> List[bytes]:
        """Of all lines so far, those that tell how things stand: the first one, and the last one about membership."""
        first: List[bytes] = []
        member: List[bytes] = []
        while os.lseek(self._fd, 0, os.SEEK_CUR) < os.fstat(self._fd).st_size:
            for line in self.lines():
                if not first:
                    first = [line]
                elif any(word in line for word in _MEMBERSHIP) and _parsed(line).get("e") in (
                    "member",
                    "fenced",
                    "bye",
                ):
                    member = [line]
        return first + member

    def close(self) -> None:
        """Follow it no longer."""
        os.close(self._fd)


class Job:
    """A command, all that it starts, and the files into which it writes.

    Args:
        order: the first line of input.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, order: Dict[str, Any]) -> None:
        base = os.path.join(state_folder(), "jobs")
        os.makedirs(base, mode=0o700, exist_ok=True)
        self._folder = tempfile.mkdtemp(dir=base)
        self._events = os.path.join(self._folder, "events")
        os.mkdir(self._events)
        self._files: Dict[str, _File] = {}
        output = os.path.join(self._folder, "output")
        try:
            with open(output, "ab") as file:
                # Should this process be killed, the kernel tells the command: looked up here, since between fork and
                # exec nothing may be.
                prctl = ctypes.CDLL(None, use_errno=True).prctl
                self._process = subprocess.Popen(
                    order["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    cwd=order.get("cwd"),
                    env={**os.environ, **order.get("env", {}), "CHAOS_EVENTS": self._events},
                    start_new_session=True,
                    preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),  # noqa: PLW1509 - one thread
                )
            self._output = _File(output)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.pid = self._process.pid

    def poll(self) -> List[Dict[str, Any]]:
        """What has come since the last look."""
        for name in _event_files(self._events):
            if name not in self._files:
                self._files[name] = _File(os.path.join(self._events, name))
        found = [_step(name, line) for name, file in self._files.items() for line in file.lines()]
        text = self._output.grown()
        if text:
            found.append({"event": "output", "text": text.decode(errors="replace")})
        return found

    def exited(self) -> Optional[int]:
        """The command's exit code as a shell tells it, once it has ended."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def end(self) -> None:
        """Ask the command to end, which may end the rest, or else all that it has started; then kill what is left."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        while self._left() and time.monotonic() < until:
            time.sleep(POLL)
        while self._left():
            for pid in self._left():
                _kill(pid, signal.SIGKILL)
            time.sleep(POLL)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            _kill(self._process.pid, number)
        else:
            for pid in self._left():
                _kill(pid, number)

    def _left(self) -> Set[int]:
        """Living processes of the job: all below this one, since what loses its parent becomes ours (a subreaper's)."""
        self._process.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        parents = {}
        for pid in kernel.processes():
            fields = kernel.stat_fields(pid)
            if fields is not None and fields[0] not in "ZX":
                parents[pid] = int(fields[1])
        found: Set[int] = set()
        fresh = {os.getpid()}
        while fresh:
            fresh = {pid for pid, parent in parents.items() if parent in fresh and pid not in found}
            found |= fresh
        return found

    def remove(self) -> None:
        """Its files."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Attached:
    """A job that runs already, and the folder into which its processes write.

    The folder may be one that all nodes share, and may hold what former jobs have left: a file is followed only if the
    process that writes it lives on this node. Of a file that was there at first, what has been is told no more.

    Args:
        events: the folder.

    Raises:
        OSError: it cannot be read.
    """

    pid: Optional[int] = None

    def __init__(self, events: str) -> None:
        self._events = events
        self._files: Dict[str, _File] = {}
        self._refused: Set[str] = set()
        self._fresh: List[Dict[str, Any]] = []
        self._look(told=False)

    def _look(self, *, told: bool) -> None:
        """Look for files that are new; ``told``: all that is in them is told."""
        for name in _event_files(self._events):
            if name in self._files or name in self._refused:
                continue
            path = os.path.join(self._events, name)
            try:
                writer = _writer(path)
            except PermissionError as error:
                if not told:
                    raise
                self._refused.add(name)
                self._fresh.append({"event": "output", "text": f"chaos: {path}: {error.strerror}\n"})
                continue
            if writer is None:  # its first line is still being written
                continue
            if not _lives_here(writer):
                self._refused.add(name)
                continue
            file = self._files[name] = _File(path)
            if not told:
                self._fresh += [_step(name, line) for line in file.standing()]

    def poll(self) -> List[Dict[str, Any]]:
        """What has come since the last look."""
        with contextlib.suppress(FileNotFoundError):  # a file that was removed meanwhile, or the folder
            self._look(told=True)
        found, self._fresh = self._fresh, []
        return found + [_step(name, line) for name, file in self._files.items() for line in file.lines()]

    def exited(self) -> Optional[int]:
        """Nothing is known of the end of what others have started: its ranks no longer step."""
        return None

    def end(self) -> None:
        """It goes on."""

    def remove(self) -> None:
        """Leave its files alone."""
        for file in self._files.values():
            file.close()


def _event_files(folder: str) -> List[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))


def _step(name: str, line: bytes) -> Dict[str, Any]:
    return {"event": "step", "file": name, "line": line.decode(errors="replace")}


def _parsed(line: bytes) -> Dict[str, Any]:
    """An event; an empty one, where the line is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _writer(path: str) -> Optional[Dict[str, Any]]:
    """What the first line of a file says of the process that writes it; ``None`` while that line is not complete."""
    with open(path, "rb") as file:
        line = file.readline(_LONGEST_LINE)
    return _parsed(line) if line.endswith(b"\n") or len(line) == _LONGEST_LINE else None


def _lives_here(writer: Dict[str, Any]) -> bool:
    """Whether a process lives on this node; of one in another PID namespace, whether anybody is left in that."""
    if writer.get("boot") != kernel.boot_id():
        return False
    pid, pidns = writer.get("pid"), writer.get("pidns")
    if pidns == _pid_namespace(os.getpid()):
        return isinstance(pid, int) and kernel.start_ticks(pid) == writer.get("start")
    return any(_pid_namespace(each) == pidns for each in kernel.processes())


def _pid_namespace(pid: int) -> Optional[int]:
    """The inode of a process's PID namespace; ``None`` if it has gone, or is another user's."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _say(message: Dict[str, Any]) -> None:
    data = (json.dumps(message, separators=(",", ":")) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


class _Input:
    """What the controller says."""

    def __init__(self) -> None:
        self._rest = b""

    def order(self) -> Dict[str, Any]:
        """Wait for the order.

        Raises:
            ValueError: it does not come, or is none.
        """
        while True:
            lines = self.lines()
            if lines is None:
                raise ValueError("the order broke off")
            for line in lines:
                order: Dict[str, Any] = json.loads(line)
                return order

    def lines(self) -> Optional[List[bytes]]:
        """Lines that have come, but for the empty ones, which are answered; ``None`` at the end."""
        data = os.read(0, _CHUNK)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line:
                _say({"event": "time", "t": time.monotonic_ns()})
        return [line for line in lines if line]


def _serve(job: Union[Job, Attached], said: _Input, stop: int) -> None:
    """Send what comes, until the controller has gone, or a signal came, which makes ``stop`` readable."""
    over = select.poll()
    over.register(0, select.POLLIN)
    over.register(stop, select.POLLIN)
    told = False
    while True:
        code = job.exited()
        messages = job.poll()
        for message in messages:
            _say(message)
        if code is not None and not messages and not told:
            _say({"event": "exit", "code": code})
            told = True
        for fd, _ in over.poll(0 if messages else POLL * 1000):
            if fd == stop or said.lines() is None:
                return


def main() -> int:
    """Do what the first line says until the input's end. Returns the exit code."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = readable_at((signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    said = _Input()
    try:
        order = said.order()
        job = Attached(order["attach"]) if "attach" in order else Job(order)
    except OSError as error:
        _say({"event": "error", "error": f"{error.filename or 'the job'}: {error.strerror}"})
        return 1
    except ValueError as error:
        _say({"event": "error", "error": str(error)})
        return 1
    try:
        _say({"event": "started", "pid": job.pid})
        _serve(job, said, stop)
    except OSError:  # nobody listens any more
        pass
    finally:
        job.end()
        with contextlib.suppress(OSError):
            for message in job.poll():
                _say(message)
        job.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
