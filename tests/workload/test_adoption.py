"""What a new launcher makes of what a former one's ranks tell it."""

from __future__ import annotations

import pytest

from chaos.workload.reference.adoption import Adoption
from chaos.workload.reference.config import Place
from chaos.workload.reference.messages import Generation, Seat


def generation(number: int, *members: int) -> Generation:
    seats = tuple(Seat(process, Place(0, process), "127.0.0.1") for process in members)
    return Generation(number, seats, "test", symptom_ns=0, detected_ns=0, store_port=1)


def test_it_is_complete_when_everybody_has_told_how_things_stand() -> None:
    adoption = Adoption([1, 2, 3], due=5.0)
    adoption.met(1, generation(4, 1, 2), None)
    assert adoption.missing == [1, 2, 3], "an introduction alone does not say whether the generation is broken"
    adoption.told(1)
    adoption.met(2, generation(4, 1, 2), None)
    adoption.told(2)
    assert not adoption.complete
    adoption.died(3)
    assert adoption.complete


@pytest.mark.control
def test_the_newest_generation_counts_and_whoever_has_not_heard_of_it_is_behind() -> None:
    adoption = Adoption([1, 2, 3], due=5.0)
    adoption.met(1, generation(5, 1, 2), None)
    adoption.met(2, generation(4, 2, 3), None)
    adoption.met(3, None, None)
    assert adoption.current == generation(5, 1, 2)
    assert adoption.number == 5
    assert adoption.behind == [2]


def test_a_successor_that_is_being_formed_is_known_and_its_number_is_taken() -> None:
    adoption = Adoption([1, 2], due=5.0)
    adoption.met(1, generation(4, 1, 2), generation(5, 1, 2))
    adoption.met(2, generation(4, 1, 2), None)
    assert (adoption.current, adoption.successor) == (generation(4, 1, 2), generation(5, 1, 2))
    assert adoption.number == 5


def test_a_successor_that_is_obsolete_is_none() -> None:
    adoption = Adoption([1, 2], due=5.0)
    adoption.met(1, generation(6, 1, 2), None)
    adoption.met(2, generation(4, 1, 2), generation(5, 1, 2))
    assert adoption.successor is None
    assert adoption.number == 6


def test_before_the_first_generation_there_is_nothing_to_take_over() -> None:
    adoption = Adoption([1], due=5.0)
    adoption.met(1, None, None)
    adoption.told(1)
    assert (adoption.current, adoption.successor, adoption.number, adoption.behind) == (None, None, 0, [])
