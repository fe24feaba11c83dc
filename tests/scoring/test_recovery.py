"""The recovery figure of a run: which faults belong together, and what the verdict on each is."""

import pytest

from chaos.scoring import record as records
from chaos.scoring import recovery, score
from tests.scoring.recorded import (
    BASELINE,
    BEGAN,
    EFFECT,
    MS,
    PACE,
    STOPPED,
    S,
    ends,
    happened,
    incarnation,
    job,
    journal,
    planned,
    regrouped,
    slowed,
    stalled,
)


def scored(at=None, *, told=None, faults=None, events=None, **more):
    """The scorecard of a run with one fault at `EFFECT`."""
    book = journal(faults or [planned()], happened() if told is None else told, **more)
    return score(book, job(at) if events is None else events)


def of(card):
    return {key: card["rto"][key] for key in ("ms", "verdict")}


def test_a_recovery_within_the_mark_passes_with_its_interval():
    rto = scored(stalled(ends(), EFFECT, 120 * MS))["rto"]
    assert rto["verdict"] == "pass"
    assert rto["level"] == "observed"
    assert rto["ms"] == pytest.approx(133)
    assert rto["resolution_ms"] == pytest.approx(20)
    assert rto["low_ms"] == pytest.approx(133 - 20 - 0.02)
    assert rto["high_ms"] == pytest.approx(133 + 0.02)
    assert rto["from_end_ms"] == pytest.approx(133 - 500)
    assert rto["pass_ms"] == 800
    assert rto["fault"] == "blackhole"
    assert rto["held"]


def test_it_is_told_per_survivor_too():
    events = regrouped(stalled(ends(), EFFECT, 300 * MS), lost=1, since=EFFECT)
    survivors = scored(events=events)["rto"]["survivors"]
    assert [(each["rank"], each["inc"]) for each in survivors] == [(r, incarnation(r)) for r in (0, 2, 3)]
    assert all(each["ms"] == pytest.approx(313, abs=0.1) for each in survivors)


def test_a_recovery_beyond_the_mark_fails():
    card = scored(stalled(ends(), EFFECT, 900 * MS))
    assert of(card) == {"ms": pytest.approx(913), "verdict": "fail"}
    assert card["verdict"] == "fail"
    assert card["reason"].startswith("blackhole: throughput was back after 913 ms, the pass mark is 800 ms")


def test_a_recovery_exactly_at_the_mark_does_not_pass():
    assert of(scored(stalled(ends(), EFFECT, 787 * MS))) == {"ms": pytest.approx(800), "verdict": "inconclusive"}
    assert "clocks" in scored(stalled(ends(), EFFECT, 787 * MS))["reason"]


@pytest.mark.control
def test_a_slow_down_of_thirty_percent_that_never_ends_fails_without_a_figure():
    card = scored(slowed(ends(), EFFECT, 1 / 0.7))
    assert of(card) == {"ms": None, "verdict": "fail"}
    assert card["verdict"] == "fail"
    assert card["rto"]["low_ms"] is None
    assert card["rto"]["trailing_1s_ms"] is None


def test_observation_that_ends_before_the_mark_says_nothing():
    card = scored(slowed(ends(), EFFECT, 1 / 0.7), stopped=EFFECT + 700 * MS)
    assert of(card) == {"ms": None, "verdict": "inconclusive"}
    assert "observed for 0.70 s only" in card["rto"]["reason"]


def test_observation_that_ends_within_the_hold_period_is_inconclusive_and_says_so():
    card = scored(stalled(ends(), EFFECT, 120 * MS), stopped=EFFECT + 1200 * MS)
    assert of(card) == {"ms": pytest.approx(133), "verdict": "inconclusive"}
    assert "not observed for 2 s after that" in card["rto"]["reason"]


def test_a_recovery_that_came_too_late_fails_however_short_the_observation():
    card = scored(stalled(ends(), EFFECT, 900 * MS), stopped=EFFECT + 1500 * MS)
    assert of(card)["verdict"] == "fail"


