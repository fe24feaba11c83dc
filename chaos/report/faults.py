"""The faults as rows: what was to happen, what happened when, what was measured of it, and what is left."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chaos.report import words
from chaos.scoring.fields import flag, mapping, number, objects, text, texts

_REALITY = {
    "real": "the hardware or kernel does it",
    "emulated": "stands in for hardware that is absent",
    "telemetry": "only monitors see it",
}


@dataclass(frozen=True)
class Fault:
    """One fault.

    ``timing`` has rows of (what, scheduled, stamped, deviation), ``witness`` of (when, what was seen). ``state`` is
    one of "made", "skipped", "failed", "not made"; ``proof`` says whether it was witnessed, ``cleaned`` whether it is
    undone, each with a verdict ("pass", "fail" or "inconclusive") for its colour.
    """

    name: str
    kind: str
    reality: str
    meaning: str
    target: str
    params: str
    lasted: str
    state: str
    note: str
    timing: tuple[tuple[str, str, str, str], ...]
    witness: tuple[tuple[str, str], ...]
    proof: tuple[str, str]
    cleaned: tuple[str, str]
    residue: tuple[str, ...]


def faults(card: Mapping[str, Any]) -> list[Fault]:
    """All faults of the scorecard, in its order."""
    return [_fault(each) for each in objects(card, "faults")]


def _fault(each: Mapping[str, Any]) -> Fault:
    reality = text(each, "reality") or "reality not stated"
    state, note = _state(each)
    evidence = mapping(mapping(each, "witness"), "evidence")
    phases = ("before", "during", "after")
    residue = tuple(texts(each, "residue"))
    return Fault(
        name=text(each, "name") or "fault",
        kind=text(each, "kind") or words.NONE,
        reality=reality,
        meaning=_REALITY.get(reality, ""),
        target=words.target(each.get("target")),
        params=words.params(each.get("params")),
        lasted="" if number(each, "for_s") is None else words.nominal(number(each, "for_s")),
        state=state,
        note=note,
        timing=tuple(_timing(each)),
        witness=tuple((phase, str(evidence[phase])) for phase in phases if evidence.get(phase) is not None),
        proof=_proof(each, state),
        cleaned=_cleaned(each, state, residue),
        residue=residue,
    )


def _state(each: Mapping[str, Any]) -> tuple[str, str]:
    if flag(each, "drawn") is False:
        return "skipped", "chance did not draw it"
    if text(each, "skipped") is not None:
        return "skipped", text(each, "skipped") or ""
    if text(each, "error") is not None:
        return "failed", text(each, "error") or ""
    return ("made", "") if number(each, "started") is not None else ("not made", "it never took effect")


def _timing(each: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    rows = []
    began, ended = number(each, "started"), number(each, "ended")
    scheduled, start_error = number(each, "scheduled"), number(each, "start_error_ms")
    if began is not None or scheduled is not None:
        rows.append(("in effect", words.clock(scheduled), words.clock(began), words.exact_ms(start_error)))
    if ended is not None:
        stop_error = number(each, "stop_error_ms")
        planned = None if stop_error is None else ended - stop_error / 1e3
        rows.append(("ended", words.clock(planned), words.clock(ended), words.exact_ms(stop_error)))
    return rows


def _proof(each: Mapping[str, Any], state: str) -> tuple[str, str]:
    if state != "made":
        return state, "inconclusive"
    witness = mapping(each, "witness")
    effective, gone = flag(witness, "effective"), flag(witness, "gone")
    if effective is not True:
        return "not seen in effect" if effective is False else "effect not measured", "inconclusive"
    if gone is not True:
        return "seen in effect, not seen gone", "inconclusive"
    return "witnessed in effect, then gone", "pass"


def _cleaned(each: Mapping[str, Any], state: str, residue: tuple[str, ...]) -> tuple[str, str]:
    if residue:
        return f"{len(residue)} left behind", "fail"
    if flag(each, "undone") is True:
        return "undone, nothing left", "pass"
    return ("nothing to undo", "pass") if state in ("skipped", "not made") else ("not proven undone", "fail")
