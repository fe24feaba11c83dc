"""Text stands out from its ground in both colour schemes, as WCAG 2.1 AA asks (4.5 to 1)."""

from __future__ import annotations

import re
from importlib import resources

import pytest

TEXT = [
    ("ink", "card"),
    ("ink", "paper"),
    ("ink", "code"),
    ("soft", "card"),
    ("soft", "paper"),
    ("fail", "card"),
    ("pass", "card"),
    ("fault-text", "card"),
    ("back", "card"),
    *((verdict, f"{verdict}-bg") for verdict in ("pass", "fail", "inconclusive", "aborted", "error")),
    *(("stage-ink", f"stage-{number}") for number in range(8)),
]


def _schemes() -> dict[str, dict[str, str]]:
    style = resources.files("chaos.report").joinpath("templates/scorecard.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    colours = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", part)) for part in (light, dark)]
    return {"light": colours[0], "dark": colours[1]}


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT)
def test_contrast(scheme, text, ground):
    colours = _schemes()[scheme]
    low, high = sorted((_luminance(colours[text]), _luminance(colours[ground])))
    assert (high + 0.05) / (low + 0.05) >= 4.5
