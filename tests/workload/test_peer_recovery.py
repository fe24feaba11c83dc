"""Recovery from a living replica: in threads over a group of the test's own, and as real processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_job import SPARES, STEPS, Job, assert_seamless
from stopped_thread import main_thread_stopped_asleep
from torch import Tensor

from chaos.workload.events import StepWriter, tail
from chaos.workload.reference.config import ModelShape
from chaos.workload.reference.rank.group import GroupBroken
from chaos.workload.reference.recovery import FromPeer
from chaos.workload.reference.training.checkpoint import CheckpointFolder
from chaos.workload.reference.training.replica import Replica


class Threads:
    """A group of as many threads as there are replicas. ``broken``: a broadcast breaks when half of it has arrived."""

    def __init__(self, world: int, *, broken: bool = False) -> None:
        self.world = world
        self.broken = broken
        self.calls: list[str] = []
        self._barrier = threading.Barrier(world, timeout=20)
        self._tensors: list[Tensor | None] = [None] * world

    def exchange(self, slot: int, call: str, tensor: Tensor) -> list[Tensor]:
        if slot == 0:
            self.calls.append(call)
        self._tensors[slot] = tensor.clone()
        self._barrier.wait()
        everybodys = [each for each in self._tensors if each is not None]
        self._barrier.wait()
        return everybodys


class Member:
    """One slot of it."""

    generation = 2

    def __init__(self, threads: Threads, slot: int) -> None:
        self._threads = threads
        self.slot, self.world = slot, threads.world

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self._threads.exchange(self.slot, "sum", tensor)).sum(0))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        sent = self._threads.exchange(self.slot, f"from {root}", tensor)[root]
        if not self._threads.broken:
            tensor.copy_(sent)
        elif self.slot != root:
            tensor[: len(tensor) // 2] = float("nan")
            raise GroupBroken("planted")


def trained(steps: int) -> Replica:
    """A replica that has trained alone, as all replicas train together: by what the sum is when all send the same."""
    replica = Replica(ModelShape(), seed=3)
    for _ in range(steps):
        replica.compute(0)
        replica.apply(1)
    return replica


def restore(folder: Path, replicas: Sequence[Replica], *, broken: bool = False) -> tuple[Threads, list[dict[str, Any]]]:
    threads = Threads(len(replicas), broken=broken)
    events = StepWriter(folder / "events")
    events.hello(0, 0, "xxh3_64")
    checkpoints = CheckpointFolder(folder / "checkpoints", {})

    def work(slot: int) -> None:
        try:
            FromPeer().restore(replicas[slot], Member(threads, slot), checkpoints, events)
        except GroupBroken:
            assert broken

    workers = [threading.Thread(target=work, args=(slot,)) for slot in range(len(replicas))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads, tail(folder / "events").poll()


@pytest.mark.control
def test_whoever_is_behind_gets_the_state_of_the_lowest_slot_that_is_furthest(tmp_path: Path) -> None:
    replicas = [trained(0), trained(6), trained(7), trained(7)]
    wanted = replicas[2].digest()
    threads, events = restore(tmp_path, replicas)
    assert {(replica.completed, replica.digest()) for replica in replicas} == {(7, wanted)}
    assert threads.calls == ["sum", "from 2"]
    agreed = [e for e in events if e.get("what") == "agreed"]
    assert {(e["step"], e["source"], e["behind"]) for e in agreed} == {(7, 2, 2)}
    assert [e["step"] for e in events if e.get("what") == "restored"] == [7] * 4


def test_where_nobody_is_behind_nothing_is_sent(tmp_path: Path) -> None:
    replicas = [trained(5), trained(5)]
    digest = replicas[0].digest()
    threads, _ = restore(tmp_path, replicas)
    assert threads.calls == ["sum"]
    assert [replica.digest() for replica in replicas] == [digest] * 2


@pytest.mark.control
def test_a_broken_transfer_leaves_every_replica_as_it_was(tmp_path: Path) -> None:
    replicas = [trained(3), trained(2), trained(0)]
    before = [(replica.completed, replica.digest()) for replica in replicas]
    restore(tmp_path, replicas, broken=True)
    assert [(replica.completed, replica.digest()) for replica in replicas] == before


def short_job(folder: Path) -> Job:
    """A job with two spares that ends by itself."""
    return Job(folder, max_steps=STEPS, spares=SPARES, step_s=0.02, recovery="peer")


@pytest.mark.train
@pytest.mark.parametrize("victims", [[1], [0], [2, 3]])
def test_killed_ranks_are_replaced_and_no_step_is_lost(
    tmp_path: Path, undisturbed: dict[int, set[str]], victims: list[int]
) -> None:
    with short_job(tmp_path) as job:
        job.await_step(30)
        for rank in victims:
            job.signal(rank, signal.SIGKILL)
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)
        assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.train
def test_a_second_loss_during_the_repair_is_recovered_from(tmp_path: Path, undisturbed: dict[int, set[str]]) -> None:
    with short_job(tmp_path) as job:
        job.await_step(30)
        job.signal(1, signal.SIGKILL)
        job.await_event("mark", what="aborted")
        job.signal(3, signal.SIGKILL)
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)


@pytest.mark.train
def test_a_stopped_rank_is_replaced_and_its_late_step_does_not_count(
    tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with short_job(tmp_path) as job:
        job.await_step(30)
        with job.stopped(2) as stopped:
            job.await_step(60, gen=2, rank=2)
        job.await_event("fenced", inc=stopped["inc"])
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)


@pytest.mark.train
def test_a_rank_whose_main_thread_alone_is_stuck_is_replaced(tmp_path: Path, undisturbed: dict[int, set[str]]) -> None:
    """Its watcher beats on: only the collective that it does not enter gives it away."""
    with Job(tmp_path, max_steps=STEPS, spares=SPARES, step_s=0.05, recovery="peer") as job:
        job.await_step(30)
        stuck = job.member(2)
        with main_thread_stopped_asleep(stuck["pid"]):
            job.await_step(60, gen=2, rank=2)
        assert job.await_end() == 0
        assert "is stuck" in job.log
        assert job.member(2)["inc"] != stuck["inc"]
        assert_seamless(job, undisturbed)


@pytest.mark.train
def test_ranks_go_on_without_a_launcher_and_the_next_one_recovers_them(
    tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with short_job(tmp_path) as job:
        job.await_step(20)
        first = job.kill_launcher()
        job.await_event("launcher", lambda event: event["pid"] != first["pid"])
        job.await_true(lambda: "took over generation 1" in job.log, "take-over")
        assert len({event["gen"] for event in job.all("member")}) == 1, "nobody noticed"
        job.signal(1, signal.SIGKILL)
        job.await_step(60, gen=2)
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)


@pytest.mark.train
def test_a_rank_that_dies_with_its_launcher_is_recovered_from(tmp_path: Path, undisturbed: dict[int, set[str]]) -> None:
    with short_job(tmp_path) as job:
        job.await_step(20)
        job.signal(1, signal.SIGKILL)
        job.kill_launcher()
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)


@pytest.mark.train
def test_a_launcher_that_dies_during_a_repair_is_recovered_from(
    tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with short_job(tmp_path) as job:
        job.await_step(20)
        job.signal(1, signal.SIGKILL)
        job.await_event("mark", what="aborted")
        job.kill_launcher()
        assert job.await_end() == 0
        assert_seamless(job, undisturbed)


@pytest.mark.train
def test_without_spares_a_lost_rank_is_started_again_in_its_place(
    tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with Job(tmp_path, max_steps=STEPS, step_s=0.02, recovery="peer") as job:
        job.await_step(30)
        job.signal(3, signal.SIGKILL)
        assert job.await_end() == 0
        assert {event["world"] for event in job.all("member")} == {4}, "it was not worth going on with fewer"
        assert_seamless(job, undisturbed)


@pytest.mark.train
def test_many_generations_leave_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    with Job(tmp_path, spares=SPARES, step_s=0.02, recovery="peer", collective_timeout_s=0.5) as job:
        survivor = Path("/proc") / str(job.await_step(10, rank=0) and job.member(0)["pid"])

        def held() -> tuple[int, int]:
            return len(list((survivor / "fd").iterdir())), len(list((survivor / "task").iterdir()))

        before = held()
        for generation in range(2, 14):
            job.signal(1, signal.SIGKILL)
            job.await_event("step", lambda step, newest=generation: step["gen"] >= newest, rank=0)  # type: ignore[misc]
        # A group is taken apart when no collective can hang in it any more.
        janitor = 1
        job.await_true(lambda: held() <= (before[0], before[1] + janitor), "end of what old groups held")


@pytest.mark.train
def test_ranks_that_are_all_stopped_at_once_are_not_given_up(tmp_path: Path, undisturbed: dict[int, set[str]]) -> None:
    """Whoever replaced them would have to begin anew."""
    with short_job(tmp_path) as job:
        job.await_step(30)
        with ExitStack() as stopped:
            for rank in range(4):
                stopped.enter_context(job.stopped(rank))
            last = max(event["t"] for event in job.all("step"))
            job.await_true(lambda: time.monotonic_ns() - last > 2e9, "two seconds")
        assert job.await_end() == 0
        assert {job.member(rank)["node"] for rank in range(4)} == {0, 1}, "nobody was replaced"
        assert_seamless(job, undisturbed)
