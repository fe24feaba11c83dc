"""Who gets a seat, by pure rules."""

from __future__ import annotations

import json

import pytest

from chaos.workload.reference.config import Place
from chaos.workload.reference.launcher.heartbeat import Heartbeats
from chaos.workload.reference.launcher.membership import Membership, State
from chaos.workload.reference.messages import Generation

WORLD = [Place(0, 0), Place(0, 1), Place(1, 0), Place(1, 1)]
SPARES = [Place(2, 0), Place(2, 1)]


@pytest.fixture
def job() -> Membership:
    """Processes 1 to 4 in the world's places, 5 and 6 in the spares', all warm, the world's seated."""
    membership = Membership(WORLD, SPARES)
    for number, place in enumerate([*WORLD, *SPARES], 1):
        membership.started(number, place)
        assert membership.starting
        membership.ready(number)
    assert membership.fill()
    return membership


def test_at_the_start_everyone_sits_at_home(job: Membership) -> None:
    assert job.members == [1, 2, 3, 4]
    assert job.spares == [5, 6]


def test_a_generation_says_who_sits_where_and_binds_to_what(job: Membership) -> None:
    taken = job.seats(lambda place: f"10.77.{place.node}.{10 + place.gpu}")
    generation = Generation(2, taken, "why", symptom_ns=8, detected_ns=9, store_port=1234)
    assert [seat.bind for seat in generation.seats] == ["10.77.0.10", "10.77.0.11", "10.77.1.10", "10.77.1.11"]
    assert (generation.slot_of(3), generation.slot_of(5)) == (2, None)
    assert Generation.from_message(json.loads(json.dumps(generation.as_message()))) == generation


def test_a_spare_takes_the_seat_of_the_dead_and_the_place_is_vacant(job: Membership) -> None:
    assert job.lost(2)
    assert job.state(2) is None
    assert job.vacant_places() == [Place(0, 1)]
    assert job.fill()
    assert job.members == [1, 5, 3, 4]


def test_a_dead_spare_costs_no_seat(job: Membership) -> None:
    assert not job.lost(5)
    assert job.members == [1, 2, 3, 4]
    assert job.vacant_places() == [Place(2, 0)]


def test_without_a_spare_the_seat_waits_for_the_process_that_is_started_in_its_place(job: Membership) -> None:
    for number in (5, 6, 2):
        job.lost(number)
    assert not job.fill()
    job.started(7, Place(0, 1))
    assert not job.fill()
    job.ready(7)
    assert job.fill()
    assert job.members == [1, 7, 3, 4]


def test_the_nearest_spare_is_taken(job: Membership) -> None:
    job.lost(1)
    job.started(7, Place(0, 0))
    job.ready(7)
    job.lost(2)
    assert job.fill()
    assert job.members == [7, 5, 3, 4]


def test_a_hung_process_is_outside_until_it_wakes_and_then_a_spare(job: Membership) -> None:
    assert job.expel(4)
    assert job.fill()
    assert job.state(4) is State.STALE
    assert job.members == [1, 2, 3, 5]
    assert job.vacant_places() == []
    job.ready(4)
    assert job.state(4) is State.SPARE
    job.lost(3)
    assert job.fill()
    assert job.members == [1, 2, 4, 5]


def test_a_hung_process_must_go_only_where_nobody_else_can_take_the_seat(job: Membership) -> None:
    job.expel(4)
    assert job.blocked_by() == [], "a spare is about to take it"
    assert job.fill()
    assert job.blocked_by() == []
    job.lost(6)
    job.expel(3)
    assert not job.fill()
    assert job.blocked_by() == [3, 4]
    job.started(8, Place(2, 1))
    assert job.blocked_by() == [], "a process is about to be ready"


def test_ready_means_nothing_for_a_member(job: Membership) -> None:
    job.ready(1)
    assert job.state(1) is State.MEMBER


