"""A scorecard as one HTML file: style and plots inside, no scripts, nothing fetched from anywhere."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from chaos.report import curve, environment, history, plot, reading, replay, stages, words
from chaos.report.explain import advice
from chaos.report.faults import faults
from chaos.report.figures import figures, headline
from chaos.report.steady import PHASES, hypotheses
from chaos.scoring.fields import mapping, objects, text

MANY = 4  # recoveries that are shown in full
_SYMBOLS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "aborted": "■", "error": "!"}


def page(card: Mapping[str, Any], journal: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> str:
    """The whole document."""
    found = curve.build(card, journal, steps)
    rows, left_out = history.rows(journal)
    plan = next((event for event in journal if text(event, "e") == "plan"), {})
    source = text(plan, "source")
    context = {
        "style": _style(),
        "symbols": _SYMBOLS,
        "none": words.NONE,
        "name": reading.name(card),
        "about": text(card, "about"),
        "verdict": reading.verdict(card),
        "reason": reading.reason(card),
        "cleanup": reading.cleanup(card),
        "measured": reading.measured(card),
        "run": text(card, "run"),
        "began": words.wall(card.get("started")),
        "lasted": words.seconds(reading.lasted(card)),
        "headline": headline(card),
        "figures": figures(card),
        "advice": [_code(each) for each in advice(card)],
        "findings": [
            {key: text(each, key) or "" for key in ("priority", "text", "remedy")} for each in objects(card, "findings")
        ],
        "curve": found,
        "overview": None if found is None else plot.overview(found),
        "folded": _folded(card, [] if found is None else [each.name for each in found.episodes]),
        "legend": [] if found is None else _legend(found),
        "close": [] if found is None else [(each, plot.close(found, each)) for each in found.episodes],
        "breakdowns": [
            (text(each, "fault") or "the fault", told, stages.bar(told))
            for each in reading.recoveries(card)
            for told in [stages.stages(each)]
            if told
        ],
        "faults": faults(card),
        "phases": PHASES,
        "hypotheses": hypotheses(card),
        "journal": rows,
        "left_out": left_out,
        "source": source,
        "environment": environment.rows(card, journal),
        "replay": replay.command(card, source),
    }
    return _templates().get_template("scorecard.html.j2").render(context)


def _folded(card: Mapping[str, Any], episodes: list[str]) -> set[str]:
    """The recoveries whose details are folded away: where there are many, all but the worst."""
    return set(episodes) - {text(mapping(card, "rto"), "fault") or ""} if len(episodes) > MANY else set()


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("chaos.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _style() -> Markup:
    return Markup(resources.files("chaos.report").joinpath("templates/scorecard.css").read_text(encoding="utf-8"))


def _legend(found: curve.Curve) -> list[tuple[str, str]]:
    """The plots' marks: (class of the swatch, text)."""
    told = [("line", "average of ten steps"), ("dot", "one step")]
    if found.median is not None and found.mark is not None:
        told += [
            ("median", f"baseline, median {words.rate(found.median)}"),
            ("band", f"± 2 standard deviations (variation {words.spread(found.variation)})"),
            ("mark", f"{words.ratio(found.share)} of it, counts as recovered"),
        ]
    if found.spans:
        told.append(("fault", "fault in effect"))
    if any(each.recovered is not None for each in found.episodes):
        told.append(("recovered", "recovered"))
    return told


def _code(told: str) -> Markup:
    """Text in which `backticks` mark code."""
    parts = told.split("`")
    if len(parts) % 2 == 0:  # one that nothing closes is a character like any other
        return escape(told)
    marked = (Markup("<code>{}</code>").format(part) if k % 2 else escape(part) for k, part in enumerate(parts))
    return Markup().join(marked)
