"""The launcher's judgement: who is lost, when a new generation is due, and when the job is over.

A death is seen by pidfd, a hang by missing heartbeats, a main thread that is stuck behind a living watcher by not
following a new generation, and anything else by a collective that failed or timed out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.workload.reference.config import JobConfig
from chaos.workload.reference.heartbeat import Heartbeats
from chaos.workload.reference.membership import Membership, State
from chaos.workload.reference.messages import Message
from chaos.workload.reference.placement import Placement
from chaos.workload.reference.poller import Poller
from chaos.workload.reference.recovery import recovery_for
from chaos.workload.reference.workers import Worker, Workers
from chaos.workload.reference.zygote import Zygote

_log = logging.getLogger("launcher")

GATHER_S = 0.002  # a node's loss is several deaths a few milliseconds apart
RETRY_S = 0.03  # after a failed collective the cause (a death, a hang) is usually about to show itself
FOLLOW_S = 1.0  # within this a main thread follows a new generation, or it is stuck
START_S = 20.0  # within this a process is warm
RESPAWN_S = 0.5  # a new spare is started when the job runs again: it needs cores, and the lab may be busy
STOP_S = 3.0  # for ranks to end by themselves
FRUITLESS = 20  # so many generations in a row without one completed step: the job fails
HOPELESS = 5  # so many processes in a row that a place loses before the job has begun: it never will
_TICK_S = 0.02


@dataclass
class _Cause:
    """Why a new generation is needed: ``due`` (seconds) it is acted upon, whatever else has come up until then."""

    due: float
    detected_ns: int
    what: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "; ".join(self.what)


class Supervisor:
    """One job from its first process to its last.

    Args:
        config: the job.
        zygote: starts processes.
        placement: where.
        poller: of the launcher's one thread.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: JobConfig,
        zygote: Zygote,
        placement: Placement,
        poller: Poller,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._poller = poller
        self._clock = clock
        self._in_place = recovery_for(config.recovery).in_place
        self._membership = Membership(config.world, config.spares, placement.address)
        self._heartbeats = Heartbeats(config.hang_timeout_s)
        self._workers = Workers(
            zygote,
            placement,
            poller,
            on_message=self._hear,
            on_death=self._mourn,
            on_end=lambda: self.end(1, "the zygote has died"),
            clock=clock,
        )
        self._loss: _Cause | None = None  # seats are empty
        self._trouble: _Cause | None = None  # the newest generation failed, with all its members alive
        self._published = 0.0
        self._fruitless = 0
        self._outcome: int | None = None

    def run(self) -> int:
        """Run the job until ``end``; returns the exit code."""
        try:
            while self._outcome is None:
                self._start_processes()
                self._poller.wait(self._until_due())
                self._look_for_hangs()
                self._look_for_stuck()
                if self._outcome is None:
                    self._decide()
            return self._outcome
        finally:
            self._stop()

    def end(self, outcome: int, why: str) -> None:
        """End the job with an exit code; the first call counts."""
        if self._outcome is None:
            self._outcome = outcome
            _log.info("job ends: %s", why)

    def _stop(self) -> None:
        for worker in list(self._workers.alive.values()):
            self._workers.send(worker, {"op": "stop"})
        for number in self._heartbeats.silent(self._clock(), list(self._workers.alive)):
            self._workers.kill(self._workers.alive[number], "it hangs, and cannot end by itself")
        end = self._clock() + STOP_S
        while self._workers.alive and self._clock() < end:
            self._poller.wait(_TICK_S)
        self._workers.close()

    # -- what happens ----------------------------------------------------------------------------------------------

    def _start_processes(self) -> None:
        if self._membership.generation and not self._in_place:
            return
        now = self._clock()
        gathering = self._loss is not None and now < self._loss.due
        if gathering or (self._membership.complete and now - self._published < RESPAWN_S):
            return
        for place in self._membership.vacant_places():
            if (worker := self._workers.start(place)) is not None:
                self._membership.started(worker.number, place)

    def _hear(self, worker: Worker, message: Message) -> None:
        match message["op"]:
            case "beat":
                worker.followed, worker.steps = message["gen"], message["steps"]
                self._heartbeats.beat(worker.number, self._clock())
                woken = self._membership.state(worker.number) is State.STALE
                if woken and worker.followed == self._membership.generation:
                    self._membership.ready(worker.number)
            case "ready":
                self._heartbeats.beat(worker.number, self._clock())
                self._workers.settled(worker.place)
                self._membership.ready(worker.number)
            case "broken":
                self._hear_trouble(worker, message["gen"], message["why"])
            case "done":
                worker.done = message["gen"]

    def _hear_trouble(self, worker: Worker, generation: int, why: str) -> None:
        _log.info("%s: generation %d is broken: %s", worker, generation, why)
        current = generation == self._membership.generation and worker.number in self._membership.members
        if current and self._trouble is None:
            self._trouble = _Cause(self._clock() + RETRY_S, time.monotonic_ns(), [why])

    def _mourn(self, worker: Worker) -> None:
        self._heartbeats.forget(worker.number)
        if self._membership.state(worker.number) is State.STARTING:
            self._workers.put_off(worker.place, f"{worker} died before it was ready; its log says why")
            if not self._membership.generation and self._workers.attempts[worker.place] >= HOPELESS:
                self.end(1, f"{HOPELESS} processes in a row died on {worker.place} before they were ready")
        if self._membership.lost(worker.number):
            self._note_loss(f"{worker} died")

    def _note_loss(self, what: str) -> None:
        if self._outcome is not None:
            return
        _log.warning("%s", what)
        if self._loss is None:
            self._loss = _Cause(self._clock() + GATHER_S, time.monotonic_ns())
        self._loss.what.append(what)

    def _look_for_hangs(self) -> None:
        for number in self._heartbeats.silent(self._clock(), list(self._workers.alive)):
            warm = self._membership.state(number) in (State.MEMBER, State.SPARE)
            if self._in_place and warm and self._membership.hung(number):
                self._note_loss(f"{self._workers.alive[number]} hangs")
        for number in self._membership.blocked_by():
            self._workers.kill(self._workers.alive[number], "it hangs, and its place is needed")

    def _look_for_stuck(self) -> None:
        now, newest = self._clock(), self._membership.generation
        for worker in list(self._workers.alive.values()):
            state = self._membership.state(worker.number)
            if state is State.STARTING and now - worker.asked > START_S:
                self._workers.kill(worker, f"it was not ready within {START_S:g} s")
            follows = worker.followed == newest or now - self._published < FOLLOW_S
            if state is State.MEMBER and self._in_place and not follows:
                self._workers.kill(worker, f"its main thread did not follow generation {newest}")

    # -- what is done about it -------------------------------------------------------------------------------------

    def _until_due(self) -> float:
        """Seconds until something is to be decided, one tick at most."""
        now = self._clock()
        dues = [cause.due - now for cause in (self._loss, self._trouble) if cause is not None and cause.due > now]
        return min([_TICK_S, *dues])

    def _decide(self) -> None:
        now = self._clock()
        if not self._membership.generation:
            if not self._membership.starting and self._membership.fill():
                self._publish(_Cause(now, time.monotonic_ns(), ["start"]))
        elif self._loss is not None:
            if now >= self._loss.due:
                self._recover(self._loss)
        elif self._done():
            self.end(0, "done")
        elif self._trouble is not None and now >= self._trouble.due:
            self._recover(self._trouble)

    def _done(self) -> bool:
        members = [self._workers.alive[number] for number in self._membership.members]
        return all(worker.done == self._membership.generation for worker in members)

    def _recover(self, cause: _Cause) -> None:
        if not self._in_place:
            self._end_with_survivors(str(cause))
        elif self._membership.fill():
            self._publish(cause)

    def _end_with_survivors(self, why: str) -> None:
        """Without recovery the job ends as it would by itself: survivors fail at once, or by their time-out."""
        end = self._clock() + self._config.collective_timeout_s + 1
        while self._workers.alive and self._clock() < end and self._outcome is None:
            self._poller.wait(_TICK_S)
        self.end(1, f"no recovery: {why}")

    def _publish(self, cause: _Cause) -> None:
        newest = self._membership.generation
        fruitful = any(each.steps for each in self._workers.alive.values() if each.followed == newest)
        self._fruitless = 0 if fruitful else self._fruitless + 1
        if self._fruitless > FRUITLESS:
            self.end(1, f"{FRUITLESS} generations in a row completed no step; the last one: {cause}")
            return
        generation = self._membership.advance(str(cause), cause.detected_ns)
        for worker in list(self._workers.alive.values()):
            worker.steps = 0
            self._workers.send(worker, generation.as_message())
        self._loss = self._trouble = None
        self._published = self._clock()
        seats = ", ".join(f"{slot}: {seat.place}" for slot, seat in enumerate(generation.seats))
        _log.info("generation %d (%s): %s", generation.number, cause, seats)
