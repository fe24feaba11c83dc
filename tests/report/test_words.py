"""How figures are written."""

from __future__ import annotations

import math

import pytest

from chaos.report import words


def _plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u202f", " ")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (0.0, "0 ms"),
        (0.0476, "0.048 ms"),
        (3.06, "3.06 ms"),
        (20.051, "20.1 ms"),
        (323.259, "323 ms"),
        (-1677.027, "−1.677 s"),
        (-0.0001, "0 ms"),
        (2420.3, "2.420 s"),
        (59_123.0, "59.12 s"),
        (90_500.0, "1 m 30.5 s"),
        (3_600_000.0, "1 h"),
    ],
)
def test_measured_durations(value, told):
    assert _plain(words.ms(value)) == told


@pytest.mark.parametrize(("value", "told"), [(0.8, "800 ms"), (120.0, "2 m"), (0.02, "20 ms"), (-1, "–"), (None, "–")])
def test_chosen_durations_are_told_as_chosen(value, told):
    assert _plain(words.nominal(value)) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1.0, "100%"),
        (0.9999, "99.99%"),
        (0.99994999, "99.99499%"),
        (2559 / 2560, "99.9609%"),
        (1 - 1e-9, "99.9999999%"),
        (0.5, "50%"),
        (0.0, "0%"),
        (1.2, "120%"),
        (None, "–"),
    ],
)
def test_shares(value, told):
    assert words.ratio(value) == told


@pytest.mark.parametrize("compared", [3, 100, 9_999, 10_001, 1_000_003])
def test_one_disagreement_never_looks_like_none(compared):
    assert words.ratio((compared - 1) / compared) != "100%"


def test_a_share_is_not_rounded_up_to_its_pass_mark():
    assert words.ratio(0.99989999) == "99.9899%"


def test_targets():
    assert words.target({"node": 0, "gpu": 1, "rank": None}) == "node 0, GPU 1"
    assert words.target({"process": "launcher"}) == "the launcher"
    assert words.target(None) == "–"
    assert words.target({}) == "–"


def test_wall_clock():
    assert words.wall("2026-11-30T22:40:00.578+00:00") == "2026-11-30 22:40:00 UTC"
    assert words.wall("yesterday") == "yesterday"
    assert words.wall(None) == "–"
