"""A fault on the job's launcher, which runs on the lab's head and not on a node."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chaos.engine import folder as folders
from chaos.engine import plan as plans
from chaos.engine.agents import Agents
from chaos.engine.catalogue import catalogue
from chaos.engine.cluster import LabCluster
from chaos.engine.faults import Conductor, check_support
from chaos.engine.journal import Journal
from chaos.engine.ledger import Ledger
from chaos.engine.live import Live
from chaos.engine.stop import Stop
from chaos.experiment import loads
from chaos.lab.client import LabProcess
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("nothing_left")]

# As the job's launcher is: the child of what the controller starts. The parent ends with it.
LAUNCHER = """
import os, sys, time
from chaos.workload.events import StepWriter
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
StepWriter(sys.argv[1]).launcher()
while True:
    pass
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab.up(LabSpec(1, 1, 0), tmp_path / "lab") as found:
        yield found


def launched(lab: Lab, events: Path) -> LabProcess:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return lab.spawn([sys.executable, "-c", LAUNCHER, str(events)], env=env)


def conducted(lab: Lab, live: Live, folder: Path, fault: str) -> list[dict[str, object]]:
    """The journal's events of one fault, from its possibility to its proof."""
    document = loads(
        "experiment: x\nlab: {nodes: 1, gpus: 1}\nworkload: {reference: llama-bytes}\n"
        f"guards: {{nodes_at_most: 0}}\nfaults: [{fault}]\n",
        catalogue(),
        {},
    )
    plan = plans.draw(document, datetime.now(UTC), 1)
    agents = Agents(LabCluster(lab, plan.lab, folder, lab.directory / "controller"))
    with Journal(folder / "journal.jsonl", plan.run) as journal, Ledger.open() as ledger:
        ledger.begin_run(plan.run, folder, os.getpid())
        assert check_support(plan, agents) == {plan.faults[0].id: "real"}
        conductor = Conductor(
            plan,
            plan.faults[0],
            gate_ns=time.monotonic_ns(),
            agents=agents,
            live=live,
            journal=journal,
            ledger=ledger,
            stop=Stop(),
            during=lambda _: None,
        )
        conductor.start()
        conductor.join(20)
        complaints: list[str] = []
        agents.close(complaints.append)
        assert complaints == []
        assert ledger.open_promises() == []
    return [event for event in folders.read_lines(folder / "journal.jsonl") if event["e"] == "fault"]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    found = Live(tmp_path / "events", time.monotonic_ns)
    found.start()
    yield found
    found.close()


def test_a_launcher_is_stopped_and_continued(lab: Lab, live: Live, tmp_path: Path) -> None:
    started = launched(lab, tmp_path / "events")
    assert live.wait_for(lambda seen: seen.launcher() is not None, 20)
    told = conducted(
        lab,
        live,
        tmp_path,
        "{inject: process.signal, on: {process: launcher}, with: {signal: STOP}, after: 500ms, for: 300ms}",
    )
    seen = {event["phase"]: event["effective"] for event in told if event["what"] == "witness"}
    assert seen == {"before": False, "during": True, "after": False}, told
    assert [event["residue"] for event in told if event["what"] == "undone"] == [[]]
    (armed,) = (event["record"] for event in told if event["what"] == "armed")
    assert (armed["target"]["role"], armed["target"]["node"], armed["target"]["rank"]) == ("launcher", None, None)
    assert started.poll() is None


def test_a_launcher_is_killed(lab: Lab, live: Live, tmp_path: Path) -> None:
    started = launched(lab, tmp_path / "events")
    assert live.wait_for(lambda seen: seen.launcher() is not None, 20)
    told = conducted(
        lab, live, tmp_path, "{inject: process.signal, on: {process: launcher}, with: {signal: KILL}, after: 500ms}"
    )
    assert [event["effective"] for event in told if event.get("phase") == "during"] == [True], told
    assert started.wait(20) == -signal.SIGKILL % 256


def test_a_launcher_that_never_came_is_told(lab: Lab, live: Live, tmp_path: Path) -> None:
    told = conducted(
        lab, live, tmp_path, "{inject: process.signal, on: {process: launcher}, with: {signal: KILL}, after: 100ms}"
    )
    assert [(event["what"], event["error"]) for event in told] == [("failed", "no process is the launcher now")]
