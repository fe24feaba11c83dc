"""The recovery figure of a run: each fault, or group of faults that cannot be told apart, against its own effect."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chaos.scoring import breakdown, rto
from chaos.scoring.baseline import Baseline, unusable
from chaos.scoring.fields import NS, NS_PER_MS, Event
from chaos.scoring.record import FaultRecord, Marks, Record
from chaos.scoring.rto import Dip, Recovery
from chaos.scoring.timeline import Timeline, replayed, shrunk, survivors
from chaos.scoring.verdict import Judged
from chaos.scoring.windows import WINDOW, Step

LEVEL = "observed"  # one run shows what happened once; a series is needed to demonstrate a percentile


@dataclass(frozen=True)
class Group:
    """Faults that are judged as one: `since` the first one's effect, `ended` the last one's end, `until` the next
    group's effect or the end of observation (ns)."""

    faults: tuple[FaultRecord, ...]
    since: int
    ended: int
    until: int

    @property
    def name(self) -> str:
        """Its faults' names."""
        return " + ".join(fault.name for fault in self.faults)


def groups(record: Record) -> list[Group]:
    """The faults that took effect, in order.

    Those that overlap belong together, and so do those between which the hold period of a recovery has no room: what
    the job would have done without the second cannot be seen. They are one disturbance, which ends with the last.
    """
    hold_ns = record.marks.terms.hold_ns
    hit = sorted((fault for fault in record.faults if fault.effect is not None), key=lambda fault: fault.effect or 0)
    gathered: list[list[FaultRecord]] = []
    ended = 0
    for fault in hit:
        assert fault.effect is not None
        if gathered and fault.effect <= ended + hold_ns:
            gathered[-1].append(fault)
        else:
            gathered.append([fault])
        ended = max(ended, fault.last or fault.effect)
    starts = [group[0].effect or 0 for group in gathered]
    return [
        Group(
            faults=tuple(group),
            since=starts[k],
            ended=max(fault.last or 0 for fault in group),
            until=starts[k + 1] if k + 1 < len(starts) else record.until,
        )
        for k, group in enumerate(gathered)
    ]


def judge(group: Group, found: Recovery, baseline: Baseline | None, marks: Marks, uncertainty_ns: int = 0) -> Judged:
    """The verdict of one group's recovery; `uncertainty_ns` is that of the clocks."""
    uncertainty_ms = uncertainty_ns / NS_PER_MS
    problem = unusable(baseline, marks.terms.recovered_at)
    if baseline is None or problem is not None:
        return Judged("inconclusive", f"no recovery time: {problem}")
    mark_ms = marks.rto_s * 1e3
    observed_s = (group.until - group.since) / NS
    if found.ns is None:
        if observed_s < marks.rto_s + WINDOW / baseline.median:
            text = f"{group.name}: observed for {observed_s:.2f} s only, recovery cannot be told"
            return Judged("inconclusive", text)
        return Judged("fail", f"{group.name}: throughput was not back within the {observed_s:.1f} s that were observed")
    ms = found.ns / NS_PER_MS
    if ms - uncertainty_ms >= mark_ms:
        return Judged("fail", f"{group.name}: throughput was back after {ms:.0f} ms, the pass mark is {mark_ms:.0f} ms")
    if ms + uncertainty_ms >= mark_ms:
        text = f"{ms:.3f} ms cannot be told from the pass mark: the clocks are known to {uncertainty_ms:.3f} ms"
        return Judged("inconclusive", f"{group.name}: {text}")
    if not found.held:
        hold = marks.terms.hold_s
        text = f"{group.name}: throughput was back after {ms:.0f} ms, but was not observed for {hold:g} s after that"
        return Judged("inconclusive", text)
    dip = unattributed(group, found, marks)
    if dip is not None:
        text = f"throughput was back after {ms:.0f} ms, but dipped again {(dip.start - group.since) / NS_PER_MS:.0f} ms"
        why = f"while the fault was in effect, and lost {dip.lost_ns / NS_PER_MS:.0f} ms"
        return Judged(
            "inconclusive", f"{group.name}: {text} after it began, {why}: one run cannot tell whose doing it is"
        )
    if marks.required == "demonstrated":
        text = f"{group.name}: back after {ms:.0f} ms, observed once; `require: demonstrated` asks for a series of runs"
        return Judged("inconclusive", text)
    return Judged("pass", f"{group.name}: throughput was back after {ms:.0f} ms")


def unattributed(group: Group, found: Recovery, marks: Marks) -> Dip | None:
    """The isolated dip that decides between pass and fail and began while the fault was in effect.

    A dip after the fault's end is taken for what machines do by themselves. While something is broken that is too kind:
    it may be the fault's own effect, late.
    """
    strict_s = None if found.strict_at is None else (found.strict_at - group.since) / NS
    if strict_s is not None and strict_s < marks.rto_s:
        return None
    return next((dip for dip in found.dips if dip.start < group.ended), None)


