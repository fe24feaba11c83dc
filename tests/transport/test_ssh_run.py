"""Programs that run on a node for a moment, and files on it that are followed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lab_help import PATIENCE, eventually
from sshd import Sshd, needs_sshd

from chaos.inventory.access import Access
from chaos.transport import ssh
from chaos.transport.pipe import AgentError
from chaos.transport.ssh import Completed, Connection, Connections, run, tail

pytestmark = needs_sshd

# More than SSH's window on both streams, first the one, then the other.
TALKS = """
import sys
for stream in (sys.stderr, sys.stdout) * 2:
    for _ in range(48):
        stream.write("x" * 65535 + "\\n")
    stream.flush()
"""
# A grandchild in a session of its own; it says who it is, and then both sleep.
FORKS = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "1234567"], start_new_session=True)
print("started", flush=True)
if sys.argv[1:] != ["ends"]:
    child.wait()
"""


def test_arguments_arrive_as_they_are_and_no_shell_reads_them(node: Connection) -> None:
    words = [
        "",
        " ",
        "a b",
        "'",
        '"',
        "$(touch /tmp/no)",
        "`id`",
        "\\",
        "a\nb",
        "ü",
        "*",
        "--",
        ";",
        "&",
        "!x",
        "#",
        "~",
    ]
    code = "import json,sys; print(json.dumps(sys.argv[1:]))"
    done = run(node, ["python3", "-c", code, *words], 20)
    assert done == Completed(0, (str(__import__("json").dumps(words)) + "\n").encode(), b"")


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "exit 124"], 124), (["sh", "-c", "kill -TERM $$"], 143)],
)
def test_exit_codes(argv: list[str], code: int, node: Connection) -> None:
    assert run(node, argv, 20).code == code


def test_a_program_that_is_not_there(node: Connection) -> None:
    done = run(node, ["no-such-program"], 20)
    assert (done.code, done.stderr) == (127, b"no-such-program: No such file or directory\n")


def test_a_node_without_python_says_so(connections: Connections, access: Access) -> None:
    node = connections.to(replace(access, python="python2.2"), "node 0")
    with pytest.raises(AgentError, match=r"`true` on node 0 does not start: .*python2\.2: not found"):
        run(node, ["true"], 20)


def test_case_50_more_than_the_window_on_both_streams_is_no_deadlock(node: Connection) -> None:
    """CASES 50: 6 MiB on each stream, while SSH lets 2 be under way for both together."""
    done = run(node, [sys.executable, "-c", TALKS], 60)
    assert (done.code, len(done.stdout), len(done.stderr)) == (0, 96 << 16, 96 << 16)


