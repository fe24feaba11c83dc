"""What a run was made of and with: cluster, workload, seed, baseline, versions."""

from collections.abc import Mapping, Sequence
from typing import Any

from chaos.report import words
from chaos.scoring.fields import NS_PER_MS, integer, mapping, number, text


def rows(card: Mapping[str, Any], journal: Sequence[Mapping[str, Any]] = ()) -> list[tuple[str, str]]:
    """Pairs of a name and a value; what is not known is left out."""
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
            ("Baseline, variation", f"{words.spread(number(paces, 'cv'))} over {windows} windows"),
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
    return {"gpus": "GPUs a node", "spare_nodes": "spare nodes", "step": "step at least", "world": "ranks"}.get(
        key, key.replace("_", " ")
    )


def _setting(key: str, value: Any) -> str:
    if key == "step" and isinstance(value, int | float):
        return words.nominal(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return words.plain(value)
