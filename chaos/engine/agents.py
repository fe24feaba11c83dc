"""The agents of one run: started when first needed, their events handed to whoever waits for a fault."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from chaos.engine import processes
from chaos.lab.client import LabClient
from chaos.lab.errors import LabError
from chaos.transport import lab as lab_transport
from chaos.transport import local
from chaos.transport.pipe import ANSWER_TIMEOUT, AgentClient, AgentError

Message = dict[str, Any]
# In place of a node: the agent beside the controller, and the one on the lab's head, where the job's launcher is.
CONTROLLER, HEAD = -1, -2
# Put into a fault's inbox when there is something else to look at: an agent that has gone, a run that is to end.
WAKE: Message = {"event": "wake"}


class Agents:
    """All agents of a run.

    Args:
        lab: where nodes are.
        logs: folder for the agents' stderr.
        state: folder for the undo records of the controller's own agent.
    """

    def __init__(self, lab: LabClient, logs: Path, state: Path) -> None:
        self._lab = lab
        self._logs = logs
        self._state = state
        self._lock = threading.Lock()
        self._starting: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._clients: dict[int, AgentClient] = {}
        self._inboxes: dict[str, queue.SimpleQueue[Message]] = {}

    def inbox(self, fault: str) -> queue.SimpleQueue[Message]:
        """Where a fault's events arrive, and ``WAKE``."""
        with self._lock:
            return self._inboxes.setdefault(fault, queue.SimpleQueue())

    def on(self, node: int) -> AgentClient:
        """As ``reach``, for a new fault: nothing new is broken on top of what is left of a former one.

        Raises:
            AgentError: it does not start, or its node still has something of a former fault.
        """
        client = self.reach(node)
        if client.hello["left"]:
            raise AgentError(f"{client.name} still has a former fault: {'; '.join(client.hello['left'])}")
        return client

    def reach(self, node: int) -> AgentClient:
        """The agent of a node, of the ``CONTROLLER`` or of the ``HEAD``; started if there is none any more. One that
        starts undoes what a dead one has left.

        Raises:
            AgentError: it does not start.
        """
        with self._lock:
            starting = self._starting[node]
        with starting:  # of two at once the second would find the records of the first one locked
            with self._lock:
                client = self._clients.get(node)
            if client is None or client.gone:
                client = self._start(node)
                with self._lock:
                    self._clients[node] = client
            return client

    def _start(self, node: int) -> AgentClient:
        if node == CONTROLLER:
            return local.start(self._state, self._logs / "agent-controller.log", self._deliver)
        if node == HEAD:
            return lab_transport.start(self._lab, None, self._logs / "agent-head.log", self._deliver)
        return lab_transport.start(self._lab, node, self._logs / f"agent-node{node}.log", self._deliver)

    def _deliver(self, event: Message) -> None:
        if "fault" in event:
            self.inbox(event["fault"]).put(event)
        elif event["event"] in ("gone", "hangs"):
            with self._lock:
                inboxes = list(self._inboxes.values())
            for inbox in inboxes:
                inbox.put(WAKE)

    @cached_property
    def _keeper(self) -> dict[str, Any]:
        return processes.identity(self._lab.keeper)

    def place(self, node: int) -> dict[str, Any]:
        """How the agent of a node is reached again by another controller (see ``chaos.engine.ledger``).

        Raises:
            AgentError: the lab has gone.
        """
        try:
            lab = {"lab": str(self._lab.directory), "keeper": self._keeper}
        except (LabError, ProcessLookupError) as error:
            raise AgentError(str(error)) from error
        if node == CONTROLLER:
            return {"transport": "local", "state": str(self._state), **lab}
        return {"transport": "lab", "node": "head" if node == HEAD else node, **lab}

    def lost_power(self, node: int, boot: str) -> str | None:
        """The proof that whatever was on a node in a boot of it went with its power, from its power supply; or None.

        Args:
            boot: the boot id.
        """
        if node < 0:
            return None
        try:
            told = self._lab.show()["nodes"][node]
        except LabError:
            return None
        if told["power"] == "off":
            return f"node {node} is off: what was on it went with its power"
        if told["power"] == "on" and told["boot_id"] != boot:
            return f"node {node} has booted anew since (boot id {told['boot_id'][:8]}): what was on it went before"
        return None

    @property
    def uncertainty_ns(self) -> int:
        """The largest uncertainty of an agent's clock against ours."""
        with self._lock:
            return max((client.clock.uncertainty_ns for client in self._clients.values()), default=0)

    def close(self, complain: Callable[[str], None]) -> None:
        """Say goodbye to all, and only then wait: one that hangs delays no other's undo, and is complained about."""
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:
            client.say_goodbye()
        end = time.monotonic() + ANSWER_TIMEOUT
        for client in clients:
            try:
                client.close(max(0.0, end - time.monotonic()))
            except AgentError as error:
                complain(str(error))
