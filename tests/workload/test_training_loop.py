"""The training loop with a process group of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chaos.workload.events import StepWriter, tail
from chaos.workload.reference.config import ModelShape
from chaos.workload.reference.rank.group import GroupBroken
from chaos.workload.reference.recovery import FromCheckpoint, NoRecovery, RestoreFailed
from chaos.workload.reference.training.checkpoint import CheckpointFolder
from chaos.workload.reference.training.loop import Schedule, checkpoint_writer, train
from chaos.workload.reference.training.replica import Replica, StepFigures


class Solo:
    """A group of one rank, which breaks or spoils the gradient at a given step."""

    generation, slot, world = 4, 0, 1

    def __init__(self, breaks_at: int | None = None, spoils_at: int | None = None) -> None:
        self.calls = 0
        self._breaks_at, self._spoils_at = breaks_at, spoils_at

    def all_reduce(self, tensor: Tensor) -> None:
        self.calls += 1
        if self.calls == self._breaks_at:
            tensor.fill_(float("nan"))  # an abandoned collective may leave anything behind
            raise GroupBroken("planted")
        if self.calls == self._spoils_at:
            tensor[0] = float("nan")

    def broadcast(self, tensor: Tensor, root: int) -> None:
        assert root == 0


class Follower(Solo):
    """Rank 1 of two, to whom rank 0 says what it has chosen."""

    slot, world = 1, 2

    def __init__(self, step: int, digest: bytes) -> None:
        super().__init__()
        self._choice = torch.tensor([step, int.from_bytes(digest[:8], "big", signed=True)])

    def broadcast(self, tensor: Tensor, root: int) -> None:
        tensor.copy_(self._choice)


class Bench:
    """A replica with its events and checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.replica = Replica(ModelShape(), seed=3)
        self.events = StepWriter(folder / "events")
        self.events.hello(0, 0, "xxh3_64")
        self.folder = CheckpointFolder(folder / "checkpoints", self.replica.identity, keep=100)
        self._tail = tail(folder / "events")

    def train(self, group: Solo, **schedule: Any) -> None:
        plan = Schedule(**{"hash_every": 1, "checkpoint_every": None, "max_steps": None, "step_s": None} | schedule)
        writer = checkpoint_writer(self.folder, self.events, lambda: group.generation)

        def on_step(_: StepFigures) -> bool:
            writer.drain(10)
            return True

        train(self.replica, group, plan, self.events, checkpoints=writer, vote=lambda: False, on_step=on_step)

    def all(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        events = self._tail.poll()
        return [e for e in events if e["e"] == kind and all(e.get(k) == v for k, v in fields.items())]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_every_step_is_told_with_its_figures(bench: Bench) -> None:
    bench.train(Solo(), max_steps=5, hash_every=2)
    steps = bench.all("step")
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5]
    assert [s["step"] for s in steps if "hash" in s] == [2, 4]
    assert {(s["rank"], s["gen"], s["world"], s["tokens"]) for s in steps} == {(0, 4, 1, 64)}
    assert [s["t"] for s in steps] == sorted(s["t"] for s in steps)
    assert steps[3]["hash"] != bench.replica.digest()
    bench.train(Solo(), max_steps=6)
    assert bench.all("step")[-1]["hash"] == bench.replica.digest()


def test_a_job_that_was_done_does_nothing_more(bench: Bench) -> None:
    bench.train(Solo(), max_steps=2)
    group = Solo()
    bench.train(group, max_steps=2)
    assert group.calls == 0


def test_a_broken_collective_leaves_the_replica_as_after_its_last_step(bench: Bench) -> None:
    with pytest.raises(GroupBroken):
        bench.train(Solo(breaks_at=4))
    assert bench.replica.completed == 3
    assert bench.all("step")[-1]["hash"] == bench.replica.digest()


def test_hashes_go_by_the_logical_step_also_after_a_restart(bench: Bench) -> None:
    with pytest.raises(GroupBroken):
        bench.train(Solo(breaks_at=4), hash_every=2)
    bench.replica.arena.renew_gradient()
    bench.train(Solo(), max_steps=6, hash_every=2)
    assert [s["step"] for s in bench.all("step") if "hash" in s] == [2, 4, 6]


@pytest.mark.control
def test_a_state_that_is_not_finite_is_told_and_never_saved(bench: Bench) -> None:
    """Megatron-LM#5281: such a checkpoint is loaded, fails, and is loaded again, 44 times."""
    bench.train(Solo(spoils_at=3), max_steps=6, checkpoint_every=2)
    events = bench._tail.poll()
    saved = [e["step"] for e in events if e.get("what") == "checkpoint"]
    skipped = [(e["step"], e["why"]) for e in events if e.get("what") == "checkpoint_skipped"]
    assert saved == [2]
    assert skipped == [(4, "loss or gradient is not finite"), (6, "loss or gradient is not finite")]
    losses = [e["loss"] for e in events if e["e"] == "step"]
    assert all(isinstance(loss, float) for loss in losses[:3])
    assert losses[3:] == ["nan"] * 3


def test_recovery_from_a_checkpoint_goes_on_to_the_bit(bench: Bench, tmp_path: Path) -> None:
    bench.train(Solo(), max_steps=7, checkpoint_every=3)
    digest = bench.replica.digest()
    FromCheckpoint().restore(bench.replica, Solo(), bench.folder, bench.events)
    assert bench.replica.completed == 6
    bench.train(Solo(), max_steps=7)
    assert bench.replica.digest() == digest
    marks = [e["what"] for e in bench.all("mark", gen=4)]
    assert marks == ["checkpoint", "checkpoint", "agreed", "restored"]


def test_recovery_without_a_checkpoint_starts_from_the_seed(bench: Bench) -> None:
    first = bench.replica.digest()
    for recovery in (FromCheckpoint(), NoRecovery()):
        bench.train(Solo(), max_steps=2)
        recovery.restore(bench.replica, Solo(), bench.folder, bench.events)
        assert (bench.replica.completed, bench.replica.digest()) == (0, first)


def test_a_follower_loads_what_was_agreed_and_not_something_newer(bench: Bench) -> None:
    bench.train(Solo(), max_steps=6, checkpoint_every=3)
    chosen = bench.folder.load(3)
    FromCheckpoint().restore(bench.replica, Follower(3, chosen.digest), bench.folder, bench.events)
    assert bench.replica.completed == 3


@pytest.mark.control
def test_a_follower_refuses_a_file_that_is_not_the_one_agreed_on(bench: Bench) -> None:
    bench.train(Solo(), max_steps=3, checkpoint_every=3)
    with pytest.raises(RestoreFailed, match="not the file that rank 0 chose"):
        FromCheckpoint().restore(bench.replica, Follower(3, b"\1" * 32), bench.folder, bench.events)
    with pytest.raises(RestoreFailed, match="cannot be read here"):
        FromCheckpoint().restore(bench.replica, Follower(9, b"\1" * 32), bench.folder, bench.events)
