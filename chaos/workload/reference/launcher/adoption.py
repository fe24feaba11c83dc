"""What a new launcher learns from the ranks of a former one. Pure: instants are passed in, in seconds."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.workload.reference.messages import Generation, Status

#: Ranks look for a launcher at each beat: those that were in the job have found this one within so many seconds, also
#: on a busy machine. Whoever comes later was not in it yet, or hangs.
PATIENCE_S = 1.0
#: When all members have told, so many seconds are left to the others.
OTHERS_S = 0.1


class Adoption:
    """The ranks that lived when a launcher started, until those that matter have said how things stand.

    A former launcher may have died in the middle of telling: what counts is the newest generation that anybody has
    heard of who holds the job's state. One that only others have heard of was being formed beside it.

    Args:
        living: processes.
        now: when the launcher started.
        begun: the job has a state: then somebody knows a generation, and is waited for.
    """

    def __init__(self, living: Iterable[int], now: float, *, begun: bool) -> None:
        self._due = now + PATIENCE_S
        self._begun = begun
        self._silent = set(living)
        self._told_all: float | None = None
        self._generations: dict[int, Generation] = {}
        self._successors: list[Generation] = []
        self._statuses: dict[int, Status] = {}

    def met(self, process: int, generation: Generation | None, successor: Generation | None) -> None:
        """A process has introduced itself with what it has heard of last."""
        if generation is not None:
            self._generations[process] = generation
        if successor is not None:
            self._successors.append(successor)

    def told(self, process: int, status: Status) -> None:
        """A process has told its status."""
        self._silent.discard(process)
        self._statuses[process] = status

    def died(self, process: int) -> None:
        """A process has died meanwhile."""
        self._silent.discard(process)
        self._generations.pop(process, None)
        self._statuses.pop(process, None)

    def complete(self, now: float) -> bool:
        """Whether all are known that can be waited for."""
        if not self._silent:
            return True
        if now >= self._due:
            return self.current is not None or not self._begun
        members = set() if self.current is None else set(self.current.members)
        if not members or members & self._silent:
            self._told_all = None
            return False
        self._told_all = now if self._told_all is None else self._told_all
        return now - self._told_all >= OTHERS_S

    @property
    def current(self) -> Generation | None:
        """The newest generation; ``None``: there was none yet."""
        holders = [p for p, status in self._statuses.items() if status.completed]
        told = [self._generations[p] for p in holders if p in self._generations] or self._generations.values()
        return max(told, key=lambda each: each.number, default=None)

    @property
    def successor(self) -> Generation | None:
        """What is being formed beside it."""
        known = [*self._successors, *self._generations.values()]
        newer = [each for each in known if each.number > _number(self.current)]
        return max(newer, key=lambda each: each.number, default=None)

    @property
    def number(self) -> int:
        """Of the newest generation that was thought of."""
        return max(_number(self.current), _number(self.successor))

    @property
    def behind(self) -> list[int]:
        """Living members of the newest generation that have not heard of it."""
        current = self.current
        members = [] if current is None else [p for p in current.members if p in self._statuses]
        return [p for p in members if self.heard(p) < _number(current)]

    def heard(self, process: int) -> int:
        """The number of the newest generation that a process has heard of."""
        followed = self._statuses[process].followed if process in self._statuses else 0
        return max(followed, _number(self._generations.get(process)))


def _number(generation: Generation | None) -> int:
    return 0 if generation is None else generation.number
