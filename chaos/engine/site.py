"""The machines of an inventory as a cluster: agents over whatever reaches them, and a command as the training job, or a
job that runs there already.

A job reports its steps by appending JSON lines to files in the folder that its ``CHAOS_EVENTS`` names (see
``chaos.workload.events``). They come back over a channel of their own; their instants are put on this machine's clock.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chaos.engine.cluster import CONTROLLER, Job, Message, WorkloadError
from chaos.experiment import Workload
from chaos.lab.topology import LabSpec
from chaos.transport import local
from chaos.transport.pipe import PINGS, AgentClient, AgentError, ClockKeeper, Pipe, Sink, write_all
from chaos.workload.events import SUFFIX

START = 30.0  # seconds for a node to start its part of the job
END = 10.0  # seconds for a node to have ended it
LOOK_EVERY = 1.0  # seconds between two looks at a node's clock
JOB = "chaos.agent.job"


class Machine(Protocol):
    """A node of an inventory, and the way to it."""

    @property
    def name(self) -> str:
        """As the inventory calls it."""
        ...

    @property
    def address(self) -> str:
        """By which other nodes reach it."""
        ...

    def agent(self, log: Path, on_event: Callable[[Message], None]) -> AgentClient:
        """Start an agent there.

        Raises:
            AgentError: it does not start.
        """
        ...

    def run(self, module: str, log: Path) -> Pipe:
        """Start a module of the agent's bundle there, with a channel of its own.

        Raises:
            AgentError: it does not start.
        """
        ...

    def place(self) -> dict[str, Any]:
        """How it is reached again: see ``chaos.engine.ledger``."""
        ...

    def close(self) -> None:
        """Give up what was kept to reach it."""
        ...


@dataclass(frozen=True)
class Site:
    """The machines of a plan, by number; those that the job runs on come first."""

    machines: tuple[Machine, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """As the inventory calls them."""
        return tuple(machine.name for machine in self.machines)


class SiteCluster:
    """Machines.

    Args:
        site: its machines.
        spec: how many there are of which kind.
        logs: folder for the agents' stderr and the job's output.
    """

    lab: str | None = None

    def __init__(self, site: Site, spec: LabSpec, logs: Path) -> None:
        self._machines = site.machines
        self._spec = spec
        self._logs = logs

    def agent(self, node: int, on_event: Callable[[Message], None]) -> AgentClient:
        """See ``Cluster``."""
        if node == CONTROLLER:
            return local.start(local.state_folder(), self._logs / "agent-controller.log", on_event)
        if node < 0:
            raise AgentError("this cluster has no head")
        machine = self._machines[node]
        return machine.agent(self._logs / f"agent-{machine.name}.log", on_event)

    def place(self, node: int) -> dict[str, Any]:
        """See ``Cluster``."""
        if node == CONTROLLER:
            return {"transport": "local", "state": str(local.state_folder())}
        return self._machines[node].place()

    def lost_power(self, node: int, boot: str) -> str | None:  # noqa: ARG002 - no power supply is asked yet
        """See ``Cluster``."""
        return None

    def start(self, workload: Workload, settings: Mapping[str, Any], work: Path, logs: Path) -> Job:  # noqa: ARG002
        """Start the command on every node that the job runs on, or observe what runs there. See ``Cluster``."""
        events = work / "events"
        events.mkdir(exist_ok=True)
        parts: list[_Part] = []
        job = _SiteJob(parts)
        with ExitStack() as unless_all_run:
            unless_all_run.callback(job.stop)
            try:
                for node, machine in enumerate(self._machines[: self._spec.nodes]):
                    pipe = machine.run(JOB, logs / f"job-{machine.name}.log")
                    order = (
                        {"attach": workload.attach.events}
                        if workload.attach is not None
                        else {"argv": workload.command, "env": self._env(node), "cwd": None}
                    )
                    parts.append(_Part(node, machine.name, pipe, order, events=events, logs=logs))
            except (AgentError, OSError) as error:
                raise WorkloadError(str(error)) from error
            until = time.monotonic() + START
            for part in parts:
                part.await_start(max(0.0, until - time.monotonic()))
            unless_all_run.pop_all()
        return job

    def _env(self, node: int) -> dict[str, str]:
        """What a node's part of the job is told: see docs/step-events.md."""
        return {
            "CHAOS_NODE": str(node),
            "CHAOS_NODES": str(self._spec.nodes),
            "CHAOS_RANKS_PER_NODE": str(self._spec.gpus),
            "CHAOS_HEAD": self._machines[0].address,
        }

    def close(self) -> None:
        """Give up the ways to all machines."""
        for machine in self._machines:
            machine.close()


