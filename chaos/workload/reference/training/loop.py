"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.workload.events import StepWriter
from chaos.workload.reference.config import JobConfig
from chaos.workload.reference.rank.group import Group
from chaos.workload.reference.training.checkpoint import CheckpointFolder, CheckpointWriter
from chaos.workload.reference.training.pace import Pace
from chaos.workload.reference.training.replica import Replica, StepFigures


@dataclass(frozen=True)
class Schedule:
    """When what happens, in steps; ``checkpoint_every`` is ``None`` where no checkpoints are written."""

    hash_every: int
    checkpoint_every: int | None
    max_steps: int | None
    step_s: float | None

    @classmethod
    def of(cls, config: JobConfig, *, checkpoints: bool) -> Schedule:
        """A job's schedule."""
        every = config.checkpoint_every if checkpoints else None
        return cls(config.hash_every, every, config.max_steps, config.step_s)


def train(
    replica: Replica,
    group: Group,
    schedule: Schedule,
    events: StepWriter,
    *,
    checkpoints: CheckpointWriter,
    sleep: Callable[[float], None] = time.sleep,
    vote: Callable[[], bool],
    on_step: Callable[[StepFigures], bool],
) -> None:
    """Train with one process group until the job is done or ``on_step``, called after each step, says False.

    Args:
        sleep: what is done until the next step is due, for so many seconds at most.
        vote: asked before each step; how many ranks said yes is told to ``on_step`` of all of them.

    Raises:
        GroupBroken: the group cannot go on; ``replica`` is as after its last completed step.
    """
    pace = Pace(schedule.step_s, sleep=sleep)
    while replica.completed != schedule.max_steps:
        pace.wait()
        began = time.monotonic_ns()

        gradient = replica.compute(group.slot, vote=vote())
        group.all_reduce(gradient)
        # The whole sum is here: every member has contributed, so the step counts.
        figures = replica.apply(group.world)
        completed = time.monotonic_ns()

        step = replica.completed
        digest = replica.digest() if step % schedule.hash_every == 0 else None
        events.step(
            t=completed,
            rank=group.slot,
            gen=group.generation,
            world=group.world,
            step=step,
            tokens=replica.tokens,
            loss=figures.loss,
            gnorm=figures.gradient_norm,
            work_ns=completed - began,
            digest=digest,
        )
        if group.slot == 0 and schedule.checkpoint_every and step % schedule.checkpoint_every == 0:
            # A state that is not finite would be loaded, fail, and be loaded again for ever.
            sound = math.isfinite(figures.loss) and math.isfinite(figures.gradient_norm)
            if not sound or not checkpoints.offer(step, replica.arena.state):
                why = "the last one is still being written" if sound else "loss or gradient is not finite"
                events.mark("checkpoint_skipped", group.generation, step=step, why=why)
        if not on_step(figures):
            return


def checkpoint_writer(folder: CheckpointFolder, events: StepWriter, generation: Callable[[], int]) -> CheckpointWriter:
    """A writer that reports each checkpoint as an event."""
    return CheckpointWriter(
        folder,
        on_saved=lambda step, path, s: events.mark(
            "checkpoint", generation(), step=step, path=str(path), ms=round(s * 1e3, 1)
        ),
        on_failed=lambda step, why: events.mark("checkpoint_failed", generation(), step=step, why=why),
    )
