"""The journal as rows that people read: when, what, and what was said."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.report import words
from chaos.scoring.fields import NS, NS_PER_MS, flag, integer, mapping, number, objects, text, texts

MOST = 2000  # rows; a soak's journal is read with other tools


@dataclass(frozen=True)
class Row:
    """An event: ``at`` in seconds since the run began, what it is, and its text. ``tone`` is "", "good" or "bad"."""

    at: str
    what: str
    text: str
    tone: str = ""


def rows(journal: Sequence[Mapping[str, Any]]) -> tuple[list[Row], int]:
    """The rows of a journal, and how many events are left out because there are too many."""
    told = list(_rows(journal))
    return told[:MOST], max(0, len(told) - MOST)


def _rows(journal: Sequence[Mapping[str, Any]]) -> Iterable[Row]:
    origin = next((at for event in journal for at in [integer(event, "t")] if at is not None), 0)
    names = {
        text(fault, "id"): text(fault, "name")
        for event in journal
        if text(event, "e") == "plan"
        for fault in objects(event, "faults")
    }
    for event in journal:
        kind, at = text(event, "e") or "event", integer(event, "t")
        when = words.NONE if at is None else f"{(at - origin) / NS:.3f}"
        if kind == "fault":
            name = names.get(text(event, "id")) or text(event, "id") or "fault"
            yield Row(when, f"fault {name}", *_fault(event))
        else:
            yield Row(when, _name(event, kind), *_told(event, kind))


def _name(event: Mapping[str, Any], kind: str) -> str:
    if kind == "probe":
        return f"probe {text(event, 'when') or ''}".strip()
    return {"journal": "run began", "end": "run ended", "halt": "halted"}.get(kind, kind)


def _told(event: Mapping[str, Any], kind: str) -> tuple[str, str]:
    match kind:
        case "journal":
            return f"{words.wall(event.get('wall'))}, version {text(event, 'version') or 'not stated'}", ""
        case "plan":
            planned = ", ".join(text(fault, "name") or "fault" for fault in objects(event, "faults"))
            return f"seed {event.get('seed')}; faults: {planned or 'none'}", ""
        case "phase":
            return text(event, "phase") or "", ""
        case "baseline":
            first, last = integer(event, "from_ns"), integer(event, "to_ns")
            span = None if first is None or last is None else (last - first) / NS_PER_MS
            return f"measured over {words.ms(span)}", ""
        case "clock":
            return f"uncertain by {words.exact_ms((integer(event, 'uncertainty_ns') or 0) / NS_PER_MS)}", ""
        case "probe":
            ok = flag(event, "ok") is True
            said = text(event, "error") or text(event, "text") or ""
            verb = "holds" if ok else "does not hold"
            return f"{text(event, 'probe')} {text(event, 'tolerance') or ''} {verb}: {said}", "" if ok else "bad"
        case "finding":
            return f"{text(event, 'priority') or ''} {text(event, 'text') or ''}", ""
        case "end":
            reason = text(event, "reason") or ""
            return reason, "good" if reason == "completed" else "bad"
        case "error" | "halt" | "guard":
            return text(event, "text") or "", "bad"
    return _rest(event), ""


def _fault(event: Mapping[str, Any]) -> tuple[str, str]:
    what = text(event, "what") or ""
    match what:
        case "possible":
            return f"possible on this node, {text(event, 'reality')}", ""
        case "promised":
            return "promised: the ledger holds it until its node has proven it undone", ""
        case "proven":
            return f"proven undone: {text(event, 'text') or ''}", "good"
        case "unproven":
            return f"not proven undone: {text(event, 'why') or 'no reason was given'}", "bad"
        case "armed":
            owner = text(mapping(event, "record"), "implementation")
            return "armed: its undo record is on stable storage" + (f" ({owner})" if owner else ""), ""
        case "fired":
            return f"took effect, {_off(event, 'effect_ns')}", ""
        case "ended":
            return f"ended{' early' if flag(event, 'early') else ''}, {_off(event, 'ended_ns')}", ""
        case "witness":
            phase, effective = text(event, "phase") or "", flag(event, "effective")
            good = effective is (phase == "during")
            seen = {True: "in effect", False: "not in effect", None: "not measured"}[effective]
            return f"witness {phase}: {seen}; {text(event, 'text') or ''}", "" if good else "bad"
        case "undone":
            left = texts(event, "residue")
            return ("undone, nothing left", "good") if not left else (f"left behind: {'; '.join(left)}", "bad")
        case "failed":
            return f"failed: {text(event, 'error') or 'no reason was given'}", "bad"
        case "skipped":
            return f"skipped: {text(event, 'why') or 'no reason was given'}", ""
    return f"{what} {_rest(event)}".strip(), ""


def _off(event: Mapping[str, Any], key: str) -> str:
    planned, done = number(event, "scheduled_ns"), number(event, key)
    if planned is None or done is None:
        return "at an instant that was not stamped"
    return f"{words.exact_ms((done - planned) / NS_PER_MS)} off its instant"


def _rest(event: Mapping[str, Any]) -> str:
    left = {key: value for key, value in event.items() if key not in ("e", "t", "id", "what")}
    return json.dumps(left, ensure_ascii=False, default=str) if left else ""
