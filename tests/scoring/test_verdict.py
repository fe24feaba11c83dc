"""The run's verdict: what counts before what."""

import pytest

from chaos.scoring import score
from tests.scoring.recorded import (
    EFFECT,
    MS,
    STOPPED,
    ends,
    happened,
    job,
    journal,
    planned,
    probe,
    slowed,
    stalled,
)
from tests.scoring.test_consistency import AFTER, plant

SLOW = slowed(ends(), EFFECT, 2)  # fails
FAST = stalled(ends(), EFFECT, 100 * MS)  # passes


def judged(told=None, at=None, *, faults=None, events=None, **more):
    book = journal([planned()] if faults is None else faults, happened() if told is None else told, **more)
    card = score(book, job(FAST if at is None else at) if events is None else events)
    return card["verdict"], card["reason"]


def test_a_witnessed_fault_a_fast_recovery_and_a_steady_state_that_holds_pass():
    verdict, reason = judged()
    assert verdict == "pass"
    assert reason.startswith("blackhole: throughput was back after 113 ms; ")
    assert reason.endswith("replica hashes agree; the steady state holds")


def test_a_control_without_faults_passes_on_steady_state_and_agreement():
    card = score(journal(), job())
    assert card["verdict"] == "pass"
    assert card["rto"] is None
    assert card["faults"] == []


# -- witnesses -------------------------------------------------------------------------------------------------------


@pytest.mark.control
@pytest.mark.parametrize("effective", [False, None])
def test_a_fault_that_silently_did_nothing_is_never_a_pass(effective):
    verdict, reason = judged(happened(effective=effective), ends())
    assert verdict == "inconclusive"
    assert "not witnessed in effect" in reason


def test_a_fault_that_nobody_looked_at_is_never_a_pass():
    told = [event for event in happened() if event["what"] != "witness"]
    assert judged(told) == (
        "inconclusive",
        "fault blackhole was not witnessed in effect: nothing was measured",
    )


@pytest.mark.parametrize("gone", [False, None])
def test_a_fault_that_was_not_seen_gone_is_never_a_pass(gone):
    verdict, reason = judged(happened(gone=gone))
    assert verdict == "inconclusive"
    assert "not witnessed gone" in reason


def test_a_fault_that_could_not_be_made_is_inconclusive():
    failed = {"e": "fault", "t": EFFECT, "id": "f1", "what": "failed", "error": "no nftables here"}
    assert judged([failed], ends()) == ("inconclusive", "fault blackhole was not made: no nftables here")


def test_one_unwitnessed_fault_of_several_is_enough():
    later = EFFECT + 5000 * MS
    faults = [planned("f1", "first"), planned("f2", "second")]
    verdict, reason = judged([*happened("f1"), *happened("f2", at=later, effective=False)], faults=faults)
    assert verdict == "inconclusive"
    assert "second" in reason


# -- precedence ------------------------------------------------------------------------------------------------------

UNWITNESSED = happened(effective=False)
LEFT = happened(residue=["rule 12 of table chaos"])
UNPROVEN = happened(undone=False)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        # error before everything
        ({"told": LEFT, "at": SLOW, "reason": "signal"}, "error"),
        ({"told": UNPROVEN}, "error"),
        ({"told": UNPROVEN, "reason": None}, "error"),
        ({"reason": "error"}, "error"),
        ({"extra": [{"e": "error", "t": STOPPED, "text": "broken pipe"}]}, "error"),
        # aborted before what the run shows
        ({"told": UNWITNESSED, "reason": "signal"}, "aborted"),
        ({"at": SLOW, "reason": "guard"}, "aborted"),
        ({"at": SLOW, "reason": "halted"}, "aborted"),
        ({"reason": None}, "aborted"),
        # a fault that was not witnessed before a failure
        ({"told": UNWITNESSED, "at": SLOW}, "inconclusive"),
        ({"told": UNWITNESSED, "after": False}, "inconclusive"),
        # a failure before what is open for other reasons
        ({"at": SLOW, "after": None}, "fail"),
        ({"after": False, "events": job(FAST, hashes=False)}, "fail"),
        # open for other reasons
        ({"events": job(FAST, hashes=False)}, "inconclusive"),
        ({"after": None}, "inconclusive"),
        ({}, "pass"),
    ],
)
@pytest.mark.control
def test_what_counts_before_what(said, verdict):
    assert judged(**said)[0] == verdict


@pytest.mark.control
def test_what_is_left_of_a_fault_is_an_error_and_is_named():
    assert judged(LEFT) == ("error", "something of a fault is left: blackhole: rule 12 of table chaos")


@pytest.mark.control
def test_a_run_that_was_stopped_is_aborted_and_says_by_what():
    halt = {"e": "halt", "t": STOPPED, "text": "SIGTERM"}
    assert judged(reason="signal", extra=[halt]) == ("aborted", "SIGTERM; everything is undone")