class _SiteJob:
    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts

    def ended(self) -> dict[str, int]:
        """See ``Job``."""
        return {f"the command on {part.name}": part.code for part in self._parts if part.code is not None}

    def stop(self) -> None:
        """See ``Job``."""
        for part in self._parts:
            part.say_stop()
        until = time.monotonic() + END
        for part in self._parts:
            part.await_end(max(0.0, until - time.monotonic()))


class _Part:
    """What runs on one node.

    Args:
        order: what to start, for ``chaos.agent.job``.
        events: the folder into which its step events are written, on our clock.
    """

    def __init__(
        self,
        node: int,
        name: str,
        pipe: Pipe,
        order: Mapping[str, Any],
        *,
        events: Path,
        logs: Path,
    ) -> None:
        self.name = name
        self.code: int | None = None
        self._node = node
        self._pipe = pipe
        self._clock = ClockKeeper()
        self._asked: deque[int] = deque()
        self._timed = threading.Event()
        self._over = threading.Event()
        self._events = events
        self._output = logs / f"output-{name}.log"
        self._files: dict[str, int] = {}
        self._started = threading.Event()
        self._error = "it has ended"
        self._running = False
        self._stopping = threading.Lock()
        self._stdin: Sink | None = pipe.stdin
        self._reader = threading.Thread(target=self._read, name=f"job on {name}", daemon=True)
        self._reader.start()
        speaker = threading.Thread(target=self._speak, args=(order,), name=f"clock of {name}", daemon=True)
        speaker.start()

    def _speak(self, order: Mapping[str, Any]) -> None:
        """Learn the node's clock, then give the order; then look once a second, since clocks drift apart."""
        for _ in range(PINGS):
            self._look_at_clock()
        self._say((json.dumps(order) + "\n").encode())
        while not self._over.wait(LOOK_EVERY):
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        self._timed.clear()
        self._asked.append(time.monotonic_ns())
        self._say(b"\n")
        self._timed.wait(START)

    def _say(self, data: bytes) -> None:
        with self._stopping, suppress(OSError):  # a channel that breaks is found out by whoever reads
            if self._stdin is not None:
                write_all(self._stdin, data)

    def await_start(self, timeout: float) -> None:
        """Wait until the command runs.

        Raises:
            WorkloadError: it does not.
        """
        if not self._started.wait(timeout):
            raise WorkloadError(f"the workload does not start on {self.name} within {START:g} s")
        if not self._running:
            raise WorkloadError(f"the workload does not start on {self.name}: {self._error}")

    def say_stop(self) -> None:
        """End its input, which ends it; idempotent."""
        with self._stopping:
            if self._stdin is not None:
                with suppress(OSError):  # the connection under it has gone
                    self._stdin.close()
                self._stdin = None

    def await_end(self, timeout: float) -> None:
        """Wait until all of it has ended; what does not in time is left to the end of its channel."""
        self._pipe.process.wait(timeout)
        self._reader.join(timeout)

    def _read(self) -> None:
        rest = b""
        with self._output.open("ab", buffering=0) as output:
            while data := self._receive():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    with suppress(ValueError, LookupError, TypeError):  # garbage of a channel that breaks
                        self._take(json.loads(line), output.write)
        self._over.set()
        self._timed.set()
        if self.code is None and self._running:
            self.code = 255  # as SSH tells of a connection that broke
        self._started.set()
        self._pipe.stdout.close()
        for fd in self._files.values():
            os.close(fd)

    def _receive(self) -> bytes:
        try:
            return self._pipe.stdout.read(1 << 16) or b""
        except OSError:
            return b""

    def _take(self, message: Message, write: Callable[[bytes], object]) -> None:
        match message["event"]:
            case "time":
                self._clock.add(self._asked.popleft(), message["t"], time.monotonic_ns())
                self._timed.set()
            case "started":
                self._running = True
                self._started.set()
            case "error":
                self._error = message["error"]
                self._started.set()
            case "output":
                write(message["text"].encode())
            case "step":
                self._keep(message["file"], json.loads(message["line"]))
            case "exit":
                self.code = message["code"]

    def _keep(self, name: str, event: Message) -> None:
        """Append a step event to the file of its process, with its instants on our clock and its node by our number."""
        event["t"] = self._clock.clock.ours(event["t"])
        if event.get("e") == "hello":
            event["node"] = self._node
        if name not in self._files:
            # Process ids may be the same on several nodes; the name may be anything that the job chose.
            stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name.removesuffix(SUFFIX))
            path = self._events / f"{self._node}-{stem}{SUFFIX}"
            self._files[name] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(self._files[name], (json.dumps(event, separators=(",", ":")) + "\n").encode())
