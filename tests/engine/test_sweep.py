"""`chaos sweep`, as a user calls it: what dead controllers and agents have left, on a lab that stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_faults import kill_everybody, parties
from lab_help import eventually
from pyroute2 import IPRoute

from chaos.engine import processes
from chaos.engine.ledger import Ledger
from chaos.lab import cluster, namespace
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.transport import lab as transport
from chaos.transport.pipe import AgentClient

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]
NAME = "sweep-test"


class Station:
    """A lab that stays, with one process that may be stopped on its node 0, and a store of its own."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.environment = os.environ | {"CHAOS_STORE": str(folder / "store.sqlite"), "PYTHONPATH": str(ROOT)}
        self.process = lab.spawn(["sleep", "infinity"], node=0)
        stat = lab.run(["cat", f"/proc/{self.process.pid}/stat"], node=0).stdout
        self.pidns = lab.show()["nodes"][0]["pidns"]
        start = int(stat.rpartition(b")")[2].split()[19])
        self.target = {"node": 0, "rank": 0, "process": {"pid": self.process.pid, "start": start, "pidns": self.pidns}}
        self.ledger = Ledger.open(folder / "store.sqlite")

    def state(self) -> str:
        """The process's, as /proc has it."""
        stat = self.lab.run(["cat", f"/proc/{self.process.pid}/stat"], node=0).stdout
        return stat.rpartition(b")")[2].split()[0].decode()

    def qdiscs(self) -> list[str]:
        """What is on the links of node 0, but for the default."""
        found = []
        for name, fd in self.lab.namespaces(0).items():
            if name in ("net", "gpu0", "gpu1"):
                with namespace.inside_network(fd), IPRoute() as net:
                    found += [q.get_attr("TCA_KIND") for q in net.get_qdiscs() if q.get_attr("TCA_KIND") != "noqueue"]
            os.close(fd)
        return found

    def agent(self) -> AgentClient:
        return transport.start(self.lab, 0, self.folder / "agent.log", lambda _: None)

    def break_something(self, agent: AgentClient, fault: str, *, promised: bool = False) -> dict[str, Any]:
        """Stop the process, or (``slow...``) slow a link; the record."""
        at = agent.clock.theirs(time.monotonic_ns())
        throttle = fault.startswith("slow")
        if promised:
            self.promise(fault)
        record = agent.request(
            "arm",
            fault=fault,
            implementation="injectors.pcie:Throttle" if throttle else "injectors.process:Signal",
            params={"rate": 50e6} if throttle else {"signal": "STOP"},
            target={"node": 0, "gpu": 0} if throttle else self.target,
            duration=300.0,
            at=at,
            owner="a-run",
        )["record"]
        if promised:
            self.ledger.record(fault, record)
        agent.request("fire", fault=fault, at=at)
        eventually(lambda: self.qdiscs() if throttle else self.state() == "T", "the effect")
        return dict(record)

    def promise(self, fault: str) -> None:
        """As a controller does that is dead by now."""
        dead = subprocess.Popen(["sleep", "infinity"])
        run = f"run-of-{fault}"
        self.ledger.begin_run(run, self.folder, dead.pid)
        dead.kill()
        dead.wait()
        self.ledger.promise(
            fault,
            run=run,
            place={
                "transport": "lab",
                "lab": str(self.lab.directory),
                "keeper": processes.identity(self.lab.keeper),
                "node": 0,
            },
            kind="process.signal",
            params={},
            deadline_ns=time.monotonic_ns() + 10**12,
        )

    def chaos(self, *words: str, inside: bool = False) -> subprocess.CompletedProcess[bytes]:
        """A command: from any folder, here or on node 0 itself."""
        argv = [sys.executable, "-m", "chaos", *words]
        if inside:
            return self.lab.run(argv, node=0, env=self.environment, cwd="/")
        return subprocess.run(
            argv, env=self.environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )

    def record(self, fault: str) -> Path:
        return self.lab.directory / "node0/faults" / f"{fault}.json"


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Station]:
    monkeypatch.setattr(cluster, "labs_folder", lambda: tmp_path / "labs")
    monkeypatch.setenv("CHAOS_STATE", str(tmp_path / "here"))
    with cluster.up(NAME, LabSpec(1, 2, 0)) as lab:
        it = Station(lab, tmp_path)
        yield it
        it.ledger.close()


@pytest.mark.parametrize("inside", [True, False], ids=["on the node itself", "from outside"])
def test_what_everybody_has_left_behind_is_told_by_the_next_command_and_cleared_by_a_sweep(
    station: Station, inside: bool
) -> None:
    """CASES 12: nobody reboots a node to get rid of a fault."""
    agent = station.agent()
    station.break_something(agent, "stopped", promised=True)
    station.break_something(agent, "slow")
    kill_everybody(station.pidns)
    agent.kill()
    assert station.state() == "T"
    assert set(station.qdiscs()) == {"tbf"}
    told = station.chaos("runs", inside=inside).stdout.decode()
    assert "fault stopped" in told, told
    assert "chaos sweep" in told
    assert station.state() == "T", "telling changes nothing"
    swept = station.chaos("sweep", *([] if inside else ["--all"]), inside=inside)
    assert "undone: stopped (process.signal)" in swept.stdout.decode(), swept.stdout.decode()
    assert "undone: slow (pcie.throttle)" in swept.stdout.decode()
    assert station.state() == "S"
    assert station.qdiscs() == []
    assert not list(station.record("x").parent.iterdir())
    again = station.chaos("sweep", "--all")
    assert again.returncode == 0, again.stdout.decode()
    assert station.ledger.open_promises() == []
    assert "fault stopped" not in station.chaos("runs").stdout.decode()


