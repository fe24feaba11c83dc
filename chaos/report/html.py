"""A scorecard as one HTML file: style and plots inside, no scripts, nothing fetched from anywhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from chaos.report import curve, history, plot, reading, replay, stages, words
from chaos.report.explain import advice
from chaos.report.faults import faults
from chaos.report.figures import figures, headline
from chaos.report.steady import PHASES, hypotheses
from chaos.scoring.fields import NS_PER_MS, integer, mapping, number, objects, text

_SYMBOLS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "aborted": "■", "error": "!"}


def page(card: Mapping[str, Any], journal: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> str:
    """The whole document."""
    environment = Environment(
        loader=PackageLoader("chaos.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, _, _ = environment.loader.get_source(environment, "scorecard.css")  # type: ignore[union-attr]
    found = curve.build(card, journal, steps)
    rows, left_out = history.rows(journal)
    plan = next((event for event in journal if text(event, "e") == "plan"), {})
    source = text(plan, "source")
    context = {
        "style": Markup(style),
        "symbols": _SYMBOLS,
        "none": words.NONE,
        "name": reading.name(card),
        "about": text(card, "about"),
        "verdict": reading.verdict(card),
        "reason": reading.reason(card),
        "run": text(card, "run"),
        "began": words.wall(card.get("started")),
        "lasted": words.seconds(reading.lasted(card)),
        "headline": headline(card),
        "figures": figures(card),
        "advice": advice(card),
        "findings": [
            {key: text(each, key) or "" for key in ("priority", "text", "remedy")} for each in objects(card, "findings")
        ],
        "curve": found,
        "overview": None if found is None else plot.overview(found),
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
        "environment": _environment(card, journal),
        "replay": replay.command(card, source),
    }
    return environment.get_template("scorecard.html.j2").render(context)


def _legend(found: curve.Curve) -> list[tuple[str, str]]:
    """The plots' marks: (class of the swatch, text)."""
    told = [("line", "average of ten steps"), ("dot", "one step")]
    if found.median is not None and found.mark is not None:
        told += [
            ("median", f"baseline, median {words.rate(found.median)}"),
            ("band", f"± 2 standard deviations (variation {words.ratio(round(found.variation, 4))})"),
            ("mark", f"{words.ratio(found.share)} of it, counts as recovered"),
        ]
    if found.spans:
        told.append(("fault", "fault in effect"))
    if any(each.recovered is not None for each in found.episodes):
        told.append(("recovered", "recovered"))
    return told


def _environment(card: Mapping[str, Any], journal: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the run was made of and with: (name, value)."""
    head = next((event for event in journal if text(event, "e") == "journal"), {})
    clock = next((event for event in journal if text(event, "e") == "clock"), {})
    lab, workload = mapping(card, "lab"), mapping(card, "workload")
    paces = mapping(mapping(card, "baseline"), "steps_per_s")
    told: list[tuple[str, str]] = [
        ("Run", text(card, "run") or ""),
        ("Began", words.wall(card.get("started"))),
        ("Ended", words.wall(card.get("ended"))),
        ("Seed", "" if card.get("seed") is None else str(card.get("seed"))),
        ("Cluster", "emulated, " + ", ".join(f"{_spelt(key)} {value}" for key, value in lab.items()) if lab else ""),
        *((f"Workload, {_spelt(key)}", _setting(key, value)) for key, value in workload.items() if value is not None),
    ]
    if paces:
        windows = words.count(integer(paces, "n"))
        told += [
            ("Baseline, median", words.rate(number(paces, "median"))),
            ("Baseline, variation", f"{words.ratio(round(number(paces, 'cv') or 0, 4))} over {windows} windows"),
            ("Baseline, 1st percentile", words.rate(number(paces, "p1"))),
        ]
    uncertainty = integer(clock, "uncertainty_ns")
    told += [
        ("Clocks", "" if uncertainty is None else f"uncertain by {words.ms(uncertainty / NS_PER_MS)}"),
        ("Version", text(card, "version") or text(head, "version") or ""),
        ("Boot of the controller", text(head, "boot") or ""),
        ("Scorecard", text(card, "schema") or ""),
    ]
    return [(name, value) for name, value in told if value and value != words.NONE]


def _spelt(key: str) -> str:
    return {"gpus": "GPUs a node", "spare_nodes": "spare nodes", "step": "step at least"}.get(
        key, key.replace("_", " ")
    )


def _setting(key: str, value: Any) -> str:
    if key == "step" and isinstance(value, int | float):
        return words.seconds(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return words.plain(value)
