"""Undo records on stable storage, and the two locks on them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_help import eventually

from chaos.agent.places import runtime_folder, state_folder
from chaos.agent.records import Held, RecordBusy, RecordGone, Records, adopt
from injectors import kernel
from injectors.contract import InjectorError, UndoRecord


def a_record(fault: str = "f1", *, deadline_ns: int | None = None, **before: object) -> UndoRecord:
    record = UndoRecord(fault, "test", "module:Class", {}, {}, 1.0, before=dict(before))
    record.boot, record.deadline_ns = kernel.boot_id(), deadline_ns
    return record


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(str(tmp_path))


def test_a_record_is_synced_before_it_gets_its_name_and_the_name_after(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, str]] = []
    fsync, link, unlink = os.fsync, os.link, os.unlink

    def name(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name

    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(("fsync", name(fd))), fsync(fd)))
    monkeypatch.setattr(os, "link", lambda a, b: (order.append(("link", Path(b).name)), link(a, b)))
    monkeypatch.setattr(os, "unlink", lambda a: (order.append(("unlink", Path(a).name)), unlink(a)))
    held = records.write(a_record())
    assert order == [("fsync", "f1.json.new"), ("link", "f1.json"), ("unlink", "f1.json.new"), ("fsync", "faults")]
    order.clear()
    with held.working():
        held.remove()
    assert order == [("unlink", "f1.json"), ("fsync", "faults")]


def test_two_faults_never_share_a_record(records: Records, tmp_path: Path) -> None:
    """CASES 8."""
    held = records.write(a_record(n=1))
    with pytest.raises(InjectorError, match="fault f1 is held here already: an id is used once"):
        records.write(a_record(n=2))
    assert json.loads((tmp_path / "faults/f1.json").read_text())["before"] == {"n": 1}
    assert [each.name for each in (tmp_path / "faults").iterdir()] == ["f1.json"]
    held.close()


@pytest.mark.parametrize("fault", ["", "../up", "a/b", ".hidden", "-option", "x" * 201, "new\nline", None, 7])
def test_what_cannot_be_a_files_name_is_no_faults_id(records: Records, fault: str) -> None:
    with pytest.raises(InjectorError, match="is no fault's id"):
        records.path(fault)


def test_a_write_that_fails_leaves_no_file_and_no_descriptor(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        records.write(a_record())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not list((tmp_path / "faults").iterdir())


@pytest.mark.control
def test_a_record_is_taken_over_by_one_alone_and_only_when_nobody_holds_it(tmp_path: Path) -> None:
    first, second = Records(str(tmp_path)), Records(str(tmp_path))
    held = first.write(a_record())
    [found] = second.survey()
    assert (found.record, found.held, found.overdue) == (held.record, True, False)
    assert Records.take(found) is None
    held.close()  # it dies
    [found] = second.survey()
    assert not found.held
    taken = Records.take(found)
    assert taken is not None
    [found] = first.survey()
    assert found.held
    assert Records.take(found) is None
    with taken.working():
        taken.remove()
    assert first.survey() == []
    assert Records.take(found) is None


@pytest.mark.control
def test_an_overdue_record_is_taken_over_whoever_holds_it(records: Records) -> None:
    held = records.write(a_record(deadline_ns=time.monotonic_ns() - 1))
    [found] = records.survey()
    assert (found.held, found.overdue) == (True, True)
    taken = Records.take(found)
    assert taken is not None
    with taken.working():
        taken.remove()
    with pytest.raises(RecordGone, match="was undone by somebody else"), held.working():
        raise AssertionError("it works on what has gone")


def test_after_a_reboot_every_record_is_overdue(records: Records) -> None:
    record = a_record(deadline_ns=time.monotonic_ns() + 10**12)
    record.boot = "another"
    records.write(record).close()
    [found] = records.survey()
    assert found.overdue


def test_two_who_hold_it_never_work_at_once(records: Records) -> None:
    held = records.write(a_record())
    other = adopt(held.path, os.dup(held.lock))
    with held.working():
        with pytest.raises(RecordBusy, match="somebody works on fault f1"), other.working(patience=0.02):
            raise AssertionError("both work")
        done = threading.Event()

        def work() -> None:
            with other.working():
                done.set()

        waiting = threading.Thread(target=work)
        waiting.start()
    waiting.join()
    assert done.is_set()


def test_whoever_dies_at_work_lets_go(records: Records, tmp_path: Path) -> None:
    held = records.write(a_record())
    script = (
        "import os, time\nfrom chaos.agent.records import adopt\n"
        f"held = adopt({held.path!r}, os.open({held.path!r}, os.O_RDWR))\n"
        "with held.working():\n    print(flush=True)\n    time.sleep(1000)"
    )
    worker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    with pytest.raises(RecordBusy), held.working(patience=0.0):
        raise AssertionError("both work")
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    with held.working():
        held.remove()


def test_a_record_held_by_two_is_held_until_both_have_ended(records: Records) -> None:
    held = records.write(a_record())
    other = adopt(held.path, os.dup(held.lock))
    held.close()
    [found] = records.survey()
    assert found.held
    other.close()
    [found] = records.survey()
    assert not found.held


def test_a_file_that_has_taken_a_records_place_is_not_that_record(records: Records) -> None:
    held = records.write(a_record())
    path = Path(held.path)
    path.rename(path.with_suffix(".moved"))
    path.write_text(json.dumps(a_record().as_dict()))
    with pytest.raises(RecordGone), held.working():
        raise AssertionError("it works on another's record")
    with pytest.raises(RecordGone):
        Held(held.path, held.record, os.dup(held.lock))


def test_half_written_files_are_no_records_and_are_removed_once_their_writer_is_dead(
    records: Records, tmp_path: Path
) -> None:
    unfinished = tmp_path / "faults/f1.json.new"
    unfinished.write_text('{"version"')
    assert records.survey() == []
    assert not unfinished.exists()


@contextlib.contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "chaos-test", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)


def test_a_full_disk_refuses_a_record_and_still_lets_one_be_removed(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "256k"):
        records = Records(str(tmp_path / "small"))
        held = records.write(a_record("first"))
        fill(tmp_path / "small")
        with pytest.raises(OSError, match="No space left on device"):
            records.write(a_record("second"))
        assert [found.record.fault for found in records.survey() if found.record] == ["first"]
        with held.working():
            held.remove()
        assert records.survey() == []
        held.close()


def test_a_disk_that_has_become_read_only_keeps_the_record_and_says_so(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "256k"):
        records = Records(str(tmp_path / "small"))
        held = records.write(a_record())
        lock = os.open(held.path, os.O_RDONLY)  # keeps nothing busy, unlike one that may write
        held.close()
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "small")], check=True)
        with pytest.raises(OSError, match="Read-only file system"):
            records.write(a_record("second"))
        with pytest.raises(OSError, match="Read-only file system"):
            Held.remove(held)
        os.close(lock)
        assert (tmp_path / "small/faults/f1.json").exists()


def test_where_a_node_keeps_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_STATE", "/given")
    monkeypatch.setenv("CHAOS_RUNTIME", "/run-given")
    assert (state_folder(), runtime_folder()) == ("/given", "/run-given")
    monkeypatch.delenv("CHAOS_STATE")
    monkeypatch.delenv("CHAOS_RUNTIME")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert (state_folder(), runtime_folder()) == ("/var/lib/chaos", "/run/chaos")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/somebody/state")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert (state_folder(), runtime_folder()) == ("/home/somebody/state/chaos", "/run/user/1000/chaos")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert state_folder() == "/home/somebody/.local/state/chaos"
    assert runtime_folder() == "/home/somebody/.local/state/chaos/run"


def test_somebody_who_looks_is_not_taken_for_a_holder(records: Records) -> None:
    """Looking takes a shared lock for an instant; whoever takes a record over waits that instant."""
    records.write(a_record()).close()
    [found] = records.survey()
    looking = threading.Event()
    looker = threading.Thread(target=lambda: [records.survey() for _ in iter(lambda: not looking.is_set(), False)])
    looker.start()
    try:
        for _ in range(20):
            taken = eventually(lambda: Records.take(found), "the record")
            taken.close()
    finally:
        looking.set()
        looker.join()
