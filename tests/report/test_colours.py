"""Text stands out from its ground in both colour schemes, as WCAG 2.1 AA asks (4.5 to 1); stages from each other."""

from __future__ import annotations

import math
import re
from importlib import resources

import pytest

from chaos.report import stages

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
    *(("stage-ink", f"stage-{number}") for number in range(stages.COLOURS)),
]


def _schemes() -> dict[str, dict[str, str]]:
    style = resources.files("chaos.report").joinpath("templates/scorecard.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    colours = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", part)) for part in (light, dark)]
    return {"light": colours[0], "dark": colours[1]}


def _linear(colour: str) -> list[float]:
    """Red, green and blue as amounts of light."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def _luminance(colour: str) -> float:
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _lab(colour: str) -> tuple[float, float, float]:
    """A colour in CIE L*a*b* (white point D65), in which distances are about as large as they look."""
    red, green, blue = _linear(colour)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.0888
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, _luminance(colour), z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT)
def test_contrast(scheme, text, ground):
    colours = _schemes()[scheme]
    low, high = sorted((_luminance(colours[text]), _luminance(colours[ground])))
    assert (high + 0.05) / (low + 0.05) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_two_stages_look_alike(scheme):
    """A distance of 2 can just be seen side by side; a legend's key must be found again in the drawing."""
    colours = _schemes()[scheme]
    found = [_lab(colours[f"stage-{number}"]) for number in range(stages.COLOURS)]
    assert all(math.dist(one, other) > 20 for k, one in enumerate(found) for other in found[:k])
