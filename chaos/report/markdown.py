"""A scorecard as Markdown, for merge requests, issues and chat."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chaos.report import environment, reading, replay, words
from chaos.report.explain import advice
from chaos.report.faults import faults
from chaos.report.figures import figures
from chaos.report.stages import stages
from chaos.report.steady import PHASES, hypotheses
from chaos.scoring.fields import objects, text

_MARKS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "aborted": "⏹️", "error": "⛔"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def page(card: Mapping[str, Any]) -> str:
    """The whole document."""
    verdict = reading.verdict(card)
    parts = [
        f"# {_MARKS[verdict]} {_plain(reading.name(card))}: {verdict}",
        f"**{_plain(reading.reason(card))}**",
        _cleanup(card),
        _plain(text(card, "about") or ""),
        _section("What to change", [f"- {_coded(each)}" for each in advice(card)]),
        _section("Figures", _figures(card)),
        _section("Faults", _faults(card)),
        _section("Recovery, stage by stage", _stages(card)),
        _section("Steady state", _steady(card)),
        _section("Findings", _findings(card)),
        _section("Run", _run(card)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cleanup(card: Mapping[str, Any]) -> str:
    state, told = reading.cleanup(card)
    measured = reading.measured(card)
    lines = [f"Clean-up: **{state}**, {_plain(told)}"] if state else []
    return "\n\n".join(lines + ([f"Apart from the clean-up: {_plain(measured)}"] if measured else []))


def _section(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(lines)
    return f"## {title}\n\n{body}" if body else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    told = [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *told] if told else []


def _figures(card: Mapping[str, Any]) -> Iterable[str]:
    found = figures(card)
    head = ("Figure", "Value", "Interval", "Resolution", "Pass mark", "Verdict", "Level", "Evidence")
    yield from _table(
        head,
        (
            (each.name, each.value, each.interval, each.resolution, each.mark, each.verdict, each.level, each.evidence)
            for each in found
        ),
    )
    facts = [f"- {_plain(each.name)}, {_plain(key)}: {_plain(value)}" for each in found for key, value in each.facts]
    if facts:
        yield ""
        yield from facts


def _faults(card: Mapping[str, Any]) -> Iterable[str]:
    found = faults(card)
    head = ("Fault", "Kind", "Reality", "Target", "Start and its error", "End and its error", "Witness", "Undo")
    yield from _table(
        head,
        (
            (
                each.name,
                each.kind,
                each.reality,
                each.target,
                *(_timing(each.timing, what) for what in ("in effect", "ended")),
                each.proof[0] + (f": {each.note}" if each.note else ""),
                "; ".join((each.cleaned[0], *each.residue)),
            )
            for each in found
        ),
    )
    seen = [f"- {_plain(each.name)}, {phase}: {_plain(what)}" for each in found for phase, what in each.witness]
    if seen:
        yield ""
        yield from seen


def _timing(timing: Iterable[tuple[str, str, str, str]], what: str) -> str:
    return next((f"{done} ({error})" for name, _, done, error in timing if name == what), words.NONE)


def _stages(card: Mapping[str, Any]) -> Iterable[str]:
    rows = [
        (text(each, "fault") or "fault", stage.name, stage.meaning or words.NONE, stage.took, stage.ended)
        for each in reading.recoveries(card)
        for stage in stages(each)
    ]
    return _table(("Fault", "Stage", "Complete at its end", "Took", "Complete after"), rows)


def _steady(card: Mapping[str, Any]) -> Iterable[str]:
    rows = []
    for each in hypotheses(card):
        cells = [each.name]
        for phase in PHASES:
            check = each.checks.get(phase)
            held = "" if check is None or check.made == 1 else f" ({check.held} of {check.made})"
            cells.append(
                words.NONE if check is None else f"{'holds' if check.ok else 'DOES NOT HOLD'}{held}: {check.text}"
            )
        rows.append(cells)
    return _table(("Hypothesis", "Before", "During", "After"), rows)


def _findings(card: Mapping[str, Any]) -> Iterable[str]:
    for each in objects(card, "findings"):
        remedy = text(each, "remedy")
        told = f"- **{_plain(text(each, 'priority') or 'P2')}** {_plain(text(each, 'text') or '')}"
        yield told + (f" *Remedy: {_plain(remedy)}*" if remedy else "")


def _run(card: Mapping[str, Any]) -> Iterable[str]:
    for name, value in environment.rows(card):
        yield f"- {name}: {_plain(value)}"
    yield f"- Again: `{replay.command(card)}`"


def _plain(told: str) -> str:
    """Text as text: nothing in it can become a table cell, a link or HTML."""
    return _plain_part(" ".join(told.split()))


def _coded(told: str) -> str:
    """Text in which `backticks` mark code, and stay."""
    parts = " ".join(told.split()).split("`")
    if len(parts) % 2 == 0:  # one that nothing closes is a character like any other
        return _plain(told)
    return "`".join(part if k % 2 else _plain_part(part) for k, part in enumerate(parts))


def _plain_part(part: str) -> str:
    return _SPECIAL.sub(r"\\\1", part)
