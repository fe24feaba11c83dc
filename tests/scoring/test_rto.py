"""Recovery time against stalls and slow-downs of known length."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.scoring import baseline, rto, timeline
from chaos.scoring.rto import Terms
from chaos.scoring.windows import Step
from tests.scoring.recorded import BASELINE, BEGAN, EFFECT, MS, PACE, STOPPED, S, ends, regrouped, slowed, stalled

TERMS = Terms()


def sequence(at):
    return [Step(t, 1, k, 4, 1.0) for k, t in enumerate(at, start=1)]


def recovery(at, effect=EFFECT, until=STOPPED, terms=TERMS):
    found = sequence(at)
    measured = baseline.measure(found, *BASELINE)
    return rto.find(found, measured, effect, until, terms)


def stalled_after_the_step_in_flight(at, since, length):
    """The step in flight at `since` still ends; the one after it takes `length` longer."""
    in_flight = min(t for t in at if t >= since)
    return stalled(at, in_flight, length)


# -- planted stalls --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(30, 6000),
    phase=st.integers(0, 999),
    pace=st.sampled_from([5, 20, 50]),
    jitter=st.sampled_from([0.0, 0.01, 0.02]),
    in_flight=st.booleans(),
    seed=st.integers(0, 1000),
)
@pytest.mark.control
def test_a_planted_stall_is_measured_to_one_step(length, phase, pace, jitter, in_flight, seed):
    """The instant at which the job went on lies in the interval, whose width is one step.

    Stalls of 1.5 steps to 6 s; the step in flight ends before or after the stall.
    """
    pace_ns, at = pace * MS, ends(pace=pace * MS, jitter=jitter, seed=seed)
    effect = EFFECT + phase * pace_ns // 1000
    length_ns = max(length * MS, pace_ns * 3 // 2)
    planted = (stalled if in_flight else stalled_after_the_step_in_flight)(at, effect, length_ns)
    last_before = max(t for t in planted if t <= effect) if in_flight else min(t for t in planted if t >= effect)
    went_on = (effect if in_flight else last_before) + length_ns - effect
    found = recovery(planted, effect)
    slack = round(3 * jitter * pace_ns) + 1
    assert found.at in planted
    assert found.held
    assert found.ns - pace_ns - slack <= went_on <= found.ns + slack


@pytest.mark.parametrize("length", [100, 127, 550, 728, 3000])
def test_hiccups_before_the_fault_do_not_shift_the_figure(length):
    at = ends(jitter=0.01)
    for hiccup in (BASELINE[0] + S, BASELINE[0] + 3 * S):
        at = stalled(at, hiccup, 60 * MS)
    found = recovery(stalled(at, EFFECT, length * MS))
    assert found.ns == pytest.approx(length * MS, abs=1.03 * PACE)


def test_a_fault_that_the_job_does_not_notice_is_over_with_the_next_step():
    found = recovery(ends())
    assert found.ns == 13 * MS
    assert found.dips == ()
    assert found.strict_at == found.at


# -- what is no recovery ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1 / 0.7, 1 / 0.9, 1 / 0.94])
def test_a_slow_down_that_never_ends_is_no_recovery(factor):
    found = recovery(slowed(ends(jitter=0.005), EFFECT, factor))
    assert found.at is None
    assert found.ns is None
    assert found.strict_at is None


def test_a_job_that_stands_still_for_good_is_no_recovery():
    assert recovery([t for t in ends() if t <= EFFECT]).at is None


@pytest.mark.control
def test_a_job_that_stalls_again_has_recovered_only_after_the_second_stall():
    again = EFFECT + 1200 * MS
    found = recovery(stalled(stalled(ends(), EFFECT, 100 * MS), again, 600 * MS))
    assert found.ns == pytest.approx(1800 * MS, abs=PACE)


@pytest.mark.control
def test_a_second_stall_that_never_ends_is_seen_while_it_lasts():
    at = [t for t in stalled(ends(), EFFECT, 100 * MS) if t <= EFFECT + 1500 * MS]
    assert recovery(at).at is None


def test_a_slow_down_that_begins_late_in_the_hold_period_is_a_relapse():
    found = recovery(slowed(stalled(ends(), EFFECT, 100 * MS), EFFECT + 1500 * MS, 1.25))
    assert found.at is None


@pytest.mark.control
@pytest.mark.parametrize("seed", range(5))
def test_a_lasting_slow_down_is_not_excused_by_hiccups_in_the_baseline(seed):
    """Two hiccups put the baseline's 1st percentile far below 95 %; noise lets single windows meet the mark."""
    at = slowed(ends(jitter=0.1, seed=seed), EFFECT, 1 / 0.92)
    at = stalled(stalled(at, BASELINE[0] + S, 150 * MS), BASELINE[0] + 3 * S, 150 * MS)
    measured = baseline.measure(sequence(at), *BASELINE)
    assert baseline.unusable(measured, 0.95) is None
    assert measured.p1 < 0.8 * measured.median
    assert recovery(at).at is None


# -- isolated dips ---------------------------------------------------------------------------------------------------


def test_one_short_dip_in_the_hold_period_is_told_and_does_not_count():
    dip = EFFECT + 1200 * MS
    found = recovery(stalled(stalled(ends(), EFFECT, 100 * MS), dip, 150 * MS))
    assert found.ns == pytest.approx(100 * MS, abs=PACE)
    assert found.held
    (told,) = found.dips
    assert told.lost_ns == pytest.approx(150 * MS, abs=PACE)
    assert told.start <= dip <= told.end
    assert told.short
    assert told.over
    assert found.strict_at - EFFECT == pytest.approx(1350 * MS, abs=PACE)


