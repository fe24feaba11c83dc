"""The stop switch of a run: signals, guards, limits and ``halt`` all pull it; everything that waits, waits on it.

A signal's handler does nothing; its number comes out of a wake-up pipe, on a thread. So no exception ever appears in
the middle of an undo, and a second Ctrl-C finds the switch pulled already.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Cause = Literal["signal", "guard", "halted", "error"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Reason:
    """Why a run was stopped."""

    cause: Cause
    text: str


class Stop:
    """Pulled once; the first reason counts."""

    def __init__(self) -> None:
        self._pulled = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason: Reason | None = None

    def pull(self, cause: Cause, text: str) -> None:
        """End the run: undo everything, then score what there is."""
        with self._lock:
            if self.reason is None:
                self.reason = Reason(cause, text)
            self._pulled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_pull(self, callback: Callable[[], None]) -> None:
        """Call this when the switch is pulled, or now if it is already. It must neither block nor raise: whatever else
        waits for the switch is told after it."""
        with self._lock:
            if not self._pulled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    @property
    def pulled(self) -> bool:
        """Whether the run is to end."""
        return self._pulled.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, unless the switch is or gets pulled. Returns whether it is."""
        return self._pulled.wait(max(0.0, seconds))

    def wait_until(self, instant_ns: int) -> bool:
        """Sleep until an instant of CLOCK_MONOTONIC, unless the switch is or gets pulled. Returns whether it is."""
        return self.wait((instant_ns - time.monotonic_ns()) / 1e9)


def hangup_ignored() -> bool:
    """Whether this process was started to outlive its terminal."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@contextmanager
def on_signals(stop: Stop, *, last: bool = False) -> Iterator[None]:
    """Pull the switch at SIGINT, SIGTERM, and at SIGHUP unless it is ignored already (nohup). Main thread only.

    Args:
        last: the process ends afterwards: no signal may change its exit code then.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number := os.read(reader, 1):
            if number[0]:
                stop.pull("signal", f"{signal.Signals(number[0]).name} received")
            else:
                break

    heard = [number for number in SIGNALS if number != signal.SIGHUP or not hangup_ignored()]
    former = {number: signal.signal(number, lambda *_: None) for number in heard}
    former_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(former_fd)
        for number, handler in former.items():
            signal.signal(number, signal.SIG_IGN if last else handler)
        os.write(writer, b"\0")
        watcher.join()
        os.close(writer)
        os.close(reader)
