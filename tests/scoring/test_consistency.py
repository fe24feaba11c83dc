"""Agreement of replicas: what is compared, what differs, and what that is worth."""

import pytest

from chaos.scoring import consistency
from tests.scoring.recorded import (
    EFFECT,
    MS,
    STOPPED,
    digest,
    ends,
    incarnation,
    job,
    regrouped,
    regrown,
    stalled,
    steps,
)


def flipped(hexes: str) -> str:
    """One bit of a hash inverted."""
    return f"{int(hexes, 16) ^ (1 << 17):016x}"


def plant(events, *, rank, step, last=None):
    """Flip one bit in a rank's hash of this step, or of these steps."""
    for event in events:
        if event["e"] == "step" and event["rank"] == rank and step <= event["step"] <= (last or step):
            event["hash"] = flipped(event["hash"])
    return events


AFTER = sum(t < EFFECT for t in ends()) + 1  # the first step after the fault
COUNT = sum(EFFECT <= t < STOPPED for t in ends())


def test_equal_replicas_agree():
    found = consistency.measure(job(), EFFECT, STOPPED)
    assert found.compared == 4 * COUNT + found.compared % 4
    assert found.disagreed == 0
    assert found.ratio == 1
    assert found.lower_bound == pytest.approx(0.05 ** (1 / found.compared))
    assert found.first is None
    assert found.unseen == ()


@pytest.mark.control
def test_one_flipped_bit_in_one_hash_of_one_rank_is_found():
    found = consistency.measure(plant(job(), rank=2, step=AFTER + 50), EFFECT, STOPPED)
    assert found.disagreed == 1
    assert found.ratio < 1
    assert found.first.step == AFTER + 50
    assert sorted(found.first.ranks.values(), key=len) == [[2], [0, 1, 3]]


def test_a_replica_that_stays_different_disagrees_at_every_step():
    found = consistency.measure(plant(job(), rank=3, step=AFTER, last=10**6), EFFECT, STOPPED)
    assert found.ratio == pytest.approx(0.75)
    assert found.first.step == AFTER


def test_two_camps_of_equal_size_disagree_by_half():
    events = plant(plant(job(), rank=0, step=AFTER), rank=1, step=AFTER)
    assert consistency.measure(events, EFFECT, STOPPED).disagreed == 2


def test_what_differed_before_the_window_and_after_it_is_not_counted():
    events = plant(plant(job(), rank=0, step=AFTER - 10), rank=0, step=AFTER + 400)
    assert consistency.measure(events, EFFECT, EFFECT + 4000 * MS).disagreed == 0


def test_without_hashes_or_with_one_replica_nothing_is_compared():
    for events in (job(hashes=False), job(world=1), []):
        found = consistency.measure(events, EFFECT, STOPPED)
        assert found.compared == 0
        assert found.ratio is None
        assert found.lower_bound is None


@pytest.mark.control
def test_a_woken_rank_that_is_no_longer_a_member_is_not_compared():
    events = regrouped(stalled(ends(), EFFECT, 200 * MS), lost=1, since=EFFECT)
    at = EFFECT + 2000 * MS
    (late,) = (e for e in steps([at], [incarnation(r) for r in range(4)], first=AFTER - 1) if e["rank"] == 1)
    late["hash"] = flipped(late["hash"])
    assert consistency.measure([*events, late], EFFECT - 100 * MS, STOPPED).disagreed == 0


@pytest.mark.control
def test_a_member_that_was_never_compared_after_the_recovery_is_named():
    events = [
        {key: value for key, value in event.items() if key != "hash" or event["rank"] != 2 or event["t"] < EFFECT}
        for event in job()
    ]
    found = consistency.measure(events, EFFECT, STOPPED, EFFECT + 100 * MS)
    assert found.unseen == (2,)
    assert found.ratio == 1


# -- steps that were done again --------------------------------------------------------------------------------------


def rolled_back(salt=""):
    at = stalled(ends(), EFFECT, 200 * MS)
    done = sum(t <= EFFECT for t in at)
    events = regrouped(at, lost=1, since=EFFECT, back_to=done - 30)
    for event in events:
        if event["e"] == "step" and event["gen"] == 2 and salt:
            event["hash"] = digest(event["step"], salt)
    return events


def test_steps_done_again_with_the_same_result_agree():
    found = consistency.measure(rolled_back(), EFFECT, STOPPED)
    assert (found.replay_compared, found.replay_disagreed) == (30, 0)


@pytest.mark.control
def test_a_state_that_was_not_restored_exactly_is_found_although_all_replicas_agree():
    found = consistency.measure(rolled_back("other"), EFFECT, STOPPED)
    assert found.ratio == 1
    assert (found.replay_compared, found.replay_disagreed) == (30, 30)
    assert found.replay_first == sum(t <= EFFECT for t in ends()) - 30 + 1


def test_a_world_of_another_size_is_not_held_to_the_same_parameters():
    at = stalled(ends(), EFFECT, 200 * MS)
    done = sum(t <= EFFECT for t in at)
    events = regrouped(at, lost=3, since=EFFECT, back_to=done - 30, spare=False)
    for event in events:
        if event["e"] == "step" and event["gen"] == 2:
            event["hash"] = digest(event["step"], "three ranks")
    assert consistency.measure(events, EFFECT, STOPPED).replay_compared == 0


def test_what_follows_from_steps_of_a_smaller_world_is_not_held_to_the_same_parameters():
    """Three ranks went back and did steps again; four go back to a checkpoint of theirs and do them a third time."""
    at = stalled(ends(), EFFECT, 200 * MS)
    done = sum(t <= EFFECT for t in at)
    events = regrown(at, lost=3, since=EFFECT, again=EFFECT + 1000 * MS, back_to=done - 20)
    for event in events:
        if event["e"] == "step" and event["gen"] == 2:
            event["step"] -= 30
        if event["e"] == "step" and event["gen"] > 1:
            event["hash"] = digest(event["step"], "three ranks once")
    found = consistency.measure(events, EFFECT, STOPPED)
    assert (found.replay_compared, found.replay_disagreed) == (0, 0)
    assert found.disagreed == 0


@pytest.mark.control
def test_what_goes_back_before_a_smaller_world_began_is():
    """Four ranks return to a checkpoint older than the first step of three: the first step must be the same."""
    at = stalled(ends(), EFFECT, 200 * MS)
    done = sum(t <= EFFECT for t in at)
    events = regrown(at, lost=3, since=EFFECT, again=EFFECT + 1000 * MS, back_to=done - 20)
    assert consistency.measure(events, EFFECT, STOPPED).replay_compared == 20
    for event in events:
        if event["e"] == "step" and event["gen"] == 3:
            event["hash"] = digest(event["step"], "not restored exactly")
    assert consistency.measure(events, EFFECT, STOPPED).replay_disagreed == 20
