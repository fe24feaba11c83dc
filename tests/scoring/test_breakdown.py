"""Where a recovery's milliseconds went."""

import pytest

from chaos.scoring import breakdown, timeline
from tests.scoring.recorded import EFFECT, MS, PACE, ends, incarnation, regrouped, stalled

AT = stalled(ends(), EFFECT, 200 * MS)
EVENTS = regrouped(AT, lost=1, since=EFFECT)
STEPS = timeline.build(EVENTS).steps
RECOVERED = min(t for t in AT if t > EFFECT)


def mark(what, after_ms, *, rank=0, gen=2):
    return {"e": "mark", "t": EFFECT + after_ms * MS, "inc": incarnation(rank), "what": what, "gen": gen}


def told(marks, recovered=RECOVERED):
    found = breakdown.as_json(breakdown.stages(marks, STEPS, EFFECT, recovered), EFFECT)
    return [(stage["stage"], stage["end_ms"], stage["ms"]) for stage in found]


def test_symptom_and_detection_are_the_first_ones_and_every_other_stage_the_last_to_complete_it():
    marks = [
        mark("symptom", 15, rank=2),
        mark("symptom", 12),
        mark("detected", 30),
        mark("detected", 20, rank=2),
        mark("aborted", 31),
        mark("aborted", 35, rank=2),
        mark("group", 50),
        mark("group", 60, rank=2),
    ]
    assert told(marks) == [
        ("symptom", 12, 12),
        ("detected", 20, 8),
        ("aborted", 35, 15),
        ("group", 60, 25),
        ("first step", 213, 153),
        ("recovered", 213, 0),
    ]


def test_the_stages_add_up_to_the_recovery():
    later = RECOVERED + 3 * PACE
    stages = told([mark("symptom", 10), mark("detected", 20), mark("restored", 100)], later)
    assert [name for name, _, _ in stages] == ["symptom", "detected", "restored", "first step", "recovered"]
    assert stages[-1][2] == 60
    assert sum(ms for _, _, ms in stages) == pytest.approx((later - EFFECT) / MS)


def test_marks_of_other_times_and_other_kinds_are_left_out():
    marks = [
        *(mark(what, after_ms) for what in ("symptom", "detected") for after_ms in (-50, 400)),
        *(mark("checkpoint", 50), {"e": "mark"}, {}),
    ]
    assert told(marks) == [("first step", 213, 213), ("recovered", 213, 0)]


def test_a_job_that_kept_its_group_has_no_stages():
    at = stalled(ends(), EFFECT, 200 * MS)
    steps = timeline.build(regrouped(at, lost=1, since=at[-2])).steps
    assert breakdown.stages([mark("detected", 20)], steps, EFFECT, RECOVERED) == []
