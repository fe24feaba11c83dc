"""Every fault is promised before its node hears of it, and its promise is closed by a proof alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from chaos.engine import faults, processes
from chaos.engine.ledger import Ledger, gone_with_lab
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.store import Store, StoreError
from chaos.transport import lab as lab_transport
from tests.engine.conducted import bench, join

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("nothing_left")]

PLACE = {"transport": "local", "state": "/somewhere"}


def test_a_fault_is_promised_before_arm_recorded_before_fire_and_closed_by_its_nodes_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 19."""
    states: dict[str, str | None] = {}
    with bench(tmp_path, start=False) as it:
        agent = it.agents.reach(0)
        ask = agent.ask

        def noting(op: str, **fields: Any) -> Any:
            if op in ("arm", "fire"):
                states[op] = it.promise.state if it.promise else None
            return ask(op, **fields)

        monkeypatch.setattr(agent, "ask", noting)
        it.conductor.start()
        join(it)
        promise = it.promise
        assert states == {"arm": "promised", "fire": "recorded"}
        assert promise is not None
        assert promise.state == "closed"
        assert promise.proof == "node 0: undone, nothing is left"
        assert promise.record is not None
        assert promise.record["fault"] == it.fault.id
        assert (promise.place["transport"], promise.place["node"]) == ("lab", 0)
        assert promise.place["lab"] == str(it.lab.directory)
        assert promise.place["keeper"]["pid"] == it.lab.pid
        assert it.whats()[:2] == ["promised", "armed"]


@pytest.mark.control
def test_a_fault_that_cannot_be_promised_is_not_armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path, start=False) as it:
        monkeypatch.setattr(Store, "promise", refuse)
        it.conductor.start()
        join(it)
        assert it.whats() == ["failed"]
        assert it.event("failed")["error"] == "the store is full"
        assert not (tmp_path / "calls.jsonl").exists()


def test_a_fault_whose_record_cannot_be_kept_is_disarmed_and_not_fired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, start=False) as it:
        monkeypatch.setattr(Store, "record", refuse)
        it.conductor.start()
        join(it)
        assert "fired" not in it.whats()
        assert it.event("failed")["error"] == "not fired: the store is full"
        assert it.event("undone")["residue"] == []
        assert it.promise is not None
        assert it.promise.state == "closed"


def test_a_closing_that_cannot_be_written_leaves_the_promise_open_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, start=False) as it:
        monkeypatch.setattr(Store, "close_promise", refuse)
        it.conductor.start()
        join(it)
        assert it.whats()[-2:] == ["undone", "unclosed"]
        assert [each.fault for each in it.ledger.open_promises()] == [it.fault.id]


def refuse(*_: object, **__: object) -> None:
    raise StoreError("the store is full")


@pytest.mark.parametrize("call", ["plan", "prepare"])
def test_an_arm_that_the_node_refuses_closes_its_promise_as_never_made(tmp_path: Path, call: str) -> None:
    with bench(tmp_path, fail={call: 1}) as it:
        join(it)
        assert "planted" in it.event("failed")["error"]
        assert it.promise is not None
        assert it.promise.state == "closed"
        assert it.promise.proof is not None
        if call == "plan":
            assert it.promise.proof.startswith("never made: planted")
        assert "fired" not in it.whats()


@pytest.mark.control
def test_what_is_left_on_a_node_keeps_the_promise_open_while_its_lab_is_there(tmp_path: Path) -> None:
    """CASES 10, 16 and 18: the state is what the node has measured."""
    with bench(tmp_path, left=1000) as it:
        join(it)
        assert it.event("undone")["residue"] == ["a planted rest"]
        proofs, still = it.ledger.reconcile()
        assert proofs == {}
        assert [each.state for each in still] == ["recorded"]
    proofs, still = reconciled()
    assert still == []
    assert "gone with its lab" in proofs[it.fault.id]


