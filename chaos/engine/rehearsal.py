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

Conclusion = Literal["ready", "not possible", "interrupted", "broken off", "open"]


@dataclass
class RehearsedFault:
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


@dataclass
class Rehearsed:
    """What came of the whole.

    Attributes:
        problems: what kept it from being carried through, in words.
    """

    conclusion: Conclusion
    faults: list[RehearsedFault]
    problems: list[str]


class Rehearsal(Run):
    """One rehearsal; arguments are those of a run."""

    rehearses = True

    def rehearse(self) -> Rehearsed:
        """Go through it. Errors are those of ``Run.execute``.

        Returns:
            What can be said of the whole, and of each fault; it lies in the folder as well.
        """
        still = self._carry_through()
        told = self._tell(still)
        try:
            folders.write_json(self._folder.rehearsal, asdict(told))
        except OSError as error:
            raise RunError(f"{self._folder.path} cannot be written: {error.strerror}") from error
        folders.sweep_work(self._folder)
        return told

    def _course(self, agents: Agents, ledger: Ledger, guards: Guards, stack: ExitStack) -> None:
        on = [fault.spec.on for fault in self._plan.drawn]
        if any(each.rank is not None or each.process is not None for each in on) and not self._start_workload(
            agents.cluster, stack
        ):
            return
        guards.arm()
        self._phase("faults")
        for fault in self._plan.drawn:  # one after the other: two may have the same device at different times
            if self._stop.pulled:
                return
            soon_ns = time.monotonic_ns() + int((LEAD - fault.spec.after) * 1e9)
            self._conduct(fault, soon_ns, agents, ledger).join()

    def _tell(self, still: list[str]) -> Rehearsed:
        """What the journal says of it, with the faults that the ledger has ``still`` open."""
        faults = {
            fault.id: RehearsedFault(fault.id, fault.spec.name, fault.spec.inject, problem="it was not reached")
            for fault in self._plan.drawn
        }
        promised: dict[str, int] = {}
        errors, halts, ended = [], [], "error"
        for event in self._folder.read_journal():
            match event["e"]:
                case "error":
                    errors.append(event["text"])
                case "halt":
                    halts.append(event["text"])
                case "end":
                    ended = event["reason"]
                case "fault" if event["id"] in faults:
                    _take(faults[event["id"]], event, promised)
        told = list(faults.values())
        conclusion: Conclusion
        if still or any(fault.armed_ms is not None and not fault.undone for fault in told):
            conclusion = "open"
        elif errors or ended == "error":
            conclusion = "broken off"
        elif ended != "completed":
            conclusion = "interrupted"
        elif any(fault.problem is not None for fault in told):
            conclusion = "not possible"
        else:
            conclusion = "ready"
        return Rehearsed(conclusion, told, errors + halts)


def _take(fault: RehearsedFault, event: dict[str, Any], promised: dict[str, int]) -> None:
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
            fault.undone = True