def test_case_50_the_wait_for_an_exit_status_obeys_the_time_out(
    node: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 50: even where the node itself no longer keeps to the limit, since what should do so is stopped."""
    monkeypatch.setattr(ssh, "_GRACE", 0.2)
    with pytest.raises(AgentError, match="nothing came in time"):
        run(node, ["sh", "-c", "kill -STOP $PPID"], 0.5)
    assert run(node, ["true"], 20).code == 0, "the connection is none the worse for it"


@pytest.fixture
def left(sshd: Sshd) -> Iterator[None]:
    """Sees that nothing is left of what a test has started there; a stopped process is ended with it."""
    yield
    for pid in sshd.processes("chaos-"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: not sshd.processes("sleep 1234567"), "the end of all grandchildren")


def test_case_53_a_time_out_ends_grandchildren_too(node: Connection, left: None, sshd: Sshd) -> None:
    """CASES 53: also of one that has left the program's session."""
    with pytest.raises(AgentError, match=r"did not end within 1 s: it was killed, with whatever it had started"):
        run(node, [sys.executable, "-c", FORKS], 1)
    assert sshd.processes("sleep 1234567") == []


def test_case_53_what_a_program_leaves_running_ends_with_it(node: Connection, left: None, sshd: Sshd) -> None:
    """CASES 53: it would hold the channel open otherwise."""
    assert run(node, [sys.executable, "-c", FORKS, "ends"], 30).stdout == b"started\n"
    assert sshd.processes("sleep 1234567") == []


def test_case_53_a_connection_that_ends_takes_its_programs_along(node: Connection, left: None, sshd: Sshd) -> None:
    """CASES 53: the controller may die before the limit is over."""
    errors: list[str] = []

    def ask() -> None:
        try:
            run(node, [sys.executable, "-c", FORKS], 600)
        except AgentError as error:
            errors.append(str(error))

    asker = threading.Thread(target=ask)
    asker.start()
    eventually(lambda: sshd.processes("sleep 1234567"), "the grandchild")
    node.close()
    asker.join()
    assert len(errors) == 1


def test_output_without_an_end_is_ended(node: Connection, monkeypatch: pytest.MonkeyPatch, sshd: Sshd) -> None:
    monkeypatch.setattr(ssh, "_LARGEST_OUTPUT", 1 << 20)
    with pytest.raises(AgentError, match="says more than 1 MiB: it was ended"):
        run(node, ["yes"], 60)
    eventually(lambda: not sshd.processes("yes"), "its end")


def test_a_login_script_that_talks_is_not_in_the_output(node: Connection, sshd: Sshd) -> None:
    rc = sshd.home / ".bashrc"
    rc.write_text("echo Welcome; echo no good >&2; printf 'no end'\n")
    try:
        assert run(node, ["sh", "-c", "echo yes; echo but >&2"], 20) == Completed(0, b"yes\n", b"but\n")
    finally:
        rc.unlink()


def test_a_login_shell_of_another_kind(node: Connection, access: Access, tmp_path: Path, client_key: Path) -> None:
    """One that cannot have a line break between quotes, as csh; here a shell that is told to refuse it."""
    server = Sshd(tmp_path / "server", client_key.with_suffix(".pub"))
    try:
        shell = server.folder / "csh"
        shell.write_text('#!/bin/sh\ncase "$2" in *"\n"*) echo "Unmatched \'." >&2; exit 1;; esac\nexec /bin/sh "$@"\n')
        shell.chmod(0o755)
        passwd = server.folder / "etc" / "passwd"
        text = passwd.read_text().replace("/run/home/root:/bin/bash", f"/run/home/root:{shell}")
        with passwd.open("r+") as file:  # the same inode, which is mounted there
            file.write(text)
            file.truncate()
        server.known(Path(os.environ["HOME"], ".ssh", "known_hosts"))
        connections = Connections()
        assert run(connections.to(replace(access, port=server.port), "node 1"), ["echo", "a"], 20).stdout == b"a\n"
        connections.close()
    finally:
        server.stop()


# -- following a file -------------------------------------------------------------------------------------------------

Lines = queue.SimpleQueue[bytes]


@pytest.fixture
def lines() -> Lines:
    return queue.SimpleQueue()


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_lines_of_a_file_that_is_there(node: Connection, tmp_path: Path, lines: Lines) -> None:
    path = tmp_path / "events"
    path.write_text("old\n")
    followed = tail(node, str(path), lines.put)
    add(path, "one\ntw")
    assert lines.get(timeout=PATIENCE) == b"one"
    add(path, "o\n\n")
    assert lines.get(timeout=PATIENCE) == b"two"
    assert lines.get(timeout=PATIENCE) == b""
    followed.stop()
    followed.stop()
    assert (followed.ended.is_set(), followed.error) == (True, None)


def test_a_file_that_is_made_replaced_cut_short_and_removed(node: Connection, tmp_path: Path, lines: Lines) -> None:
    path = tmp_path / "events"
    followed = tail(node, str(path), lines.put)
    add(path, "one\n")
    assert lines.get(timeout=PATIENCE) == b"one"
    add(path, "unfinished")
    path.rename(tmp_path / "events.1")
    add(path, "two\n")
    assert lines.get(timeout=PATIENCE) == b"unfinished"
    assert lines.get(timeout=PATIENCE) == b"two"
    path.write_text("3\n")  # shorter than before
    assert lines.get(timeout=PATIENCE) == b"3"
    path.unlink()
    add(path, "four\n")
    assert lines.get(timeout=PATIENCE) == b"four"
    followed.stop()


def test_a_reader_that_is_slow_holds_up_neither_the_connection_nor_the_nodes_memory(
    node: Connection, tmp_path: Path, sshd: Sshd
) -> None:
    path = tmp_path / "events"
    path.touch()
    go, seen = threading.Event(), []

    def take(line: bytes) -> None:
        go.wait(PATIENCE)
        seen.append(line)

    followed = tail(node, str(path), take)
    count = 40_000
    add(path, "".join(f"{n} {'x' * 200}\n" for n in range(count)))
    assert run(node, ["echo", "free"], 20).stdout == b"free\n"
    [follower] = sshd.processes("-I -S -c import binascii")
    status = Path(f"/proc/{follower}/status").read_text()
    assert int(status.partition("VmRSS:")[2].split()[0]) < 30_000, "KiB: 8 MB are not kept there"
    go.set()
    eventually(lambda: len(seen) == count, "all lines")
    assert [int(line.split()[0]) for line in seen] == list(range(count))
    followed.stop()


def test_a_line_without_an_end_is_left_out(
    node: Connection, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_LONGEST_LINE", 1000)
    path = tmp_path / "events"
    followed = tail(node, str(path), lines.put)
    add(path, "x" * 500_000)
    add(path, "rest\nnext\n")
    assert lines.get(timeout=PATIENCE) == b"next"
    followed.stop()


def test_a_follower_ends_with_its_connection_and_says_why(
    node: Connection, tmp_path: Path, lines: Lines, sshd: Sshd
) -> None:
    followed = tail(node, str(tmp_path / "events"), lines.put)
    assert sshd.processes("-I -S -c import binascii")
    node.close()
    assert followed.ended.wait(PATIENCE)
    assert followed.error
    eventually(lambda: not sshd.processes("-I -S -c import binascii"), "the follower's end on the node")


def test_a_follower_that_is_killed_is_noticed(node: Connection, tmp_path: Path, lines: Lines, sshd: Sshd) -> None:
    followed = tail(node, str(tmp_path / "events"), lines.put)
    [follower] = sshd.processes("-I -S -c import binascii")
    os.kill(follower, signal.SIGKILL)
    assert followed.ended.wait(PATIENCE)
    assert followed.error == "its follower has ended"


def test_what_cannot_be_followed_says_so(connections: Connections, access: Access, lines: Lines) -> None:
    node = connections.to(replace(access, python="python2.2"), "node 0")
    with pytest.raises(AgentError, match=r"the follower of /x on node 0 does not start: .*python2\.2"):
        tail(node, "/x", lines.put)
