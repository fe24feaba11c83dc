"""What a new launcher learns from the ranks of a former one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.workload.reference.messages import Generation


class Adoption:
    """The ranks that lived when a launcher started, until all have said how things stand.

    A former launcher may have died in the middle of telling: what counts is the newest generation that anybody has
    heard of.

    Args:
        living: processes.
        due: when those that were not heard by then are given up; of the caller's clock.
    """

    def __init__(self, living: Iterable[int], due: float) -> None:
        self.due = due
        self._silent = set(living)
        self._generations: dict[int, Generation | None] = {}
        self._successors: list[Generation] = []

    def met(self, process: int, generation: Generation | None, successor: Generation | None) -> None:
        """A process has introduced itself with what it has heard of last."""
        self._generations[process] = generation
        if successor is not None:
            self._successors.append(successor)

    def told(self, process: int) -> None:
        """A process has told its status."""
        self._silent.discard(process)

    def died(self, process: int) -> None:
        """A process has died meanwhile."""
        self._silent.discard(process)
        self._generations.pop(process, None)

    @property
    def complete(self) -> bool:
        """Whether all are known."""
        return not self._silent

    @property
    def missing(self) -> list[int]:
        """Those that were not heard."""
        return sorted(self._silent)

    @property
    def current(self) -> Generation | None:
        """The newest generation; ``None``: there was none yet."""
        known = [each for each in self._generations.values() if each is not None]
        return max(known, key=lambda each: each.number, default=None)

    @property
    def successor(self) -> Generation | None:
        """What is being formed beside it."""
        newest = max(self._successors, key=lambda each: each.number, default=None)
        return newest if newest is not None and newest.number > self._number(self.current) else None

    @property
    def number(self) -> int:
        """Of the newest generation that was thought of."""
        return max(self._number(self.current), self._number(self.successor))

    @property
    def behind(self) -> list[int]:
        """Members of the newest generation that have not heard of it."""
        current = self.current
        members = [] if current is None else current.members
        heard = {process: self._number(each) for process, each in self._generations.items()}
        return [process for process in members if process in heard and heard[process] < self._number(current)]

    @staticmethod
    def _number(generation: Generation | None) -> int:
        return 0 if generation is None else generation.number
