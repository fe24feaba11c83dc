"""Conducts one planted fault against real agents, without a training job: a fault's life takes a second."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab_help import eventually

from chaos.engine import folder as folders
from chaos.engine import plan as plans
from chaos.engine.agents import Agents
from chaos.engine.catalogue import catalogue
from chaos.engine.cluster import LabCluster
from chaos.engine.faults import Conductor
from chaos.engine.journal import Journal
from chaos.engine.ledger import Ledger
from chaos.engine.live import Live
from chaos.engine.stop import Stop
from chaos.experiment import loads
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.store import PromiseRow

PLANTED = "planted_injectors:Planted"
DOCUMENT = (
    "experiment: x\nlab: {{nodes: 2, gpus: 2}}\nworkload: {{reference: llama-bytes}}\nguards: {{nodes_at_most: 2}}\n"
    "faults: [{{name: planted, inject: fabric.blackhole, on: {{node: 0}}, with: {{from: gpu0, to: gpu1}}, "
    "after: {after}, for: {length}}}]\n"
)


class Bench:
    """A lab with one conductor at work in it.

    Args:
        folder: everything is below it; the fault is a file in it.
        params: of the planted injector (``fail``, ``left``).
    """

    def __init__(self, folder: Path, lab: Lab, *, after: str, length: str, params: dict[str, Any]) -> None:
        self.folder = folder
        self.lab = lab
        self.stop = Stop()
        plan = plans.draw(loads(DOCUMENT.format(after=after, length=length), catalogue(), {}), datetime.now(UTC), 1)
        (drawn,) = plan.faults
        spec = drawn.spec.model_copy(update={"with_": {"folder": str(folder), **params}})
        self.fault = dataclasses.replace(drawn, spec=spec, implementation=PLANTED)
        self.agents = Agents(LabCluster(lab, plan.lab, folder, folder / "controller"))
        self.ledger = Ledger.open()
        self.ledger.begin_run(plan.run, folder, os.getpid())
        self.journal = Journal(folder / "journal.jsonl", plan.run)
        self.conductor = Conductor(
            plan,
            self.fault,
            gate_ns=time.monotonic_ns(),
            agents=self.agents,
            live=Live(folder / "events", time.monotonic_ns),
            journal=self.journal,
            ledger=self.ledger,
            stop=self.stop,
            during=lambda _: None,
        )

    def events(self) -> list[dict[str, Any]]:
        """The journal's events of the fault."""
        return [event for event in folders.read_lines(self.folder / "journal.jsonl") if event["e"] == "fault"]

    def whats(self) -> list[str]:
        """What happened, in order."""
        return [event["what"] for event in self.events()]

    def event(self, what: str) -> dict[str, Any]:
        """Wait for an event of the fault."""
        return eventually(lambda: next((each for each in self.events() if each["what"] == what), None), what)

    @property
    def promise(self) -> PromiseRow | None:
        """What the store says of the fault."""
        return self.ledger._store.promise_of(self.fault.id)

    @property
    def effect(self) -> bool:
        """Whether the fault is there."""
        return (self.folder / f"{self.fault.id}.effect").exists()

    def agent(self, node: int = 0) -> int:
        """The process id of a node's agent, as its node sees it."""
        return int(self.agents.reach(node).hello["pid"])

    def kill(self, pid: int, number: int = 9, node: int = 0) -> None:
        """Signal a process of a node."""
        self.lab.run(["/bin/kill", f"-{number}", str(pid)], node=node)


@contextmanager
def bench(
    folder: Path, *, after: str = "100ms", length: str = "300ms", start: bool = True, **params: Any
) -> Iterator[Bench]:
    """A lab of two nodes with a conductor for one planted fault on node 0."""
    former = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1] / "agent"), former]))
    try:
        with Lab.up(LabSpec(2, 2, 0), folder / "lab") as lab:
            it = Bench(folder, lab, after=after, length=length, params=params)
            if start:
                it.conductor.start()
            try:
                yield it
            finally:
                it.stop.pull("error", "the test is over")
                if it.conductor.ident is not None:
                    it.conductor.join(60)
                it.agents.close(lambda _: None)
                it.journal.close()
                it.ledger.close()
    finally:
        if former is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = former


def join(it: Bench, patience: float = 60.0) -> None:
    """Wait for the conductor's end."""
    it.conductor.join(patience)
    assert not it.conductor.is_alive(), (it.whats(), threading.enumerate(), sys.exc_info())
