"""The agents of one run: started when first needed, their events handed to whoever waits for a fault."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.lab.client import LabClient
from chaos.transport import lab as lab_transport
from chaos.transport import local
from chaos.transport.pipe import AgentClient, AgentError

Message = dict[str, Any]
# In place of a node: the agent beside the controller, and the one on the lab's head, where the job's launcher is.
CONTROLLER, HEAD = -1, -2


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
        self._clients: dict[int, AgentClient] = {}
        self._inboxes: dict[str, queue.SimpleQueue[Message]] = {}

    def inbox(self, fault: str) -> queue.SimpleQueue[Message]:
        """Where a fault's events arrive."""
        with self._lock:
            return self._inboxes.setdefault(fault, queue.SimpleQueue())

    def on(self, node: int) -> AgentClient:
        """The agent of a node, of the ``CONTROLLER`` or of the ``HEAD``; started if there is none, or if its node has
        booted since.

        Raises:
            AgentError: it does not start, or its node still has something of a former fault.
        """
        with self._lock:
            client = self._clients.get(node)
        if client is None or client.gone:
            client = self._start(node)
            with self._lock:
                self._clients[node] = client
            if client.hello["left"]:  # of a former run; nothing new is broken on top of it
                raise AgentError(f"{client.name} still has a former fault: {'; '.join(client.hello['left'])}")
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

    @property
    def uncertainty_ns(self) -> int:
        """The largest uncertainty of an agent's clock against ours."""
        with self._lock:
            return max((client.clock.uncertainty_ns for client in self._clients.values()), default=0)

    def close(self, complain: Callable[[str], None]) -> None:
        """Say goodbye to all: each undoes what it still holds. An agent that cannot is complained about."""
        with self._lock:
            clients = dict(self._clients)
            self._clients.clear()
        for client in clients.values():
            try:
                client.close()
            except AgentError as error:
                complain(str(error))

    def hurry(self) -> None:
        """Close all agents' inputs at once, which orders each to undo everything; for the way out after an error."""
        for client in self._clients.values():
            with contextlib.suppress(OSError):
                client.kill()
