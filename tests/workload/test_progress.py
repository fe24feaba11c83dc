"""Who keeps the others waiting."""

from __future__ import annotations

from chaos.workload.reference.progress import Progress

PATIENCE = 0.3


def trained(steps: int = 10, pause: float = 0.02) -> tuple[Progress, float]:
    """Members 1 to 3 that have entered so many collectives together, and the time."""
    progress, now = Progress(), 100.0
    progress.announced(1, now)
    for step in range(1, steps + 1):
        now += pause
        for process in (1, 2, 3):
            progress.hear(process, (1, step), now)
    return progress, now


def stuck(progress: Progress, now: float) -> list[int]:
    return progress.stuck([1, 2, 3], PATIENCE, now)


def test_members_that_all_compute_keep_nobody_waiting() -> None:
    progress, now = trained()
    assert stuck(progress, now + 60) == []


def test_whoever_does_not_enter_what_another_waits_in_is_stuck_after_the_patience() -> None:
    progress, now = trained()
    progress.hear(1, (1, 11), now + 0.02)
    progress.hear(3, (1, 11), now + 0.02)
    assert stuck(progress, now + 0.02 + PATIENCE) == []
    assert stuck(progress, now + 0.02 + PATIENCE + 0.07) == [2]
    assert progress.waiting_since == now + 0.02


def test_a_job_with_long_steps_has_more_patience() -> None:
    progress, now = trained(pause=2.0)
    progress.hear(1, (1, 11), now + 2)
    progress.hear(3, (1, 11), now + 2)
    assert stuck(progress, now + 7) == []
    assert stuck(progress, now + 9) == [2]


def test_whoever_does_not_follow_a_new_generation_is_stuck() -> None:
    progress, now = trained()
    progress.announced(2, now)
    progress.hear(1, (2, 0), now)
    progress.hear(2, (2, 0), now)
    assert stuck(progress, now + 0.4) == [3]


def test_the_time_without_a_generation_is_no_step() -> None:
    progress, now = trained()
    progress.announced(2, now + 30)
    for process in (1, 2):
        progress.hear(process, (2, 0), now + 30)
    assert stuck(progress, now + 30.4) == [3]


def test_a_process_that_was_never_heard_is_behind_and_one_that_is_forgotten_too() -> None:
    progress, now = trained()
    progress.forget(2)
    assert stuck(progress, now + 1) == [2]
