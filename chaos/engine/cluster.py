"""Where a run's nodes are: how an agent gets there, how it is reached again, and how the training job is started.

``LabCluster`` is the emulated cluster; ``chaos.engine.site`` has the machines of an inventory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from chaos.engine import processes
from chaos.experiment import Workload
from chaos.lab.client import LabClient
from chaos.lab.errors import LabError
from chaos.lab.topology import LabSpec
from chaos.transport import lab as lab_transport
from chaos.transport import local
from chaos.transport.pipe import AgentClient, AgentError
from chaos.workload import launch

Message = dict[str, Any]
# In place of a node: the agent beside the controller, and the one on the lab's head, where the job's launcher is.
CONTROLLER, HEAD = -1, -2


class WorkloadError(RuntimeError):
    """The training job does not start, or does not train; the message says why."""


class Job(Protocol):
    """A training job that was started."""

    def ended(self) -> dict[str, int]:
        """What of it has ended by itself, by name, with exit codes."""
        ...

    def stop(self) -> None:
        """End it, all of it; idempotent."""
        ...


class Cluster(Protocol):
    """The nodes of a run, by number.

    Attributes:
        lab: folder of the lab's keeper, for faults that are made on whole nodes from outside; None elsewhere.
    """

    lab: str | None

    def agent(self, node: int, on_event: Callable[[Message], None]) -> AgentClient:
        """Start an agent on a node, or in place of ``CONTROLLER`` or ``HEAD``.

        Raises:
            AgentError: it does not start; says why.
        """
        ...

    def place(self, node: int) -> dict[str, Any]:
        """How the agent of a node is reached again by another controller (see ``chaos.engine.ledger``).

        Raises:
            AgentError: the cluster has gone.
        """
        ...

    def lost_power(self, node: int, boot: str) -> str | None:
        """The proof that whatever was on a node in a boot of it went with its power, from its power supply; or None.

        Args:
            boot: the boot id.
        """
        ...

    def start(self, workload: Workload, settings: Mapping[str, Any], work: Path, logs: Path) -> Job:
        """Start the training job.

        Args:
            settings: of the reference trainer: ``seed``, ``step_s``, ``checkpoint_every``, ``hash_every``.
            work: the run's folder for step events (below ``events``) and checkpoints.
            logs: folder for its output.

        Raises:
            WorkloadError: it does not start.
        """
        ...


class LabCluster:
    """The emulated cluster.

    Args:
        lab: its keeper.
        spec: its size.
        logs: folder for the agents' stderr.
        state: folder for the undo records of the controller's own agent.
    """

    def __init__(self, lab: LabClient, spec: LabSpec, logs: Path, state: Path) -> None:
        self.lab: str | None = str(lab.directory)
        self._client = lab
        self._spec = spec
        self._logs = logs
        self._state = state

    def agent(self, node: int, on_event: Callable[[Message], None]) -> AgentClient:
        """See ``Cluster``."""
        if node == CONTROLLER:
            return local.start(self._state, self._logs / "agent-controller.log", on_event)
        if node == HEAD:
            return lab_transport.start(self._client, None, self._logs / "agent-head.log", on_event)
        return lab_transport.start(self._client, node, self._logs / f"agent-node{node}.log", on_event)

    @cached_property
    def _keeper(self) -> dict[str, Any]:
        return processes.identity(self._client.keeper)

    def place(self, node: int) -> dict[str, Any]:
        """See ``Cluster``."""
        try:
            lab = {"lab": str(self._client.directory), "keeper": self._keeper}
        except (LabError, ProcessLookupError) as error:
            raise AgentError(str(error)) from error
        if node == CONTROLLER:
            return {"transport": "local", "state": str(self._state), **lab}
        return {"transport": "lab", "node": "head" if node == HEAD else node, **lab}

    def lost_power(self, node: int, boot: str) -> str | None:
        """See ``Cluster``."""
        if node < 0:
            return None
        try:
            told = self._client.show()["nodes"][node]
        except LabError:
            return None
        if told["power"] == "off":
            return f"node {node} is off: what was on it went with its power"
        if told["power"] == "on" and told["boot_id"] != boot:
            return f"node {node} has booted anew since (boot id {told['boot_id'][:8]}): what was on it went before"
        return None

    def start(self, workload: Workload, settings: Mapping[str, Any], work: Path, logs: Path) -> Job:
        """See ``Cluster``."""
        try:
            return launch.start(
                self._client, self._spec, recovery=workload.recovery, settings=settings, work=work, logs=logs
            )
        except LabError as error:
            raise WorkloadError(str(error)) from error
