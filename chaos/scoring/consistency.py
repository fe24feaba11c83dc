"""State consistency: the share of tensor-replica hashes that agree across ranks."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from chaos.scoring.fields import Event, integer, text
from chaos.scoring.membership import current_steps
from chaos.scoring.statistics import proportion_lower_bound


@dataclass(frozen=True)
class Disagreement:
    """Replicas that should have been equal: the step, its generation, and the ranks with each hash."""

    step: int
    gen: int
    ranks: dict[str, list[int]]


@dataclass(frozen=True)
class Consistency:
    """How many hashes were compared across ranks at one step, and how many agreed with the most frequent one.

    `lower_bound` is the exact one-sided 95 % bound of the ratio. `replay_compared` and `replay_disagreed` count steps
    that were done again in a later generation of the same size, with no generation of another size in between whose
    steps they may follow, and whose hash could be compared with the first one.
    `unseen` are the ranks of the last generation that no comparison after the recovery included.
    """

    compared: int
    disagreed: int
    first: Disagreement | None
    replay_compared: int
    replay_disagreed: int
    replay_first: int | None
    unseen: tuple[int, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Agreeing hashes / compared ones; None where nothing was compared."""
        return None if not self.compared else (self.compared - self.disagreed) / self.compared

    @property
    def lower_bound(self) -> float | None:
        """The ratio is at least this, with 95 % confidence."""
        return None if not self.compared else proportion_lower_bound(self.compared - self.disagreed, self.compared)


def agreeing(hashes: Iterable[str]) -> int:
    """The size of the largest set of equal hashes."""
    counts = Counter(hashes)
    return max(counts.values(), default=0)


def measure(events: Iterable[Event], since: int, until: int, after: int | None = None) -> Consistency:
    """Compare the hashes of all steps that ended in [since, until] (ns).

    Only hashes of one generation and one logical step are compared, two or more of them, of processes that were members
    of the job when they said it. Replays are compared with whatever was hashed first, before `since` too. From `after`
    on (the recovery, `since` if not given) each member is to have been compared at least once.
    """
    groups: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    inside: set[tuple[int, int]] = set()
    worlds: dict[int, int] = {}
    members: dict[int, set[int]] = defaultdict(set)
    late: set[tuple[int, int]] = set()
    recovered = since if after is None else after
    for event in current_steps(events):
        digest, gen, step = text(event, "hash"), integer(event, "gen"), integer(event, "step")
        t, rank = integer(event, "t"), integer(event, "rank")
        if gen is None or step is None or t is None or rank is None or t > until:
            continue
        members[gen].add(rank)
        if digest is None:
            continue
        groups[gen, step][rank] = digest
        if t >= recovered:
            late.add((gen, step))
        worlds[gen] = integer(event, "world") or 0
        if t >= since:
            inside.add((gen, step))
    compared = disagreed = 0
    first: Disagreement | None = None
    for gen, step in sorted(inside):
        found = groups[gen, step]
        if len(found) < 2:
            continue
        compared += len(found)
        differing = len(found) - agreeing(found.values())
        disagreed += differing
        if differing and first is None:
            first = Disagreement(step, gen, _by_hash(found))
    compared_late = {rank for key in late if len(groups[key]) > 1 for rank in groups[key]}
    unseen = members[max(members)] - compared_late if members else set()
    return Consistency(compared, disagreed, first, *_replays(groups, inside, worlds), tuple(sorted(unseen)))


def _by_hash(found: dict[int, str]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, digest in sorted(found.items()):
        ranks[digest].append(rank)
    return dict(ranks)


def _replays(
    groups: dict[tuple[int, int], dict[int, str]], inside: set[tuple[int, int]], worlds: dict[int, int]
) -> tuple[int, int, int | None]:
    generations: dict[int, list[int]] = defaultdict(list)
    begun: dict[int, int] = {}  # the first step of each generation
    for gen, step in groups:
        generations[step].append(gen)
        begun[gen] = min(begun.get(gen, step), step)
    compared = disagreed = 0
    first: int | None = None
    for step, gens in sorted(generations.items()):
        oldest = min(gens)
        for gen in gens:
            if gen == oldest or (gen, step) not in inside or not _comparable(oldest, gen, step, worlds, begun):
                continue
            compared += 1
            if not set(groups[gen, step].values()) & set(groups[oldest, step].values()):
                disagreed += 1
                first = step if first is None else first
    return compared, disagreed, first


def _comparable(oldest: int, gen: int, step: int, worlds: dict[int, int], begun: dict[int, int]) -> bool:
    """Whether a step done again must give the same parameters as the first time.

    A generation of another size sums other batches: neither its own steps nor any that may follow from them are held
    to the result of the first time.
    """
    others = (each for each in begun if oldest < each < gen and worlds[each] != worlds[oldest])
    return worlds[gen] == worlds[oldest] and not any(begun[each] < step for each in others)
