"""Tells hung processes by their silence. Pure: instants are passed in, in seconds of one clock."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: If the listener itself came so late (seconds), it may have slept through beats, and accuses nobody for now.
_OWN_LATENESS = 0.05
_QUIET = 0.06  # seconds; three beats


class Heartbeats:
    """The last sign of life of each process.

    Args:
        timeout: silence after which a process is hung, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._last: dict[int, float] = {}
        self._looked: float | None = None

    def beat(self, process: int, now: float) -> None:
        """A sign of life."""
        self._last[process] = now

    def last(self, process: int) -> float | None:
        """The last sign of life."""
        return self._last.get(process)

    def forget(self, process: int) -> None:
        """The process is watched no longer."""
        self._last.pop(process, None)

    def quiet(self, now: float, among: Iterable[int]) -> list[int]:
        """The processes of ``among`` that have missed some beats, and may hang: too early to say."""
        return [process for process in among if now - self._last.get(process, -math.inf) > _QUIET]

    def excuse(self, now: float) -> None:
        """Give all that were silent half the time-out again: there was a reason that is none of theirs alone."""
        self._last = {process: max(last, now - self._timeout / 2) for process, last in self._last.items()}

    def silent(self, now: float, among: Iterable[int]) -> list[int]:
        """The processes of ``among`` that are hung. To be called at least every 50 ms, after reading all beats."""
        late = now - self._looked if self._looked is not None else 0.0
        self._looked = now
        if late > _OWN_LATENESS:
            self.excuse(now)
        return [process for process in among if now - self._last.get(process, now) > self._timeout]
