"""The launcher's processes: started through the zygote, listened to, killed, and tried again after a pause."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.workload.reference import messages
from chaos.workload.reference.config import Place
from chaos.workload.reference.messages import Message
from chaos.workload.reference.placement import Placement, PlaceUnavailable
from chaos.workload.reference.poller import Poller
from chaos.workload.reference.zygote import CONTROL, Exited, NotStarted, Order, Started, Zygote

_log = logging.getLogger("launcher")

_RETRY_S = (0.25, 5.0)  # pause before a place is tried again: the first one, doubled up to the last


@dataclass(eq=False)
class Worker:
    """One process.

    Attributes:
        number: its number in this job.
        place: where it runs.
        asked: when it was asked for, in seconds of the launcher's clock.
        pidfd: readable when it has died; ``None`` until the zygote has forked it.
        followed: the generation that its main thread follows.
        steps: steps that it has completed in that one.
        done: the generation in which it has done the last step.
        killed: whether we have killed it.
    """

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


class Workers:
    """All processes of a job.

    Args:
        on_message: told what a process says.
        on_death: told of a process that has died; ``alive`` no longer holds it.
        on_end: told that the zygote has died, and all processes with it.
        clock: seconds, monotonic.

    Attributes:
        alive: by number; with those that are being started.
        attempts: how often in a row a place has refused a process or lost it before it was ready.
    """

    def __init__(
        self,
        zygote: Zygote,
        placement: Placement,
        poller: Poller,
        *,
        on_message: Callable[[Worker, Message], None],
        on_death: Callable[[Worker], None],
        on_end: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._zygote = zygote
        self._placement = placement
        self._poller = poller
        self._on_message = on_message
        self._on_death = on_death
        self._on_end = on_end
        self._clock = clock
        self._numbers = 0
        self._not_before: dict[Place, float] = {}
        self.alive: dict[int, Worker] = {}
        self.attempts: dict[Place, int] = {}
        poller.listen(zygote.socket.fileno(), self._hear_zygote)

    def start(self, place: Place) -> Worker | None:
        """Start a process in a place; ``None`` if that is not possible now (or was not, a moment ago)."""
        if self._clock() < self._not_before.get(place, 0.0):
            return None
        try:
            namespaces = self._placement.namespaces(place)
        except PlaceUnavailable as error:
            self.put_off(place, str(error))
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers += 1
        worker = Worker(self._numbers, place, ours, self._clock())
        try:
            self._zygote.start(Order(worker.number, place, {CONTROL: theirs.fileno()} | namespaces))
        except OSError:
            self._on_end()
        finally:
            theirs.close()
            for fd in namespaces.values():
                os.close(fd)
        self.alive[worker.number] = worker
        self._poller.listen(ours.fileno(), lambda: self._hear(worker))
        return worker

    def put_off(self, place: Place, why: str) -> None:
        """Leave a place alone for a while, longer each time, until ``settled``."""
        first, most = _RETRY_S
        attempts = self.attempts[place] = self.attempts.get(place, 0) + 1
        if attempts == 1:
            _log.info("%s cannot be used: %s", place, why)
        self._not_before[place] = self._clock() + min(most, first * 2 ** (attempts - 1))

    def settled(self, place: Place) -> None:
        """A process in this place is ready."""
        self.attempts.pop(place, None)

    def send(self, worker: Worker, message: Message) -> None:
        """Tell a process something; it is killed if it hears nothing any more."""
        if not messages.send(worker.control, message):
            self.kill(worker, "it hears nothing any more")

    def kill(self, worker: Worker, why: str) -> None:
        """SIGKILL a process; its death is told in due course."""
        if worker.pidfd is not None and not worker.killed:
            worker.killed = True
            try:
                signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
            except ProcessLookupError:  # dead and reaped already, and we have not read of it yet
                return
            _log.warning("%s is killed: %s", worker, why)

    def close(self) -> None:
        """Kill what still lives and wait for it."""
        for worker in list(self.alive.values()):
            _log.warning("%s did not end by itself and is killed", worker)
            self._forget(worker)
        self._poller.ignore(self._zygote.socket.fileno())
        self._zygote.close()

    def _hear_zygote(self) -> None:
        report = self._zygote.report()
        if report is None:
            self._poller.ignore(self._zygote.socket.fileno())
            for worker in [each for each in self.alive.values() if each.pidfd is None]:
                self._forget(worker)  # it was never forked, and nothing else would tell its end
            self._on_end()
        elif isinstance(report, Exited):
            how = f"exit code {report.code}" if report.code >= 0 else f"signal {-report.code}"
            _log.info("process %d ended: %s", report.process, how)
        elif isinstance(report, NotStarted):
            worker = self.alive[report.process]
            self.put_off(worker.place, report.why)
            self._died(worker)
        elif isinstance(report, Started):
            worker = self.alive[report.process]
            worker.pidfd = report.pidfd
            self._poller.listen(report.pidfd, lambda: self._died(worker))

    def _hear(self, worker: Worker) -> None:
        try:
            message = messages.receive(worker.control)
        except BlockingIOError:
            return
        if message is None:  # it is dying, and its pidfd will say so
            self._poller.ignore(worker.control.fileno())
        else:
            self._on_message(worker, message)

    def _died(self, worker: Worker) -> None:
        self._forget(worker)
        self._on_death(worker)

    def _forget(self, worker: Worker) -> None:
        del self.alive[worker.number]
        self._poller.ignore(worker.control.fileno())
        worker.control.close()
        if worker.pidfd is not None:
            self._poller.ignore(worker.pidfd)
            os.close(worker.pidfd)
            worker.pidfd = None