def test_nobody_sits_before_everybody_can(job: Membership) -> None:
    for number in (6, 1, 2):
        job.lost(number)
    assert not job.fill()
    assert job.members == [3, 4]
    assert job.state(5) is State.SPARE
    job.started(7, Place(0, 0))
    job.ready(7)
    assert job.fill()
    assert job.members == [7, 5, 3, 4]


def test_two_losses_fill_two_seats(job: Membership) -> None:
    job.lost(3)
    job.lost(4)
    assert job.fill()
    assert job.members == [1, 2, 5, 6]


def test_with_too_few_spares_some_seats_can_be_filled_and_the_others_later(job: Membership) -> None:
    for number in (6, 1, 2, 3):
        job.lost(number)
    assert job.fill(partly=True)
    assert job.members == [5, 4]
    assert not job.complete
    assert [seat.process for seat in job.seats(str)] == [5, 4], "ranks 0 and 1 of two"
    job.started(7, Place(1, 0))
    job.ready(7)
    assert job.fill(partly=True)
    assert job.members == [5, 7, 4]


def test_when_nobody_is_left_there_is_nothing_to_go_on_with(job: Membership) -> None:
    for number in range(1, 7):
        job.lost(number)
    assert not job.fill(partly=True)


def test_a_spare_that_cannot_be_reached_takes_no_seat(job: Membership) -> None:
    job.lost(2)
    assert job.fill(unusable={5})
    assert job.members == [1, 6, 3, 4]
    job.lost(3)
    assert not job.fill(unusable={5})


def test_a_new_launcher_takes_over_who_is_what(job: Membership) -> None:
    again = Membership(WORLD, SPARES)
    for number, place in {1: WORLD[0], 3: WORLD[2], 5: SPARES[0], 7: WORLD[1], 8: SPARES[1]}.items():
        again.started(number, place)
    assert again.adopt([1, 2, 3, 4], spares={5}, stale={7}) == [2, 4]
    states = {number: again.state(number) for number in (1, 3, 5, 7, 8)}
    assert states == {
        1: State.MEMBER,
        3: State.MEMBER,
        5: State.SPARE,
        7: State.STALE,
        8: State.STARTING,
    }
    assert again.members == [1, 3]
    again.ready(8)
    assert again.fill()
    assert again.members == [1, 5, 3, 8]


def watched(timeout: float = 0.3) -> Heartbeats:
    beats = Heartbeats(timeout)
    for process in (1, 2):
        beats.beat(process, 0.0)
    assert beats.silent(0.0, [1, 2]) == []
    return beats


def look(beats: Heartbeats, until: float, start: float = 0.0, alive: tuple[int, ...] = (1,)) -> list[int]:
    """Look every 20 ms while ``alive`` processes beat; the processes that were called hung."""
    now, hung = start, []
    while now < until:
        now = round(now + 0.02, 6)
        for process in alive:
            beats.beat(process, now)
        hung += beats.silent(now, [1, 2])
    return hung


def test_a_silent_process_is_hung_after_the_time_out_and_not_before() -> None:
    beats = watched()
    assert look(beats, 0.3) == []
    assert look(beats, 0.34, start=0.3) == [2, 2]


def test_a_listener_that_was_late_itself_accuses_nobody_at_once() -> None:
    beats = watched()
    assert beats.silent(0.9, [1, 2]) == [], "it slept, and has not read what was sent meanwhile"
    assert set(look(beats, 1.2, start=0.9)) == {2}, "but a process that stays silent is noticed"


def test_whoever_is_excused_has_half_the_time_again() -> None:
    beats = watched()
    assert look(beats, 0.34) == [2, 2]
    beats.excuse(0.34)
    assert look(beats, 0.48, start=0.34) == []
    assert beats.quiet(0.48, [1, 2]) == [2]
    assert set(look(beats, 0.6, start=0.48)) == {2}


def test_a_process_that_never_beat_or_is_forgotten_is_not_hung() -> None:
    beats = watched()
    beats.forget(2)
    assert look(beats, 1.0) == []
