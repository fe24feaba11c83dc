"""A controller as it is in the middle of a run: it conducts the faults of one trial, with the real engine.

``python -m tests.storm.controller CONFIG``. What a run has beside its faults (the job, its probes) plays no part here.
SIGUSR1 cuts its agents' pipes, as a network does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaos.engine import plan as plans
from chaos.engine.agents import Agents
from chaos.engine.catalogue import catalogue
from chaos.engine.cluster import LabCluster
from chaos.engine.faults import Conductor
from chaos.engine.journal import Journal
from chaos.engine.ledger import Ledger
from chaos.engine.stop import Stop
from chaos.experiment import loads
from chaos.lab.client import LabClient
from chaos.transport import lab as lab_transport
from tests.storm import flaky

CUT = signal.SIGUSR1


class Processes:
    """In place of the workload's events: which process is which rank."""

    def __init__(self, ranks: dict[str, Any]) -> None:
        self._ranks = ranks

    def process_of(self, rank: int) -> dict[str, Any] | None:
        return self._ranks.get(str(rank))

    def launcher(self) -> None:
        return None


def main() -> None:
    """Conduct one trial."""
    config = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(config["folder"])
    if config["agent"]:
        lab_transport.COMMAND = [sys.executable, "-c", config["agent"]]
    plan = plans.draw(loads(config["document"], catalogue(), {}), datetime.now(UTC), config["seed"])
    agents = Agents(LabCluster(LabClient(Path(config["lab"])), plan.lab, folder, folder / "controller"))
    journal = Journal(folder / "journal.jsonl", plan.run)
    ledger = Ledger.open()
    ledger.begin_run(plan.run, folder, os.getpid())
    threading.Thread(target=cut_when_told, args=(agents,), daemon=True).start()
    gate_ns = time.monotonic_ns()
    conductors = [
        Conductor(
            plan,
            replace(fault, implementation=flaky.IMPLEMENTATIONS[fault.spec.inject]) if config["flaky"] else fault,
            gate_ns=gate_ns,
            agents=agents,
            live=Processes(config["ranks"]),
            journal=journal,
            ledger=ledger,
            stop=Stop(),
            during=lambda _: None,
        )
        for fault in plan.faults
    ]
    for conductor in conductors:
        conductor.start()
    for conductor in conductors:
        conductor.join()
    agents.close(lambda text: journal.write("error", text=text))
    ledger.end_run(plan.run)
    ledger.close()


def cut_when_told(agents: Agents) -> None:
    """Close the pipes to all agents at the signal."""
    signal.sigwait({CUT})
    for client in list(agents._clients.values()):
        threading.Thread(target=client.kill, daemon=True).start()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {CUT})
    main()
