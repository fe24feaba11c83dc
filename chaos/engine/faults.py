"""Conducts one fault from the controller: arms it in time, fires it to the instant, writes down what is proven."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from chaos.engine.agents import CONTROLLER, HEAD, Agents
from chaos.engine.errors import InputError
from chaos.engine.journal import Journal
from chaos.engine.live import Live
from chaos.engine.plan import Plan, PlannedFault
from chaos.engine.stop import Stop
from chaos.experiment.places import protected_nodes
from chaos.transport.pipe import AgentClient, AgentError

# Arming imports the injector, plans, writes the record to the disk and measures the state before: some 0.1 s on an idle
# machine. It begins so long before the fault's instant.
LEAD = 1.5
UNDO_PATIENCE = 15.0  # seconds after a fault's end in which its node must have proven that nothing is left

State = Literal["waiting", "armed", "active", "undone", "failed", "skipped"]


@dataclass
class Told:
    """What a fault's conductor tells the terminal.

    Attributes:
        effect_ns, ends_ns: when it took effect and when it ends, on our clock, once it has been fired.
    """

    state: State = "waiting"
    effect_ns: int | None = None
    ends_ns: int | None = None
    residue: list[str] = field(default_factory=list)
    error: str | None = None


class Conductor(threading.Thread):
    """One fault's thread in the controller.

    Args:
        gate_ns: the end of the steady-state gate, from which the fault's ``after`` counts.
        during: called when the fault is in effect, with the seconds to its middle; must not block.
    """

    def __init__(
        self,
        plan: Plan,
        fault: PlannedFault,
        *,
        gate_ns: int,
        lab: str,
        agents: Agents,
        live: Live,
        journal: Journal,
        stop: Stop,
        during: Callable[[float], None],
    ) -> None:
        super().__init__(name=f"conductor {fault.spec.name}", daemon=True)
        self.fault = fault
        self.told = Told()
        self._plan = plan
        self._at_ns = gate_ns + int(fault.spec.after * 1e9)
        self._lab = lab
        self._agents = agents
        self._live = live
        self._journal = journal
        self._switch = stop
        self._during = during

    def run(self) -> None:
        """Skip, or arm, fire and see through."""
        if not self.fault.drawn:
            self.told.state = "skipped"
            self._write("skipped", why=f"chance (probability {self.fault.spec.probability:g}) drew no fault")
            return
        if self._switch.wait_until(self._at_ns - int(LEAD * 1e9)):
            self.told.state = "skipped"
            self._write("skipped", why="the run was stopped before")
            return
        try:
            self._conduct()
        except AgentError as error:
            self.told.state, self.told.error = "failed", str(error)
            self._write("failed", error=str(error))

    def _conduct(self) -> None:
        agent, request = self._address()
        armed = agent.request(
            "arm",
            fault=self.fault.id,
            implementation=self.fault.implementation,
            params=self.fault.spec.with_,
            duration=self.fault.spec.for_,
            at=agent.clock.theirs(self._at_ns),
            owner=self._plan.run,
            **request,
        )
        self._write("armed", record=armed["record"])
        self._write("witness", phase="before", **armed["evidence"])
        self.told.state = "armed"
        inbox = self._agents.inbox(self.fault.id)
        if self._switch.pulled:
            agent.request("disarm", fault=self.fault.id)
        else:
            agent.request("fire", fault=self.fault.id, at=agent.clock.theirs(self._at_ns))
        self._see_through(agent, inbox)

    def _address(self) -> tuple[AgentClient, dict[str, Any]]:
        """The agent that will hold the fault, and the target as it stands now: spares get promoted."""
        on, place = self.fault.spec.on, holder_of(self._plan, self.fault)
        target = _target(self._plan, self.fault, self._lab)
        if on.rank is not None or on.process is not None:
            process = self._live.launcher() if on.rank is None else self._live.process_of(on.rank)
            if process is None:
                what = f"rank {on.rank}" if on.rank is not None else f"the {on.process}"
                raise AgentError(f"no process is {what} now")
            target["process"] = {key: process[key] for key in ("pid", "start", "pidns")}
            if on.rank is not None:
                place = target["node"] = process["node"]
                if place in protected_nodes(self._plan.experiment.guards.protect, self._plan.experiment.lab):
                    raise AgentError(f"rank {on.rank} runs on node {place} by now, which guards.protect forbids")
        return self._agents.on(place), {"target": target}

    def _see_through(self, agent: AgentClient, inbox: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Write down the node's events until it has proven that nothing is left."""
        patience_ns = self._at_ns + int(((self.fault.spec.for_ or 0) + UNDO_PATIENCE) * 1e9)
        disarmed = False
        while True:
            if self._switch.pulled and not disarmed and not agent.gone:
                agent.request("disarm", fault=self.fault.id)
                disarmed = True
            try:
                event = inbox.get(timeout=0.05)
            except queue.Empty:
                if agent.gone and inbox.empty():
                    raise AgentError(f"the agent of {agent.name} died while it held the fault") from None
                if time.monotonic_ns() > patience_ns:
                    raise AgentError("the node has not proven that the fault is undone") from None
                continue
            if self._take(agent, event):
                return

    def _take(self, agent: AgentClient, event: dict[str, Any]) -> bool:
        """Write one event down, its instants on our clock. Returns whether it was the last."""
        what = event.pop("event")
        del event["fault"]
        event |= {key: agent.clock.ours(value) for key, value in event.items() if key.endswith("_ns")}
        self._write(what, **event)
        if what == "fired":
            self.told.state = "active"
            self.told.effect_ns = event["effect_ns"]
            self.told.ends_ns = event["effect_ns"] + int((self.fault.spec.for_ or 0) * 1e9)
            self._during((self.fault.spec.for_ or 0) / 2)
        elif what == "undone":
            self.told.state, self.told.residue = "undone", event["residue"]
            return True
        return False

    def _write(self, what: str, **fields: Any) -> None:
        self._journal.write("fault", id=self.fault.id, what=what, **fields)


def holder_of(plan: Plan, fault: PlannedFault) -> int:
    """Where the agent is that holds a fault: a node, the ``CONTROLLER`` or the ``HEAD``."""
    if not fault.on_node:
        return CONTROLLER
    node = plan.node_of(fault)
    return HEAD if node is None else node


def _target(plan: Plan, fault: PlannedFault, lab: str) -> dict[str, Any]:
    """A fault's target for an agent, as far as the plan knows it."""
    on = fault.spec.on
    return {
        "node": plan.node_of(fault),
        "rank": on.rank,
        "role": on.process,
        "lab": None if fault.on_node else lab,
    }


def check_support(plan: Plan, agents: Agents, lab: str) -> dict[str, str]:
    """Ask each fault's node whether it can have it.

    Returns:
        The reality of each fault by its id.

    Raises:
        InputError: one is not possible; says what is missing, with the remedy.
    """
    realities = {}
    for fault in plan.drawn:
        agent = agents.on(holder_of(plan, fault))
        answer = agent.request(
            "probe",
            implementation=fault.implementation,
            params=fault.spec.with_,
            target=_target(plan, fault, lab),
        )
        if answer["missing"]:
            raise InputError(f"fault {fault.spec.name!r} is not possible; missing: " + "; ".join(answer["missing"]))
        realities[fault.id] = answer["reality"]
    return realities