@pytest.mark.parametrize(
    "dips",
    [
        [(600, 130), (1400, 150)],  # together more than an eighth of the hold period
        [(500, 40), (1000, 40), (1500, 40)],  # more than two
        [(1200, 300)],  # too long
    ],
)
def test_more_than_a_machines_hiccups_are_a_relapse(dips):
    at = stalled(ends(), EFFECT, 100 * MS)
    for when, length in dips:
        at = stalled(at, EFFECT + when * MS, length * MS)
    last, length = dips[-1]
    assert recovery(at).ns > 400 * MS
    assert recovery(at).ns <= (last + length) * MS + PACE


def test_a_dip_as_deep_as_the_baselines_own_is_none():
    at = stalled(ends(), BASELINE[0] + 2 * S, 150 * MS)
    at = stalled(stalled(at, EFFECT, 500 * MS), EFFECT + 1200 * MS, 140 * MS)
    found = recovery(at)
    assert found.ns == pytest.approx(500 * MS, abs=PACE)
    assert found.dips == ()


# -- the end of observation ------------------------------------------------------------------------------------------


def test_a_hold_period_that_was_not_observed_to_its_end_is_not_held():
    found = recovery(stalled(ends(), EFFECT, 100 * MS), until=EFFECT + 1500 * MS)
    assert found.at is not None
    assert not found.held
    assert found.strict_at is None


def test_a_dip_whose_end_was_not_observed_is_not_held():
    at = [t for t in stalled(ends(), EFFECT, 100 * MS) if t <= EFFECT + 2000 * MS]
    found = recovery(at, until=EFFECT + 2230 * MS)
    assert found.at is not None
    assert not found.held


def test_steps_after_the_end_of_observation_do_not_count():
    found = recovery(stalled(ends(), EFFECT, 3000 * MS), until=EFFECT + 2900 * MS)
    assert found.at is None


# -- several processes -----------------------------------------------------------------------------------------------


def test_a_job_that_shrank_does_not_recover_and_its_survivors_do():
    line = timeline.build(regrouped(stalled(ends(), EFFECT, 200 * MS), lost=3, since=EFFECT, spare=False))
    measured = baseline.measure(line.steps, *BASELINE)
    assert rto.find(line.steps, measured, EFFECT, STOPPED, TERMS).at is None
    for inc in timeline.survivors(line, EFFECT, STOPPED):
        own = rto.find(line.processes[inc], measured, EFFECT, STOPPED, TERMS)
        assert own.ns == pytest.approx(200 * MS, abs=1.1 * PACE)


# -- as dashboards show it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [40, 100, 500, 1500])
@pytest.mark.parametrize("span", [200, 1000])
def test_a_trailing_average_is_back_when_what_it_covers_has_lost_at_most_five_percent(length, span):
    at = stalled(ends(), EFFECT, length * MS)
    found = recovery(at)
    measured = baseline.measure(sequence(at), *BASELINE)
    shown = rto.trailing(sequence(at), measured, found, TERMS, span * MS)
    # A stall slides out of the window until a twentieth of the window is left of it; a shorter one does not matter.
    expected = length + 0.95 * span if length > 0.05 * span else length
    assert found.ns <= shown
    assert shown / MS == pytest.approx(expected, abs=2 * PACE / MS)


def test_there_is_no_trailing_figure_without_a_recovery_or_when_observation_ended_before():
    still = [t for t in ends() if t <= EFFECT]
    measured = baseline.measure(sequence(still), *BASELINE)
    assert rto.trailing(sequence(still), measured, recovery(still), TERMS, S) is None
    at = stalled(ends(), EFFECT, 500 * MS)
    short = recovery(at, until=EFFECT + 900 * MS)
    assert rto.trailing(sequence(at), measured, short, TERMS, S) is None


# -- noise -----------------------------------------------------------------------------------------------------------


def test_undisturbed_jobs_with_a_hiccup_every_twenty_seconds_are_called_recovered():
    """A small version of bench/scorer_noise.py: 150 null faults, none called "not recovered in 800 ms"."""
    chance = random.Random(20)
    late = 0
    for seed in range(150):
        at = ends(jitter=0.02, seed=seed)
        t = BEGAN
        while (t := t + round(chance.expovariate(1 / 20) * S)) < STOPPED:
            at = stalled(at, t, round(chance.uniform(10, 200) * MS))
        found = sequence(at)
        measured = baseline.measure(found, *BASELINE)
        if baseline.unusable(measured, 0.95) is None:
            told = rto.find(found, measured, EFFECT, STOPPED - S, TERMS)
            late += told.ns is None or told.ns > 800 * MS
    assert late <= 1


def test_the_marks_terms_are_the_experiments():
    at = slowed(ends(), EFFECT, 1 / 0.9)
    assert recovery(at, terms=Terms(recovered_at=0.85)).ns == pytest.approx(0, abs=1.2 * PACE)
    again = stalled(stalled(ends(), EFFECT, 100 * MS), EFFECT + 1200 * MS, 600 * MS)
    assert recovery(again, terms=Terms(hold_s=0.5)).ns == pytest.approx(100 * MS, abs=PACE)


@pytest.mark.parametrize("hold_s", [0.0, 0.05])
def test_the_hold_period_may_be_shorter_than_a_window(hold_s):
    found = recovery(ends(), terms=Terms(hold_s=hold_s))
    assert found.held
    assert found.ns == 13 * MS
