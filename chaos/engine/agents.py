"""The agents of one run: started when first needed, their events handed to whoever waits for a fault."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from chaos.engine.cluster import Cluster, Message
from chaos.transport.pipe import ANSWER_TIMEOUT, AgentClient, AgentError

# Put into a fault's inbox when there is something else to look at: an agent that has gone, a run that is to end.
WAKE: Message = {"event": "wake"}


class Agents:
    """All agents of a run.

    Args:
        cluster: where nodes are, and how their agents are started.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
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
                client = self.cluster.agent(node, self._deliver)
                with self._lock:
                    self._clients[node] = client
            return client

    def _deliver(self, event: Message) -> None:
        if "fault" in event:
            self.inbox(event["fault"]).put(event)
        elif event["event"] in ("gone", "hangs"):
            with self._lock:
                inboxes = list(self._inboxes.values())
            for inbox in inboxes:
                inbox.put(WAKE)

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
