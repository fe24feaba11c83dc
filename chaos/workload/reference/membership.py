"""Who is a member: seats, spares, and what becomes of them when processes start, die or hang. Pure: no clock, no file.

A seat is a rank of the process group. A process is ``starting`` until it is warm, then ``spare``; in a seat it is
``member``. One that was replaced while it hung is ``stale``: alive, but outside every newer generation until it wakes,
finds itself fenced and is a spare again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from chaos.workload.reference.config import Place
from chaos.workload.reference.messages import Generation, Seat


class State(Enum):
    """Of a process."""

    STARTING = "starting"
    SPARE = "spare"
    MEMBER = "member"
    STALE = "stale"


@dataclass
class _Process:
    place: Place
    state: State = State.STARTING


class Membership:
    """The seats of one job.

    Args:
        world: the place where each seat is filled first.
        spares: further places.
        address: the bind address of a place.

    Attributes:
        generation: number of the newest generation; 0 before the first.
    """

    def __init__(self, world: Sequence[Place], spares: Sequence[Place], address: Callable[[Place], str]) -> None:
        self._world = tuple(world)
        self._places = (*world, *spares)
        self._address = address
        self._seats: list[int | None] = [None] * len(self._world)
        self._processes: dict[int, _Process] = {}
        self.generation = 0

    def state(self, process: int) -> State | None:
        """A process's state; ``None``: it does not live."""
        known = self._processes.get(process)
        return None if known is None else known.state

    def started(self, process: int, place: Place) -> None:
        """A process was started in a place that was vacant."""
        self._processes[process] = _Process(place)

    def ready(self, process: int) -> None:
        """A process is warm and holds nothing: from now on a spare."""
        if self._processes[process].state in (State.STARTING, State.STALE):
            self._processes[process].state = State.SPARE

    def lost(self, process: int) -> bool:
        """A process has died; returns whether it held a seat."""
        self._processes.pop(process, None)
        return self._vacate(process)

    def hung(self, process: int) -> bool:
        """A process is silent: fenced out if it lives on; returns whether it held a seat."""
        self._processes[process].state = State.STALE
        return self._vacate(process)

    def _vacate(self, process: int) -> bool:
        if process not in self._seats:
            return False
        self._seats[self._seats.index(process)] = None
        return True

    @property
    def members(self) -> list[int]:
        """The processes that hold seats."""
        return [process for process in self._seats if process is not None]

    def vacant_places(self) -> list[Place]:
        """Places without a process."""
        taken = {process.place for process in self._processes.values()}
        return [place for place in self._places if place not in taken]

    @property
    def starting(self) -> bool:
        """Whether a process is not warm yet."""
        return any(process.state is State.STARTING for process in self._processes.values())

    @property
    def complete(self) -> bool:
        """Whether all seats are taken."""
        return None not in self._seats

    def fill(self) -> bool:
        """Give empty seats to spares, nearest first, if there are enough; returns whether all seats are taken."""
        empty = [slot for slot, holder in enumerate(self._seats) if holder is None]
        spares = [number for number, process in self._processes.items() if process.state is State.SPARE]
        if len(spares) < len(empty):
            return False  # and nobody sits yet: a member without a generation would be called stuck
        for slot in empty:
            home = self._world[slot]
            nearest = min(spares, key=lambda number: self._distance(self._processes[number].place, home))
            spares.remove(nearest)
            self._processes[nearest].state = State.MEMBER
            self._seats[slot] = nearest
        return True

    def _distance(self, place: Place, home: Place) -> tuple[bool, bool, int]:
        return place != home, place.node != home.node, self._places.index(place)

    def blocked_by(self) -> list[int]:
        """Stale processes that must go: a seat is empty, nobody is about to take it, and they occupy the places."""
        states = {process.state for process in self._processes.values()}
        if self.complete or states & {State.STARTING, State.SPARE}:
            return []
        return [number for number, process in self._processes.items() if process.state is State.STALE]

    def advance(self, why: str, detected_ns: int) -> Generation:
        """The next generation, with all seats taken."""
        self.generation += 1
        seats = []
        for process in self._seats:
            assert process is not None, "a generation needs all its seats"
            place = self._processes[process].place
            seats.append(Seat(process, place, self._address(place)))
        return Generation(self.generation, tuple(seats), why, detected_ns)
