"""A rehearsal: every fault is probed, armed, witnessed and disarmed on the real nodes, and none is fired."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Literal

from chaos.engine import folder as folders
from chaos.engine.agents import Agents
from chaos.engine.errors import RunError
from chaos.engine.faults import LEAD
from chaos.engine.guards import Guards
from chaos.engine.ledger import Ledger
from chaos.engine.run import Run
from chaos.lab.cluster import Lab

Conclusion = Literal["ready", "not possible", "interrupted", "open"]


@dataclass
class Rehearsed:
    """What came of one fault.

    Attributes:
        reality: as its node told.
        before: what the witness saw of the state before.
        armed_ms: how long arming took, in ms; None where it was not armed.
        undone: whether it is proven that nothing is left.
        problem: what went wrong, in words.
    """

    id: str
    name: str
    kind: str
    reality: str | None = None
    before: str | None = None
    armed_ms: float | None = None
    undone: bool = False
    problem: str | None = None


class Rehearsal(Run):
    """One rehearsal; arguments are those of a run."""

    rehearses = True

    def rehearse(self) -> tuple[Conclusion, list[Rehearsed]]:
        """Go through it. Errors are those of ``Run.execute``.

        Returns:
            What can be said of the whole, and of each fault; both lie in the folder as well.
        """
        self._carry_through()
        faults = self._rehearsed()
        if any(fault.armed_ms is not None and not fault.undone for fault in faults):
            conclusion: Conclusion = "open"
        elif self._stop.reason is not None:
            conclusion = "interrupted"
        elif any(fault.problem is not None for fault in faults):
            conclusion = "not possible"
        else:
            conclusion = "ready"
        try:
            told = {"conclusion": conclusion, "faults": [asdict(fault) for fault in faults]}
            folders.write_json(self._folder.rehearsal, told)
        except OSError as error:
            raise RunError(f"{self._folder.path} cannot be written: {error.strerror}") from error
        folders.sweep_work(self._folder)
        return conclusion, faults

    def _course(self, lab: Lab, agents: Agents, ledger: Ledger, guards: Guards, stack: ExitStack) -> None:
        on = [fault.spec.on for fault in self._plan.drawn]
        if any(each.rank is not None or each.process is not None for each in on) and not self._start_workload(
            lab, stack
        ):
            return
        guards.arm()
        self._phase("faults")
        for fault in self._plan.drawn:  # one after the other: two may have the same device at different times
            if self._stop.pulled:
                return
            soon_ns = time.monotonic_ns() + int((LEAD - fault.spec.after) * 1e9)
            self._conduct(fault, soon_ns, lab, agents, ledger).join()

    def _rehearsed(self) -> list[Rehearsed]:
        faults = {
            fault.id: Rehearsed(fault.id, fault.spec.name, fault.spec.inject, problem="it was not reached")
            for fault in self._plan.drawn
        }
        promised: dict[str, int] = {}
        errors = []
        for event in self._folder.read_journal():
            if event["e"] == "error":
                errors.append(event["text"])
            if event["e"] == "fault" and event["id"] in faults:
                _take(faults[event["id"]], event, promised)
        for fault in faults.values():
            if errors and fault.armed_ms is None:
                fault.problem = errors[0]
        return list(faults.values())


def _take(fault: Rehearsed, event: dict[str, Any], promised: dict[str, int]) -> None:
    match event["what"]:
        case "possible":
            fault.reality = event["reality"]
        case "promised":
            promised[fault.id] = event["t"]
        case "armed":
            fault.armed_ms = round((event["t"] - promised[fault.id]) / 1e6, 1)
            fault.problem = "it is not proven undone"
        case "witness" if event["phase"] == "before":
            fault.before = event["text"]
        case "failed":
            fault.problem = event["error"]
        case "undone" if event["residue"]:
            fault.problem = "left: " + "; ".join(event["residue"])
        case "undone":
            fault.undone, fault.problem = True, None
        case "proven" if fault.armed_ms is not None:
            fault.undone, fault.problem = True, fault.problem
