"""Checkpoints: never a torn, corrupt or foreign one (public cases: pytorch-lightning#688, Megatron-LM#5281)."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from chaos.workload.reference.training.checkpoint import CheckpointError, CheckpointFolder, CheckpointWriter

ME = {"model": {"dim": 4}, "seed": 1}


def state(step: int) -> torch.Tensor:
    return torch.full((30,), float(step))


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path, ME)


def newest(folder: CheckpointFolder) -> tuple[int | None, list[str]]:
    refused: list[str] = []
    found = folder.newest(lambda error: refused.append(str(error)))
    return found and found.step, refused


def test_a_saved_state_is_loaded_as_it_was(folder: CheckpointFolder) -> None:
    path = folder.save(7, state(7))
    loaded = folder.load(7)
    assert (loaded.step, loaded.path) == (7, path)
    assert torch.equal(loaded.state, state(7))
    loaded.state.add_(1)  # its own memory


def test_the_newest_of_several_is_found_and_only_the_last_few_are_kept(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    for step in (9, 10, 100, 1000):
        folder.save(step, state(step))
    assert newest(folder) == (1000, [])
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(CheckpointError, match="No such file"):
        folder.load(9)


def test_where_there_is_none_none_is_found(tmp_path: Path) -> None:
    assert newest(CheckpointFolder(tmp_path / "missing", ME)) == (None, [])


@pytest.mark.control
@pytest.mark.parametrize("damage", ["bit", "header", "digest", "short", "empty", "long", "zeros"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_taken(folder: CheckpointFolder, damage: str) -> None:
    folder.save(1, state(1))
    path = folder.save(2, state(2))
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[len(data) // 2] ^= 4
    elif damage == "header":
        data[data.index(b'"step": 2') + 8] = ord("3")
    elif damage == "digest":
        data[-1] ^= 1
    elif damage == "short":
        del data[-50:]
    elif damage == "empty":
        data.clear()
    elif damage == "long":
        data += b"\0" * 8
    else:
        data[100:200] = bytes(100)
    path.write_bytes(data)
    step, refused = newest(folder)
    assert step == 1
    assert len(refused) == 1
    assert str(path) in refused[0]


def test_another_job_s_checkpoint_is_refused(folder: CheckpointFolder, tmp_path: Path) -> None:
    CheckpointFolder(tmp_path, ME | {"seed": 2}).save(5, state(5))
    step, refused = newest(folder)
    assert step is None
    assert "of another job" in refused[0]


def _die_after(size: int) -> None:
    """Let this process write ``size`` bytes more, then kill it."""
    write, left = os.write, [size]

    def dying(fd: int, data: memoryview) -> int:
        part = data[: left[0]]
        left[0] -= write(fd, part)
        if len(part) < len(data):
            os.kill(os.getpid(), signal.SIGKILL)
        return len(part)

    os.write = dying


def test_a_writer_killed_at_any_write_leaves_the_older_ones(folder: CheckpointFolder, tmp_path: Path) -> None:
    size = folder.save(1, state(1)).stat().st_size
    for allowed in (0, 10, size // 2, size - 1):
        writer = os.fork()
        if writer == 0:
            _die_after(allowed)
            folder.save(2, state(2))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == -signal.SIGKILL
        assert newest(folder) == (1, [])
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]
    folder.save(3, state(3))
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")], "what killed writers left is removed"


def test_a_full_disk_is_reported_and_leaves_nothing(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    failures: list[tuple[int, str]] = []
    writer = CheckpointWriter(folder, lambda *_: None, lambda step, why: failures.append((step, why)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert writer.offer(4, state(4))
        writer.drain(10)
    assert failures[0][0] == 4
    assert "No space left" in failures[0][1]
    assert list(tmp_path.iterdir()) == []


def test_the_background_writer_keeps_the_state_of_its_moment_and_takes_one_at_a_time(tmp_path: Path) -> None:
    released, saved = threading.Event(), threading.Event()

    class Slow(CheckpointFolder):
        def save(self, step: int, state: torch.Tensor) -> Path:
            released.wait()
            return super().save(step, state)

    folder = Slow(tmp_path, ME)
    writer = CheckpointWriter(folder, lambda *_: saved.set(), lambda *_: None)
    living = state(1)
    assert writer.offer(1, living)
    living.fill_(99)  # training goes on
    assert not writer.offer(2, living)
    released.set()
    assert saved.wait(10)
    writer.drain(10)
    assert torch.equal(folder.load(1).state, state(1))
    assert writer.offer(2, living)
    writer.drain(10)
    assert newest(folder) == (2, [])
