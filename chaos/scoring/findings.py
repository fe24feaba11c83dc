"""What somebody should do something about: P0 before acceptance, P1 tracked, P2 advice."""

from collections.abc import Iterable, Sequence
from typing import Any

from chaos.scoring.consistency import Consistency
from chaos.scoring.fields import Event, text
from chaos.scoring.record import Record, probes_of

LATE_MS = 2.0  # a fault that starts or stops later than this is told

Finding = dict[str, str]


def _finding(priority: str, what: str, remedy: str) -> Finding:
    return {"priority": priority, "text": what, "remedy": remedy}


def collect(
    record: Record,
    faults: Iterable[dict[str, Any]],
    recoveries: Sequence[dict[str, Any]],
    *,
    shrunk: Iterable[dict[str, Any]],
    consistency: Consistency,
    steps: Iterable[Event],
) -> list[Finding]:
    """All findings, the gravest first."""
    found = [
        *_undone(record),
        *_state(consistency),
        *_recovery(recoveries),
        *_shrunk(shrunk, recoveries),
        *_steady(record),
        *_checkpoints(steps),
        *_timing(faults),
        *(
            _finding(text(each, "priority") or "P2", text(each, "text") or "", text(each, "remedy") or "")
            for each in record.findings
        ),
    ]
    return sorted(found, key=lambda each: each["priority"])


def _undone(record: Record) -> Iterable[Finding]:
    for fault in record.faults:
        gone = fault.proven is not None
        for left in fault.residue:
            yield _finding(
                "P1" if gone else "P0",
                f"{fault.name} left something behind: {left}",
                f"it has gone since: {fault.proven}"
                if gone
                else "`chaos sweep --all`, and again until nothing is left",
            )
        if fault.open and not fault.residue:
            yield _finding(
                "P0",
                f"{fault.name} is not proven undone",
                "`chaos sweep --all`: the fault's undo record is in its node's state folder",
            )


def _state(consistency: Consistency) -> Iterable[Finding]:
    if consistency.first is not None:
        first = consistency.first
        sides = "; ".join(f"{digest}: ranks {', '.join(map(str, ranks))}" for digest, ranks in first.ranks.items())
        yield _finding(
            "P0",
            f"replicas differ from step {first.step} on ({sides})",
            "wrong data: suspect the device of the rank that stands alone, and the restored state of the last recovery",
        )
    if consistency.replay_first is not None:
        yield _finding(
            "P0",
            f"step {consistency.replay_first}, done again after the recovery, gave other parameters than before",
            "the state was not restored exactly: look at optimizer state, random state and the order of the data",
        )


def _recovery(recoveries: Iterable[dict[str, Any]]) -> Iterable[Finding]:
    for each in recoveries:
        if each["verdict"] == "fail":
            stages = each.get("breakdown") or []
            slowest = max(stages, key=lambda stage: stage["ms"], default=None)
            where = f"; the longest part was up to {slowest['stage']!r}, {slowest['ms']:.0f} ms" if slowest else ""
            yield _finding(
                "P1",
                f"{each['reason']}{where}",
                "fast recovery needs detection by connection loss, a loaded spare, and state from a live replica"
                if each["ms"] is not None
                else "look at the ranks' logs: the job may wait for a rank that does not come back",
            )
        if each.get("replayed_steps"):
            yield _finding(
                "P2",
                f"{each['fault']}: {each['replayed_steps']} steps were done a second time",
                "take checkpoints more often, or recover from a live replica",
            )
        for dip in each.get("dips") or []:
            decides = each["strict_ms"] is None or each["strict_ms"] >= each["pass_ms"]
            yield _finding(
                "P1" if decides else "P2",
                f"{each['fault']}: throughput dipped once more {dip['at_ms']:.0f} ms after the fault and lost "
                f"{dip['lost_ms']:.0f} ms; read strictly the recovery took "
                + ("longer than was observed" if each["strict_ms"] is None else f"{each['strict_ms']:.0f} ms"),
                "repeat the run: an ordinary hiccup of the machine does not come at the same instant again",
            )


def _shrunk(shrunk: Iterable[dict[str, Any]], recoveries: Sequence[dict[str, Any]]) -> Iterable[Finding]:
    for each in shrunk:
        who = "without a fault" if each["fault"] is None else each["fault"]
        went_on = f"{who}: the job went on with"
        design = "from there on its results differ from those of an undisturbed run, by design"
        if each["regrown"]:
            yield _finding(
                "P2",
                f"{went_on} {each['least']} of {each['before']} ranks for {each['s']:.1f} s, then with all of them "
                f"again; {design}",
                "keep a spare for each rank that may be lost at once, if results must not depend on faults",
            )
            continue
        recovery = next((found for found in recoveries if found["fault"] == each["fault"]), {})
        own = [survivor["ms"] for survivor in recovery.get("survivors") or [] if survivor["ms"] is not None]
        survivors = f"; its survivors were back at their own pace after {max(own):.0f} ms" if own else ""
        yield _finding(
            "P1",
            f"{went_on} {each['after']} of {each['before']} ranks to its end, which can reach at most "
            f"{each['after'] / each['before']:.0%} of the throughput before{survivors}; {design}",
            "keep a spare for each rank that may be lost: without one, 95 % can be reached only from 20 ranks on",
        )


def _steady(record: Record) -> Iterable[Finding]:
    for when, priority in (("before", "P2"), ("during", "P1"), ("after", "P1")):
        for probe in probes_of(record, when):
            if probe.get("ok") is not True:
                what = f"{probe.get('probe')} {probe.get('tolerance')} does not hold {when}: {probe.get('text')}"
                yield _finding(priority, what, "see the steady-state table and the workload's logs")


def _checkpoints(steps: Iterable[Event]) -> Iterable[Finding]:
    for event in steps:
        if text(event, "e") == "mark" and text(event, "what") in ("checkpoint_refused", "checkpoint_failed"):
            yield _finding(
                "P1",
                f"a checkpoint is not usable: {text(event, 'why')}",
                "check the storage; an older valid one was used instead",
            )


def _timing(faults: Iterable[dict[str, Any]]) -> Iterable[Finding]:
    for fault in faults:
        for key, what in (("start_error_ms", "started"), ("stop_error_ms", "ended")):
            error = fault.get(key)
            if error is not None and abs(error) > LATE_MS:
                yield _finding(
                    "P2",
                    f"{fault['name']} {what} {error:.1f} ms off its instant",
                    "the machine was busy, or the fault's mechanism is not exact; the figures use the stamped instants",
                )
