"""The launcher's processes: started through the zygote, listened to, killed, and tried again after a pause."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.workload.reference import messages
from chaos.workload.reference.config import Place
from chaos.workload.reference.messages import Message, Status
from chaos.workload.reference.placement import Placement, PlaceUnavailable
from chaos.workload.reference.poller import Poller
from chaos.workload.reference.zygote import EndAsked, Exited, NotStarted, Order, Started, ZygoteClient

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
        control: its connection; ``None`` until it has found us.
        status: how things stand with it, as it said last.
        killed: whether we have killed it.
    """

    number: int
    place: Place
    asked: float
    pidfd: int | None = None
    control: socket.socket | None = None
    status: Status = field(default_factory=Status)
    killed: bool = False

    def __str__(self) -> str:
        return f"process {self.number} ({self.place})"


class Workers:
    """All processes of a job, those of a former launcher among them.

    Args:
        zygote: starts them.
        placement: where.
        poller: of the launcher's one thread.
        listener: where they connect; taken over.
        on_message: told what a process says.
        on_death: told of a process that has died; ``alive`` no longer holds it.
        on_end: told the exit code with which the job is to end, and why.
        clock: seconds, monotonic.

    Attributes:
        alive: by number; with those that are being started.
        attempts: how often in a row a place has refused a process or lost it before it was ready.
    """

    def __init__(
        self,
        zygote: ZygoteClient,
        placement: Placement,
        poller: Poller,
        listener: socket.socket,
        *,
        on_message: Callable[[Worker, Message], None],
        on_death: Callable[[Worker], None],
        on_end: Callable[[int, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._zygote = zygote
        self._placement = placement
        self._poller = poller
        self._listener = listener
        self._on_message = on_message
        self._on_death = on_death
        self._on_end = on_end
        self._clock = clock
        self._numbers = zygote.numbers
        self._not_before: dict[Place, float] = {}
        self.alive: dict[int, Worker] = {}
        self.attempts: dict[Place, int] = {}
        for each in zygote.living:
            worker = self.alive[each.process] = Worker(each.process, each.place, clock())
            self._watch_life(worker, each.pidfd)
        poller.listen(zygote.socket.fileno(), self._hear_zygote)
        poller.listen(listener.fileno(), self._accept)

    def start(self, place: Place) -> Worker | None:
        """Start a process in a place; ``None`` if that is not possible now (or was not, a moment ago)."""
        if self._clock() < self._not_before.get(place, 0.0):
            return None
        try:
            namespaces = self._placement.namespaces(place)
        except PlaceUnavailable as error:
            self.put_off(place, str(error))
            return None
        self._numbers += 1
        worker = Worker(self._numbers, place, self._clock())
        try:
            self._zygote.start(Order(worker.number, place, namespaces))
        except OSError:
            self._lose_zygote()
        finally:
            for fd in namespaces.values():
                os.close(fd)
        self.alive[worker.number] = worker
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
        if worker.control is not None and not messages.send(worker.control, message):
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

    # -- the zygote ------------------------------------------------------------------------------------------------

    def _hear_zygote(self) -> None:
        report = self._zygote.report()
        match report:
            case None:
                self._lose_zygote()
            case EndAsked():
                self._on_end(0, report.why)
            case Exited():
                _log.info("process %d ended: %s", report.process, report.how)
            case NotStarted():
                _log.info("process %d was not started: %s", report.process, report.why)
                self._died(self.alive[report.process])
            case Started():
                self._watch_life(self.alive[report.process], report.pidfd)

    def _lose_zygote(self) -> None:
        self._poller.ignore(self._zygote.socket.fileno())
        self._on_end(1, "the zygote has died")

    def _watch_life(self, worker: Worker, pidfd: int) -> None:
        worker.pidfd = pidfd
        self._poller.listen(pidfd, lambda: self._died(worker))

    def _died(self, worker: Worker) -> None:
        del self.alive[worker.number]
        if worker.control is not None:
            self._drop(worker.control)
        if worker.pidfd is not None:
            self._poller.ignore(worker.pidfd)
            os.close(worker.pidfd)
        self._on_death(worker)

    # -- connections -----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone again
            return
        self._poller.listen(sock.fileno(), lambda: self._greet(sock))

    def _greet(self, sock: socket.socket) -> None:
        """The first message says who it is."""
        try:
            hello = messages.receive(sock)
        except BlockingIOError:
            return
        worker = None if hello is None else self.alive.get(hello.get("process", 0))
        if hello is None or hello["op"] != "hello" or worker is None:
            self._drop(sock)
            return
        if worker.control is not None:
            self._drop(worker.control)
        worker.control = sock
        self._poller.listen(sock.fileno(), lambda: self._hear(worker, sock))
        self._on_message(worker, hello)

    def _hear(self, worker: Worker, sock: socket.socket) -> None:
        try:
            message = messages.receive(sock)
        except BlockingIOError:
            return
        if message is None:  # it is dying, and its pidfd will say so
            self._drop(sock)
            worker.control = None
        else:
            self._on_message(worker, message)

    def _drop(self, sock: socket.socket) -> None:
        self._poller.ignore(sock.fileno())
        sock.close()
