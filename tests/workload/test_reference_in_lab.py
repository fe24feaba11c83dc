"""The reference trainer in an emulated cluster: namespaces, power, and data over the lab's links."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from reference_job import Job

from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec, management_address

pytestmark = [pytest.mark.train, pytest.mark.lab]

SPARES = [{"node": 2, "gpu": 0}, {"node": 2, "gpu": 1}]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab.up(LabSpec(nodes=2, gpus=2, spare_nodes=1), tmp_path / "lab") as it:
        yield it


def one_digest_a_step(job: Job, steps: int) -> bool:
    hashes = job.hashes()
    return sorted(hashes) == list(range(1, steps + 1)) and all(len(digests) == 1 for digests in hashes.values())


def received(lab: Lab, node: int) -> dict[str, list[int]]:
    """Bytes that each GPU of a node has received, by device."""
    gpus = lab.show(links=True)["nodes"][node]["gpus"]
    by_name = [{link["name"]: link["rx_bytes"] for link in links} for links in gpus]
    return {name: [gpu[name] for gpu in by_name] for name in ("nvl0", "pcie0")}


def test_ranks_run_on_their_nodes_and_their_data_takes_the_links(lab: Lab, tmp_path: Path) -> None:
    with Job(tmp_path, lab, spares=SPARES, step_s=0.02) as job:
        job.await_step(5)
        nodes = lab.show(links=True)["nodes"]
        for hello in job.all("hello"):
            node = nodes[hello["node"]]
            assert (hello["pidns"], hello["boot"]) == (node["pidns"], node["boot_id"])
            assert hello["pid"] < 100, "as the node numbers its processes"
        before = received(lab, 0), received(lab, 2)
        job.await_step(job.all("step")[-1]["step"] + 20)
        after = received(lab, 0), received(lab, 2)
        # The ring is 0 - 1 over NVLink, 1 - 2 over PCIe and the rail, and back; the spares have no part in it.
        grown = {name: sum(after[0][name]) - sum(before[0][name]) for name in ("nvl0", "pcie0")}
        assert min(grown.values()) > 20 * 4 * 40_000
        assert all(sum(after[1][name]) - sum(before[1][name]) < 10_000 for name in after[1])


def test_a_rank_killed_in_the_lab_is_replaced_and_the_result_is_the_same(lab: Lab, tmp_path: Path) -> None:
    with Job(tmp_path, lab, spares=SPARES, step_s=0.02, max_steps=80) as job:
        job.await_step(30)
        job.signal(1, signal.SIGKILL)
        assert job.await_end() == 0
        assert job.member(1)["node"] == 2
        assert one_digest_a_step(job, 80)


def test_a_node_without_power_is_replaced_and_used_again_after_its_boot(lab: Lab, tmp_path: Path) -> None:
    with Job(tmp_path, lab, spares=SPARES, step_s=0.02, max_steps=200) as job:
        job.await_step(30)
        boot = job.member(0)["boot"]
        lab.power(0, "off")
        job.await_event("step", lambda step: step["gen"] > 1, rank=0)
        assert {job.member(rank)["node"] for rank in (0, 1)} == {2}
        lab.wait_power(0, "off")
        lab.power(0, "on")
        again = job.await_event("hello", lambda hello: hello["boot"] != boot, node=0, gpu=1)
        assert again["pidns"] == lab.show()["nodes"][0]["pidns"]
        job.await_event("hello", lambda hello: hello["boot"] != boot, node=0, gpu=0)
        assert job.await_end() == 0
        assert one_digest_a_step(job, 200)


def test_a_job_under_torchrun_restarts_in_the_lab_and_its_data_takes_the_links(lab: Lab, tmp_path: Path) -> None:
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=5"),
        *("--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint={management_address(0)}:29400"),
        *(
            "--rdzv-conf=is_host=true",
            f"--local-addr={management_address(0)}",
            "-m",
            "chaos.workload.reference.elastic",
        ),
    ]
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with Job(tmp_path, lab, torchrun, 0, env, recovery="restart", step_s=0.02, max_steps=60) as job:
        job.await_step(25, gen=1)
        job.signal(1, signal.SIGKILL)
        assert job.await_event("mark", what="restored", gen=2)["step"] == 20
        assert job.await_end() == 0
        assert {(h["node"], h["gpu"]) for h in job.all("hello")} == {(0, 0), (0, 1)}
        assert min(received(lab, 0)["nvl0"]) > 60 * 4 * 40_000
        assert one_digest_a_step(job, 60)
