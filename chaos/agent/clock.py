"""Waiting for an exact instant, and being woken before it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import threading
import time
from typing import Iterator, Optional

_PR_SET_TIMERSLACK = 29
_CLOSE_NS = 3_000_000  # from here on, sleep in short naps instead of in poll, whose time-out is in milliseconds
_SPIN_NS = 150_000
_PRIORITY = 10


class Bell:
    """Something that a thread waits for, with or without an instant at which it gives up waiting."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        self._lock = threading.Lock()
        self._closed = False

    def ring(self) -> None:
        """Wake the waiting thread, now or when it waits next; nothing once the bell is closed."""
        with self._lock:
            if not self._closed:
                os.write(self._writer, b"!")

    def wait(self, until_ns: Optional[int] = None) -> bool:
        """Wait for the bell.

        Args:
            until_ns: CLOCK_MONOTONIC; the wait ends within some 0.1 ms of it.

        Returns:
            Whether the bell rang before the instant.
        """
        while True:
            left = None if until_ns is None else until_ns - time.monotonic_ns()
            if left is not None and left <= _CLOSE_NS:
                break
            if self._poll.poll(None if left is None else (left - _CLOSE_NS) / 1e6 + 1):
                self._silence()
                return True
        assert until_ns is not None
        while True:
            left = until_ns - time.monotonic_ns()
            if self._poll.poll(0):
                self._silence()
                return True
            if left <= 0:
                return False
            if left > _SPIN_NS:
                time.sleep(min(left - _SPIN_NS, 500_000) / 1e9)

    def _silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        """Give the pipe back."""
        with self._lock:
            self._closed = True
            os.close(self._reader)
            os.close(self._writer)


@contextlib.contextmanager
def real_time() -> Iterator[None]:
    """Run this thread, and none that it starts, ahead of all ordinary ones, where the kernel lets us (root)."""
    former = os.sched_getscheduler(0), os.sched_getparam(0)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))
        raised = True
    except PermissionError:
        raised = False
    try:
        yield
    finally:
        if raised:
            os.sched_setscheduler(0, *former)
