"""The controller's end of an agent's pipe: requests, answers, events, the lease and the clock's offset."""

from __future__ import annotations

import contextlib
import io
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from chaos.agent import protocol
from chaos.agent.protocol import Message
from chaos.lab.errors import LabError

SLACK, LATEST = protocol.SLACK, protocol.LATEST
ANSWER_TIMEOUT = 20.0  # seconds; arming imports and plans, everything else is answered at once
HANGS_AFTER = 2.0  # seconds without the answer that an agent gives at once
PINGS = 16
DRIFT_PPM = 100  # how far two clocks drift apart at the most; adjtimex slews more, but for seconds only


class AgentError(RuntimeError):
    """An agent cannot be reached, or refuses what was asked; the message says why."""


class Refused(AgentError):
    """The agent has answered, and will not do what was asked."""


class Process(Protocol):
    """What runs at the other end."""

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, or ``None`` when the time is over."""
        ...

    def signal(self, number: int) -> None:
        """Send it a signal; nothing if it has ended."""
        ...


class Source(Protocol):
    """Where bytes come from: a raw stream that is read, or something like one."""

    def read(self, size: int, /) -> bytes | None:
        """Some bytes, at least one and at most ``size``; none at the end. May raise OSError."""
        ...

    def close(self) -> None:
        """Nobody will read any more."""
        ...


class Sink(Protocol):
    """Where bytes go: a raw stream that is written, or something like one."""

    def write(self, data: bytes | memoryview, /) -> int | None:
        """How many of them were taken. May raise OSError."""
        ...

    def close(self) -> None:
        """Nothing more comes: the other side finds its input at an end."""
        ...


def source(end: int | Source, *, take_over: bool = True) -> Source:
    """A descriptor as a source; a source as it is."""
    return io.FileIO(end, "rb", closefd=take_over) if isinstance(end, int) else end


def sink(end: int | Sink, *, take_over: bool = True) -> Sink:
    """A descriptor as a sink; a sink as it is."""
    return io.FileIO(end, "wb", closefd=take_over) if isinstance(end, int) else end


def write_all(end: Sink, data: bytes) -> None:
    """Write until everything is taken."""
    left = memoryview(data)
    while left:
        left = left[end.write(left) or 0 :]


@dataclass(frozen=True)
class Pipe:
    """A process somewhere, by the two ends of its pipe that are ours; whoever has it closes them.

    Attributes:
        stdin: where its input is written to.
        stdout: where its output is read from.
    """

    stdin: Sink
    stdout: Source
    process: Process


@dataclass(frozen=True)
class Clock:
    """The agent's clock seen from here.

    Attributes:
        offset_ns: add it to our CLOCK_MONOTONIC to get the agent's.
        uncertainty_ns: half of the shortest round trip: the offset is right within it.
    """

    offset_ns: int
    uncertainty_ns: int

    def theirs(self, ours_ns: int) -> int:
        """An instant of ours on the agent's clock."""
        return ours_ns + self.offset_ns

    def ours(self, theirs_ns: int) -> int:
        """An instant of the agent's on our clock."""
        return theirs_ns - self.offset_ns


