"""Who keeps the others waiting."""

from __future__ import annotations

import pytest

from chaos.workload.reference.launcher.progress import Progress

PATIENCE, FOLLOW_S = 0.3, 1.0


def trained(steps: int = 10, pause: float = 0.02) -> tuple[Progress, float]:
    """Members 1 to 3 that have entered so many collectives together, and the time."""
    progress, now = Progress(), 100.0
    progress.announced(1, [1, 2, 3], now)
    for step in range(1, steps + 1):
        now += pause
        for process in (1, 2, 3):
            progress.hear(process, (1, step), now, inside=False)
    return progress, now


def stuck(progress: Progress, until: float, start: float = 100.0) -> list[int]:
    """Whom a listener accuses that looks in time."""
    found, now = [], start
    while now < until:
        now += 0.04
        found = progress.stuck([1, 2, 3], min(now, until), patience=PATIENCE, follow=FOLLOW_S)
    return found


def test_members_that_all_compute_keep_nobody_waiting() -> None:
    progress, now = trained()
    assert stuck(progress, now + 60) == []


@pytest.mark.control
def test_whoever_does_not_enter_what_another_waits_in_is_stuck_after_the_patience() -> None:
    progress, now = trained()
    progress.hear(1, (1, 11), now + 0.02, inside=True)
    progress.hear(3, (1, 11), now + 0.02, inside=True)
    assert stuck(progress, now + 0.02 + PATIENCE) == []
    assert stuck(progress, now + 0.02 + PATIENCE + 0.07) == [2]
    assert progress.waiting_since == now + 0.02


def test_a_job_with_long_steps_has_more_patience() -> None:
    progress, now = trained(pause=2.0)
    progress.hear(1, (1, 11), now + 2, inside=True)
    progress.hear(3, (1, 11), now + 2, inside=True)
    assert stuck(progress, now + 7) == []
    assert stuck(progress, now + 9) == [2]


def test_whoever_does_not_follow_a_new_generation_is_stuck() -> None:
    progress, now = trained()
    progress.announced(2, [1, 2, 3], now)
    progress.hear(1, (2, 0), now, inside=False)
    progress.hear(2, (2, 0), now, inside=False)
    assert stuck(progress, now + FOLLOW_S) == []
    assert stuck(progress, now + FOLLOW_S + 0.1) == [3]


@pytest.mark.control
def test_whoever_follows_none_of_several_generations_is_stuck_though_each_is_young() -> None:
    """The others regroup again and again, because it does not come."""
    progress, now = trained()
    for generation in (2, 3):
        progress.announced(generation, [1, 2, 3], now)
        for process in (1, 2):
            progress.hear(process, (generation, 0), now, inside=False)
        now += 0.9
    assert stuck(progress, now) == [3]


def test_whoever_waits_in_the_collective_before_is_not_stuck() -> None:
    """One rank may have left it already while the last data for the others were lost."""
    progress, now = trained()
    progress.hear(1, (1, 11), now, inside=True)
    for process in (2, 3):
        progress.hear(process, (1, 10), now, inside=True)
    assert stuck(progress, now + 60) == []


def test_a_listener_that_was_late_itself_accuses_nobody_at_once() -> None:
    progress, now = trained()
    progress.stuck([1, 2, 3], now, patience=PATIENCE, follow=FOLLOW_S)
    progress.hear(1, (1, 11), now, inside=True)
    assert progress.stuck([1, 2, 3], now + 5, patience=PATIENCE, follow=FOLLOW_S) == []
    assert stuck(progress, now + 5.3, start=now + 5) == []
    assert stuck(progress, now + 5.5, start=now + 5.3) == [2, 3]


def test_a_listener_that_slept_through_a_new_generation_accuses_nobody_at_once() -> None:
    """The first that it reads may be older than the generation."""
    progress, now = trained()
    progress.announced(2, [1, 2, 3], now)
    stuck(progress, now)
    assert progress.stuck([1, 2, 3], now + 5, patience=PATIENCE, follow=FOLLOW_S) == []
    for process in (1, 2, 3):
        progress.hear(process, (2, 0), now + 5, inside=False)
    assert stuck(progress, now + 20, start=now + 5) == []


def test_the_time_without_a_generation_is_no_step() -> None:
    progress, now = trained()
    progress.announced(2, [1, 2, 3], now + 30)
    for process in (1, 2):
        progress.hear(process, (2, 0), now + 30, inside=False)
    assert stuck(progress, now + 31.2) == [3]


def test_a_process_that_was_never_heard_is_behind() -> None:
    progress, now = trained()
    progress.forget(2)
    assert stuck(progress, now + 1) == [2]
