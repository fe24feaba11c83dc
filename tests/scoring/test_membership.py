"""Only current members' reports count."""

import pytest

from chaos.scoring import timeline
from chaos.scoring.membership import current_steps, members
from tests.scoring.recorded import BEGAN, EFFECT, MS, PACE, ends, incarnation, job, regrouped, stalled, steps


def woken(rank=1, *, at, step):
    """A rank that was stopped in generation 1 reports the step that it was in."""
    (event,) = (e for e in steps([at], [incarnation(r) for r in range(4)], first=step) if e["rank"] == rank)
    return {**event, "t": at}


def test_the_earliest_report_of_a_step_makes_progress():
    found = timeline.build(job(ends()[:100])).steps
    assert [s.t for s in found] == ends()[:100]
    assert [s.step for s in found] == list(range(1, 101))
    assert {s.weight for s in found} == {1.0}


def test_the_order_of_the_events_does_not_matter():
    events = regrouped(stalled(ends(), EFFECT, 200 * MS), lost=1, since=EFFECT)
    assert timeline.build(events[::-1]) == timeline.build(events)


def test_a_woken_rank_does_not_move_progress_after_the_others_went_on():
    events = regrouped(stalled(ends(), EFFECT, 200 * MS), lost=1, since=EFFECT)
    honest = timeline.build(events)
    late = woken(at=EFFECT + 2000 * MS, step=401)
    assert timeline.build([*events, late]).steps == honest.steps


@pytest.mark.control
def test_a_woken_rank_makes_no_progress_while_the_others_regroup():
    events = regrouped(stalled(ends(), EFFECT, 200 * MS), lost=1, since=EFFECT)
    first = min(e["t"] for e in events if e["e"] == "step" and e["gen"] == 2)
    joined = min(e["t"] for e in events if e["e"] == "member" and e["gen"] == 2)
    late = woken(at=(first + joined) // 2, step=401)
    assert late not in current_steps([*events, late])
    assert timeline.build([*events, late]).steps == timeline.build(events).steps


def test_members_of_both_groups_may_finish_a_step_while_the_new_group_is_built():
    at = ends()[:60]
    both = [incarnation(r) for r in range(4)]
    joined = [
        {"e": "member", "t": at[30] - MS, "inc": inc, "rank": r, "gen": 2, "world": 4} for r, inc in enumerate(both)
    ]
    events = [*job(at[:31]), *joined, *steps(at[31:], both, gen=2, first=32)]
    assert [s.t for s in timeline.build(events).steps] == at


def test_a_job_that_says_nothing_of_membership_is_believed():
    events = [e for e in job(ends()[:50]) if e["e"] != "member"]
    assert len(timeline.build(events).steps) == 50
    assert members(events) == {}


def test_a_spare_that_warms_up_is_not_a_member():
    spare = incarnation(7)
    warming = steps([BEGAN + PACE // 2, BEGAN + PACE], [spare], gen=0)
    assert timeline.build([*job(), *warming]).steps == timeline.build(job()).steps


def test_a_launcher_is_no_member_and_makes_no_progress():
    said = {"v": 1, "pid": 2, "start": 5, "pidns": 9, "boot": "b"}
    launchers = [{"e": "launcher", "t": t, "inc": f"9-{t}-5", **said} for t in (BEGAN - 1, EFFECT, ends()[-1] + 1)]
    assert timeline.build([*launchers, *job()]) == timeline.build(job())
    assert members(launchers) == {}


def test_a_smaller_world_weighs_less_and_its_survivors_do_not():
    events = regrouped(stalled(ends(), EFFECT, 200 * MS), lost=3, since=EFFECT, spare=False)
    line = timeline.build(events)
    assert line.world == 4
    assert {s.weight for s in line.steps if s.gen == 2} == {0.75}
    assert {s.weight for own in line.processes.values() for s in own} == {1.0}


def test_steps_done_again_are_progress_of_the_machine_and_counted_as_replayed():
    at = stalled(ends(), EFFECT, 200 * MS)
    done = sum(t <= EFFECT for t in at)
    line = timeline.build(regrouped(at, lost=1, since=EFFECT, back_to=done - 30))
    assert len(line.steps) == len(at)
    assert timeline.replayed(line.steps, EFFECT) == 30


def test_survivors_stepped_before_and_still_step():
    at = stalled(ends(), EFFECT, 200 * MS)
    line = timeline.build(regrouped(at, lost=1, since=EFFECT))
    assert timeline.survivors(line, EFFECT, at[-1]) == [incarnation(0), incarnation(2), incarnation(3)]


def test_events_without_what_a_step_needs_are_left_out():
    whole = job(ends()[:30])
    torn = [{"e": "step"}, {"e": "step", "t": 1}, {"e": "step", "t": "x", "gen": 1}, {"t": 3}, {"e": "member", "t": 4}]
    odd = [{**whole[-1], "world": 0, "step": 99}, {**whole[-1], "step": True}, {**whole[-1], "gen": None}]
    assert timeline.build([*whole, *torn, *odd]).steps == timeline.build(whole).steps
    assert timeline.build([]).steps == []
