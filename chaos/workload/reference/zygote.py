"""The job's first process: forks ranks, and the launcher that decides about them, from memory that is warm already.

A fork of a process that has everything imported costs 0.02 s instead of 2 s. Only a process with one thread may fork,
so the zygote has none but its first and no connection to a store; all that needs more is done by its children. It is
the parent of all: it reaps them, starts a new launcher when one dies (the ranks go on meanwhile, and are handed to the
next one), and when it ends, or is killed, they all end with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import stat
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

from chaos.lab import namespace, wire
from chaos.workload.reference.config import Place
from chaos.workload.reference.placement import name_process
from chaos.workload.reference.poller import Poller

_log = logging.getLogger("zygote")

EXIT_FAILED = 1
#: A launcher that dies so often within so many seconds is broken itself: the job ends.
LAUNCHER_DEATHS = (5, 10.0)
#: A launcher that was told to end has so many seconds, then everything is killed.
END_S = 15.0
_STDIN = 0


@dataclass(frozen=True)
class Order:
    """A rank to start: the process's number in this job, its place, and its namespaces by kind."""

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

    @property
    def how(self) -> str:
        """Its end in words."""
        return _how(self.code)


@dataclass(frozen=True)
class EndAsked:
    """The job is to end."""

    why: str


@dataclass(frozen=True)
class Living:
    """A rank that lives already when a launcher starts."""

    process: int
    place: Place
    pidfd: int


class ZygoteClient:
    """The launcher's way to the zygote.

    Attributes:
        socket: readable when there is a report.
        living: the ranks that a former launcher has started.
        numbers: how many processes there have been; the next one's number is one more.
        generation: the newest one that there has been; 0: none.
        begun: whether the job has a state that can be lost.
    """

    def __init__(
        self, sock: socket.socket, living: list[Living], *, numbers: int, generation: int, begun: bool
    ) -> None:
        self.socket = sock
        self.living = living
        self.numbers = numbers
        self.generation = generation
        self.begun = begun

    def announce(self, generation: int) -> None:
        """Say that there is a new generation, so that no launcher uses its number again."""
        self.generation = generation
        self._say({"generation": generation})

    def start(self, order: Order) -> None:
        """Ask for a rank; Started or NotStarted will be reported. The caller still closes its descriptors."""
        message = {"process": order.process, "place": asdict(order.place), "fds": list(order.fds)}
        wire.send(self.socket, message, list(order.fds.values()))

    def has_begun(self) -> None:
        """Say that the job has a state, so that no launcher lets it begin again without one."""
        if not self.begun:
            self.begun = True
            self._say({"begun": True})

    def outcome(self, code: int) -> None:
        """Say that the job is over, and with which exit code."""
        self._say({"outcome": code})

    def _say(self, message: wire.Message) -> None:
        with contextlib.suppress(OSError):  # it has gone, and will take us with it
            wire.send(self.socket, message)

    def report(self) -> Started | NotStarted | Exited | EndAsked | None:
        """The next report; ``None`` when the zygote has gone."""
        try:
            message, fds = wire.receive(self.socket)
        except ConnectionError:
            return None
        if message is None:
            return None
        if "end" in message:
            return EndAsked(message["end"])
        if fds:
            return Started(message["process"], fds[0])
        if "why" in message:
            return NotStarted(message["process"], message["why"])
        return Exited(message["process"], message["code"])


@dataclass(frozen=True)
class _Child:
    process: int
    place: Place
    pid: int


