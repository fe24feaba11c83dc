"""Which medium each node of a job uses, whom the members cannot reach, and what can be done about it.

What ``paths`` knows, turned into addresses to bind to. Without a second path to go to (on one host), or with a recovery
that does not leave paths, there is one medium, nothing is watched and nothing is ever wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from chaos.workload.reference.beacons import Report
from chaos.workload.reference.config import JobConfig, Place
from chaos.workload.reference.launcher.paths import Choice, Paths
from chaos.workload.reference.messages import Seat
from chaos.workload.reference.placement import ends

Members = Mapping[int, Place]  # places by process
Silences = Mapping[tuple[int, str], float]  # since when (seconds), by process and path


class Routes:
    """The routes of one job's data.

    Args:
        config: the job.
        watched: whether paths are watched and left.
    """

    def __init__(self, config: JobConfig, *, watched: bool) -> None:
        self._config = config
        self._preferred, *others = ends(config, config.world[0])
        self._watched = watched and bool(others)
        self._paths = Paths()
        self._silences: dict[int, Silences] = {}
        self._peers: dict[int, Place] = {}
        self._media: dict[int, str] = {}  # in use, of nodes that do not use the preferred one
        self._planned: dict[int, str] = {}  # for the next generation, where that differs
        self._urgent: set[int] = set()  # nodes of which that was planned because they must leave

    # -- what the launcher hears -----------------------------------------------------------------------------------

    def hear(self, process: int, silences: Silences, *, sent: float, now: float) -> None:
        """A process's heartbeat, sent and heard at these instants, with all that it does not hear."""
        former = self._silences.get(process, {})
        self._silences[process] = silences
        for (other, path), since in silences.items() - former.items():
            self._paths.hear(process, Report(other, path, since), now)
        for other, path in former.keys() - silences.keys():
            self._paths.hear(process, Report(other, path, None), now)
        self._paths.beat(process, sent)

    def forget(self, process: int) -> None:
        """A process has died."""
        self._silences.pop(process, None)
        self._paths.forget(process)

    def watch(self, peers: Members, now: float) -> bool:
        """Look at how things are, among these processes; returns whether they are others than before."""
        if not self._watched:
            return False
        changed = dict(peers) != self._peers
        if changed:
            self._peers = dict(peers)
            self._paths.watch(peers, now)
        self._paths.look(now)
        return changed

    @property
    def peers(self) -> Members:
        """Who watches each other."""
        return self._peers

    # -- the way that is taken -------------------------------------------------------------------------------------

    def bind(self, place: Place) -> str:
        """The address to use in the next generation."""
        medium = self._planned.get(place.node, self._medium(place.node))
        return ends(self._config, place)[medium].address

    def _medium(self, node: int) -> str:
        return self._media.get(node, self._preferred)

    def take(self, seats: Iterable[Seat], now: float) -> None:
        """A generation is in use, with these addresses."""
        for seat in seats:
            own = ends(self._config, seat.place)
            medium = next(path for path, end in own.items() if end.address == seat.bind)
            if medium != self._medium(seat.place.node):
                self._media[seat.place.node] = medium
                self._paths.moved(seat.place.node, medium, now)
        self.stay()

    def stay(self) -> None:
        """Nothing is planned for the next generation any more."""
        self._planned.clear()
        self._urgent.clear()

    # -- what could be better --------------------------------------------------------------------------------------

    def detours(self, members: Members, now: float) -> list[Choice]:
        """Nodes that must take another medium at once, which is planned with this."""
        return self._choose(members, now, at_once=True)

    def returns(self, members: Members, now: float) -> list[Choice]:
        """Nodes that can take a better medium when there is time for it, which is planned with this."""
        return self._choose(members, now, at_once=False)

    def _choose(self, members: Members, now: float, *, at_once: bool) -> list[Choice]:
        found = []
        for node, seated in self._by_node(members):
            choice = self._paths.choose(node, seated, self._medium(node), now)
            known = node in (self._urgent if at_once else self._planned)
            if choice is not None and choice.at_once == at_once and not known:
                self._planned[node] = choice.medium
                self._urgent |= {node} if at_once else set()
                found.append(choice)
        return found

    def _by_node(self, members: Members) -> Iterator[tuple[int, list[int]]]:
        if self._watched:
            placed = sorted(members.items(), key=lambda member: member[1])
            for node, group in groupby(placed, key=lambda member: member[1].node):
                yield node, [process for process, _ in group]

    def relapsed(self, members: Members) -> bool:
        """Whether a medium that is planned has fallen sick."""
        return any(
            link.path == self._planned[node] and link.pair <= set(seated)
            for node, seated in self._by_node(members)
            if node in self._planned
            for link in self._paths.sick
        )

    def cut_off(self, members: Sequence[int]) -> dict[int, float]:
        """Processes that the members cannot reach, and since when (seconds)."""
        return self._paths.cut_off(members)

    def unproven(self, members: Sequence[int], spares: Collection[int], now: float) -> set[int]:
        """Spares that the members may not reach: there is time to wait until that is known."""
        return set(spares) - self._paths.proven(members, now) if self._watched else set()

    def stuck(self, members: Members) -> bool:
        """Whether members cannot hear each other, and there is no way round."""
        if self._paths.apart(list(members)):
            return True
        return any(
            link.path == self._medium(node) and link.pair <= set(seated) and node not in self._planned
            for node, seated in self._by_node(members)
            for link in self._paths.sick
        )
