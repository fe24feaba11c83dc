"""Forks ranks from a process that has everything imported and warmed: 0.02 s a rank instead of 2 s.

The zygote is forked before the launcher opens a store, because a process that holds one, or has any thread, must not be
forked. It is the parent of all ranks: it reaps them and, when the launcher's end of the socket closes, kills them.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import NoReturn

from chaos.lab import namespace, wire
from chaos.workload.reference.config import Place
from chaos.workload.reference.placement import name_process

CONTROL = "control"


@dataclass(frozen=True)
class Order:
    """A rank to start: the process's number in this job, its place, its control socket and its namespaces."""

    process: int
    place: Place
    fds: Mapping[str, int]


@dataclass(frozen=True)
class Started:
    """The process runs; ``pidfd`` becomes readable when it ends."""

    process: int
    pidfd: int


@dataclass(frozen=True)
class NotStarted:
    """The process could not be started: its node went off."""

    process: int
    why: str


@dataclass(frozen=True)
class Exited:
    """The process has ended and is reaped. ``code``: exit code, or minus the signal's number."""

    process: int
    code: int


class Zygote:
    """The launcher's handle of its zygote.

    Attributes:
        socket: readable when there is a report.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.socket = sock
        self.pid = pid

    @classmethod
    def fork(cls, become_rank: Callable[[Order], int]) -> Zygote:
        """Fork the zygote off the calling process, which must have one thread.

        Args:
            become_rank: what each rank runs; its result is the exit code.
        """
        ours, theirs = wire.pair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _Server(theirs, become_rank).serve()
        theirs.close()
        return cls(ours, pid)

    def start(self, order: Order) -> None:
        """Ask for a rank; Started or NotStarted will be reported. The caller still closes its descriptors."""
        message = {"process": order.process, "place": asdict(order.place), "fds": list(order.fds)}
        wire.send(self.socket, message, list(order.fds.values()))

    def report(self) -> Started | NotStarted | Exited | None:
        """The next report; ``None`` when the zygote has gone."""
        try:
            message, fds = wire.receive(self.socket)
        except ConnectionError:
            return None
        if message is None:
            return None
        if fds:
            return Started(message["process"], fds[0])
        if "why" in message:
            return NotStarted(message["process"], message["why"])
        return Exited(message["process"], message["code"])

    def close(self) -> None:
        """End the zygote with all ranks that still live, and wait for it."""
        self.socket.close()
        os.waitpid(self.pid, 0)


class _Server:
    """The zygote itself: one thread, one poll loop."""

    def __init__(self, sock: socket.socket, become_rank: Callable[[Order], int]) -> None:
        self._sock = sock
        self._become_rank = become_rank
        self._own_pids = namespace.open_namespace("pid")
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (process, pid)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def serve(self) -> NoReturn:
        name_process("zygote")
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher says when it is over
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._loop()
        except ConnectionError:  # the launcher died with something unsaid or unread
            self._end()
        except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
            traceback.print_exc()
        finally:
            os._exit(1)

    def _loop(self) -> NoReturn:
        while True:
            for fd, _ in self._poll.poll():
                if fd != self._sock.fileno():
                    self._reap(fd)
                    continue
                message, fds = wire.receive(self._sock)
                if message is None:
                    self._end()
                handed = dict(zip(message["fds"], fds, strict=True))
                self._start(Order(message["process"], Place(**message["place"]), handed))
                wire.close_all(fds)

    def _start(self, order: Order) -> None:
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - cheaper, and counted at each start
        if threads != 1:
            raise RuntimeError(f"the zygote has {threads} threads: what was imported before the fork must start none")
        try:
            pid = self._fork_into(order)
        except OSError as error:  # ENOMEM: the PID namespace has lost its init, the node is off
            wire.send(
                self._sock, {"process": order.process, "why": f"{order.place} takes no process: {error.strerror}"}
            )
            return
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (order.process, pid)
        self._poll.register(pidfd, select.POLLIN)
        wire.send(self._sock, {"process": order.process}, [pidfd])

    def _fork_into(self, order: Order) -> int:
        if "pid" in order.fds:
            namespace.setns(order.fds["pid"], namespace.NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                self._run(order)
            return pid
        finally:
            if "pid" in order.fds:
                namespace.setns(self._own_pids, namespace.NEWPID)

    def _run(self, order: Order) -> NoReturn:
        code = 1
        try:
            namespace.die_with_parent(signal.SIGKILL)
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for fd in (self._sock.fileno(), self._own_pids, *self._children):
                os.close(fd)
            code = self._become_rank(order)
        except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
            traceback.print_exc()
        finally:
            # Not sys.exit: gloo's threads may not survive the interpreter's own end ("terminate called").
            os._exit(code)

    def _reap(self, pidfd: int) -> None:
        process, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        wire.send(self._sock, {"process": process, "code": os.waitstatus_to_exitcode(status)})

    def _end(self) -> NoReturn:
        for pidfd in self._children:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for _, pid in self._children.values():
            os.waitpid(pid, 0)
        os._exit(0)
