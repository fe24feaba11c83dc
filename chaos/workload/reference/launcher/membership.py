"""Who is a member: seats, spares, and what becomes of them when processes start, die or hang. Pure: no clock, no file.

A seat is a rank of the process group. A process is ``starting`` until it is warm, then ``spare``; in a seat it is
``member``. One that was replaced while it hung or could not be reached is ``stale``: alive, but outside every newer
generation until it finds itself fenced and is a spare again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from chaos.workload.reference.config import Place
from chaos.workload.reference.messages import Seat


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
    """

    def __init__(self, world: Sequence[Place], spares: Sequence[Place]) -> None:
        self._world = tuple(world)
        self._places = (*world, *spares)
        self._seats: list[int | None] = [None] * len(self._world)
        self._processes: dict[int, _Process] = {}

    # -- what is ---------------------------------------------------------------------------------------------------

    def state(self, process: int) -> State | None:
        """A process's state; ``None``: it does not live."""
        known = self._processes.get(process)
        return None if known is None else known.state

    def place(self, process: int) -> Place:
        """Where a process that lives runs."""
        return self._processes[process].place

    @property
    def members(self) -> list[int]:
        """The processes that hold seats, by slot: they are as many ranks."""
        return [process for process in self._seats if process is not None]

    @property
    def spares(self) -> list[int]:
        """The processes that could take a seat."""
        return [number for number, process in self._processes.items() if process.state is State.SPARE]

    @property
    def starting(self) -> bool:
        """Whether a process is not warm yet."""
        return any(process.state is State.STARTING for process in self._processes.values())

    @property
    def complete(self) -> bool:
        """Whether all seats are taken."""
        return None not in self._seats

    @property
    def size(self) -> int:
        """The number of seats."""
        return len(self._seats)

    def vacant_places(self) -> list[Place]:
        """Places without a process."""
        taken = {process.place for process in self._processes.values()}
        return [place for place in self._places if place not in taken]

    def blocked_by(self) -> list[int]:
        """Stale processes that must go: a seat is empty, nobody is about to take it, and they occupy the places."""
        states = {process.state for process in self._processes.values()}
        if self.complete or states & {State.STARTING, State.SPARE}:
            return []
        return [number for number, process in self._processes.items() if process.state is State.STALE]

    def seats(self, bind: Callable[[Place], str]) -> tuple[Seat, ...]:
        """The seats that are taken, as ranks 0, 1, ...; ``bind``: the address for a place."""
        places = [(process, self.place(process)) for process in self.members]
        return tuple(Seat(process, place, bind(place)) for process, place in places)

    # -- what happens ----------------------------------------------------------------------------------------------

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

    def expel(self, process: int) -> bool:
        """A process hangs or cannot be reached: fenced out if it lives on; returns whether it held a seat."""
        self._processes[process].state = State.STALE
        return self._vacate(process)

    def _vacate(self, process: int) -> bool:
        if process not in self._seats:
            return False
        self._seats[self._seats.index(process)] = None
        return True

    def fill(self, unusable: Collection[int] = (), *, partly: bool = False) -> bool:
        """Give empty seats to spares, nearest first; returns whether all seats are taken, or with ``partly`` any.

        Without ``partly`` nobody sits down unless there are enough spares: a member without a generation would be
        called stuck.

        Args:
            unusable: spares that cannot be reached by the others.
        """
        empty = [slot for slot, holder in enumerate(self._seats) if holder is None]
        spares = [number for number in self.spares if number not in unusable]
        if len(spares) < len(empty) and not partly:
            return False
        for slot in empty[: len(spares)]:
            home = self._world[slot]
            nearest = min(spares, key=lambda number: self._distance(self._processes[number].place, home))
            spares.remove(nearest)
            self._processes[nearest].state = State.MEMBER
            self._seats[slot] = nearest
        return bool(self.members)

    def _distance(self, place: Place, home: Place) -> tuple[bool, bool, int]:
        return place != home, place.node != home.node, self._places.index(place)

    def adopt(self, members: Sequence[int], spares: Collection[int], stale: Collection[int]) -> list[int]:
        """Take over what a former launcher has decided; all that live were told by ``started`` before.

        Args:
            members: by slot, in its newest generation.
            spares: those that are warm and hold nothing.
            stale: those that follow a generation without being its members.

        Returns:
            The members that do not live any more.
        """
        for numbers, state in ((spares, State.SPARE), (stale, State.STALE), (members, State.MEMBER)):
            for number in set(numbers) & self._processes.keys():
                self._processes[number].state = state
        for slot, number in enumerate(members):
            self._seats[slot] = number if number in self._processes else None
        return [number for number in members if number not in self._processes]
