"""The few kernel calls that several injectors need."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Iterator

from injectors.contract import InjectorError

_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int) -> None:
    if _libc.setns(fd, _NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


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


def boot_id() -> str:
    """This boot's id."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
