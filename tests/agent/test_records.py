"""Undo records on stable storage."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from chaos.agent.records import Records, state_folder
from injectors.contract import UndoRecord


def a_record(fault: str = "f1", **before: object) -> UndoRecord:
    return UndoRecord(fault, "test", "module:Class", {}, {}, 1.0, before=dict(before))


def test_a_record_is_synced_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, str]] = []
    fsync, rename, unlink = os.fsync, os.rename, os.unlink

    def name(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name

    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(("fsync", name(fd))), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda a, b: (order.append(("rename", Path(b).name)), rename(a, b)))
    monkeypatch.setattr(os, "unlink", lambda a: (order.append(("unlink", Path(a).name)), unlink(a)))
    records = Records(str(tmp_path))
    records.write(a_record())
    assert order == [("fsync", "f1.json.new"), ("rename", "f1.json"), ("fsync", "faults")]
    order.clear()
    records.remove("f1")
    assert order == [("unlink", "f1.json"), ("fsync", "faults")]


def test_a_write_that_fails_leaves_the_former_record_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(str(tmp_path))
    records.write(a_record(n=1))
    before = len(list(Path("/proc/self/fd").iterdir()))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            records.write(a_record(n=2))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert json.loads((tmp_path / "faults/f1.json").read_text())["before"] == {"n": 1}
    records.write(a_record(n=3))
    assert json.loads((tmp_path / "faults/f1.json").read_text())["before"] == {"n": 3}


def test_a_record_is_taken_over_by_one_alone_and_only_when_nobody_holds_it(tmp_path: Path) -> None:
    first, second = Records(str(tmp_path)), Records(str(tmp_path))
    first.write(a_record())
    assert second.orphans() == ([], [])
    first.write(a_record(anew=True))  # a new file: the lock must have moved with it
    assert second.orphans() == ([], [])
    os.close(first._locks.pop("f1"))  # it dies
    assert second.orphans() == ([a_record(anew=True)], [])
    assert second.holds("f1")
    assert Records(str(tmp_path)).orphans() == ([], [])
    second.remove("f1")
    assert not second.holds("f1")
    assert not list((tmp_path / "faults").iterdir())


def test_a_record_written_anew_while_it_is_looked_at_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has opened the former file gets its lock, which says nothing any more."""
    holder, looker = Records(str(tmp_path)), Records(str(tmp_path))
    holder.write(a_record(n=1))
    real_open = os.open

    def slow_open(path: str, *args: object, **more: object) -> int:
        fd = real_open(path, *args, **more)  # type: ignore[arg-type]
        if str(path).endswith("f1.json"):
            monkeypatch.setattr(os, "open", real_open)
            holder.write(a_record(n=2))
        return fd

    monkeypatch.setattr(os, "open", slow_open)
    assert looker.orphans() == ([], [])


def test_half_written_files_are_no_records(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    (tmp_path / "faults/f1.json.new").write_text('{"version"')
    assert records.orphans() == ([], [])


def test_where_records_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_STATE", "/given")
    assert state_folder() == "/given"
    monkeypatch.delenv("CHAOS_STATE")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_folder() == "/var/lib/chaos"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/somebody/state")
    assert state_folder() == "/home/somebody/state/chaos"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert state_folder() == "/home/somebody/.local/state/chaos"
