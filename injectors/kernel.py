"""The few kernel calls, and looks into /proc, that several injectors need."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Callable, Dict, Iterator, List, Optional, TypeVar

from injectors.contract import InjectorError

T = TypeVar("T")

_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int) -> None:
    if _libc.setns(fd, _NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


def unshare_network() -> None:
    """Put this thread alone into a network namespace of its own, which goes with it.

    Raises:
        PermissionError: this user may make none.
    """
    if _libc.unshare(_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"unshare: {os.strerror(error)}")


def open_network(path: str) -> int:
    """A descriptor of the network namespace at a path, such as /proc/1/fd/5.

    Raises:
        InjectorError: there is none (the node has booted since, or this is another node).
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InjectorError(f"no network namespace at {path}: {error.strerror}") from error


@contextlib.contextmanager
def inside(fd: int) -> Iterator[None]:
    """Run the body in a network namespace: this thread alone, and back whatever happens."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(fd)
        try:
            yield
        finally:
            _setns(here)
    finally:
        os.close(here)


def made_inside(fd: int, make: Callable[[], T]) -> T:
    """What ``make`` gives in a network namespace, whose descriptor is closed: a socket made there stays there."""
    try:
        with inside(fd):
            return make()
    finally:
        os.close(fd)


def boot_id() -> str:
    """This boot's id."""
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def start_ticks(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot (field 22 of /proc/PID/stat); ``None`` if it has gone."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def stat_fields(pid: int) -> Optional[List[str]]:
    """The fields of /proc/PID/stat after the command name, which may hold spaces and brackets: state is the first."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def processes() -> List[int]:
    """The ids of all processes that this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descriptors(pid: int) -> Dict[str, str]:
    """What a process has open: from the path in /proc to what is behind it, such as ``net:[4026531840]``.

    Empty for a process that has gone.

    Raises:
        PermissionError: it is another user's.
    """
    folder = f"/proc/{pid}/fd"
    found = {}
    try:
        for name in os.listdir(folder):
            # Read as a link and not opened: nothing that hangs (a remote file) is touched.
            with contextlib.suppress(FileNotFoundError):
                found[f"{folder}/{name}"] = os.readlink(f"{folder}/{name}")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return found