class ClockKeeper:
    """Keeps the best offset of a clock: that of the shortest round trip, as NTP does (RFC 5905, section 8).

    An old trip is worth less each second, since two oscillators drift apart; on one machine they are the same.
    """

    def __init__(self) -> None:
        self._best: Clock | None = None
        self._at = 0

    def add(self, sent_ns: int, theirs_ns: int, received_ns: int) -> None:
        """One round trip: when it was sent and received on our clock, and what theirs said in between."""
        trip = Clock(theirs_ns - (sent_ns + received_ns) // 2, (received_ns - sent_ns + 1) // 2)
        if self._best is not None and trip.uncertainty_ns > self._best.uncertainty_ns + self._drift(received_ns):
            return
        self._best, self._at = trip, received_ns

    def _drift(self, now_ns: int) -> int:
        return (now_ns - self._at) * DRIFT_PPM // 1_000_000

    @property
    def clock(self) -> Clock:
        """The best offset so far; ``add`` comes first."""
        assert self._best is not None
        return self._best


class Request:
    """Something that an agent was asked, whose answer may not be there yet."""

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent
        self._done = threading.Event()
        self._answer: Message | None = None

    def finish(self, answer: Message | None) -> None:
        """The answer has come; ``None``: it never will."""
        self._answer = answer
        self._done.set()

    def answer(self, timeout: float) -> Message:
        """Wait for the answer.

        Raises:
            Refused: it says that it cannot, and why.
            AgentError: it has gone, or does not answer within ``timeout`` seconds.
        """
        if not self._done.wait(timeout):
            raise AgentError(f"the agent of {self._agent.name} does not answer within {timeout:g} s")
        if self._answer is None:
            raise AgentError(f"the agent of {self._agent.name} {self._agent.fate}")
        if "error" in self._answer:
            raise Refused(str(self._answer["error"]))
        return self._answer


class AgentClient:
    """One agent. A thread reads its answers and events, another renews its lease.

    Args:
        name: for messages: ``node 0``.
        stdin: where requests are written to, a descriptor or a stream; taken over.
        stdout: where answers are read from, the same.
        process: the agent's process.
        on_event: called with every event, on the reading thread; the last is ``{"event": "gone"}``, after its end.
            ``{"event": "hangs"}`` comes where it no longer answers, although it has not ended.

    Raises:
        AgentError: the agent does not say hello, or says that it cannot work.
    """

    def __init__(
        self,
        name: str,
        stdin: int | Sink,
        stdout: int | Source,
        process: Process,
        on_event: Callable[[Message], None],
    ) -> None:
        self.name = name
        self.hello: Message = {}
        self._stdin: Sink | None = sink(stdin)
        self._stdout = source(stdout)
        self._process = process
        self._on_event = on_event
        self._lock = threading.Lock()
        self._open: dict[int, Request] = {}
        self._keeper = ClockKeeper()
        self._next = 0
        self._greeted = threading.Event()
        self._closed = threading.Event()
        self._goodbye: Request | None = None
        self.fate = "has gone"
        self.hangs = False
        self._reader = threading.Thread(target=self._read, name=f"agent {name}", daemon=True)
        self._reader.start()
        if not self._greeted.wait(ANSWER_TIMEOUT) or not self.hello:
            self.kill()
            raise AgentError(f"the agent of {name} does not start: it {self.fate}")
        if "error" in self.hello:
            self.kill()
            raise AgentError(f"the agent of {name} cannot work: {self.hello['error']}")
        try:
            for _ in range(PINGS):
                self._look_at_clock("ping", ANSWER_TIMEOUT)
        except AgentError:
            self.kill()
            raise
        threading.Thread(target=self._renew, name=f"lease {name}", daemon=True).start()

    def request(self, op: str, *, timeout: float = ANSWER_TIMEOUT, **fields: object) -> Message:
        """Ask and wait for the answer.

        Raises:
            Refused: it says that it cannot, and why.
            AgentError: it has gone, or does not answer within ``timeout`` seconds.
        """
        return self.ask(op, **fields).answer(timeout)

    def ask(self, op: str, **fields: object) -> Request:
        """Ask, without waiting: what is asked first is heard first.

        Raises:
            AgentError: it has gone.
        """
        request = Request(self)
        with self._lock:
            if self.gone or self._stdin is None:
                raise AgentError(f"the agent of {self.name} {self.fate}")
            number = self._next = self._next + 1
            self._open[number] = request
            try:
                write_all(self._stdin, protocol.encode({"id": number, "op": op, **fields}))
            except OSError as error:
                raise AgentError(f"the agent of {self.name} {self.fate}") from error
        return request

    def _read(self) -> None:
        lines = protocol.Lines()
        while True:
            try:
                data = self._stdout.read(65536)
            except OSError as error:
                self.fate = f"has gone: {error.strerror or error}"
                data = b""
            if not data:
                break
            try:
                for message in lines.feed(data):
                    self._dispatch(message)
            except ValueError as error:  # without our renewals it undoes everything, as if we had gone
                self.fate = f"is not understood: {error}"
                break
        self._closed.set()
        self._greeted.set()
        with self._lock:
            for request in self._open.values():
                request.finish(None)
            self._open.clear()
        self._stdout.close()
        self._on_event({"event": "gone"})

    def _dispatch(self, message: Message) -> None:
        if "re" in message:
            with self._lock:
                request = self._open.pop(message["re"], None)
            if request is not None:
                request.finish(message)
        elif "event" not in message:
            raise ValueError(f"neither an answer nor an event: {message!r:.80}")
        elif message["event"] == "hello":
            self.hello = message
            self._greeted.set()
        else:
            self._on_event(message)

    @property
    def clock(self) -> Clock:
        """The agent's clock, by the best of all round trips so far."""
        return self._keeper.clock

    def _look_at_clock(self, op: str, timeout: float) -> None:
        sent = time.monotonic_ns()
        theirs = self.request(op, timeout=timeout)["t"]
        self._keeper.add(sent, theirs, time.monotonic_ns())

    def _renew(self) -> None:
        while not self._closed.wait(protocol.RENEW_EVERY):
            try:
                self._look_at_clock("renew", HANGS_AFTER)
            except Refused:
                continue
            except AgentError:
                if not self.gone:  # whose end the reading thread notices
                    self.hangs = True
                    self._on_event({"event": "hangs"})
                    return

    @property
    def gone(self) -> bool:
        """Whether the agent has closed its end."""
        return self._closed.is_set()

    def say_goodbye(self) -> None:
        """Order the agent to undo whatever it still holds and to end, without waiting for it. Idempotent."""
        if self._goodbye is None:
            with contextlib.suppress(AgentError):  # it has gone, which ``close`` finds out
                self._goodbye = self.ask("bye")

    def close(self, timeout: float = ANSWER_TIMEOUT) -> None:
        """Say goodbye: the agent undoes whatever it still holds, then ends. Idempotent.

        Raises:
            AgentError: it does not within ``timeout`` seconds; then it is killed, and its guardian or the next agent
                of its node undoes what is left.
        """
        self.say_goodbye()
        try:
            if self._goodbye is not None:
                self._goodbye.answer(timeout)
        except AgentError:
            if not self.gone:  # a node that has lost its power took the agent with it: nothing is left to say
                self.end()
                raise
        finally:
            self.kill()

    def end(self) -> None:
        """SIGKILL: for an agent that hangs, so that others can take over what it holds."""
        with contextlib.suppress(OSError, LabError):  # it has just ended, or its node has
            self._process.signal(signal.SIGKILL)
        self._closed.wait(ANSWER_TIMEOUT)

    def kill(self) -> None:
        """End the agent's input, which is an order to undo everything, and wait for its end."""
        with self._lock:
            if self._stdin is not None:
                with contextlib.suppress(OSError):  # the connection under it has gone
                    self._stdin.close()
                self._stdin = None
        self._process.wait(ANSWER_TIMEOUT)
        self._reader.join(ANSWER_TIMEOUT)
