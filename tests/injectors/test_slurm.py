"""`node.drain` on a real Slurm of four nodes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from lab_help import eventually
from slurm_cluster import Slurm

from injectors import slurm as injector_module
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.slurm import Drain, DrainParams

NOT_RUN = slurm_cluster.why_not()
pytestmark = pytest.mark.skipif(NOT_RUN is not None, reason=NOT_RUN or "")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_cluster.slurm(tmp_path_factory.mktemp("slurm")) as it:
        yield it


@pytest.fixture
def there(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """All nodes are in service, before and after."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    yield cluster
    for name, state in cluster.states().items():
        if "drain" in state:
            cluster.run("scontrol", "update", f"nodename={name}", "state=resume")
    eventually(lambda: set(cluster.states().values()) == {"idle"}, "all of them idle")


def ordered(node: str = "n2", fault: str = "f1") -> Order:
    return Order(fault, DrainParams(node), Target(node=0), 60.0)


def planned(node: str = "n2", fault: str = "f1") -> UndoRecord:
    record = Drain().plan(ordered(node, fault))
    record.boot = "a boot that is over"  # nothing of it depends on the boot
    return record


def in_service(cluster: Slurm, node: str, state: str) -> None:
    """Exactly so; for a moment ``idle*``, until Slurm's controller has asked the node itself."""
    eventually(lambda: cluster.states()[node] == state, f"{node} {state}")


@pytest.mark.control
def test_a_drained_node_gets_no_job_and_is_idle_again_after_the_undo(there: Slurm) -> None:
    """CASES 77: a node that stays in drain; the undo is the exact state, and proven."""
    record = planned()
    assert Drain().witness(record, "before", 1).effective is False
    Drain().inject(record)
    during = Drain().witness(record, "during", 1)
    assert during.effective is True
    assert during.text.startswith("n2 is IDLE+DRAIN (chaos:f1 [")
    assert there.states()["n2"] == "drained"
    refused = subprocess.run(["srun", "--immediate=2", "-w", "n2", "true"], capture_output=True, check=False)
    assert refused.returncode != 0
    left = Drain().residue(record)
    assert len(left) == 1
    assert left[0].startswith("n2 is IDLE+DRAIN")
    again = UndoRecord.from_dict(json.loads(json.dumps(record.as_dict())))
    Drain().undo(again)
    Drain().undo(again)
    assert Drain().residue(again) == []
    assert Drain().witness(again, "after", 1).effective is False
    in_service(there, "n2", "idle")
    assert there.run("srun", "-w", "n2", "hostname")


def test_what_runs_there_goes_on_and_the_node_is_mixed_or_allocated_again(there: Slurm) -> None:
    job = subprocess.Popen(["srun", "-w", "n3", "-n", "1", "sleep", "1000"])
    try:
        eventually(lambda: there.states()["n3"] in ("allocated", "mixed"), "a job on n3")
        before = there.states()["n3"]
        record = planned("n3")
        Drain().inject(record)
        assert Drain().witness(record, "during", 1).effective is True
        assert there.states()["n3"] == "draining"
        Drain().undo(record)
        assert Drain().residue(record) == []
        in_service(there, "n3", before)
        assert job.poll() is None
    finally:
        job.terminate()
        job.wait(30)


def test_a_node_that_others_have_drained_is_refused_and_stays_so(there: Slurm) -> None:
    there.run("scontrol", "update", "nodename=n1", "state=drain", "reason=bad disk")
    with pytest.raises(InjectorError, match=r"n1 is IDLE\+DRAIN \(bad disk .*out of service already, by somebody else"):
        planned("n1")
    record = planned()
    Drain().inject(record)
    there.run("scontrol", "update", "nodename=n2", "state=drain", "reason=a broken fan")
    Drain().undo(record)
    assert Drain().residue(record) == [], "it is no longer ours"
    assert there.states()["n2"] == "drained"
    assert Drain().strays(Target(node=0)) == []


def test_without_a_record_the_reason_tells_whose_it_is(there: Slurm) -> None:
    record = planned("n4", "f2")
    Drain().inject(record)
    [stray] = Drain().strays(Target(node=0))
    assert (stray.device,) == Drain().devices(ordered("n4"))
    with pytest.raises(InjectorError, match="`chaos sweep` puts it back"):
        planned("n4")
    Drain().clear(stray)
    assert Drain().residue(record) == []
    in_service(there, "n4", "idle")


@pytest.mark.parametrize(
    ("node", "told"),
    [("n9", "Slurm has no node n9; name it with slurm_node"), (None, "Slurm has no node ")],
)
def test_a_node_that_slurm_does_not_know_is_told(there: Slurm, node: Any, told: str) -> None:
    with pytest.raises(InjectorError, match=told):
        planned(node)


@pytest.mark.parametrize("name", ["n[1-4]", "ALL nodes", "", "n1,n2"])
def test_one_node_is_meant(name: str) -> None:
    with pytest.raises(ValueError, match="write one node's name"):
        DrainParams(name)


def test_a_slurm_that_does_not_answer_is_unknown_and_not_clean(
    there: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = planned()
    silent = tmp_path / "slurm.conf"
    silent.write_text(there.config.read_text().replace("SlurmctldPort=", "SlurmctldPort=1\n#"))
    with monkeypatch.context() as patch:
        patch.setattr(injector_module, "_PATIENCE", 1.0)
        patch.setenv("SLURM_CONF", str(silent))
        [left] = Drain().residue(record)
        assert "does not answer" in left or "scontrol show node" in left
        with pytest.raises(InjectorError):
            Drain().strays(Target(node=0))


def test_a_machine_without_slurm_is_told_what_it_lacks_and_has_nothing_to_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(injector_module, "_CONFIGS", ("/no/such/slurm.conf",))
    [missing] = Drain().support(DrainParams(), Target(node=0)).missing
    assert "SLURM_CONF" in missing
    assert Drain().strays(Target(node=0)) == []
    monkeypatch.setenv("PATH", "/nowhere")
    [missing] = Drain().support(DrainParams(), Target(node=0)).missing
    assert missing.startswith("scontrol")
