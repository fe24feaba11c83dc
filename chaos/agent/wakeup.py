"""Signals as a descriptor that becomes readable: no asynchronous exceptions."""

from __future__ import annotations

import os
import signal
from typing import Iterable


def readable_at(heard: Iterable[int], *, ignored: Iterable[int] = ()) -> int:
    """A descriptor that becomes readable when one of the signals comes. Main thread only, once a process.

    Args:
        ignored: signals that shall do nothing.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in heard:
        signal.signal(number, lambda *_: None)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader
