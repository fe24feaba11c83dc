"""The baseline, and when nothing can be told from it."""

import pytest

from chaos.scoring import baseline, timeline
from tests.scoring.recorded import BASELINE, BEGAN, MS, PACE, S, ends, job, slowed, stalled


def measured(at, span=BASELINE):
    return baseline.measure(timeline.build(job(at)).steps, *span)


def test_a_paced_job_has_the_throughput_of_its_pace():
    found = measured(ends())
    assert found is not None
    assert found.median == pytest.approx(50)
    assert found.p1 == pytest.approx(50)
    assert found.cv == pytest.approx(0, abs=1e-9)
    assert found.n == 5 * 50 + 1 - 10
    assert found.step_ns == PACE
    assert baseline.unusable(found, 0.95) is None


def test_only_the_steps_of_its_span_count():
    after = slowed(ends(), BASELINE[1], 3)
    assert measured(after).median == pytest.approx(50)


def test_one_hiccup_does_not_make_a_baseline_unusable():
    found = measured(stalled(ends(), BASELINE[0] + 2 * S, 150 * MS))
    assert found.median == pytest.approx(50)
    assert found.p1 < 0.95 * 50
    assert baseline.unusable(found, 0.95) is None


@pytest.mark.control
def test_a_baseline_as_noisy_as_the_mark_is_refused_and_says_so():
    at = ends()
    for k in range(5):
        at = stalled(at, BASELINE[0] + S // 2 + k * S, 60 * MS)
    problem = baseline.unusable(measured(at), 0.95)
    assert problem is not None
    assert "too noisy" in problem


def test_a_baseline_of_too_few_windows_is_refused_with_the_length_that_is_enough():
    slow = ends(pace=400 * MS)
    problem = baseline.unusable(measured(slow), 0.95)
    assert (
        problem == "the baseline holds 3 windows of 10 steps, 40 are needed: "
        "lengthen steady_state.baseline to at least 24s"
    )


def test_no_window_at_all_is_no_baseline():
    assert measured([BEGAN + 2 * S]) is None
    assert measured([]) is None
    assert "0 windows" in baseline.unusable(None, 0.95)
