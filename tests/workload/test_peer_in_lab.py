"""Recovery from a living replica when the network fails: real ranks on the links of an emulated cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_help import link_down, nvswitch_drops
from reference_job import SPARES, Job, assert_seamless

from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec

pytestmark = [
    pytest.mark.train,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="the test enters the lab's namespaces itself: that needs root"),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab.up(LabSpec(nodes=2, gpus=2, spare_nodes=1), tmp_path / "lab") as it:
        yield it


@contextmanager
def network(lab: Lab, node: int, kind: str) -> Iterator[int]:
    """One of a node's namespaces: its own (net) or its NVSwitch's."""
    fds = lab.namespaces(node)
    try:
        yield fds[kind]
    finally:
        for fd in fds.values():
            os.close(fd)


@contextmanager
def training(folder: Path, lab: Lab, *, steps: int = 200, **config: Any) -> Iterator[Job]:
    """A job that has trained for a while, and whose ranks have heard each other's beacons."""
    config = {"spares": SPARES, "step_s": 0.02, "max_steps": steps, "recovery": "peer"} | config
    with Job(folder, lab, **config) as job:
        job.await_step(70)
        yield job


def binds(job: Job, generation: int) -> str:
    """The launcher's line about a generation."""
    return next(line for line in job.log.splitlines() if f" generation {generation} (" in line)


@pytest.mark.parametrize("receivers", [[0, 1], [0], [1]], ids=["both ways", "to GPU 0", "to GPU 1"])
def test_a_sick_nvlink_path_is_left_for_pcie_and_returned_to_without_a_gap(
    lab: Lab, tmp_path: Path, undisturbed: dict[int, set[str]], receivers: list[int]
) -> None:
    with training(tmp_path, lab) as job, network(lab, 0, "nvswitch") as switch:
        with nvswitch_drops(switch, receivers):
            job.await_event("member", gen=2)
            broken = job.all("step")[-1]["step"]
            job.await_step(broken + 3, gen=2)
        job.await_event("member", gen=3)
        assert job.await_end() == 0
        assert "nvlink between processes" in binds(job, 2)
        assert binds(job, 2).count("10.78.0.1") == 2, "both ranks of the node use PCIe"
        assert binds(job, 2).count("10.77.1.1") == 2, "the other node is not concerned"
        assert binds(job, 3).count("10.78.") == 0
        assert "generation 3 goes on without a gap" in job.log
        assert not job.all("mark", what="aborted", gen=3)
        assert_seamless(job, undisturbed)


def test_a_gpu_whose_pcie_link_is_dead_is_replaced_and_a_spare_when_it_is_back(
    lab: Lab, tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with training(tmp_path, lab) as job, network(lab, 0, "net") as node:
        lost = job.member(1)
        with link_down(node, "pcie1"):
            job.await_event("member", gen=2, rank=1)
            job.await_step(100, gen=2)
            job.await_event("fenced", inc=lost["inc"])
        assert job.await_end() == 0
        assert "cannot be reached by the others" in binds(job, 2)
        assert job.member(1)["node"] == 2
        assert_seamless(job, undisturbed)


def test_without_a_spare_a_dead_pcie_link_is_waited_for(
    lab: Lab, tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with training(tmp_path, lab, spares=[]) as job, network(lab, 0, "net") as node:
        with link_down(node, "pcie1"):
            job.await_true(lambda: silent_for(job, 0.4), "standstill")
        assert job.await_end() == 0
        assert "all can hear each other again" in binds(job, 2)
        assert_seamless(job, undisturbed)


def silent_for(job: Job, seconds: float) -> bool:
    """Whether no step was completed for so long."""
    import time  # noqa: PLC0415

    return time.monotonic_ns() - max(event["t"] for event in job.all("step")) > seconds * 1e9


def test_a_rank_that_dies_while_a_path_is_being_left_is_replaced(
    lab: Lab, tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with training(tmp_path, lab) as job, network(lab, 0, "nvswitch") as switch:
        with nvswitch_drops(switch, [0, 1]):
            job.await_event("mark", what="aborted", gen=2)
            job.signal(2, signal.SIGKILL)
            job.await_event("member", gen=3, rank=2)
            job.await_step(100)
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)


def test_a_rank_that_dies_during_the_return_is_replaced(
    lab: Lab, tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with training(tmp_path, lab) as job, network(lab, 0, "nvswitch") as switch:
        with nvswitch_drops(switch, [0, 1]):
            job.await_event("member", gen=2)
        job.await_event("mark", what="successor", gen=3)
        job.signal(0, signal.SIGKILL)
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)


def test_a_path_that_is_dark_again_during_the_return_is_left_again(
    lab: Lab, tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with training(tmp_path, lab, steps=300) as job, network(lab, 0, "nvswitch") as switch:
        with nvswitch_drops(switch, [0, 1]):
            job.await_event("member", gen=2)
        job.await_event("mark", what="successor", gen=3)
        with nvswitch_drops(switch, [0, 1]):
            job.await_event("member", lambda event: event["gen"] > 3)
            job.await_step(job.all("step")[-1]["step"] + 5)
        assert job.await_end() == 0
        assert "10.78.0.10" in binds(job, 4)
        assert_seamless(job, undisturbed)


def test_a_job_that_loses_more_than_it_has_spares_shrinks_and_grows_when_the_node_is_back(
    lab: Lab, tmp_path: Path
) -> None:
    with training(tmp_path, lab, spares=[], steps=250) as job:
        lab.power(1, "off")
        shrunk = job.await_event("member", world=2)  # the node's processes may die some time apart
        job.await_step(100, gen=shrunk["gen"])
        lab.wait_power(1, "off")
        lab.power(1, "on")
        grown = job.await_event("member", lambda event: event["world"] == 4 and event["gen"] > shrunk["gen"])
        assert job.await_end() == 0
        assert not job.all("mark", what="aborted", gen=grown["gen"]), "nothing was broken to take them in"
        assert "2 of 4 ranks" in binds(job, shrunk["gen"])
        hashes = job.hashes()
        assert sorted(hashes) == list(range(1, 251))
        assert all(len(digests) == 1 for digests in hashes.values())
        last = [event for event in job.all("step", step=250) if event["world"] == 4]
        assert len(last) == 4


def test_a_launcher_that_dies_in_the_lab_is_replaced_and_what_follows_is_recovered_from(
    lab: Lab, tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with training(tmp_path, lab) as job, network(lab, 0, "nvswitch") as switch:
        first = job.kill_launcher()
        job.await_event("launcher", lambda event: event["pid"] != first["pid"])
        job.await_true(lambda: "took over generation 1" in job.log, "take-over")
        with nvswitch_drops(switch, [0, 1]):
            job.await_event("member", gen=2)
            job.signal(3, signal.SIGKILL)
            job.await_event("member", gen=3, rank=3)
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)
