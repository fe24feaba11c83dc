"""Stops one thread of another process and nothing else of it, as a tracer can."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DETACH, _SEIZE, _INTERRUPT = 17, 0x4206, 0x4207  # ptrace requests, linux/ptrace.h
_WAIT_ALL = 0x40000000  # __WALL

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


@contextmanager
def main_thread_stopped_asleep(pid: int) -> Iterator[None]:
    """Stop the main thread of a process while it sleeps, and so holds no lock of its interpreter; other threads go on.

    It stays stopped until the end, or until the process is killed. The calling thread is its tracer.
    """
    _ptrace(_SEIZE, pid)
    while not _asleep(pid):
        pass
    _ptrace(_INTERRUPT, pid)
    os.waitpid(pid, _WAIT_ALL)
    try:
        yield
    finally:
        if _libc.ptrace(_DETACH, pid, None, None):  # it was killed meanwhile: its parent hears of it after its tracer
            os.waitpid(pid, _WAIT_ALL)


def _asleep(pid: int) -> bool:
    """Whether it is in one and the same wait for longer than it would wait for the interpreter's lock (5 ms)."""
    seen = [_waits_in(pid)]
    for _ in range(9):
        time.sleep(0.001)
        seen.append(_waits_in(pid))
    return seen[0] != "" and len(set(seen)) == 1


def _waits_in(pid: int) -> str:
    said = Path(f"/proc/{pid}/task/{pid}/syscall").read_text(encoding="ascii")
    return "" if said.startswith("running") else said


def _ptrace(request: int, pid: int) -> None:
    if _libc.ptrace(request, pid, None, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
