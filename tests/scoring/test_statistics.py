"""Statistics against values that others computed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.scoring import statistics


@pytest.mark.parametrize(
    ("successes", "trials", "confidence", "bound"),
    [
        (9, 10, 0.95, 0.605836697563),  # R: binom.test(9, 10, alternative = "greater")
        (682, 925, 0.975, 0.707668264079),  # R: binom.test(682, 925), Conover (1971)
        (1, 10, 0.95, 0.00511619689182),
        (99, 100, 0.95, 0.953440188546),
        (29_999, 30_000, 0.95, 0.999841881049),
        (47_437, 47_439, 0.95, 0.999867292553),
        (0, 10, 0.95, 0.0),
        (10, 10, 0.95, 0.05**0.1),
    ],
)
def test_the_lower_bound_of_a_proportion_is_that_of_clopper_and_pearson(successes, trials, confidence, bound):
    assert statistics.proportion_lower_bound(successes, trials, confidence) == pytest.approx(bound, abs=1e-10)


@pytest.mark.parametrize(
    ("a", "b", "x", "value"),
    [
        (2, 3, 0.5, 0.6875),
        (0.5, 0.5, 0.3, 0.36901011956555),
        (50, 60, 0.45, 0.4642352914306),
        (30_000, 2, 0.9999, 0.19911840147941),
        (5, 1, 0.9, 0.59049),
        (3, 4, 0, 0.0),
        (3, 4, 1, 1.0),
    ],
)
def test_the_incomplete_beta_function_has_its_known_values(a, b, x, value):
    assert statistics.incomplete_beta(a, b, x) == pytest.approx(value, abs=1e-11)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.001, 0.999))
def test_the_incomplete_beta_function_sums_the_binomial(k, more, p):
    n = k + more
    tail = math.fsum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
    assert statistics.incomplete_beta(k, n - k + 1, p) == pytest.approx(tail, abs=1e-9)


def test_the_evidence_needed_is_what_the_pass_marks_say():
    assert statistics.zero_failure_trials(0.05) == 59
    assert statistics.zero_failure_trials(0.0001) == 29_956
    assert statistics.zero_failure_trials(0.00001) == 299_572
    assert statistics.zero_failure_bound(59) < 0.05 < statistics.zero_failure_bound(58)


def test_thirty_thousand_agreeing_comparisons_demonstrate_the_mark_and_one_fewer_than_needed_does_not():
    assert statistics.proportion_lower_bound(29_956, 29_956) >= 0.9999
    assert statistics.proportion_lower_bound(29_955, 29_955) < 0.9999


def test_percentiles_interpolate_between_order_statistics():
    assert statistics.median([3, 1, 2]) == 2
    assert statistics.median([4, 1, 2, 3]) == 2.5
    assert statistics.percentile([1, 2, 3, 4, 5], 25) == 2
    assert statistics.percentile([10, 20], 1) == pytest.approx(10.1)


def test_the_coefficient_of_variation_is_that_of_the_sample():
    assert statistics.cv([1, 2, 3]) == pytest.approx(0.5)
    assert statistics.cv([5]) == 0
    assert statistics.cv([-1, 1]) == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda: statistics.median([]),
        lambda: statistics.mean([]),
        lambda: statistics.percentile([1], 101),
        lambda: statistics.proportion_lower_bound(2, 1),
        lambda: statistics.proportion_lower_bound(0, 0),
        lambda: statistics.incomplete_beta(0, 1, 0.5),
        lambda: statistics.zero_failure_bound(0),
        lambda: statistics.zero_failure_trials(1),
    ],
)
def test_a_question_without_an_answer_is_refused(ask):
    with pytest.raises(ValueError, match=r"\w"):
        ask()
