"""Puts the scorecard together: journal and step events in, one JSON document out."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chaos.scoring import baseline as baselines
from chaos.scoring import consistency as consistencies
from chaos.scoring import findings, recovery, timeline, verdict
from chaos.scoring import record as records
from chaos.scoring.baseline import Baseline
from chaos.scoring.cleanup import cleanup
from chaos.scoring.consistency import Consistency
from chaos.scoring.fields import NS, NS_PER_MS, Event, mapping, text
from chaos.scoring.record import FaultRecord, Record
from chaos.scoring.statistics import zero_failure_trials
from chaos.scoring.verdict import Judged

SCHEMA = "chaos.scorecard/1"
_BADNESS = {"fail": 2, "inconclusive": 1, "pass": 0}


def score(journal: Sequence[Event], steps: Sequence[Event]) -> dict[str, Any]:
    """Score a run.

    Args:
        journal: its events, in order; torn or older ones do no harm.
        steps: its step events, in any order.

    Returns:
        The scorecard, schema ``chaos.scorecard/1``: plain JSON, durations in ms where the key says so, else seconds.
    """
    journal = [event for event in journal if isinstance(event, Mapping)]
    steps = [event for event in steps if isinstance(event, Mapping)]
    record = records.read(journal)
    line = timeline.build(steps)
    measured = baselines.measure(line.steps, *record.baseline) if record.baseline else None
    recoveries = recovery.measure(record, line, measured, steps)
    back = [figure["recovered_ns"] for figure, _ in recoveries if figure.get("recovered_ns") is not None]
    agreement = consistencies.measure(steps, _window_start(record), record.until, max(back, default=None))
    figures = {"consistency": _judge_consistency(agreement, record)}
    worst = max(recoveries, key=_badness, default=None)
    if worst is not None:
        figures = {"rto": worst[1], **figures}
    judged, measured_alone = verdict.overall(record, figures), verdict.measured(record, figures)
    faults = [_fault(fault, record) for fault in record.faults]
    told = [dict(figure) for figure, _ in recoveries]
    smaller = recovery.shrinkages(record, line)
    experiment, workload = record.experiment, mapping(record.experiment, "workload")
    return {
        "schema": SCHEMA,
        "run": text(record.head, "run"),
        "experiment": text(experiment, "name"),
        "about": text(experiment, "about"),
        "seed": record.plan.get("seed"),
        "version": text(record.head, "version"),
        "verdict": judged.verdict,
        "reason": judged.reason,
        "measured": None if judged == measured_alone else measured_alone._asdict(),
        "cleanup": cleanup(record),
        "started": text(record.head, "wall"),
        "ended": text(record.end, "wall") if record.end else None,
        "lab": experiment.get("lab"),
        "workload": {**workload, "world": line.world, "tokens_per_step": line.tokens_per_step},
        "baseline": _baseline(measured),
        "faults": faults,
        "rto": None if worst is None else {**worst[0], "faults": told},
        "consistency": _consistency(agreement, record, figures["consistency"]),
        "steady_state": {when: _probes(record, when) for when in ("before", "during", "after")},
        "shrunk": smaller,
        "findings": findings.collect(record, faults, told, shrunk=smaller, consistency=agreement, steps=steps),
    }


def _badness(recovery: tuple[dict[str, Any], Judged]) -> tuple[int, float]:
    """Order of recoveries: by verdict, then by length; one that never came is longer than all."""
    figure, judged = recovery
    return _BADNESS[judged.verdict], math.inf if figure["ms"] is None else figure["ms"]


def _window_start(record: Record) -> int:
    """Consistency is judged from the first fault on; in a control from the baseline on."""
    effects = [fault.effect for fault in record.faults if fault.effect is not None]
    if effects:
        return min(effects)
    return record.baseline[0] if record.baseline else 0


def _judge_consistency(found: Consistency, record: Record) -> Judged:
    marks = record.marks
    if found.ratio is None or found.lower_bound is None:
        return Judged("inconclusive", "no replica hashes could be compared")
    text_of = f"{found.compared - found.disagreed} of {found.compared} replica hashes agree"
    if found.replay_disagreed:
        return Judged("fail", f"{found.replay_disagreed} replayed steps gave other parameters than before")
    if found.ratio < marks.consistency:
        return Judged("fail", f"{text_of}, the pass mark is {marks.consistency:.2%}")
    if found.lower_bound < marks.consistency:
        # Below the number of comparisons that demonstrates the mark, one run shows it only if nothing disagreed and
        # every member was compared after the recovery.
        if found.disagreed:
            return Judged("inconclusive", f"{text_of}: too few to demonstrate {marks.consistency:.2%} when some differ")
        if found.unseen:
            ranks = ", ".join(map(str, found.unseen))
            return Judged("inconclusive", f"{text_of}, but none of rank {ranks} could be compared after the recovery")
        if marks.required == "demonstrated":
            needed = zero_failure_trials(1 - marks.consistency) if marks.consistency < 1 else None
            enough = f", {needed} without a difference would be enough" if needed else ""
            return Judged("inconclusive", f"{text_of}: too few to demonstrate {marks.consistency:.2%}{enough}")
    return Judged("pass", text_of)


def _consistency(found: Consistency, record: Record, judged: Judged) -> dict[str, Any]:
    mark = record.marks.consistency
    demonstrated = found.lower_bound is not None and found.lower_bound >= mark
    first = found.first
    return {
        "ratio": found.ratio,
        "compared": found.compared,
        "disagreed": found.disagreed,
        "lower_bound": found.lower_bound,
        "pass": mark,
        "verdict": judged.verdict,
        "reason": judged.reason,
        "level": "demonstrated" if demonstrated else "observed",
        "first_disagreement": None if first is None else {"step": first.step, "gen": first.gen, "ranks": first.ranks},
        "replayed": {"compared": found.replay_compared, "disagreed": found.replay_disagreed},
    }


def _baseline(found: Baseline | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "steps_per_s": {"median": found.median, "cv": found.cv, "n": found.n, "p1": found.p1},
        "from_ns": found.from_ns,
        "to_ns": found.to_ns,
    }


def _fault(fault: FaultRecord, record: Record) -> dict[str, Any]:
    start = record.head.get("t")
    began = start if isinstance(start, int) else 0

    def seconds(ns: int | None) -> float | None:
        return None if ns is None else round((ns - began) / NS, 6)

    def error(planned: int | None, done: int | None) -> float | None:
        return None if planned is None or done is None else round((done - planned) / NS_PER_MS, 3)

    return {
        "id": fault.id,
        "name": fault.name,
        "kind": text(fault.plan, "kind"),
        "reality": fault.reality,
        "target": fault.plan.get("target"),
        "params": fault.plan.get("params"),
        "for_s": fault.plan.get("for_s"),
        "drawn": fault.drawn,
        "skipped": fault.skipped,
        "error": fault.error,
        "scheduled": seconds(fault.scheduled),
        "started": seconds(fault.effect),
        "started_ns": fault.effect,
        "start_error_ms": error(fault.scheduled, fault.effect),
        "ended": seconds(fault.ended),
        "ended_ns": fault.ended,
        "stop_error_ms": error(fault.end_scheduled, fault.ended),
        "witness": {
            "effective": fault.effective,
            "gone": fault.gone,
            "evidence": {phase: event.get("text") for phase, event in fault.witness.items()},
            "numbers": {phase: event.get("numbers") for phase, event in fault.witness.items()},
        },
        "undone": (fault.undone and not fault.residue) or fault.proven is not None,
        "proven": fault.proven,
        "residue": list(fault.residue),
    }


def _probes(record: Record, when: str) -> list[dict[str, Any]]:
    keys = ("probe", "tolerance", "ok", "value", "text", "error", "ms")
    return [{key: probe.get(key) for key in keys} for probe in records.probes_of(record, when)]
