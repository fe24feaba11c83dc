"""What a new launcher makes of what a former one's ranks tell it."""

from __future__ import annotations

import pytest

from chaos.workload.reference.config import Place
from chaos.workload.reference.launcher.adoption import OTHERS_S, PATIENCE_S, Adoption
from chaos.workload.reference.messages import Generation, Seat, Status


def generation(number: int, *members: int) -> Generation:
    seats = tuple(Seat(process, Place(0, process), "127.0.0.1") for process in members)
    return Generation(number, seats, "test", symptom_ns=0, detected_ns=0, store_port=1)


HOLDS = Status(completed=70)
HOLDS_NOTHING = Status(standing_by=True)


def test_it_is_complete_when_everybody_has_told_how_things_stand() -> None:
    adoption = Adoption([1, 2, 3], now=5.0, begun=True)
    adoption.met(1, generation(4, 1, 2, 3), None)
    assert not adoption.complete(5.0), "an introduction alone does not say whether the generation is broken"
    for process in (1, 2):
        adoption.met(process, generation(4, 1, 2, 3), None)
        adoption.told(process, HOLDS)
    assert not adoption.complete(5.5)
    adoption.died(3)
    assert adoption.complete(5.5)


def test_those_that_are_no_members_are_not_waited_for_long() -> None:
    adoption = Adoption([1, 2, 3], now=5.0, begun=True)
    for process in (1, 2):
        adoption.met(process, generation(4, 1, 2), None)
        adoption.told(process, HOLDS)
    assert not adoption.complete(5.0)
    assert not adoption.complete(5.0 + OTHERS_S / 2)
    assert adoption.complete(5.01 + OTHERS_S)


def test_a_member_is_waited_for_no_longer_than_the_patience() -> None:
    adoption = Adoption([1, 2], now=5.0, begun=True)
    adoption.met(1, generation(4, 1, 2), None)
    adoption.told(1, HOLDS)
    assert not adoption.complete(4.99 + PATIENCE_S)
    assert adoption.complete(5.01 + PATIENCE_S)


@pytest.mark.control
def test_the_newest_generation_counts_and_whoever_has_not_heard_of_it_is_behind() -> None:
    adoption = Adoption([1, 2, 3], now=5.0, begun=True)
    adoption.met(1, generation(5, 1, 2), None)
    adoption.met(2, generation(4, 2, 3), None)
    for process, status in ((1, HOLDS), (2, HOLDS), (3, HOLDS_NOTHING)):
        adoption.told(process, status)
    assert adoption.current == generation(5, 1, 2)
    assert (adoption.number, adoption.behind) == (5, [2])
    assert [adoption.heard(process) for process in (1, 2, 3)] == [5, 4, 0]


def test_a_rank_that_moved_over_after_its_introduction_is_not_behind() -> None:
    adoption = Adoption([1, 2], now=5.0, begun=True)
    adoption.met(1, generation(5, 1, 2), None)
    adoption.met(2, generation(4, 1, 2), generation(5, 1, 2))
    adoption.told(1, HOLDS)
    adoption.told(2, Status(followed=5, completed=70))
    assert (adoption.number, adoption.behind) == (5, [])


def test_a_successor_that_is_being_formed_is_known_and_its_number_is_taken() -> None:
    adoption = Adoption([1, 2], now=5.0, begun=True)
    adoption.met(1, generation(4, 1, 2), generation(5, 1, 2))
    adoption.met(2, generation(4, 1, 2), None)
    assert (adoption.current, adoption.successor) == (generation(4, 1, 2), generation(5, 1, 2))
    assert adoption.number == 5


def test_what_only_newcomers_have_heard_of_is_a_successor() -> None:
    adoption = Adoption([1, 2], now=5.0, begun=True)
    adoption.met(1, generation(4, 1), None)
    adoption.met(2, generation(5, 1, 2), None)
    adoption.told(1, HOLDS)
    adoption.told(2, Status(followed=5))
    assert (adoption.current, adoption.successor) == (generation(4, 1), generation(5, 1, 2))
    assert adoption.behind == []


def test_a_successor_that_is_obsolete_is_none() -> None:
    adoption = Adoption([1, 2], now=5.0, begun=True)
    adoption.met(1, generation(6, 1, 2), None)
    adoption.met(2, generation(4, 1, 2), generation(5, 1, 2))
    assert adoption.successor is None
    assert adoption.number == 6


def test_of_a_job_that_has_begun_somebody_is_waited_for_who_knows_a_generation() -> None:
    """All ranks may be stopped, and wake later than the patience."""
    adoption = Adoption([1, 2], now=5.0, begun=True)
    assert not adoption.complete(5.0 + 10 * PATIENCE_S)
    adoption.met(1, generation(4, 1, 2), None)
    adoption.told(1, HOLDS)
    assert adoption.complete(5.0 + 10 * PATIENCE_S)
    assert Adoption([1, 2], now=5.0, begun=False).complete(5.01 + PATIENCE_S)


def test_before_the_first_generation_there_is_nothing_to_take_over() -> None:
    adoption = Adoption([1], now=5.0, begun=True)
    adoption.met(1, None, None)
    adoption.told(1, HOLDS_NOTHING)
    assert (adoption.current, adoption.successor, adoption.number, adoption.behind) == (None, None, 0, [])
