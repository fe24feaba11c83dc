"""Tells a main thread that is stuck behind a living watcher. Pure: instants are passed in, in seconds of one clock.

All members of a generation enter the same collectives in the same order. Whoever has not entered one in which others
wait, and keeps them waiting for much longer than a step takes, holds them up; heartbeats say that it lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Position = tuple[int, int]  # generation, collectives entered in it

_STEPS = 3  # of the time between collectives, as the job's own slowness
_REMEMBERED = 8


class Progress:
    """How far each process has come."""

    def __init__(self) -> None:
        self._at: dict[int, Position] = {}
        self._front: Position = (0, 0)
        self._reached = 0.0
        self._pauses: deque[float] = deque(maxlen=_REMEMBERED)

    def announced(self, generation: int, now: float) -> None:
        """All members are to follow this generation from now on."""
        self._advance((generation, 0), now)

    def hear(self, process: int, position: Position, now: float) -> None:
        """A process has come so far."""
        self._at[process] = position
        self._advance(position, now)

    def forget(self, process: int) -> None:
        """The process has died."""
        self._at.pop(process, None)

    def _advance(self, position: Position, now: float) -> None:
        if position > self._front:
            if position[0] == self._front[0]:
                self._pauses.append(now - self._reached)
            self._front, self._reached = position, now

    @property
    def waiting_since(self) -> float:
        """Since when the first of all waits where it is."""
        return self._reached

    def stuck(self, members: Sequence[int], patience: float, now: float) -> list[int]:
        """The members that keep the others waiting for longer than ``patience``, beyond what the job's steps take."""
        if now - self._reached <= patience + _STEPS * max(self._pauses, default=0.0):
            return []
        return [process for process in members if self._at.get(process, (0, 0)) < self._front]