@pytest.mark.control
def test_no_figure_is_judged_against_a_baseline_as_noisy_as_the_mark():
    at = ends()
    for k in range(5):
        at = stalled(at, BASELINE[0] + S // 2 + k * S, 60 * MS)
    card = scored(at)
    assert card["rto"]["verdict"] == "inconclusive"
    assert "too noisy" in card["reason"]
    assert card["verdict"] == "inconclusive"


@pytest.mark.control
def test_a_late_dip_while_the_fault_is_in_effect_is_not_excused():
    """Ten good steps, then the fault's own effect: read kindly this would be a recovery in 13 ms."""
    at = stalled(ends(), EFFECT + 1000 * MS, 220 * MS)
    card = scored(at, told=happened(length=1500 * MS))
    assert card["verdict"] == "inconclusive"
    assert "dipped again" in card["reason"]
    assert "while the fault was in effect" in card["reason"]
    assert scored(at, told=happened(length=500 * MS))["verdict"] == "pass"


def test_a_dip_during_the_fault_that_cannot_decide_is_only_told():
    card = scored(stalled(ends(), EFFECT + 300 * MS, 150 * MS), told=happened(length=1500 * MS))
    assert card["verdict"] == "pass"
    assert card["rto"]["strict_ms"] < 800


def test_one_run_demonstrates_no_recovery_time():
    card = scored(stalled(ends(), EFFECT, 120 * MS), score={"require": "demonstrated"})
    assert card["rto"]["verdict"] == "inconclusive"
    assert card["verdict"] == "inconclusive"


def test_steps_that_were_done_again_are_told():
    at = stalled(ends(), EFFECT, 200 * MS)
    done = sum(t <= EFFECT for t in at)
    rto = scored(events=regrouped(at, lost=1, since=EFFECT, back_to=done - 30))["rto"]
    assert rto["replayed_steps"] == 30
    stages = ["symptom", "detected", "aborted", "group", "first step", "recovered"]
    assert [stage["stage"] for stage in rto["breakdown"]] == stages
    assert rto["breakdown"][-1]["end_ms"] == pytest.approx(rto["ms"])


# -- several faults --------------------------------------------------------------------------------------------------

LATER = EFFECT + 5 * S


def two(second=LATER, length=500 * MS):
    faults = [planned("f1", "first"), planned("f2", "second")]
    return faults, [*happened("f1"), *happened("f2", at=second, length=length)]


def test_each_fault_is_judged_against_its_own_instant_and_the_worst_is_the_runs():
    faults, told = two()
    at = stalled(stalled(ends(), EFFECT, 100 * MS), LATER, 400 * MS)
    rto = scored(at, faults=faults, told=told)["rto"]
    assert [(each["fault"], round(each["ms"], -2)) for each in rto["faults"]] == [("first", 100), ("second", 400)]
    assert rto["fault"] == "second"
    assert rto["ms"] == rto["faults"][1]["ms"]


def test_a_recovery_that_never_came_is_worse_than_a_slow_one():
    faults, told = two()
    at = slowed(stalled(ends(), EFFECT, 900 * MS), LATER, 2)
    rto = scored(at, faults=faults, told=told)["rto"]
    assert rto["fault"] == "second"
    assert rto["ms"] is None


def test_faults_that_overlap_are_judged_as_one():
    faults, told = two(second=EFFECT + 300 * MS)
    at = stalled(ends(), EFFECT, 700 * MS)
    rto = scored(at, faults=faults, told=told)["rto"]
    assert [each["fault"] for each in rto["faults"]] == ["first + second"]
    assert rto["ms"] == pytest.approx(713)
    assert rto["from_end_ms"] == pytest.approx(713 - 800)


def test_the_next_fault_ends_the_observation_of_the_one_before():
    faults, told = two(second=EFFECT + 2600 * MS)
    rto = scored(stalled(ends(), EFFECT, 650 * MS), faults=faults, told=told)["rto"]
    assert rto["faults"][0]["verdict"] == "inconclusive"
    assert rto["faults"][0]["observed_s"] == 2.6
    assert rto["faults"][1]["verdict"] == "pass"


def test_faults_between_which_no_hold_period_has_room_are_judged_as_one():
    """A second rank is killed while the first is being replaced: neither can be seen without the other."""
    faults, told = two(second=EFFECT + 30 * MS, length=0)
    told = [event for event in told if event["what"] != "ended"]
    rto = scored(stalled(ends(), EFFECT, 100 * MS), faults=faults, told=told)["rto"]
    assert [(each["fault"], each["verdict"]) for each in rto["faults"]] == [("first + second", "pass")]
    assert rto["ms"] == pytest.approx(113)
    apart = scored(faults=faults, told=two(second=EFFECT + 2501 * MS)[1])["rto"]["faults"]
    assert [each["fault"] for each in apart] == ["first", "second"]


def flapping(times=4, every=650 * MS, length=300 * MS):
    """A path that goes dark several times in a row: the faults, and what their node said."""
    faults = [planned(f"f{k}", f"dark-{k + 1}") for k in range(times)]
    return faults, [event for k in range(times) for event in happened(f"f{k}", at=EFFECT + k * every, length=length)]


def test_a_job_that_stays_off_a_flapping_path_recovers_once():
    faults, told = flapping()
    rto = scored(stalled(ends(), EFFECT, 120 * MS), faults=faults, told=told)["rto"]
    assert rto["fault"] == "dark-1 + dark-2 + dark-3 + dark-4"
    assert (rto["verdict"], rto["ms"]) == ("pass", pytest.approx(133))


@pytest.mark.control
def test_a_job_that_goes_back_to_a_flapping_path_each_time_fails():
    faults, told = flapping()
    at = ends()
    for k in range(4):
        at = stalled(at, EFFECT + k * 650 * MS, 120 * MS)
    rto = scored(at, faults=faults, told=told)["rto"]
    assert (rto["verdict"], rto["ms"]) == ("fail", pytest.approx(1950 + 120, abs=PACE / MS))


def test_a_fault_without_an_end_is_over_when_it_took_effect():
    events = [event for event in happened("f1") if event["what"] != "ended"]
    (group,) = recovery.groups(records.read(journal([planned()], events)))
    assert (group.since, group.ended, group.until) == (EFFECT, EFFECT, STOPPED)


def test_a_fault_that_took_no_effect_has_no_recovery():
    card = score(journal([planned(drawn=False)], []), job())
    assert card["rto"] is None


def test_the_figure_is_the_same_on_a_fast_and_on_a_slow_job():
    for pace in (PACE // 4, PACE, 4 * PACE):
        at = stalled(ends(pace=pace, until=BEGAN + 40 * S), EFFECT, 400 * MS)
        rto = scored(at)["rto"]
        assert rto["verdict"] == "pass"
        assert rto["low_ms"] <= 400.03
        assert rto["high_ms"] >= 400
        assert rto["resolution_ms"] == pytest.approx(pace / MS)
