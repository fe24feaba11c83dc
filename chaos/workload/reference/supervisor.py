"""The launcher's loop: starts processes, notices losses, publishes generations, ends the job.

One thread, one poll. A death is seen by pidfd, a hang by missing heartbeats, a main thread that is stuck behind a
living watcher by not following a new generation, and anything else by a collective that failed or timed out.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.workload.reference import messages, store
from chaos.workload.reference.config import JobConfig, Place
from chaos.workload.reference.heartbeat import Heartbeats
from chaos.workload.reference.membership import Membership, State
from chaos.workload.reference.placement import PlaceUnavailable, placement_for
from chaos.workload.reference.rank import RankSetup
from chaos.workload.reference.recovery import recovery_for
from chaos.workload.reference.zygote import CONTROL, Exited, NotStarted, Order, Started, Zygote

_log = logging.getLogger("launcher")

GATHER_S = 0.002  # a node's loss is several deaths a few milliseconds apart
RETRY_S = 0.03  # after a failed collective the cause (a death, a hang) is usually about to show itself
FOLLOW_S = 1.0  # within this a main thread follows a new generation, or it is stuck
START_S = 20.0  # within this a process is warm
RESPAWN_S = 0.5  # a new spare is started when the job runs again: it needs cores, and the lab may be busy
RESTART_S = (0.25, 5.0)  # pause before a place is tried again, first and at most
FRUITLESS = 20  # so many generations in a row without one completed step: the job fails
STOP_S = 3.0  # for ranks to end by themselves


@dataclass
class _Worker:
    """A process that the zygote was asked for."""

    number: int
    place: Place
    control: socket.socket
    asked: float
    pidfd: int | None = None
    followed: int = 0
    steps: int = 0
    done: int = 0
    killed: bool = False

    def __str__(self) -> str:
        return f"process {self.number} ({self.place})"


class Supervisor:
    """One job from its first process to its last.

    Args:
        config: the job.
        zygote: starts processes.
        clock: seconds, monotonic.
    """

    def __init__(self, config: JobConfig, zygote: Zygote, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._zygote = zygote
        self._clock = clock
        self._in_place = recovery_for(config.recovery).in_place
        self._placement = placement_for(config)
        self._membership = Membership(config.world, config.spares, self._placement.address)
        self._heartbeats = Heartbeats(config.hang_timeout_s)
        self._workers: dict[int, _Worker] = {}
        self._numbers = 0
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._retry_at: dict[Place, tuple[float, float]] = {}  # when, and the pause that led to it
        self._loss: tuple[float, int, list[str]] | None = None  # act when, detected when (ns), what
        self._trouble: tuple[float, int, str] | None = None  # of the newest generation: likewise
        self._published = 0.0
        self._fruitless = 0
        self._outcome: int | None = None

    def run(self) -> int:
        """Run the job; returns the exit code."""
        self._listen(self._zygote.socket.fileno(), self._hear_zygote)
        wakeup, restore = self._listen_for_the_end()
        try:
            while self._outcome is None:
                self._start_processes()
                self._wait(0.02)
                self._look_for_hangs()
                self._decide()
            return self._outcome
        finally:
            self._stop()
            restore()
            os.close(wakeup)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _listen_for_the_end(self) -> tuple[int, Callable[[], None]]:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        former = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        self._listen(reader, lambda: self._end(0, "stopped by a signal"))
        mode = os.fstat(0).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):  # somebody's lifeline; /dev/null is nobody's
            self._listen(0, self._hear_stdin)

        def restore() -> None:
            signal.set_wakeup_fd(-1)
            os.close(writer)
            for number, handler in former.items():
                signal.signal(number, handler)

        return reader, restore

    def _hear_stdin(self) -> None:
        if not os.read(0, 4096):
            self._end(0, "stopped: standard input has ended")

    def _end(self, outcome: int, why: str) -> None:
        if self._outcome is None:
            self._outcome = outcome
            _log.info("job ends: %s", why)

    def _stop(self) -> None:
        for worker in self._workers.values():
            messages.send(worker.control, {"op": "stop"})
        for number in self._heartbeats.silent(self._clock(), list(self._workers)):
            self._kill(self._workers[number], "it hangs, and cannot end by itself")
        end = self._clock() + STOP_S
        while any(worker.pidfd is not None for worker in self._workers.values()) and self._clock() < end:
            self._wait(0.05)
        for worker in list(self._workers.values()):
            _log.warning("%s did not end by itself and is killed", worker)
            self._forget(worker)
        self._zygote.close()

    # -- polling ---------------------------------------------------------------------------------------------------

    def _listen(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _ignore(self, fd: int) -> None:
        del self._handlers[fd]
        self._poll.unregister(fd)

    def _wait(self, seconds: float) -> None:
        now = self._clock()
        for due in (self._loss and self._loss[0], self._trouble and self._trouble[0]):
            if due is not None:
                seconds = min(seconds, max(0.0, due - now))
        for fd, _ in self._poll.poll(seconds * 1000):
            if fd in self._handlers:
                self._handlers[fd]()

    # -- processes -------------------------------------------------------------------------------------------------

    def _start_processes(self) -> None:
        if self._membership.generation and not self._in_place:
            return
        now = self._clock()
        if self._loss_pending(now) or (self._membership.complete and now - self._published < RESPAWN_S):
            return
        for place in self._membership.vacant_places():
            if self._retry_at.get(place, (0.0, 0.0))[0] <= now:
                self._start(place)

    def _loss_pending(self, now: float) -> bool:
        return self._loss is not None and now < self._loss[0]

    def _start(self, place: Place) -> None:
        try:
            namespaces = self._placement.namespaces(place)
        except PlaceUnavailable as error:
            self._put_off(place, str(error))
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers += 1
        worker = _Worker(self._numbers, place, ours, self._clock())
        self._zygote.start(Order(worker.number, place, {CONTROL: theirs.fileno()} | namespaces))
        theirs.close()
        for fd in namespaces.values():
            os.close(fd)
        self._workers[worker.number] = worker
        self._membership.started(worker.number, place)
        self._listen(ours.fileno(), lambda: self._hear(worker))

    def _put_off(self, place: Place, why: str) -> None:
        first, most = RESTART_S
        pause = min(most, 2 * self._retry_at.get(place, (0.0, first / 2))[1])
        if place not in self._retry_at:
            _log.info("%s cannot be used: %s", place, why)
        self._retry_at[place] = (self._clock() + pause, pause)

    def _hear_zygote(self) -> None:
        report = self._zygote.report()
        if report is None:
            self._end(1, "the zygote has died")
            self._ignore(self._zygote.socket.fileno())
        elif isinstance(report, Exited):
            _log.info("process %d ended: %s", report.process, _described(report.code))
        elif isinstance(report, NotStarted):
            worker = self._workers[report.process]
            self._put_off(worker.place, report.why)
            self._membership.lost(worker.number)
            self._forget(worker)
        elif isinstance(report, Started):
            worker = self._workers[report.process]
            worker.pidfd = report.pidfd
            self._listen(report.pidfd, lambda: self._died(worker))

    def _died(self, worker: _Worker) -> None:
        was = self._membership.state(worker.number)
        self._forget(worker)
        if was is State.STARTING:
            self._put_off(worker.place, f"{worker} died before it was ready; its log says why")
        if self._membership.lost(worker.number) and self._outcome is None:
            self._note_loss(f"{worker} died")

    def _forget(self, worker: _Worker) -> None:
        self._heartbeats.forget(worker.number)
        del self._workers[worker.number]
        self._ignore(worker.control.fileno())
        worker.control.close()
        if worker.pidfd is not None:
            self._ignore(worker.pidfd)
            os.close(worker.pidfd)
            worker.pidfd = None

    def _kill(self, worker: _Worker, why: str) -> None:
        if worker.pidfd is not None and not worker.killed:
            worker.killed = True
            _log.warning("%s is killed: %s", worker, why)
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    # -- what processes say ----------------------------------------------------------------------------------------

    def _hear(self, worker: _Worker) -> None:
        try:
            message = messages.receive(worker.control)
        except BlockingIOError:
            return
        if message is None:  # it is dying; its pidfd says so
            self._poll.modify(worker.control.fileno(), 0)
            return
        match message["op"]:
            case "beat":
                self._heartbeats.beat(worker.number, self._clock())
                worker.followed, worker.steps = message["gen"], message["steps"]
            case "ready":
                self._heartbeats.beat(worker.number, self._clock())
                self._retry_at.pop(worker.place, None)
                self._membership.ready(worker.number)
            case "broken":
                self._hear_trouble(worker, message["gen"], message["why"])
            case "done":
                worker.done = message["gen"]

    def _hear_trouble(self, worker: _Worker, generation: int, why: str) -> None:
        _log.info("%s: generation %d is broken: %s", worker, generation, why)
        current = generation == self._membership.generation and worker.number in self._membership.members
        if current and self._trouble is None and self._loss is None:
            self._trouble = (self._clock() + RETRY_S, time.monotonic_ns(), why)

    def _note_loss(self, what: str) -> None:
        _log.warning("%s", what)
        if self._loss is None:
            self._loss = (self._clock() + GATHER_S, time.monotonic_ns(), [])
        self._loss[2].append(what)

    def _look_for_hangs(self) -> None:
        now = self._clock()
        for number in self._heartbeats.silent(now, list(self._workers)):
            worker = self._workers[number]
            warm = self._membership.state(number) in (State.MEMBER, State.SPARE)
            if warm and self._in_place and self._membership.hung(number):
                self._note_loss(f"{worker} hangs")
        for worker in list(self._workers.values()):
            state = self._membership.state(worker.number)
            if state is State.STARTING and now - worker.asked > START_S:
                self._kill(worker, f"it was not ready within {START_S:g} s")
            elif (
                state is State.MEMBER
                and self._in_place
                and worker.followed < self._membership.generation
                and now - self._published > FOLLOW_S
            ):
                self._kill(worker, f"its main thread did not follow generation {self._membership.generation}")
        for number in self._membership.blocked_by():
            self._kill(self._workers[number], "it hangs, and its place is needed")

    # -- decisions -------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        if self._outcome is not None:
            return
        now = self._clock()
        members = [self._workers[number] for number in self._membership.members]
        if not self._membership.generation:
            if not self._membership.starting and self._membership.fill():
                self._publish("start", time.monotonic_ns())
        elif all(worker.done == self._membership.generation for worker in members) and members and not self._loss:
            self._end(0, "done")
        elif self._loss and now >= self._loss[0]:
            self._replace()
        elif self._trouble and now >= self._trouble[0]:
            _, detected, why = self._trouble
            if self._in_place:
                self._publish(why, detected)
            else:
                self._end_with_survivors(why)

    def _replace(self) -> None:
        assert self._loss is not None
        _, detected, what = self._loss
        if not self._in_place:
            self._end_with_survivors("; ".join(what))
        elif self._membership.fill():
            self._publish("; ".join(what), detected)

    def _end_with_survivors(self, why: str) -> None:
        """Without recovery the job ends as it would by itself: survivors fail at once or by their time-out."""
        end = self._clock() + self._config.collective_timeout_s + 1
        self._loss = self._trouble = None
        while self._workers and self._clock() < end and self._outcome is None:
            self._wait(0.05)
        self._end(1, f"no recovery: {why}")

    def _publish(self, why: str, detected_ns: int) -> None:
        fruitful = any(
            worker.steps for worker in self._workers.values() if worker.followed == self._membership.generation
        )
        self._fruitless = 0 if fruitful else self._fruitless + 1
        if self._fruitless > FRUITLESS:
            self._end(1, f"{FRUITLESS} generations in a row completed no step; the last one: {why}")
            return
        generation = self._membership.advance(why, detected_ns)
        for worker in list(self._workers.values()):
            worker.steps = 0
            if not messages.send(worker.control, generation.as_message()) and worker.pidfd is not None:
                self._kill(worker, "it reads nothing any more")
        self._loss = self._trouble = None
        self._published = self._clock()
        seats = ", ".join(f"{slot}: {seat.place}" for slot, seat in enumerate(generation.seats))
        _log.info("generation %d (%s): %s", generation.number, why, seats)


def _described(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def run_job(config: JobConfig) -> int:
    """Fork the zygote, open the store, supervise; returns the exit code."""
    for folder in (config.events_dir, config.logs_dir, config.checkpoint_dir):
        folder.mkdir(parents=True, exist_ok=True)
    listener = store.listen()
    zygote = Zygote.fork(RankSetup(config, listener))
    served = store.serve(listener)  # only now: a process that holds a store must not be forked
    code = Supervisor(config, zygote).run()
    del served
    return code
