"""Why a verdict is what it is, and what to change, in a few plain sentences."""

from collections.abc import Iterable, Mapping
from typing import Any

from chaos.report import reading, words
from chaos.report.faults import faults
from chaos.report.figures import figures
from chaos.report.stages import stages
from chaos.report.steady import hypotheses
from chaos.scoring.fields import flag, integer, mapping, number, objects, text

_MEANING = {
    "pass": "every fault was witnessed and undone, and every figure meets its pass mark",
    "fail": "the fault was real and witnessed, and the job did not meet what was asked of it",
    "inconclusive": "the run proves neither that the job recovers well nor that it does not",
    "aborted": "the run was ended before it was over; nothing is judged",
    "error": "the run itself went wrong; something of a fault may be left",
}


def explain(card: Mapping[str, Any]) -> list[str]:
    """The verdict and what it means, the figures behind it, and what to do: a line each.

    Args:
        card: a scorecard; a key that is absent is left out.
    """
    verdict = reading.verdict(card)
    lines = [f"{reading.name(card)}: {verdict}. {_sentence(reading.reason(card))}", f"Meaning: {_MEANING[verdict]}."]
    state, told = reading.cleanup(card)
    if state:
        lines.append(f"Clean-up: {state}. {_sentence(told)}")
    if reading.measured(card):
        lines.append(f"Apart from the clean-up: {_sentence(reading.measured(card))}")
    for figure in figures(card):
        extent = "" if figure.interval == words.NONE else f", {figure.interval}"
        level = "" if figure.level == words.NONE else f", {figure.level}"
        lines.append(f"{figure.name}: {figure.value}{extent}; pass mark {figure.mark}: {figure.verdict}{level}.")
    for each in reading.recoveries(card):
        took = ", ".join(f"{stage.name} {stage.took}" for stage in stages(each))
        if took:
            lines.append(f"Where the recovery of {text(each, 'fault') or 'the fault'} went: {took}.")
    for fault in faults(card):
        lines.append(f"Fault {fault.name} ({fault.kind}, {fault.reality}): {fault.proof[0]}; {fault.cleaned[0]}.")
    lines += [f"To do: {_sentence(each)}" for each in advice(card)]
    lines += [
        f"{text(each, 'priority') or 'P2'}: {_sentence(text(each, 'text') or '')}{_remedy(each)}"
        for each in objects(card, "findings")
    ]
    return lines


def _remedy(finding: Mapping[str, Any]) -> str:
    remedy = text(finding, "remedy")
    return f" Remedy: {_sentence(remedy)}" if remedy else ""


def _sentence(told: str) -> str:
    told = " ".join(told.split())
    return told if not told or told[-1] in ".!?" else told + "."


def advice(card: Mapping[str, Any]) -> list[str]:
    """What to change about the run or its experiment, for each cause of the verdict that can be told."""
    verdict = reading.verdict(card)
    found: list[str] = []
    if verdict == "error":
        found += _clean_up(card)
    elif verdict == "aborted":
        found.append("see in the journal what ended the run, mend it or widen `guards` and `at_most`, and run again")
    elif verdict == "inconclusive":
        found += _inconclusive(card)
    return list(dict.fromkeys(found))


def _clean_up(card: Mapping[str, Any]) -> Iterable[str]:
    for fault in faults(card):
        if fault.cleaned[1] != "pass":
            left = f": {'; '.join(fault.residue)}" if fault.residue else ""
            yield f"go to {fault.target} and remove what {fault.name} may have left{left}; do not use the node before"
    yield "read the error in the journal; the figures of this run are not evidence"


def _inconclusive(card: Mapping[str, Any]) -> Iterable[str]:
    told = objects(card, "faults")
    if told and all(flag(each, "drawn") is False for each in told):
        yield "raise the faults' `probability`, or give another `--seed`"
        return
    if any(not each.checks["before"].ok for each in hypotheses(card) if "before" in each.checks):
        yield "the job was unwell before anything was broken: mend it first, or correct the tolerance of that probe"
        return
    for fault in faults(card):
        if fault.state == "failed":
            yield f"{fault.name} could not be made on {fault.target}: {fault.note}"
        elif fault.proof[1] != "pass" and fault.state != "skipped":
            yield (
                f"{fault.name}: {fault.proof[0]}: see its witness, and check that the target carries the job's traffic "
                "and that `for` is long enough for a measurement"
            )
    yield from _unmeasured(card)


def _unmeasured(card: Mapping[str, Any]) -> Iterable[str]:
    paces = mapping(mapping(card, "baseline"), "steps_per_s")
    for rto in reading.recoveries(card):
        if reading.verdict(rto) != "inconclusive":
            continue
        reason = text(rto, "reason") or ""
        if "demonstrated" in reason:
            yield "repeat the experiment until the evidence suffices, or ask for `require: observed`"
        elif "noisy" in reason:
            spread = words.spread(number(paces, "cv"))
            yield (
                f"the undisturbed job's throughput varies by {spread}: keep other load off the machine, use fewer "
                "ranks, or make steps longer (`workload.step`)"
            )
        elif "baseline" in reason:
            yield "lengthen `steady_state.baseline`"
        elif number(rto, "ms") is None or flag(rto, "held") is False:
            yield "observe for longer: raise `recover_within`, `settle` or `at_most`"
    consistency = mapping(card, "consistency")
    if consistency and not integer(consistency, "compared"):
        yield "no replica hashes were reported: set `workload.hash_every` to 1"
    elif reading.verdict(consistency) == "inconclusive" and consistency:
        yield "too few replica hashes for a bound: run for longer, or ask for `require: observed`"
