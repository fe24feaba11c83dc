"""Tells a main thread that is stuck behind a living watcher. Pure: instants are passed in, in seconds of one clock.

All members of a generation enter the same collectives in the same order. Whoever has not entered one in which others
wait, and keeps them waiting for much longer than a step takes, holds them up; heartbeats say that it lives. So does
whoever does not follow a new generation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

Position = tuple[int, int]  # generation, collectives entered in it

_OWN_LATENESS = 0.05  # if the listener itself came so late (seconds), it accuses nobody for now
_STEPS = 3  # of the time between collectives, as the job's own slowness
_REMEMBERED = 8


class Progress:
    """How far each process has come."""

    def __init__(self) -> None:
        self._at: dict[int, Position] = {}
        self._inside: set[int] = set()
        self._front: Position = (0, 0)
        self._reached = 0.0
        self._astray: dict[int, float] = {}  # since when a member does not follow the newest generation
        self._pauses: deque[float] = deque(maxlen=_REMEMBERED)
        self._looked: float | None = None

    def announced(self, generation: int, members: Iterable[int], now: float) -> None:
        """These members are to follow this generation from now on."""
        self._advance((generation, 0), now)
        # Whoever did not follow the one before either has been astray since then.
        self._astray = {member: self._astray.get(member, now) for member in members}

    def hear(self, process: int, position: Position, now: float, *, inside: bool) -> None:
        """A process has come so far; ``inside``: it waits in the collective that it entered last."""
        self._at[process] = position
        (self._inside.add if inside else self._inside.discard)(process)
        self._advance(position, now)
        if position[0] == self._front[0]:
            self._astray.pop(process, None)

    def forget(self, process: int) -> None:
        """The process has died."""
        self._at.pop(process, None)
        self._inside.discard(process)
        self._astray.pop(process, None)

    def _advance(self, position: Position, now: float) -> None:
        if position > self._front:
            if position[0] == self._front[0]:
                self._pauses.append(now - self._reached)
            self._front, self._reached = position, now

    @property
    def waiting_since(self) -> float:
        """Since when the first of all waits where it is."""
        return self._reached

    def stuck(self, members: Sequence[int], now: float, *, patience: float, follow: float) -> list[int]:
        """The members that keep the others waiting for longer than ``patience``, beyond what the job's steps take.

        And those that do not ``follow`` a new generation within so many seconds, beyond the same. To be called at least
        every 50 ms, after reading all that was told. One that has not left the collective before is none of them: it
        may wait for data that was lost.
        """
        late = self._looked is not None and now - self._looked > _OWN_LATENESS
        self._looked = now
        if late:  # what was told meanwhile may not have been read
            self._reached = max(self._reached, now)
            self._astray = dict.fromkeys(self._astray, now)
        slowness = _STEPS * max(self._pauses, default=0.0)
        astray = [p for p in members if now - self._astray.get(p, now) > follow + slowness]
        if now - self._reached <= patience + slowness:
            return astray
        behind = [p for p in members if p not in self._inside and self._at.get(p, (0, 0)) < self._front]
        return astray + [p for p in behind if p not in astray and p not in self._astray]
