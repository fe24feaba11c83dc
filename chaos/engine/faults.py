"""Conducts one fault from the controller: promises its undo, arms it, fires it to the instant, sees the undo proven."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from chaos.engine.agents import WAKE, Agents
from chaos.engine.cluster import CONTROLLER, HEAD
from chaos.engine.errors import InputError
from chaos.engine.journal import Journal
from chaos.engine.ledger import Ledger
from chaos.engine.live import Live
from chaos.engine.plan import Plan, PlannedFault
from chaos.engine.stop import Stop
from chaos.experiment.places import protected_nodes
from chaos.store import StoreError
from chaos.transport.pipe import LATEST, SLACK, AgentClient, AgentError, Refused

# Arming imports the injector, plans, writes the record to the disk and measures the state before: some 0.1 s on an idle
# machine. It begins so long before the fault's instant.
LEAD = 1.5
UNDO_PATIENCE = 15.0  # seconds after a fault's end in which its node must have proven that nothing is left
PROOF_PATIENCE = 5.0  # seconds after that in which a node whose agent has died is still asked for the proof
ASK_EVERY = 0.2  # seconds between two questions to such a node
OBEY_PATIENCE = 3.0  # seconds for the answer to an order to undo; an agent that gives none hangs

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
        fires: false for a rehearsal: armed, the fault is disarmed again.
        before: the conductor of the fault that comes before this one on the same node, and has been started. What both
            need, the earlier one is to have: its node hears of it first.

    Attributes:
        asked: set once the node has heard of the fault, or never will.
    """

    def __init__(
        self,
        plan: Plan,
        fault: PlannedFault,
        *,
        gate_ns: int,
        agents: Agents,
        live: Live,
        journal: Journal,
        ledger: Ledger,
        stop: Stop,
        during: Callable[[float], None],
        fires: bool = True,
        before: Conductor | None = None,
    ) -> None:
        super().__init__(name=f"conductor {fault.spec.name}", daemon=True)
        self.fault = fault
        self.told = Told()
        self._plan = plan
        self._at_ns = gate_ns + int(fault.spec.after * 1e9)
        self._length_ns = int((fault.spec.for_ or 0) * 1e9)
        self._agents = agents
        self._live = live
        self._journal = journal
        self._ledger = ledger
        self._switch = stop
        self._during = during
        self._fires = fires
        self._before = before
        self.asked = threading.Event()
        self._deadline_ns = self._at_ns
        self._record: dict[str, Any] | None = None
        self._inbox = agents.inbox(fault.id)

    def run(self) -> None:
        """Skip, or promise, arm, fire and see through."""
        try:
            self._conduct()
        except Exception as error:  # noqa: BLE001 - whatever it is: the end of the run undoes what is still held
            self._fail(f"internal error: {type(error).__name__}: {error}")
            self._switch.pull("error", f"fault {self.fault.spec.name}: {type(error).__name__}: {error}")
        finally:
            self.asked.set()

    def _conduct(self) -> None:
        if not self.fault.drawn:
            self.told.state = "skipped"
            self._write("skipped", why=f"chance (probability {self.fault.spec.probability:g}) drew no fault")
            return
        if self._switch.wait_until(self._at_ns - int(LEAD * 1e9)):
            self.told.state = "skipped"
            self._write("skipped", why="the run was stopped before")
            return
        self._switch.on_pull(lambda: self._inbox.put(WAKE))
        try:
            node, target = self._address()
            agent = self._agents.on(node)
            self._promise(node)
        except (AgentError, StoreError) as error:
            self._fail(str(error))
            return
        try:
            self._hold(agent, target)
        except Refused as error:
            self._fail(str(error))
            self._prove(node, agent, f"never made: {error}")
        except AgentError as error:
            self._fail(str(error))
            if not agent.gone:  # it hangs: killed, it lets others take over what it holds
                agent.end()
            self._prove(node, agent, "the node's agent died or hung, and what it held was undone without it")

    def _address(self) -> tuple[int, dict[str, Any]]:
        """Where the agent is that will hold the fault, and the target as it stands now: spares get promoted.

        Raises:
            AgentError: no process is the target now.
        """
        on, node = self.fault.spec.on, holder_of(self._plan, self.fault)
        target = _target(self._plan, self.fault, self._agents.cluster.lab)
        if on.rank is not None or on.process is not None:
            process = self._live.launcher() if on.rank is None else self._live.process_of(on.rank)
            if process is None:
                what = f"rank {on.rank}" if on.rank is not None else f"the {on.process}"
                raise AgentError(f"no process is {what} now")
            target["process"] = {key: process[key] for key in ("pid", "start", "pidns")}
            if on.rank is not None:
                node = target["node"] = process["node"]
                if node in protected_nodes(self._plan.experiment.guards.protect, self._plan.experiment.lab):
                    raise AgentError(f"rank {on.rank} runs on node {node} by now, which guards.protect forbids")
        return node, target

    def _promise(self, node: int) -> None:
        """Promise the undo: before the node hears anything of the fault.

        Raises:
            AgentError, StoreError: it is not promised, so it will not be armed.
        """
        self._deadline_ns = max(self._at_ns, time.monotonic_ns()) + self._length_ns + int(SLACK * 1e9)
        self._ledger.promise(
            self.fault.id,
            run=self._plan.run,
            place=self._agents.cluster.place(node),
            kind=self.fault.spec.inject,
            params=self.fault.spec.with_,
            deadline_ns=self._deadline_ns,
        )
        self._write("promised")

    def _hold(self, agent: AgentClient, target: dict[str, Any]) -> None:
        # Once: what we know of its clock gets better with every renewal, and it refuses an instant that moves.
        at = agent.clock.theirs(self._at_ns)
        if self._before is not None:
            self._before.asked.wait()
        asked = agent.ask(
            "arm",
            fault=self.fault.id,
            implementation=self.fault.implementation,
            params=self.fault.spec.with_,
            duration=self.fault.spec.for_,
            at=at,
            owner=self._plan.run,
            target=target,
        )
        self.asked.set()
        armed = asked.answer(max(OBEY_PATIENCE, (self._at_ns - time.monotonic_ns()) / 1e9 + LATEST))
        self._record = armed["record"]
        self._write("armed", record=self._record)
        self._write("witness", phase="before", **armed["evidence"])
        self.told.state = "armed"
        disarmed = False
        try:
            self._ledger.record(self.fault.id, self._record)
        except StoreError as error:
            self._fail(f"not fired: {error}")
            self._disarm(agent)
            disarmed = True
        if not disarmed and not self._fires:
            self._disarm(agent)
            disarmed = True
        if not disarmed and not self._switch.pulled:
            agent.request("fire", fault=self.fault.id, at=at, timeout=OBEY_PATIENCE)
        self._see_through(agent, disarmed=disarmed)

    def _disarm(self, agent: AgentClient) -> None:
        """Order the undo, now.

        Raises:
            AgentError: the agent has gone, or hangs.
        """
        agent.request("disarm", fault=self.fault.id, timeout=OBEY_PATIENCE)

    def _see_through(self, agent: AgentClient, *, disarmed: bool) -> None:
        """Write down the node's events until it has proven that nothing is left."""
        patience_ns = self._at_ns + self._length_ns + int(UNDO_PATIENCE * 1e9)
        while True:
            if self._switch.pulled and not disarmed and not agent.gone:
                self._disarm(agent)
                disarmed = True
            try:
                event = self._inbox.get(timeout=max(0.0, (patience_ns - time.monotonic_ns()) / 1e9))
            except queue.Empty:
                raise AgentError("the node has not proven that the fault is undone") from None
            if event is WAKE:
                # What the agent had sent before its end lies in front of this.
                if agent.gone and self._inbox.empty():
                    raise AgentError(f"the agent of {agent.name} died while it held the fault")
                if agent.hangs:
                    raise AgentError(f"the agent of {agent.name} hangs")
            elif self._take(agent, event):
                return

    def _take(self, agent: AgentClient, event: dict[str, Any]) -> bool:
        """Write one event down, its instants on our clock. Returns whether it was the last."""
        what = event["event"]
        fields = {key: value for key, value in event.items() if key not in ("event", "fault")}
        fields |= {key: agent.clock.ours(value) for key, value in fields.items() if key.endswith("_ns")}
        self._write(what, **fields)
        if what == "fired":
            self.told.state = "active"
            self.told.effect_ns = fields["effect_ns"]
            self.told.ends_ns = fields["effect_ns"] + self._length_ns
            self._during(self._length_ns / 2e9)
        elif what == "undone":
            self.told.state, self.told.residue = "undone", fields["residue"]
            if not fields["residue"]:
                self._close(f"{agent.name}: undone, nothing is left")
            return True
        return False

    # -- an agent that has died, or never did what was asked ---------------------------------------------------------

    def _prove(self, node: int, agent: AgentClient, how: str) -> None:
        """Ask the fault's node, by a new agent if need be, until it proves that nothing is left, or its time is over.

        Args:
            agent: the one that was to hold the fault, or did.
            how: what the proof says of the way there.
        """
        until = max(self._deadline_ns / 1e9, time.monotonic()) + PROOF_PATIENCE
        while True:
            proof, why = self._ask(node, agent.hello["boot"])
            if proof is not None:
                self.told.state = "undone"
                self._write("proven", text=f"{how}; {proof}")
                self._close(f"{how}; {proof}")
                return
            if time.monotonic() > until:
                self._write("unproven", why=why)
                return
            with contextlib.suppress(queue.Empty):
                event = self._inbox.get(timeout=ASK_EVERY)
                if event is not WAKE and self._take(agent, event):
                    return

    def _ask(self, node: int, boot: str) -> tuple[str | None, str]:
        """The proof that nothing is left; where there is none, why not."""
        lost = self._agents.cluster.lost_power(node, boot)
        if lost is not None:
            return lost, ""
        try:
            agent = self._agents.reach(node)
            swept = {each["fault"]: each["residue"] for each in agent.hello.get("swept", [])}
            if swept.get(self.fault.id) == []:
                return f"{agent.name}: its next agent has undone it from its record, nothing is left", ""
            told = agent.request("status", fault=self.fault.id, record=self._record, timeout=OBEY_PATIENCE)
            if told["residue"] or (told["record"] and not told["held"]):
                # Its guardian may have died meanwhile, or its record may have been lost there: ours is a copy of it.
                copies = [] if self._record is None else [self._record]
                agent.request("sweep", implementations=[], copies=copies)
        except AgentError as error:
            return None, str(error)
        if told["held"] or told["record"] or told["residue"]:
            what = "; ".join(told["residue"]) or (
                "it is still held" if told["held"] else "its undo record is still there"
            )
            return None, f"{agent.name}: {what}"
        return f"{agent.name}: nothing is held, there is no record, nothing is left", ""

    # -- telling -----------------------------------------------------------------------------------------------------

    def _fail(self, error: str) -> None:
        self.told.state, self.told.error = "failed", error
        self._write("failed", error=error)

    def _close(self, proof: str) -> None:
        try:
            self._ledger.close_promise(self.fault.id, proof)
        except StoreError as error:  # the fault is undone all the same; whoever looks later must look once more
            self._write("unclosed", error=str(error))

    def _write(self, what: str, **fields: Any) -> None:
        try:
            self._journal.write("fault", id=self.fault.id, what=what, **fields)
        except OSError as error:  # an undo does not depend on being written down
            self._switch.pull("error", f"the journal cannot be written: {error.strerror}")


def holder_of(plan: Plan, fault: PlannedFault) -> int:
    """Where the agent is that holds a fault: a node, the ``CONTROLLER`` or the ``HEAD``."""
    if not fault.on_node:
        return CONTROLLER
    node = plan.node_of(fault)
    return HEAD if node is None else node


def _target(plan: Plan, fault: PlannedFault, lab: str | None) -> dict[str, Any]:
    """A fault's target for an agent, as far as the plan knows it."""
    on = fault.spec.on
    return {
        "node": plan.node_of(fault),
        "gpu": on.gpu,
        "rank": on.rank,
        "role": on.process,
        "lab": None if fault.on_node else lab,
    }


def check_support(plan: Plan, agents: Agents) -> dict[str, str]:
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
            target=_target(plan, fault, agents.cluster.lab),
        )
        if answer["missing"]:
            raise InputError(f"fault {fault.spec.name!r} is not possible; missing: " + "; ".join(answer["missing"]))
        realities[fault.id] = answer["reality"]
    return realities
