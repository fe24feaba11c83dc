"""Tolerances: typed comparison, and no value that makes one raise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steady_state import ToleranceError, tolerance
from steady_state.tolerance import of_baseline

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("written", "value", "ok"),
    [
        ({"at_least": 0.95}, 0.95, True),
        ({"at_least": 0.95}, 0.9499, False),
        ({"at_least": 0}, 5, True),
        ({"at_most": 3}, 3.0, True),
        ({"at_most": 3}, 4, False),
        ({"between": [1, 2]}, 1, True),
        ({"between": [1, 2]}, 2, True),
        ({"between": [1, 2]}, 2.0001, False),
        ({"between": [2, 2]}, 2, True),
        ({"is": True}, True, True),
        ({"is": True}, 1, False),
        ({"is": 1}, True, False),
        ({"is": 1}, 1.0, True),
        ({"is": 0}, False, False),
        ({"is": False}, None, False),
        ({"is": None}, None, True),
        ({"is": None}, 0, False),
        ({"is": "5"}, 5, False),
        ({"is": 5}, "5", False),
        ({"is": "ok"}, "ok", True),
        ({"is": "finite"}, 2.5, True),
        ({"is": "finite"}, 10**400, True),
        ({"is": "finite"}, NAN, False),
        ({"is": "finite"}, INF, False),
        ({"is": "finite"}, "finite", True),
        ({"is": "finite"}, True, False),
        ({"is": "finite"}, None, False),
        ({"one_of": [200, 204]}, 204, True),
        ({"one_of": [200, 204]}, 500, False),
        ({"one_of": [1, "a", None]}, True, False),
        ({"one_of": [1, "a", None]}, None, True),
        ({"matches": "^ok"}, "ok then", True),
        ({"matches": "then$"}, "ok then", True),
        ({"matches": "^then"}, "ok then", False),
        ({"matches": "5"}, 5, False),
        ({"matches": ""}, None, False),
    ],
)
def test_like_is_compared_with_like(written: dict[str, Any], value: object, ok: bool) -> None:
    """Case 40: 1 equalled true, a range was lexical, a regular expression crashed on a number."""
    assert tolerance(written).check(value).ok is ok


@pytest.mark.parametrize("written", [{"at_least": 1}, {"at_most": 1}, {"between": [0, 1]}])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing is no number"),
        (NAN, "nan is not finite"),
        (INF, "inf is not finite"),
        (-INF, "-inf is not finite"),
        (True, "true is no number"),
        ("1", "'1' is no number"),
        ([1], "a list is no number"),
        ({}, "a mapping is no number"),
    ],
)
def test_what_is_no_finite_number_fails_a_comparison_and_says_so(
    written: dict[str, Any], value: object, words: str
) -> None:
    """Cases 22 (nothing against a range raised), 35 (a range checked something else) and 40 (NaN crashed)."""
    outcome = tolerance(written).check(value)
    assert (outcome.ok, outcome.why.startswith(words)) == (False, True), outcome


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({}, "found nothing; give one tolerance"),
        ({"at_least": 1, "at_most": 2}, "found at_least and at_most; give one tolerance"),
        ({"at_lest": 1}, "found at_lest with 1, which is no tolerance"),
        ({"at_least": "95%"}, "found '95%'; give a finite number"),
        ({"at_least": True}, "found true; give a finite number"),
        ({"at_least": None}, "found nothing; give a finite number"),
        ({"at_least": NAN}, "found nan; give a finite number"),
        ({"between": [3, 1]}, r"found a range from 3 down to 1; give \[1, 3\]"),
        ({"between": ["a", "z"]}, "found 'a'; give a finite number"),
        ({"between": [1]}, r"found a list; give two numbers, \[low, high\]"),
        ({"is": [1]}, "found a list; give a finite number, a text, true, false or null"),
        ({"is": NAN}, "found nan; give a finite number"),
        ({"one_of": []}, "found one_of with a list, which is no tolerance"),
        ({"matches": "("}, r"found '\(', which is no regular expression"),
        ({"matches": 5}, "found matches with 5, which is no tolerance"),
    ],
)
def test_what_could_never_be_judged_is_refused_beforehand(written: dict[str, Any], words: str) -> None:
    """Cases 36 and 40: a reversed range silently never held, a tolerance was ignored where it stood."""
    with pytest.raises(ToleranceError, match=f"^{words}"):
        tolerance(written)


@pytest.mark.parametrize(
    ("written", "value", "baseline", "ok", "why"),
    [
        ({"at_least": 0.95}, 47.5, 50.0, True, "95% is at least 95% of the baseline's 50"),
        ({"at_least": 0.95}, 47.4, 50.0, False, "94.8% is not at least 95% of the baseline's 50"),
        ({"at_most": 1.2}, 61, 50.0, False, "122% is not at most 120% of the baseline's 50"),
        ({"between": [0.9, 1.1]}, 50, 50.0, True, "100% is between 90% and 110% of the baseline's 50"),
        ({"at_least": 0.95}, 50, None, False, "nothing was measured during the baseline to compare with"),
        ({"at_least": 0.95}, 50, 0.0, False, "the baseline is 0, of which nothing is a share"),
        ({"at_least": 0.95}, 50, NAN, False, "the baseline is nan, of which nothing is a share"),
        ({"at_least": 0.95}, NAN, 50.0, False, "nan is not finite, which at least 95% needs of the baseline's 50"),
        ({"at_least": 0.95}, None, 50.0, False, "nothing is no number, which at least 95% needs of the baseline's 50"),
        ({"at_least": 0.95}, 10**400, 0.5, False, "a number of 1329 bits is too large to compare with"),
    ],
)
def test_a_share_of_the_baseline_is_compared(
    written: dict[str, Any], value: object, baseline: float | None, ok: bool, why: str
) -> None:
    outcome = of_baseline(written, baseline).check(value)
    assert (outcome.ok, outcome.why) == (ok, why)


@pytest.mark.parametrize("written", [{"is": True}, {"is": "finite"}, {"matches": "a"}, {"one_of": [1]}])
def test_only_a_comparison_can_be_a_share_of_the_baseline(written: dict[str, Any]) -> None:
    with pytest.raises(ToleranceError, match="of the baseline; give at_least, at_most or between"):
        of_baseline(written, 1.0)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"at_least": 0.9999}, "at least 99.99%"),
        ({"between": [0.5, 1]}, "between 50% and 100%"),
        ({"is": "finite"}, "is finite"),
        ({"is": None}, "is nothing"),
        ({"one_of": [1, "a"]}, "one of 1, 'a'"),
        ({"matches": "a+"}, "matches 'a+'"),
    ],
)
def test_a_tolerance_reads_as_in_the_experiment(written: dict[str, Any], text: str) -> None:
    assert str(tolerance(written, per_cent=True)) == text


TOLERANCES = st.sampled_from(
    [
        {"at_least": 0.95},
        {"at_most": -3},
        {"between": [-1, 1e300]},
        {"is": True},
        {"is": None},
        {"is": "finite"},
        {"is": 10**30},
        {"one_of": [1, "a", False, None]},
        {"matches": ".*x"},
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**4200) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(written=TOLERANCES, value=ANYTHING, per_cent=st.booleans())
def test_no_value_makes_a_tolerance_raise(written: dict[str, Any], value: object, per_cent: bool) -> None:
    outcome = tolerance(written, per_cent=per_cent).check(value)
    assert isinstance(outcome.ok, bool) and outcome.why and "\n" not in outcome.why and len(outcome.why) < 400


@given(value=ANYTHING, baseline=st.none() | st.floats())
def test_no_value_and_no_baseline_makes_a_share_raise(value: object, baseline: float | None) -> None:
    outcome = of_baseline({"at_least": 0.5}, baseline).check(value)
    assert isinstance(outcome.ok, bool) and outcome.why
