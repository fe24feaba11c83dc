"""Step events into the progress of the job as a whole, and of each of its processes.

The job's step is complete at the earliest report of it: all ranks leave one all-reduce together, so the earliest report
is not later than the work, and a process that was stopped and reports two seconds late cannot move it. A step that is
done again after a return to a checkpoint belongs to a newer generation: it counts as throughput (the job computes),
and is counted apart as replayed (it makes no progress).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaos.scoring.fields import Event, integer, text
from chaos.scoring.windows import Step


@dataclass(frozen=True)
class Timeline:
    """The job's progress.

    `steps` are the job's steps in order of completion; `processes` the same for each process (by incarnation), with
    `ranks` its latest rank; `last_seen` the last event of each process (ns); `world` the size of the first generation.
    """

    steps: list[Step]
    processes: dict[str, list[Step]]
    ranks: dict[str, int]
    last_seen: dict[str, int]
    world: int
    tokens_per_step: int | None


def build(events: Iterable[Event]) -> Timeline:
    """Read step events, in any order."""
    earliest: dict[tuple[int, int], tuple[int, int]] = {}
    processes: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    ranks: dict[str, int] = {}
    last_seen: dict[str, int] = {}
    tokens: dict[tuple[int, int], int] = defaultdict(int)
    for event in events:
        t, inc = integer(event, "t"), text(event, "inc") or ""
        if t is None:
            continue
        last_seen[inc] = max(last_seen.get(inc, t), t)
        if text(event, "e") == "member":
            ranks[inc] = integer(event, "rank") or 0
        if text(event, "e") != "step":
            continue
        gen, step, world = integer(event, "gen"), integer(event, "step"), integer(event, "world")
        if gen is None or step is None or not world:
            continue
        ranks.setdefault(inc, integer(event, "rank") or 0)
        processes[inc].append((t, gen, step, world))
        tokens[gen, step] += integer(event, "tokens") or 0
        known = earliest.get((gen, step))
        if known is None or t < known[0]:
            earliest[gen, step] = (t, world)
    ordered = sorted((t, gen, step, world) for (gen, step), (t, world) in earliest.items())
    world = ordered[0][3] if ordered else 0
    first = (ordered[0][1], ordered[0][2]) if ordered else None
    return Timeline(
        steps=_steps(ordered, world),
        processes={inc: _steps(sorted(found), world) for inc, found in processes.items()},
        ranks=ranks,
        last_seen=last_seen,
        world=world,
        tokens_per_step=tokens[first] if first else None,
    )


def _steps(found: Sequence[tuple[int, int, int, int]], world: int) -> list[Step]:
    """A generation with fewer members carries a smaller share of the first generation's batch in each step."""
    newest = 0
    steps = []
    for t, gen, step, size in found:
        if gen < newest:  # a former generation's last word, late
            continue
        newest = gen
        steps.append(Step(t, gen, step, size, size / world))
    return steps


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