def test_a_run_that_was_stopped_before_its_fault_began_is_aborted():
    skipped = {"e": "fault", "t": EFFECT, "id": "f1", "what": "skipped", "why": "the run was stopped before"}
    assert judged([skipped], reason="signal", after=None)[0] == "aborted"


def test_a_journal_that_is_cut_while_a_fault_is_armed_leaves_it_unproven():
    armed = happened()[:1]
    verdict, reason = judged(armed, reason=None, after=None)
    assert verdict == "error"
    assert reason == "not proven undone: blackhole"


# -- the hypothesis --------------------------------------------------------------------------------------------------


def test_a_failed_gate_is_inconclusive_and_nothing_was_broken():
    verdict, reason = judged([], before=False, after=None, reason="gate failed")
    assert verdict == "inconclusive"
    assert reason.startswith("the gate failed, nothing was broken: workload.throughput")


@pytest.mark.control
def test_a_hypothesis_that_does_not_hold_afterwards_fails():
    verdict, reason = judged(after=False)
    assert verdict == "fail"
    assert "does not hold after: 12.0 steps/s" in reason


@pytest.mark.control
def test_a_hypothesis_that_does_not_hold_during_the_fault_fails():
    verdict, reason = judged(extra=[probe("during", EFFECT + 10 * MS, ok=False)])
    assert verdict == "fail"
    assert "does not hold during" in reason


def test_a_probe_that_failed_never_counts_as_held():
    broken = probe("after", STOPPED - MS, ok=None, text="connection refused", error="connection refused")
    assert judged(after=None, extra=[broken])[0] == "fail"


@pytest.mark.control
def test_a_hypothesis_that_was_not_checked_afterwards_is_inconclusive():
    verdict, reason = judged(after=None)
    assert verdict == "inconclusive"
    assert "was not checked after" in reason


@pytest.mark.control
def test_a_hypothesis_of_which_only_a_part_was_checked_afterwards_is_inconclusive():
    hold = [{"probe": "workload.throughput", "when": ["after"]}, {"probe": "workload.loss", "when": ["after"]}]
    verdict, reason = judged(hold=hold)
    assert verdict == "inconclusive"
    assert "workload.loss" in reason


# -- agreement -------------------------------------------------------------------------------------------------------


@pytest.mark.control
def test_a_flipped_bit_in_one_hash_fails_the_run():
    verdict, reason = judged(events=plant(job(FAST), rank=1, step=AFTER + 20))
    assert verdict == "fail"
    assert "the pass mark is 99.99%" in reason


@pytest.mark.control
def test_where_nothing_could_be_compared_nothing_is_passed():
    assert judged(events=job(FAST, hashes=False)) == ("inconclusive", "no replica hashes could be compared")


@pytest.mark.control
def test_a_member_without_a_comparison_after_the_recovery_is_not_passed():
    events = [
        {key: value for key, value in event.items() if key != "hash" or event["rank"] != 2 or event["t"] < EFFECT}
        for event in job(FAST)
    ]
    verdict, reason = judged(events=events)
    assert verdict == "inconclusive"
    assert "rank 2" in reason


def test_a_difference_that_the_mark_allows_needs_enough_comparisons_to_be_passed():
    few = plant(job(FAST), rank=1, step=AFTER + 20)  # one of some 2 400
    many = plant(job(ends(pace=5 * MS)), rank=1, step=4 * AFTER)  # one of some 9 600
    assert judged(events=few, score={"consistency": 0.99})[0] == "pass"
    assert judged(events=few, score={"consistency": 0.999})[0] == "inconclusive"
    assert judged(events=many, score={"consistency": 0.999})[0] == "pass"


def test_what_was_only_observed_does_not_meet_a_demand_to_demonstrate():
    verdict, reason = judged([], faults=[], at=ends(), score={"require": "demonstrated"})
    assert verdict == "inconclusive"
    assert "29956 without a difference" in reason


# -- chance ----------------------------------------------------------------------------------------------------------


@pytest.mark.control
def test_a_run_in_which_chance_drew_no_fault_is_inconclusive():
    skipped = {"e": "fault", "t": EFFECT, "id": "f1", "what": "skipped", "why": "chance drew no fault"}
    verdict, reason = judged([skipped], ends(), faults=[planned(drawn=False)])
    assert verdict == "inconclusive"
    assert reason.startswith("no fault drawn")


def test_one_drawn_fault_of_two_is_a_run():
    skipped = {"e": "fault", "t": EFFECT, "id": "f2", "what": "skipped", "why": "chance drew no fault"}
    faults = [planned("f1"), planned("f2", "other", drawn=False)]
    assert judged([*happened("f1"), skipped], faults=faults)[0] == "pass"