@pytest.mark.control
def test_a_node_that_does_not_answer_has_proven_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 10."""
    monkeypatch.setattr(faults, "PROOF_PATIENCE", 0.5)
    monkeypatch.setattr(faults, "SLACK", 0.0)
    with bench(tmp_path, length="1s") as it:
        it.event("fired")
        pid = it.agent()
        monkeypatch.setattr(lab_transport, "COMMAND", ["/bin/false"])  # no other agent will start there
        it.kill(pid)
        join(it)
        assert "does not start" in it.event("unproven")["why"]
        # Its guardian has undone it, which the controller cannot know without an agent to ask.
        assert [each.fault for each in it.ledger.open_promises()] == [it.fault.id]


def reconciled() -> Any:
    with Ledger.open() as ledger:
        return ledger.reconcile()


@pytest.mark.parametrize("when", ["armed", "fired"])
def test_an_agent_that_dies_is_replaced_and_the_next_one_proves_the_undo(tmp_path: Path, when: str) -> None:
    """CASES 9 and 14: from any state."""
    with bench(tmp_path, after="2s" if when == "armed" else "100ms", length="60s") as it:
        it.event(when)
        it.kill(it.agent())
        join(it)
        assert not it.effect
        assert "the agent of node 0" in it.event("failed")["error"]
        assert "nothing is left" in it.event("proven")["text"]
        assert it.promise is not None
        assert it.promise.state == "closed"


def test_an_agent_that_hangs_when_the_run_is_stopped_is_killed_and_its_fault_undone(tmp_path: Path) -> None:
    """CASES 18."""
    with bench(tmp_path, length="60s") as it:
        it.event("fired")
        it.kill(it.agent(), signal.SIGSTOP)
        it.stop.pull("signal", "enough")
        join(it)
        assert not it.effect
        assert it.event("proven")
        assert it.promise is not None
        assert it.promise.state == "closed"


@pytest.mark.parametrize("boots", [False, True])
def test_a_node_that_lost_its_power_has_lost_its_faults(tmp_path: Path, boots: bool) -> None:
    """The power supply says so; a node that merely does not answer proves nothing."""
    with bench(tmp_path, length="60s") as it:
        it.event("fired")
        it.lab.power(0, "off")
        if boots:
            it.lab.wait_power(0, "off")
            it.lab.power(0, "on")
        join(it)
        proven = it.event("proven")["text"]
        assert "is off" in proven or "has booted anew" in proven
        assert it.promise is not None
        assert it.promise.state == "closed"


def test_a_stop_undoes_without_waiting_for_the_faults_end(tmp_path: Path) -> None:
    """CASES 2."""
    with bench(tmp_path, length="60s") as it:
        it.event("fired")
        it.stop.pull("signal", "enough")
        join(it, 20)
        assert it.event("ended")["early"] is True
        assert not it.effect


def test_a_journal_that_cannot_be_written_keeps_no_undo_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, length="60s") as it:
        it.event("fired")

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(it.journal, "write", full)
        it.stop.pull("signal", "enough")
        join(it)
        assert not it.effect
        assert it.promise is not None
        assert it.promise.state == "closed"


def test_goodbye_is_said_to_all_agents_before_any_is_waited_for(tmp_path: Path) -> None:
    """CASES 4: every undo is tried."""
    with bench(tmp_path, length="60s") as it:
        it.event("fired")
        hung = it.agent(1)
        it.kill(hung, signal.SIGSTOP, node=1)
        it.agents._clients = dict(sorted(it.agents._clients.items(), reverse=True))  # the hung one first
        complaints: list[str] = []
        closing = threading.Thread(target=it.agents.close, args=(complaints.append,))
        closing.start()
        assert it.event("undone")["residue"] == []
        assert closing.is_alive(), "it still waits for the other agent"
        it.kill(hung, signal.SIGCONT, node=1)
        closing.join(60)
        assert complaints == []


# -- what is left when a controller dies ---------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.engine.conducted import bench
when = sys.argv[2]
with bench(Path(sys.argv[1]), after="1s", length="60s") as it:
    it.event(when)
    print(it.fault.id, it.lab.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("when", "state"), [("promised", "promised"), ("witness", "recorded"), ("fired", "recorded")])
def test_a_controller_killed_at_any_point_leaves_a_promise_that_is_closed_by_the_labs_end(
    tmp_path: Path, when: str, state: str
) -> None:
    """CASES 1 and 9."""
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), when],
        env=os.environ | {"PYTHONPATH": f"{root}:{root}/tests"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -9
    fault, _ = done.stdout.split()
    with Store() as store:
        promise = store.promise_of(fault)
        assert promise is not None
        assert promise.state in ("promised", "recorded")
        assert when != "fired" or promise.state == state
    with Ledger.open() as ledger:
        assert ledger.running() == []
    while (found := reconciled())[1]:  # the kernel takes the lab apart
        assert [each.fault for each in found[1]] == [fault]
    with Store() as store:
        closed = store.promise_of(fault)
        assert closed is not None
        assert closed.state == "closed"
        assert closed.proof is not None
        assert "gone with its lab" in closed.proof


def test_a_lab_is_gone_only_when_its_keeper_is(tmp_path: Path) -> None:
    with Lab.up(LabSpec(1, 1, 0), tmp_path / "lab") as lab:
        place = {"lab": str(lab.directory), "keeper": processes.identity(lab.keeper)}
        assert gone_with_lab(place) is None
        lab.kill()
        assert "it has ended" in str(gone_with_lab(place))
    assert gone_with_lab(PLACE) is None
    rebooted = {**place, "keeper": {**place["keeper"], "boot": "another"}}
    assert "booted since" in str(gone_with_lab(rebooted))
    elsewhere = {**place, "keeper": {**place["keeper"], "pidns": 1}}
    assert gone_with_lab(elsewhere) is None, "in another PID namespace a number says nothing"


def test_two_controllers_see_each_others_runs_and_promises(tmp_path: Path, store_file: Path) -> None:
    with Ledger.open() as mine, Ledger.open() as other:
        mine.begin_run("r1", tmp_path, os.getpid())
        other.begin_run("r2", tmp_path, 1)
        mine.promise("f1", run="r1", place=PLACE, kind="k", params={}, deadline_ns=5)
        assert [row.run for row in other.running()] == ["r1", "r2"]
        assert [row.fault for row in other.open_promises()] == ["f1"]
        assert other.orphaned() == []
        mine.end_run("r1")
        assert [row.fault for row in other.orphaned()] == ["f1"]


def test_a_process_is_more_than_its_number() -> None:
    me = processes.identity(os.getpid())
    assert processes.alive(me) is True
    assert processes.alive({**me, "start": me["start"] + 1}) is False
    assert processes.alive({**me, "boot": "another"}) is False
    assert processes.alive({**me, "pidns": 1}) is None
    child = subprocess.Popen(["/bin/true"])
    child_is = processes.identity(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.alive(child_is) is False, "a zombie does nothing any more"
    child.wait()
    with pytest.raises(ProcessLookupError):
        processes.identity(child.pid)
