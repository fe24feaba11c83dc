"""The launcher's side of path monitoring: what missing beacons mean, and what should be done. Pure: no clock, no file.

Every instant is in seconds of CLOCK_MONOTONIC, which all processes of one machine share. A path is blamed for a silence
only if the process that is not heard lived through it: one that is stopped or starved is a hang, judged elsewhere.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from chaos.workload.reference.beacons import BEAT_S, NVLINK, PCIE, SILENT_S, UNHEARD_S, Report, partners
from chaos.workload.reference.config import Place

#: So many heartbeats during a silence prove that the sender's watcher lived.
LIVE_BEATS = 3
#: The newest of its heartbeats may be so old, in seconds: three beats.
FRESH_S = 0.06
#: NVLink must have been clean for so long, in seconds, before a node returns to it.
HOLD_S = 1.0
#: That time is doubled for a node that left NVLink again within so many seconds of its return ...
FLAP_S = 30.0
#: ... up to this, in seconds.
LONGEST_HOLD_S = 30.0

# Heartbeats closer together, in seconds, count once. A process also beats when its status changes, several times within
# a millisecond when it wakes: that proves neither that it has sent beacons since nor that it has read any.
_APART_S = 0.75 * BEAT_S
_KEPT_BEATS = 16  # of each process; more than enough to find LIVE_BEATS before the receiver's newest one


class Link(NamedTuple):
    """A path between two processes, both ways."""

    pair: frozenset[int]
    path: str

    def __str__(self) -> str:
        return f"{self.path} between processes {' and '.join(map(str, sorted(self.pair)))}"


class Choice(NamedTuple):
    """Another medium for a node's ranks.

    Attributes:
        medium: the one to use.
        at_once: regroup now; otherwise there is time for a change without a gap.
        since: seconds; when the first beacon was missed, or, for a return, since when there was nothing to avoid.
        why: for the log.
    """

    medium: str
    at_once: bool
    since: float
    why: str


@dataclass
class _Condition:
    """Of a link; seconds. ``missed``: when its first beacon was missed, while it is sick."""

    clean: float
    missed: float | None = None


@dataclass
class _Damping:
    """Of a node; seconds."""

    hold: float = HOLD_S
    left: float = -math.inf
    returned: float = -math.inf


class Paths:
    """All paths of one job.

    The launcher tells what it reads (``beat``, ``hear``), what changes (``watch``, ``forget``, ``moved``), and calls
    ``look`` at each turn of its loop; the answers are those of the last look.
    """

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}
        self._links: dict[Link, _Condition] = {}
        self._beats: dict[int, deque[float]] = {}
        self._silences: dict[tuple[int, int, str], float] = {}  # by receiver, sender and path; believed or not
        self._damping: dict[int, _Damping] = {}

    # -- what the launcher tells -----------------------------------------------------------------------------------

    def watch(self, processes: Mapping[int, Place], now: float) -> None:
        """Replace the processes that count, members and warm spares; what is known of those that stay is kept."""
        # What was never heard is reported late, so a new link is known to be clean no earlier than that.
        clean = now + UNHEARD_S + SILENT_S
        known, self._links = self._links, {}
        for one, others in partners(processes).items():
            for link in (_link(one, other, path) for other, paths in others.items() for path in paths):
                self._links[link] = known.get(link) or self._links.get(link) or _Condition(clean)
        self._places = dict(processes)

    def forget(self, process: int) -> None:
        """A process has died."""
        self._beats.pop(process, None)
        for key in [key for key in self._silences if process in key[:2]]:
            del self._silences[key]

    def beat(self, process: int, at: float) -> None:
        """A heartbeat has come that the process *sent* at an instant.

        When it was read would not do: a launcher that wakes late reads old heartbeats all at once. A process must send
        them and its reports on one connection, so that none of its reports is overtaken by its next heartbeat.
        """
        beats = self._beats.setdefault(process, deque(maxlen=_KEPT_BEATS))
        if not beats or at - beats[-1] >= _APART_S:
            beats.append(at)

    def hear(self, receiver: int, report: Report, now: float) -> None:
        """A process reports what it no longer hears, or hears again."""
        key = receiver, report.process, report.path
        if report.since is not None:
            self._silences[key] = report.since
            return
        self._silences.pop(key, None)
        link = _link(*key)
        condition = self._links.get(link)
        if condition is not None and not self._complained_of(link):
            condition.clean, condition.missed = now, None

    def moved(self, node: int, medium: str, now: float) -> None:
        """A node's ranks have changed over to another medium: the generation that uses it has been published."""
        damping = self._damping.setdefault(node, _Damping())
        if medium == NVLINK:
            damping.returned = now
            return
        flapped = now - damping.returned < FLAP_S
        damping.hold = min(2 * damping.hold, LONGEST_HOLD_S) if flapped else HOLD_S
        damping.left = now

    def look(self, now: float) -> None:
        """Judge the silences that are not believed yet."""
        for (receiver, sender, path), since in self._silences.items():
            condition = self._links.get(_link(receiver, sender, path))
            if condition is not None and self._lived(sender, receiver, since, now):
                missed = since + BEAT_S
                condition.missed = missed if condition.missed is None else min(condition.missed, missed)

    def _lived(self, sender: int, receiver: int, since: float, now: float) -> bool:
        """Whether the sender's watcher lived while the receiver heard nothing from it.

        Only heartbeats up to the receiver's newest one count: when a stopped sender wakes, its heartbeats are here
        before a receiver that is late, or was stopped along with it, has heard it and said so.
        """
        sent, received = self._beats.get(sender), self._beats.get(receiver)
        if not sent or not received or now - sent[-1] > FRESH_S:
            return False
        return sum(since + BEAT_S < at <= received[-1] for at in sent) >= LIVE_BEATS

    def _complained_of(self, link: Link) -> bool:
        one, other = link.pair
        return any(key in self._silences for key in ((one, other, link.path), (other, one, link.path)))

    # -- what it means ---------------------------------------------------------------------------------------------

    @property
    def sick(self) -> dict[Link, float]:
        """Links that drop everything at least one way; with the instant at which the first beacon was missed."""
        return {link: each.missed for link, each in self._links.items() if each.missed is not None}

    def choose(self, node: int, members: Sequence[int], medium: str, now: float) -> Choice | None:
        """A better medium for the members on one node, which use ``medium`` now; ``None`` if there is none.

        The same choice comes at each call until ``moved`` tells that it was made.
        """
        sick = self.sick
        ill = {path: sick.keys() & set(_links_among(members, path)) for path in (NVLINK, PCIE)}
        other = PCIE if medium == NVLINK else NVLINK
        if ill[medium]:
            if ill[other]:
                return None  # nothing helps
            since, first = min((sick[link], str(link)) for link in ill[medium])
            more = f" and {len(ill[medium]) - 1} more" if len(ill[medium]) > 1 else ""
            return Choice(other, True, since, f"{first}{more}: silent")
        return self._return(node, members, now) if medium == PCIE else None

    def _return(self, node: int, members: Sequence[int], now: float) -> Choice | None:
        damping = self._damping.get(node, _Damping())
        since = max([damping.left, *map(self._clean_since, _links_among(members, NVLINK))])
        if now - since < damping.hold:
            return None
        return Choice(NVLINK, False, since, f"{NVLINK} on node {node}: clean for {damping.hold:g} s")

    def _clean_since(self, link: Link) -> float:
        """Infinity while anybody hears nothing on it, believed or not: a stopped process could not join a return."""
        condition = self._links.get(link)
        return math.inf if condition is None or self._complained_of(link) else condition.clean

    def cut_off(self, members: Sequence[int]) -> dict[int, float]:
        """Processes that the members cannot reach over PCIe and the rail, with the instant of the first missed beacon.

        They may be members themselves, or spares that must not take a seat. Processes are connected where any chain of
        links between them is not sick; members on one node alone do not need that path among themselves. The side with
        the most members, then with the most processes, is the one to stay with; none is cut off where that leaves a
        tie.
        """
        sick = {link: since for link, since in self.sick.items() if link.path == PCIE}
        if not sick:
            return {}  # all are connected; asked at each turn of the launcher's loop
        sides = self._sides(members, (link for link in self._links if link.path == PCIE and link not in sick))
        seated = set(members)
        sizes = [(len(side & seated), len(side)) for side in sides]
        if sizes.count(max(sizes, default=(0, 0))) != 1:
            return {}
        main = sides[sizes.index(max(sizes))]
        lost: dict[int, float] = {}
        for side in (each for each in sides if each is not main):
            # All were connected before links fell sick, so that there are some between any side and the others.
            since = min(missed for link, missed in sick.items() if link.pair & side and link.pair - side)
            lost |= dict.fromkeys(side, since)
        return lost

    def proven(self, members: Sequence[int], now: float) -> set[int]:
        """Processes that the members are known to reach: over links that have been heard, and heard of since."""
        clean = (link for link in self._links if link.path == PCIE and self._clean_since(link) <= now)
        together = [_link(one, other, PCIE) for one, other in combinations(members, 2)]
        sides = self._sides(members, [*clean, *together])
        return set().union(*(side for side in sides if side & set(members)))

    def apart(self, members: Sequence[int]) -> bool:
        """Whether two members on different nodes cannot hear each other: nothing but waiting or a spare helps."""
        return any(link.path == PCIE and link.pair <= set(members) and self._places_of(link) > 1 for link in self.sick)

    def _places_of(self, link: Link) -> int:
        """On how many nodes a link's ends are."""
        return len({self._places[process].node for process in link.pair})

    def _sides(self, members: Sequence[int], links: Iterable[Link]) -> list[set[int]]:
        """The connected components of all processes."""
        edges = list(links)
        seated = self._places.keys() & set(members)
        if len({self._places[member].node for member in seated}) == 1:
            edges += [_link(one, other, PCIE) for one, other in combinations(seated, 2)]
        return _components(self._places, [edge for edge in edges if edge.pair <= self._places.keys()])


def _link(one: int, other: int, path: str) -> Link:
    return Link(frozenset((one, other)), path)


def _links_among(members: Iterable[int], path: str) -> Iterator[Link]:
    return (_link(one, other, path) for one, other in combinations(members, 2))


def _components(processes: Iterable[int], links: Iterable[Link]) -> list[set[int]]:
    """The connected components of a graph."""
    sides = [{process} for process in processes]
    for link in links:
        joined: set[int] = set().union(*(side for side in sides if side & link.pair))
        sides = [*(side for side in sides if not side & link.pair), joined]
    return sides
