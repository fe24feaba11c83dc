"""Network namespaces by identity: found wherever they are held, gone only when every place has been searched."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from injectors import kernel, namespaces
from injectors.contract import InjectorError

# One process in a network namespace of its own says when it is there; it ends with its input.
LIVES_IN_ONE = """
import ctypes, os, sys
assert ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0
print("ready", flush=True)
sys.stdin.read()
"""
# Looks for what it is told to, and says what it found.
SEARCHES = """
import json, os, sys
from injectors import kernel, namespaces
from injectors.contract import InjectorError
kept = json.loads(sys.argv[1])
kept["pidns"] = kept["pidns"] or os.stat("/proc/self/ns/pid").st_ino
try:
    fd = namespaces.find(kept, kernel.boot_id())
    print("gone" if fd is None else os.fstat(fd).st_ino)
except InjectorError as error:
    print(error)
"""
NOBODY = 65534

root = pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace and other users' processes: that needs root")


@pytest.fixture
def other() -> Iterator[str]:
    """The path of a network namespace in which another process is."""
    with subprocess.Popen([sys.executable, "-c", LIVES_IN_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdout is not None and held.stdin is not None
        assert held.stdout.readline() == b"ready\n"
        yield f"/proc/{held.pid}/ns/net"
        held.stdin.close()


def found(kept: dict[str, Any]) -> int | None:
    """The inode of what is found."""
    fd = namespaces.find(kept, kernel.boot_id())
    if fd is None:
        return None
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def searched(kept: dict[str, Any]) -> str:
    """What a process in a PID namespace of its own says that searches."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    command = [unshare, "--pid", "--fork", "--mount-proc", sys.executable, "-c", SEARCHES, json.dumps(kept)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def searched_by_nobody(kept: dict[str, Any]) -> str:
    """What this same program says when it searches as an ordinary user: forked, so that a control holds in it too."""
    boot = kernel.boot_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(NOBODY)
            ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: may look at itself again
            os.write(writer, b"gone" if namespaces.find(kept, boot) is None else b"found")
        except InjectorError as error:
            os.write(writer, str(error).encode())
        finally:  # whatever it was, a second pytest must not go on from here
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


@root
def test_it_is_known_by_its_inode_and_by_whose_it_is(other: str) -> None:
    kept = namespaces.identity(other)
    pid = int(other.split("/")[2])
    assert kept == {
        "inode": Path(other).stat().st_ino,
        "path": other,
        "pid": pid,
        "start": kernel.start_ticks(pid),
        "pidns": Path("/proc/self/ns/pid").stat().st_ino,
    }
    assert found(kept) == kept["inode"]
    assert namespaces.identity("/proc/self/ns/net")["pid"] == os.getpid()


def test_a_path_without_a_namespace_has_no_identity() -> None:
    with pytest.raises(InjectorError, match="no network namespace at /proc/1/fd/99999"):
        namespaces.identity("/proc/1/fd/99999")


@root
@pytest.mark.parametrize("where", ["the path leads nowhere", "the path leads elsewhere", "a descriptor", "a mount"])
def test_it_is_found_wherever_it_is_held(other: str, where: str, tmp_path: Path) -> None:
    kept = namespaces.identity(other)
    if where == "the path leads elsewhere":
        kept["path"] = "/proc/self/ns/net"
        assert found(kept) == kept["inode"]
        return
    kept["path"] = "/proc/self/fd/99999"
    if where == "the path leads nowhere":
        assert found(kept) == kept["inode"]
    elif where == "a descriptor":
        held = os.open(other, os.O_RDONLY)
        _end(other)
        assert found(kept) == kept["inode"]
        os.close(held)
    else:
        mounted = tmp_path / "name"
        mounted.touch()
        subprocess.run(["mount", "--bind", other, mounted], check=True)
        try:
            _end(other)
            assert found(kept) == kept["inode"]
        finally:
            subprocess.run(["umount", mounted], check=True)


def _end(path: str) -> None:
    """End the process that is in the namespace."""
    pid = int(path.split("/")[2])
    pidfd = os.pidfd_open(pid)
    os.kill(pid, 9)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    os.close(pidfd)


@root
def test_it_has_gone_when_every_place_was_searched() -> None:
    """In a PID namespace of our own, where nothing is hidden from us."""
    kept = {"inode": 1, "path": "/proc/self/fd/99999", "pid": 1, "start": 1, "pidns": 0}
    assert searched(kept) == "gone"


@root
@pytest.mark.control
def test_what_cannot_be_looked_into_is_never_proof_that_it_has_gone(other: str) -> None:
    kept = namespaces.identity(other) | {"path": "/proc/self/fd/99999", "inode": 1}
    told = searched_by_nobody(kept)
    assert told.startswith("network namespace 1 is no longer at /proc/self/fd/99999, and it cannot be told")
    assert "(Permission denied)" in told


@root
def test_a_search_from_another_pid_namespace_sees_too_little(other: str) -> None:
    told = searched(namespaces.identity(other) | {"path": "/proc/self/fd/99999"})
    assert "no look into the processes outside PID namespace " in told


@root
def test_none_outlives_a_boot(other: str) -> None:
    assert namespaces.find(namespaces.identity(other), "another boot") is None


@root
def test_a_record_of_version_1_has_the_path_alone(other: str) -> None:
    assert found({"path": other}) == Path(other).stat().st_ino
    assert found({"path": "/proc/self/fd/99999"}) is None


def test_a_path_alone_that_cannot_be_opened_proves_nothing() -> None:
    with pytest.raises(InjectorError, match="Not a directory"):
        found({"path": "/proc/version/ns/net"})
