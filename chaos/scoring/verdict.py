"""From single verdicts to the run's: what counts before what."""

from collections import Counter
from typing import Literal, NamedTuple

from chaos.scoring.fields import mapping, objects, text, texts
from chaos.scoring.record import FaultRecord, Record, probes_of

JOURNAL = "chaos.journal/1"

Verdict = Literal["pass", "fail", "inconclusive", "aborted", "error"]


class Judged(NamedTuple):
    """A verdict with its reason, one sentence."""

    verdict: Verdict
    reason: str


def overall(record: Record, figures: dict[str, Judged]) -> Judged:
    """The run's verdict: that of its clean-up where something is left, else what it measured."""
    return _left(record) or measured(record, figures)


def measured(record: Record, figures: dict[str, Judged]) -> Judged:
    """The verdict without regard to the clean-up.

    In this order: error, aborted, inconclusive because the journal is another version's or a fault was not witnessed,
    fail, otherwise inconclusive, pass.

    Args:
        record: the journal.
        figures: the verdict of each figure by its name.
    """
    for found in (_error(record), _aborted(record), _foreign(record), unwitnessed(record)):
        if found is not None:
            return found
    steady = steady_state(record)
    failed = [judged.reason for judged in (steady, *figures.values()) if judged.verdict == "fail"]
    if failed:
        return Judged("fail", "; ".join(failed))
    if record.faults and not any(fault.drawn for fault in record.faults):
        return Judged("inconclusive", "no fault drawn: chance let none happen")
    open_ended = [judged.reason for judged in (steady, *figures.values()) if judged.verdict == "inconclusive"]
    if open_ended:
        return Judged("inconclusive", "; ".join(open_ended))
    return Judged("pass", "; ".join([*(judged.reason for judged in figures.values()), steady.reason]))


def _left(record: Record) -> Judged | None:
    left = [f"{fault.name}: {what}" for fault in record.faults for what in fault.residue]
    if left:
        return Judged("error", f"something of a fault is left: {'; '.join(left)}")
    unproven = [fault.name for fault in record.faults if fault.open]
    if unproven:
        why = next((fault.error for fault in record.faults if fault.open and fault.error), None)
        return Judged("error", f"not proven undone: {', '.join(unproven)}{f' ({why})' if why else ''}")
    return None


def _error(record: Record) -> Judged | None:
    if record.errors or record.reason == "error":
        return Judged("error", record.errors[0] if record.errors else "the run ended with an error")
    if not record.plan:
        return Judged("error", "the journal holds no plan: nothing can be said of this run")
    return None


def _aborted(record: Record) -> Judged | None:
    if record.reason in ("signal", "guard", "halted"):
        why = record.halts[0] if record.halts else record.reason
        return Judged("aborted", why if _left(record) else f"{why}; everything is undone")
    if record.reason is None:
        cut = "the journal is cut: the run did not come to its end"
        return Judged("aborted", cut if _left(record) else f"{cut}; no fault is open")
    return None


def _foreign(record: Record) -> Judged | None:
    """A journal that another version wrote is read as far as it goes, and never passes or fails."""
    schema = record.head.get("schema")
    if schema == JOURNAL:
        return None
    return Judged("inconclusive", f"the journal's schema is {schema!r}, this version reads {JOURNAL!r}")


def unwitnessed(record: Record) -> Judged | None:
    """The verdict where a fault that was to happen was not seen in effect, or not seen gone."""
    for fault in record.faults:
        if not fault.drawn or fault.skipped:
            continue
        if fault.error is not None:
            what = "was not made" if fault.effect is None else "was not seen to its end"
            return Judged("inconclusive", f"fault {fault.name} {what}: {fault.error}")
        if record.reason != "gate failed" and fault.effective is not True:
            return Judged("inconclusive", f"fault {fault.name} was not witnessed in effect: {_seen(fault)}")
        if record.reason != "gate failed" and fault.gone is not True:
            return Judged("inconclusive", f"fault {fault.name} was not witnessed gone")
    return None


def _seen(fault: FaultRecord) -> str:
    during = fault.witness.get("during")
    return "nothing was measured" if during is None else text(during, "text") or "the witness says nothing"


def steady_state(record: Record) -> Judged:
    """The verdict of the hypothesis: a failed gate says nothing about recovery."""
    for when in ("before", "during", "after"):
        for probe in probes_of(record, when):
            if probe.get("ok") is not True:
                what = f"{probe.get('probe')} {probe.get('tolerance')} does not hold {when}: {probe.get('text')}"
                if when == "before":
                    return Judged("inconclusive", f"the gate failed, nothing was broken: {what}")
                return Judged("fail", what)
    checked = Counter(str(probe.get("probe")) for probe in probes_of(record, "after"))
    missing = Counter(_held_afterwards(record)) - checked
    if missing:
        return Judged("inconclusive", f"the steady state was not checked after the faults: {', '.join(missing)}")
    return Judged("pass", "the steady state holds")


def _held_afterwards(record: Record) -> list[str]:
    """The probes of what is to hold after the faults."""
    holds = objects(mapping(record.experiment, "steady_state"), "hold")
    return [text(hold, "probe") or "" for hold in holds if "after" in texts(hold, "when")]
