"""Pacing, on a clock of the test's own."""

from __future__ import annotations

import pytest

from chaos.workload.reference.training.pace import Pace


class Time:
    """A clock that only sleeping and working move; each sleep is a little too long."""

    def __init__(self, overshoot: float = 0.0) -> None:
        self.now = 100.0
        self._overshoot = overshoot

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + self._overshoot

    def pace(self, period: float | None) -> Pace:
        return Pace(period, lambda: self.now, self.sleep)


def starts(time: Time, pace: Pace, work: list[float]) -> list[float]:
    begun = []
    for seconds in work:
        pace.wait()
        begun.append(round(time.now - 100.0, 6))
        time.now += seconds
    return begun


def test_steps_start_a_period_apart_whatever_they_cost() -> None:
    time = Time()
    assert starts(time, time.pace(0.02), [0.001, 0.019, 0.01, 0.0]) == [0, 0.02, 0.04, 0.06]


def test_sleeping_too_long_does_not_add_up() -> None:
    time = Time(overshoot=0.0002)
    begun = starts(time, time.pace(0.02), [0.005] * 1000)
    assert begun[-1] == pytest.approx(999 * 0.02, abs=0.001)


def test_a_little_lateness_is_made_up_for() -> None:
    time = Time()
    assert starts(time, time.pace(0.02), [0.023, 0.001, 0.001]) == [0, 0.023, 0.04]


def test_a_disturbance_is_not_followed_by_a_hurry() -> None:
    time = Time()
    begun = starts(time, time.pace(0.02), [0.5, 0.001, 0.001, 0.001])
    assert begun[:2] == [0, 0.5]
    assert begun[2] - begun[1] >= 0.015
    assert begun[3] - begun[2] == pytest.approx(0.02)


def test_without_a_period_nobody_waits() -> None:
    time = Time()
    assert starts(time, time.pace(None), [0.0, 0.0]) == [0, 0]
