"""Where a recovery's milliseconds went: the marks that the job's processes left on the way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaos.scoring.fields import NS_PER_MS, Event, integer, text
from chaos.scoring.windows import Step

#: In order: the first sign of trouble (known in hindsight), the fault was noticed, the old group was left, a new one
#: stands, its members agree on where to go on, the state is there.
STAGES = ("symptom", "detected", "aborted", "group", "agreed", "restored")
EARLIEST = ("symptom", "detected")  # complete with the first process; every other stage with the last


@dataclass(frozen=True)
class Stage:
    """A stage of the recovery that was complete at `at` (ns)."""

    name: str
    at: int


def stages(events: Iterable[Event], steps: Sequence[Step], since: int, recovered: int) -> list[Stage]:
    """The stages between a fault's effect and the recovery (ns), for the generation in which the job went on."""
    gen = next((s.gen for s in steps if s.t >= recovered), None)
    former = max((s.gen for s in steps if s.t < since), default=None)
    if gen is None or gen == former:
        return []
    reached: dict[str, int] = {}
    for event in events:
        t, what = integer(event, "t"), text(event, "what")
        if text(event, "e") == "mark" and what in STAGES and t is not None and since <= t <= recovered:
            reached[what] = (min if what in EARLIEST else max)(reached.get(what, t), t)
    found = [Stage(name, reached[name]) for name in STAGES if name in reached]
    first = next((s.t for s in steps if s.gen == gen and s.t >= since), None)
    if first is not None and first <= recovered:
        found.append(Stage("first step", first))
    found.append(Stage("recovered", recovered))
    return sorted(found, key=lambda stage: stage.at)


def as_json(found: Sequence[Stage], since: int) -> list[dict[str, object]]:
    """Each stage with its end in milliseconds since the fault, and its own length."""
    told: list[dict[str, object]] = []
    before = since
    for stage in found:
        end = (stage.at - since) / NS_PER_MS
        told.append({"stage": stage.name, "end_ms": round(end, 3), "ms": round((stage.at - before) / NS_PER_MS, 3)})
        before = stage.at
    return told
