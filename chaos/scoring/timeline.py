"""Step events into the progress of the job as a whole, and of each of its processes.

The job's step is complete at the earliest report of it by a current member: all ranks leave one all-reduce together, so
the earliest report is not later than the work, and a late one cannot move it. A step that is done again after a return
to a checkpoint belongs to a newer generation: it counts as throughput (the job computes), and is counted apart as
replayed (it makes no progress).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from chaos.scoring.fields import Event, integer, text
from chaos.scoring.membership import current_steps
from chaos.scoring.windows import Step


@dataclass(frozen=True)
class Timeline:
    """The job's progress.

    `steps` are the job's steps in order of completion, each weighing its generation's share of the first one's global
    batch; `processes` the same for each process (by incarnation), each step weighing 1: a job that lost a member for
    good is slower as a whole, its survivors are not. `ranks` is the latest rank of a process; `world` the size of the
    first generation.
    """

    steps: list[Step]
    processes: dict[str, list[Step]]
    ranks: dict[str, int]
    world: int
    tokens_per_step: int | None


def build(events: Iterable[Event]) -> Timeline:
    """Read step events, in any order."""
    known = list(events)
    ranks: dict[str, int] = {}
    for event in known:
        if event.get("e") == "member" and integer(event, "t") is not None:
            ranks[text(event, "inc") or ""] = integer(event, "rank") or 0
    earliest: dict[tuple[int, int], tuple[int, int]] = {}
    processes: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    tokens: dict[tuple[int, int], int] = defaultdict(int)
    for event in current_steps(known):
        t, gen, step, size = integer(event, "t"), integer(event, "gen"), integer(event, "step"), integer(event, "world")
        if t is None or gen is None or step is None or size is None or size < 1:
            continue
        inc = text(event, "inc") or ""
        ranks.setdefault(inc, integer(event, "rank") or 0)
        processes[inc].append((t, gen, step, size))
        tokens[gen, step] += integer(event, "tokens") or 0
        earliest.setdefault((gen, step), (t, size))
    ordered = sorted((t, gen, step, size) for (gen, step), (t, size) in earliest.items())
    world = ordered[0][3] if ordered else 0
    first = (ordered[0][1], ordered[0][2]) if ordered else None
    return Timeline(
        steps=[Step(*each, weight=each[3] / world) for each in ordered],
        processes={inc: [Step(*own, weight=1.0) for own in found] for inc, found in processes.items()},
        ranks=ranks,
        world=world,
        tokens_per_step=tokens[first] if first else None,
    )


@dataclass(frozen=True)
class Shrunk:
    """A stretch in which the job had fewer ranks than before.

    `before` ranks until then, `least` at the worst, `last` at its end. It lasted from the first step without all ranks
    (`since`, ns) to the first with all of them again (`until`); None where there was none.
    """

    before: int
    least: int
    last: int
    since: int
    until: int | None = None


def shrunk(steps: Sequence[Step]) -> list[Shrunk]:
    """The stretches in which the job went on with fewer ranks than before, in order."""
    found: list[Shrunk] = []
    now: Shrunk | None = None
    full = 0
    for s in steps:
        if now is None and s.world >= full:
            full = s.world
        elif now is None:
            now = Shrunk(full, s.world, s.world, s.t)
        elif s.world < now.before:
            now = replace(now, least=min(now.least, s.world), last=s.world)
        else:
            found.append(replace(now, until=s.t))
            now, full = None, s.world
    return found if now is None else [*found, now]


def replayed(steps: Sequence[Step], since: int) -> int:
    """How many steps after `since` (ns) had been done before."""
    highest = max((s.step for s in steps if s.t < since), default=0)
    count = 0
    for s in steps:
        if s.t >= since:
            count += s.step <= highest
            highest = max(highest, s.step)
    return count


def survivors(timeline: Timeline, since: int, until: int) -> list[str]:
    """The processes that stepped before `since` and still stepped in the second before `until` (ns)."""
    alive = []
    for inc, steps in timeline.processes.items():
        if steps and steps[0].t < since and steps[-1].t > max(since, until - 1_000_000_000):
            alive.append(inc)
    return sorted(alive, key=lambda inc: (timeline.ranks.get(inc, 0), inc))