def measure(
    record: Record, timeline: Timeline, baseline: Baseline | None, steps: Sequence[Event]
) -> list[tuple[dict[str, Any], Judged]]:
    """The figure of each group, with its verdict."""
    marks = record.marks
    told = []
    for group in groups(record):
        found = Recovery(group.since, group.until, None, False, (), None)
        if baseline is not None:
            found = _find(timeline.steps, group, baseline, marks)
        verdict = judge(group, found, baseline, marks, record.clock_uncertainty)
        figure = _figure(group, found, baseline, record, verdict)
        if baseline is not None:
            figure |= _detail(group, found, baseline, timeline, marks)
        if found.at is not None:
            stages = breakdown.stages(steps, timeline.steps, group.since, found.at)
            figure["breakdown"] = breakdown.as_json(stages, group.since)
        told.append((figure, verdict))
    return told


def _find(steps: Sequence[Step], group: Group, baseline: Baseline, marks: Marks) -> Recovery:
    further = [fault.effect for fault in group.faults[1:] if fault.effect is not None]
    return rto.find(steps, baseline, group.since, group.until, marks.terms, further=further)


def _figure(
    group: Group, found: Recovery, baseline: Baseline | None, record: Record, verdict: Judged
) -> dict[str, Any]:
    marks = record.marks
    resolution = None if baseline is None else baseline.step_ns
    figure: dict[str, Any] = {
        "fault": group.name,
        "ms": None,
        "low_ms": None,
        "high_ms": None,
        "resolution_ms": _ms(resolution),
        "from_end_ms": None,
        "pass_ms": marks.rto_s * 1e3,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "level": LEVEL,
        "observed_s": round((group.until - group.since) / NS, 3),
        "held": found.held,
    }
    if found.at is not None and found.ns is not None and resolution is not None:
        # The throughput came back some time within the step whose end is reported.
        uncertainty = record.clock_uncertainty
        figure["ms"] = _ms(found.ns)
        figure["low_ms"] = _ms(max(0, found.ns - resolution - uncertainty))
        figure["high_ms"] = _ms(found.ns + uncertainty)
        figure["from_end_ms"] = _ms(found.at - group.ended)
    return figure


def _detail(group: Group, found: Recovery, baseline: Baseline, timeline: Timeline, marks: Marks) -> dict[str, Any]:
    strict = None if found.strict_at is None else found.strict_at - group.since
    return {
        "recovered_ns": found.at,
        "strict_ms": _ms(strict),
        "dips": [
            {"at_ms": _ms(dip.start - group.since), "lost_ms": _ms(dip.lost_ns), "isolated": dip.short and dip.over}
            for dip in found.dips
        ],
        "trailing_200ms_ms": _ms(rto.trailing(timeline.steps, baseline, found, marks.terms, NS // 5)),
        "trailing_1s_ms": _ms(rto.trailing(timeline.steps, baseline, found, marks.terms, NS)),
        "survivors": [
            {"rank": timeline.ranks.get(inc), "inc": inc, "ms": _ms(own.ns)}
            for inc in survivors(timeline, group.since, group.until)
            for own in [_find(timeline.processes[inc], group, baseline, marks)]
        ],
        "world": _world(timeline, group.since, group.until),
        "replayed_steps": replayed([s for s in timeline.steps if s.t <= group.until], group.since),
    }


def _world(timeline: Timeline, since: int, until: int) -> dict[str, int | None]:
    """How many ranks the job had before the fault, at the least under observation, and at the end of it."""
    before = next((s.world for s in reversed(timeline.steps) if s.t < since), None)
    seen = [s.world for s in timeline.steps if since <= s.t <= until]
    return {"before": before, "least": min(seen, default=None), "after": seen[-1] if seen else None}


def shrinkages(record: Record, timeline: Timeline) -> list[dict[str, Any]]:
    """The stretches in which the job went on with fewer ranks, each with the fault that it followed.

    `fault` is None where none had taken effect before; `s` lasts to the end of observation where the job never grew
    back (`regrown` false).
    """
    hit = groups(record)
    return [
        {
            "fault": next((group.name for group in reversed(hit) if group.since <= each.since), None),
            "before": each.before,
            "least": each.least,
            "after": each.last if each.until is None else each.before,
            "regrown": each.until is not None,
            "s": round(((record.until if each.until is None else each.until) - each.since) / NS, 3),
        }
        for each in shrunk([s for s in timeline.steps if s.t <= record.until])
    ]


def _ms(ns: int | None) -> float | None:
    return None if ns is None else round(ns / NS_PER_MS, 3)