class Zygote:
    """The zygote itself: one thread, one poll loop.

    Args:
        become_rank: what each rank runs; its result is the exit code.
        become_launcher: what the launcher runs; it says the job's outcome.
    """

    def __init__(self, become_rank: Callable[[Order], int], become_launcher: Callable[[ZygoteClient], int]) -> None:
        self._become_rank = become_rank
        self._become_launcher = become_launcher
        self._poller = Poller()
        self._ends = _Ends(self._poller, self._end)
        self._own_pids = namespace.open_namespace("pid")
        self._ranks: dict[int, _Child] = {}  # by pidfd
        self._numbers = 0
        self._generation = 0
        self._begun = False
        self._launcher: socket.socket | None = None
        self._launcher_pid = 0
        self._deaths: list[float] = []
        self._outcome: int | None = None
        self._over = False
        self._ending: float | None = None  # seconds: when everything is killed
        self._why_end = ""

    def serve(self) -> int:
        """Run the job to its end; returns its exit code. SIGTERM, SIGINT and the end of standard input end it."""
        with self._ends:
            self._start_launcher()
            while not self._over:
                self._poller.wait(1.0)
                if self._ending is not None and time.monotonic() > self._ending:
                    _log.error("the launcher did not end the job within %g s", END_S)
                    break
            self._kill_all()
        return EXIT_FAILED if self._outcome is None else self._outcome

    # -- the launcher --------------------------------------------------------------------------------------------------

    def _start_launcher(self) -> None:
        self._check_threads()
        ours, theirs = wire.pair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            living = [Living(child.process, child.place, pidfd) for pidfd, child in self._ranks.items()]
            _run(lambda: self._launch(theirs, living))
        theirs.close()
        self._launcher, self._launcher_pid = ours, pid
        self._poller.listen(ours.fileno(), self._hear_launcher)
        if self._why_end:
            self._tell({"end": self._why_end})

    def _launch(self, sock: socket.socket, living: list[Living]) -> int:
        name_process("launcher")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # for the zygote, which says when it is over
        client = ZygoteClient(sock, living, numbers=self._numbers, generation=self._generation, begun=self._begun)
        return self._become_launcher(client)

    def _hear_launcher(self) -> None:
        assert self._launcher is not None
        try:
            message, fds = wire.receive(self._launcher)
        except ConnectionError:  # it died with something unread; what it has said itself is read after this
            return
        if message is None:
            self._lose_launcher()
        elif "outcome" in message:
            self._outcome = message["outcome"]
            self._ending = self._ending or time.monotonic() + END_S
        elif "begun" in message:
            self._begun = True
        elif "generation" in message:
            self._generation = message["generation"]
        else:
            handed = dict(zip(message["fds"], fds, strict=True))
            self._start_rank(Order(message["process"], Place(**message["place"]), handed))
        wire.close_all(fds)

    def _lose_launcher(self) -> None:
        assert self._launcher is not None
        self._poller.ignore(self._launcher.fileno())
        self._launcher.close()
        self._launcher = None
        _, status = os.waitpid(self._launcher_pid, 0)
        if self._outcome is not None:
            self._over = True
            return
        how = _how(os.waitstatus_to_exitcode(status))
        _log.warning("the launcher died (%s): the ranks go on, and a new one is started", how)
        most, within = LAUNCHER_DEATHS
        now = time.monotonic()
        self._deaths = [death for death in self._deaths if now - death < within] + [now]
        if len(self._deaths) >= most:
            _log.error("job ends: %d launchers died within %g s", most, within)
            self._over = True
        else:
            self._start_launcher()

    def _tell(self, message: wire.Message, fds: Sequence[int] = ()) -> None:
        """Tell the launcher; one that has just died is replaced by one that is told at its start."""
        if self._launcher is not None:
            with contextlib.suppress(OSError):
                wire.send(self._launcher, message, fds)

    def _end(self, why: str) -> None:
        if self._ending is None:
            self._ending, self._why_end = time.monotonic() + END_S, why
            self._tell({"end": why})

    # -- ranks ---------------------------------------------------------------------------------------------------------

    def _start_rank(self, order: Order) -> None:
        self._check_threads()
        self._numbers = max(self._numbers, order.process)
        try:
            pid = self._fork_into(order)
        except OSError as error:  # ENOMEM: the PID namespace has lost its init, the node is off
            self._tell({"process": order.process, "why": f"{order.place} takes no process: {error.strerror}"})
            return
        pidfd = os.pidfd_open(pid)
        self._ranks[pidfd] = _Child(order.process, order.place, pid)
        self._poller.listen(pidfd, lambda: self._reap(pidfd))
        self._tell({"process": order.process}, [pidfd])

    def _fork_into(self, order: Order) -> int:
        if "pid" in order.fds:
            namespace.setns(order.fds["pid"], namespace.NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                _run(lambda: self._become(order))
            return pid
        finally:
            if "pid" in order.fds:
                namespace.setns(self._own_pids, namespace.NEWPID)

    def _become(self, order: Order) -> int:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        assert self._launcher is not None
        self._launcher.close()
        for fd in (self._own_pids, *self._ends.fds, *self._ranks):
            os.close(fd)
        return self._become_rank(order)

    def _reap(self, pidfd: int) -> None:
        self._poller.ignore(pidfd)
        child = self._ranks.pop(pidfd)
        _, status = os.waitpid(child.pid, 0)
        os.close(pidfd)
        self._tell({"process": child.process, "code": os.waitstatus_to_exitcode(status)})

    def _kill_all(self) -> None:
        if self._launcher is not None:
            os.kill(self._launcher_pid, signal.SIGKILL)
            os.waitpid(self._launcher_pid, 0)
        for pidfd in self._ranks:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for child in self._ranks.values():
            os.waitpid(child.pid, 0)

    @staticmethod
    def _check_threads() -> None:
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - cheaper, and counted at each start
        if threads != 1:
            raise RuntimeError(f"the zygote has {threads} threads: what was imported before the fork must start none")


def _run(work: Callable[[], int]) -> NoReturn:
    """Be a child: it ends with its work, and with its parent."""
    code = EXIT_FAILED
    try:
        namespace.die_with_parent(signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        code = work()
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
        traceback.print_exc()
    finally:
        # Not sys.exit: gloo's threads may not survive the interpreter's own end ("terminate called").
        os._exit(code)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


class _Ends:
    """Hears what ends the job: SIGTERM, SIGINT, and the end of standard input where that is somebody's lifeline."""

    def __init__(self, poller: Poller, end: Callable[[str], None]) -> None:
        self._poller = poller
        self._end = end
        self.fds: tuple[int, ...] = ()

    def __enter__(self) -> None:
        self._reader, self._writer = self.fds = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._former = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        self._poller.listen(self._reader, self._hear_signal)
        mode = os.fstat(_STDIN).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):  # /dev/null is nobody's
            self._poller.listen(_STDIN, self._hear_stdin)

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        for fd in (*self.fds, _STDIN):
            self._poller.ignore(fd)
        for fd in self.fds:
            os.close(fd)

    def _hear_signal(self) -> None:
        os.read(self._reader, 4096)
        self._end("stopped by a signal")

    def _hear_stdin(self) -> None:
        if not os.read(_STDIN, 4096):
            self._poller.ignore(_STDIN)
            self._end("stopped: standard input has ended")
