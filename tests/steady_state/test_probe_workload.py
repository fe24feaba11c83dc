"""The probes of the workload, on recorded step events."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_views import MS, SECOND, View, steady, step

from steady_state import PROBES, Measurement, ProbeFailed
from steady_state.probes.workload import completions, steps_per_second


def measure(name: str, view: View, **params: Any) -> Measurement:
    probe = PROBES[name]
    return probe.measure(probe.Params(**params), view, 1.0)


def test_throughput_is_the_rate_of_steps_that_all_ranks_finished() -> None:
    measured = measure("workload.throughput", View(steady(500)))
    assert measured.value == pytest.approx(50.0, rel=1e-9)
    assert measured.text == "50 steps/s"


def test_a_job_with_three_of_four_ranks_has_three_quarters_of_its_throughput() -> None:
    fewer = [event for event in steady(500, world=3) if event["rank"] < 3]
    measured = measure("workload.throughput", View(fewer))
    assert measured.value == pytest.approx(37.5, rel=1e-9)
    assert measured.text == "37.5 steps/s (of 75% of the ranks)"
    assert measure("workload.throughput", View(fewer, world=0)).value == pytest.approx(50.0), "it is not known"


def test_a_rank_that_lags_behind_holds_the_step_back() -> None:
    events = [event for event in steady(500) if event["rank"] != 3 or event["t"] < 9 * SECOND]
    assert measure("workload.throughput", View(events)).value == pytest.approx(25.0, rel=0.03)


@pytest.mark.parametrize("shift_ms", [0, 1, 7, 13, 19])
@pytest.mark.parametrize("every_ms", [20, 190, 210, 400])
def test_where_the_window_falls_does_not_change_the_rate(every_ms: int, shift_ms: int) -> None:
    view = View(steady(300, every=every_ms * MS), now_ns=10 * SECOND - shift_ms * MS)
    # A step that the window cuts through is not counted: an error of the ranks' 3 ms in a window of 2 s.
    assert measure("workload.throughput", view).value == pytest.approx(1000 / every_ms, rel=3 / 2000)


@pytest.mark.parametrize(
    ("done", "rate"),
    [
        ([], 0.0),
        ([9 * SECOND], 0.5),
        (list(range(8 * SECOND, 9 * SECOND, 20 * MS)), 25.0),  # stands still since the middle
        (list(range(9 * SECOND, 10 * SECOND, 20 * MS)), 25.0),  # only came back in the middle
        (list(range(8 * SECOND, 10 * SECOND, 20 * MS)), 50.0),
    ],
)
def test_standing_still_at_either_end_of_the_window_is_slow(done: list[int], rate: float) -> None:
    assert steps_per_second(done, 8 * SECOND, 10 * SECOND) == pytest.approx(rate, rel=0.03)


@given(st.lists(st.integers(min_value=8 * SECOND + 1, max_value=10 * SECOND), max_size=50).map(sorted))
def test_the_rate_is_always_a_number_that_the_window_allows(done: list[int]) -> None:
    rate = steps_per_second(done, 8 * SECOND, 10 * SECOND)
    assert math.isfinite(rate) and rate >= 0


def test_a_step_of_which_the_window_holds_only_a_part_does_not_count() -> None:
    events = [step(rank, 7, 10 * SECOND - rank * MS) for rank in range(3)]
    assert completions(events) == []
    assert completions([*events, step(3, 7, 10 * SECOND - 9 * MS)]) == [10 * SECOND]


def test_the_same_step_of_two_generations_is_two_steps() -> None:
    events = [step(rank, 7, 9 * SECOND + gen, gen=gen) for gen in (1, 2) for rank in range(4)]
    assert completions(events) == [9 * SECOND + 1, 9 * SECOND + 2]


def test_loss_is_the_mean_of_the_latest_losses() -> None:
    events = [*steady(10), *(step(rank, 11, 10 * SECOND, loss=float(rank)) for rank in range(4))]
    assert measure("workload.loss", View(events)).value == 1.5


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf", float("nan")])
def test_one_loss_that_is_not_finite_makes_the_loss_not_finite(loss: object) -> None:
    """Case 74: NaN on one replica, unnoticed by the others."""
    events = [*steady(10), step(2, 11, 10 * SECOND, loss=loss)]
    assert not math.isfinite(measure("workload.loss", View(events)).value)


def test_there_is_no_loss_before_every_member_has_reported_one() -> None:
    events = [event for event in steady(10) if event["rank"] != 2]
    with pytest.raises(ProbeFailed, match="rank 2 has reported no loss yet"):
        measure("workload.loss", View(events))
    with pytest.raises(ProbeFailed, match="the job has no member"):
        measure("workload.loss", View(ranks=()))


def test_replicas_that_agree() -> None:
    measured = measure("workload.replicas_agree", View(steady(50, hash="a" * 16)))
    assert (measured.value, measured.evidence) == (1.0, {"compared": 200, "disagreed": 0})


@pytest.mark.control
def test_one_replica_that_disagrees_once_is_found() -> None:
    events = steady(50, hash="a" * 16)
    events[41 * 4 + 2]["hash"] = "b" * 16
    measured = measure("workload.replicas_agree", View(events))
    assert measured.value == 199 / 200
    assert measured.text == "199 of 200 replica hashes agree"
    assert measured.evidence["first_disagreement"] == {
        "gen": 1,
        "step": 42,
        "hashes": {0: "a" * 16, 1: "a" * 16, 2: "b" * 16, 3: "a" * 16},
    }


@pytest.mark.parametrize(
    "events",
    [
        [],
        steady(50),  # no hashes at all
        [event for event in steady(50, hash="a") if event["rank"] == 0],  # of one rank only
        [event | {"gen": event["rank"]} for event in steady(50, hash="a")],  # none of the same generation
        steady(50, until=5 * SECOND, hash="a"),  # before the window
    ],
)
def test_where_nothing_was_compared_nothing_agrees(events: list[dict[str, Any]]) -> None:
    """A ratio of nothing is a failure, never 100 %."""
    with pytest.raises(ProbeFailed, match="nothing compared: no step of the last 2s has hashes of two ranks"):
        measure("workload.replicas_agree", View(events))


def test_a_job_whose_ranks_all_step_is_alive() -> None:
    measured = measure("workload.alive", View(steady(10)))
    assert (measured.value, measured.text) == (True, "every rank steps")


def test_a_rank_that_stopped_stepping_is_named() -> None:
    events = [event for event in steady(200) if event["rank"] != 2 or event["t"] < 7 * SECOND]
    measured = measure("workload.alive", View(events))
    assert (measured.value, measured.text) == (False, "no step within 2s from rank 2")
    assert measured.evidence == {"members": 4, "silent": [2]}
    assert measure("workload.alive", View(events), within=4.0).value is True


@pytest.mark.parametrize(("ranks", "text"), [((), "the job has no member"), ((0, 9), "no step within 2s from rank 9")])
def test_a_job_without_members_or_with_one_that_never_stepped_is_not_alive(ranks: tuple[int, ...], text: str) -> None:
    measured = measure("workload.alive", View(steady(10), ranks=ranks))
    assert (measured.value, measured.text) == (False, text)
