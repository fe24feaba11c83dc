"""Output that never holds a run up: written by a thread of its own, and given up where nobody reads it.

A terminal can stand still (Ctrl-S, a full pipe) or vanish (a lost connection). The first must not delay an undo, so
what does not fit into a bounded queue is dropped. The second is told to whoever asked for it.
"""

from __future__ import annotations

import io
import os
import queue
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

MOST = 1000  # writes that wait; a status line that moves makes a few a second
PATIENCE = 2.0  # seconds without any progress after which what is left is not waited for


class Unblocking(io.TextIOBase):
    """A text stream over another's descriptor; ``write`` returns at once, whatever the other side does.

    Args:
        stream: standard output or error; None where it was closed when the process began: then nothing is written.
        gone: called once, on a thread of ours, when the other side has vanished.
    """

    def __init__(self, stream: TextIO | None, gone: Callable[[], None] = lambda: None) -> None:
        self._fd = None if stream is None else os.dup(stream.fileno())
        self._gone = gone
        self._queue: queue.Queue[bytes | None] = queue.Queue(MOST)
        self._progress = threading.Event()
        self._lock = threading.Lock()
        self._over = False
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)
        self._thread.start()
        if self._fd is not None:
            threading.Thread(target=self._watch, args=(self._fd,), name="terminal", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """What rich asks, to know which characters it may draw."""
        return "utf-8"

    def writable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """Whether there is a terminal."""
        return self._fd is not None and os.isatty(self._fd)

    def fileno(self) -> int:
        """The descriptor, for the size of the terminal."""
        if self._fd is None:
            raise io.UnsupportedOperation("there is no output")
        return self._fd

    def write(self, text: str) -> int:
        """Queue a text, or drop it where too much waits already."""
        with suppress(queue.Full):
            self._queue.put_nowait(text.encode("utf-8", "replace"))
        return len(text)

    def _pump(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                while data and self._fd is not None:
                    data = data[os.write(self._fd, data) :]
                    self._progress.set()
            except OSError:
                self._vanished()
                return

    def _watch(self, fd: int) -> None:
        """Wait for the other side's end, which is seen without writing: a reader or a terminal that has gone."""
        waiter = select.poll()
        waiter.register(fd, 0)  # errors and hang-ups are told unasked
        waiter.poll()
        self._vanished()

    def _vanished(self) -> None:
        with self._lock:
            over, self._over = self._over, True
        if not over:
            self._gone()

    def finish(self) -> None:
        """Wait until everything is written, the other side has vanished, or stands still; it may vanish from now on."""
        with self._lock:
            self._over = True
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=PATIENCE)
        except queue.Full:
            return
        while self._thread.is_alive():
            self._progress.clear()
            self._thread.join(PATIENCE)
            if self._thread.is_alive() and not self._progress.is_set():
                return
