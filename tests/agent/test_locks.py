"""Locks on devices: two faults never meet on one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.agent.locks import DeviceBusy, DeviceLocks, Locks
from injectors.contract import InjectorError


@pytest.fixture
def locks(tmp_path: Path) -> DeviceLocks:
    return DeviceLocks(str(tmp_path))


@pytest.mark.control
def test_a_device_is_one_faults_alone_until_that_has_ended(locks: DeviceLocks, tmp_path: Path) -> None:
    taken = locks.take(["link:1:nvl0"], "f1", "a-run")
    with pytest.raises(DeviceBusy) as refused:
        locks.take(["link:1:nvl0"], "f2", "b-run")
    assert str(refused.value) == ("link:1:nvl0 is taken by fault f1 of run a-run: wait for its end, or aim at another")
    locks.take(["link:1:nvl1"], "f2", "b-run").release()
    taken.release()
    assert not list((tmp_path / "locks").iterdir())
    locks.take(["link:1:nvl0"], "f2", "b-run").release()


def test_all_devices_or_none(locks: DeviceLocks) -> None:
    taken = locks.take(["b"], "f1", "a-run")
    with pytest.raises(DeviceBusy):
        locks.take(["a", "b", "c"], "f2", "b-run")
    locks.take(["a", "c"], "f3", "c-run").release()
    taken.release()


def test_who_has_the_same_descriptor_keeps_the_device(locks: DeviceLocks) -> None:
    """Agent and guardian: the one that dies leaves the lock to the other."""
    taken = locks.take(["a"], "f1", "a-run")
    same = Locks({path: os.dup(fd) for path, fd in taken.files.items()})
    taken.close()
    with pytest.raises(DeviceBusy):
        locks.take(["a"], "f2", "b-run")
    same.close()
    locks.take(["a"], "f2", "b-run").release()


def test_a_device_is_free_as_soon_as_its_fault_is_undone_whoever_still_has_a_descriptor(locks: DeviceLocks) -> None:
    taken = locks.take(["a"], "f1", "a-run")
    same = Locks({path: os.dup(fd) for path, fd in taken.files.items()})
    taken.release()
    again = locks.take(["a"], "f2", "b-run")
    same.release()
    with pytest.raises(DeviceBusy):
        locks.take(["a"], "f3", "c-run")
    again.release()


@pytest.mark.parametrize(
    "device", ["process:[4026531836]:1:2", "power:/a/b c/../d:node0", "x" * 1000, "%2F", ".", ".."]
)
def test_any_name_of_a_device_will_do(locks: DeviceLocks, tmp_path: Path, device: str) -> None:
    taken = locks.take([device], "f1", "a-run")
    assert len(list((tmp_path / "locks").iterdir())) == 1
    with pytest.raises(DeviceBusy):
        locks.take([device], "f2", "b-run")
    taken.release()


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file is in the way")
    with pytest.raises(InjectorError, match=f"devices cannot be locked in {tmp_path}/locks: File exists"):
        DeviceLocks(str(tmp_path)).take(["a"], "f1", "a-run")