def test_a_fault_that_somebody_holds_is_left_alone(station: Station) -> None:
    """CASES 17."""
    agent = station.agent()
    station.break_something(agent, "stopped")
    swept = station.chaos("sweep", inside=True)
    assert swept.returncode == 0, swept.stdout.decode()
    assert "held by a living agent or guardian: stopped" in swept.stdout.decode()
    assert station.state() == "T"
    agent.close()
    assert station.state() == "S"


def test_what_bears_our_mark_is_found_where_the_record_is_lost_and_nothing_else_is_touched(station: Station) -> None:
    """CASES 11 and 33: record and kernel are reconciled; what is not ours stays."""
    agent = station.agent()
    station.break_something(agent, "slow")
    kill_everybody(station.pidns)
    agent.kill()
    station.record("slow").unlink()
    [gpu1] = [fd for name, fd in station.lab.namespaces(0).items() if name == "gpu1" or os.close(fd)]
    with namespace.inside_network(gpu1), IPRoute() as net:
        [index] = net.link_lookup(ifname="pcie0")
        net.tc("add", "tbf", index, handle=0xC1230000, rate=1_000_000, burst=32768, limit=65536)
    os.close(gpu1)
    swept = station.chaos("sweep", inside=True)
    assert swept.returncode == 0, swept.stdout.decode()
    assert "removed, which had no record" in swept.stdout.decode()
    assert station.qdiscs() == ["tbf"], "the one that only looks like ours is left"


def test_a_fault_whose_record_is_lost_is_undone_from_the_controllers_copy(station: Station) -> None:
    """A stopped process bears no mark; the ledger knows all the same."""
    agent = station.agent()
    station.break_something(agent, "stopped", promised=True)
    kill_everybody(station.pidns)
    agent.kill()
    station.record("stopped").unlink()
    swept = station.chaos("sweep", "--all", "--json")
    told = json.loads(swept.stdout)
    assert swept.returncode == 0, told
    assert told["clean"]
    assert any("stopped (process.signal)" in place["undone"] for place in told["places"])
    assert station.state() == "S"
    assert station.ledger.open_promises() == []


def test_what_cannot_be_told_is_never_taken_for_clean(station: Station) -> None:
    """CASES 10."""
    station.record("x").parent.mkdir(exist_ok=True)
    station.record("x").write_text('{"version": 2, "fau')
    for words in (["sweep", "--node", "0", "--lab", NAME], ["sweep", "--all"]):
        swept = subprocess.run(
            [sys.executable, "-c", CLI_IN.format(folder=str(station.folder / "labs")), *words],
            env=station.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert swept.returncode == 1, swept.stdout.decode()
        assert "NOT CLEAN" in swept.stdout.decode()
        assert "an undo record cannot be read, so nobody knows what to undo" in swept.stdout.decode()
        assert station.record("x").exists()


# The command line with labs in a folder of the test's.
CLI_IN = """
import sys
from pathlib import Path
from chaos.lab import cluster
cluster.labs_folder = lambda: Path({folder!r})
from chaos.cli.main import main
sys.argv[0] = "chaos"
main()
"""


def test_a_promise_in_a_lab_that_has_gone_is_kept_with_it(station: Station) -> None:
    agent = station.agent()
    station.break_something(agent, "stopped", promised=True)
    kill_everybody(station.pidns)
    agent.kill()
    station.lab.kill()
    assert station.chaos("sweep", "--all").returncode == 0
    assert station.ledger.open_promises() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--node", "0", "--all"], "--all is this node, all labs that stay and every open promise"),
        (["--cluster", "nowhere.yaml"], "nowhere.yaml"),
        (["--node", "0", "--lab", "nowhere"], "there is no lab 'nowhere'"),
    ],
)
def test_wrong_input_is_one_line(station: Station, words: list[str], message: str) -> None:
    swept = station.chaos("sweep", *words)
    assert swept.returncode == 2
    assert message in swept.stdout.decode()
    assert swept.stdout.decode().count("\n") == 1


def test_a_node_that_was_killed_and_booted_again_is_clean(station: Station) -> None:
    """The record is from before the reboot: what it names did not outlive it."""
    agent = station.agent()
    station.break_something(agent, "stopped", promised=True)
    station.lab.power(0, "off")
    station.lab.wait_power(0, "off")
    agent.kill()
    station.lab.power(0, "on")
    assert station.record("stopped").exists()
    swept = station.chaos("sweep", "--all")
    assert swept.returncode == 0, swept.stdout.decode()
    assert not station.record("stopped").exists()
    assert station.ledger.open_promises() == []
    assert not parties(station.lab.show()["nodes"][0]["pidns"])
