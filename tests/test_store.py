"""The store: what it keeps, whoever dies, and what it says when it cannot."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lab_help import eventually

from chaos import store_file
from chaos.store import SCHEMA, Store, StoreError

ROOT = Path(__file__).resolve().parents[1]
PLACE = {"transport": "local", "state": "/somewhere"}


def promise(store: Store, fault: str = "f1", run: str = "r1") -> None:
    store.promise(
        fault,
        run=run,
        place=PLACE,
        kind="test.planted",
        params={"length": 1.5},
        deadline=datetime(2026, 12, 1, tzinfo=UTC),
        deadline_ns=5,
        boot="a-boot",
    )


@pytest.fixture
def store(store_file: Path) -> Store:
    with Store() as it:
        it.begin_run("r1", "/runs/r1", "a-host", {"pid": 1})
        yield it


def python(code: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """Our code in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"} | env,
    )


def test_a_promise_is_kept_from_its_making_to_its_proof(store: Store) -> None:
    promise(store)
    (made,) = store.open_promises()
    assert (made.state, made.place, made.params, made.record) == ("promised", PLACE, {"length": 1.5}, None)
    assert made.deadline == "2026-12-01T00:00:00.000+00:00"
    store.record("f1", {"fault": "f1"})
    (recorded,) = store.open_promises("r1")
    assert (recorded.state, recorded.record) == ("recorded", {"fault": "f1"})
    assert store.open_promises("another") == []
    store.close_promise("f1", "the node says so")
    store.close_promise("f1", "another proof comes too late")
    assert store.open_promises() == []
    closed = store.promise_of("f1")
    assert closed is not None
    assert (closed.state, closed.proof) == ("closed", "the node says so")
    assert closed.promised <= closed.recorded <= closed.closed


def test_a_fault_is_promised_once(store: Store) -> None:
    promise(store)
    with pytest.raises(StoreError, match="refuses an entry that it has already"):
        promise(store)


def test_runs_begin_are_asked_to_end_and_end(store: Store) -> None:
    store.request_halt("r1", "somebody")
    store.stopping("r1")
    (row,) = store.unended_runs()
    assert (row.run, row.halt_requested, row.controller) == ("r1", "somebody", {"pid": 1})
    assert row.stopping is not None
    store.end_run("r1")
    assert store.unended_runs() == []
    assert store.run("r2") is None


def test_what_was_written_survives_the_death_of_the_writer(store_file: Path) -> None:
    writer = python(
        "import test_store as t, os, signal;"
        "s = t.Store(); s.begin_run('r1', '/', 'h', {});"
        "t.promise(s); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert writer.wait(60) == -9, writer.stdout.read()
    with Store() as store:
        assert [each.fault for each in store.open_promises()] == ["f1"]


def test_several_controllers_write_at_once_and_none_fails(store_file: Path) -> None:
    """Also their first meeting, when the file is made."""
    code = (
        "import sys, test_store as t; me = sys.argv[1]; s = t.Store(); s.begin_run(me, '/', 'h', {});\n"
        "for n in range(50):\n"
        "    t.promise(s, f'{me}-{n}', me); s.record(f'{me}-{n}', {}); n % 2 or s.close_promise(f'{me}-{n}', 'x')"
    )
    writers = [python(code, f"run{n}") for n in range(4)]
    for writer in writers:
        output, _ = writer.communicate(timeout=120)
        assert writer.returncode == 0, output
    with Store() as store:
        assert len(store.open_promises()) == 100
        assert len(store.unended_runs()) == 4


def test_a_newer_schema_is_refused_in_one_line(store_file: Path) -> None:
    Store().close()
    with sqlite3.connect(store_file) as raw:
        raw.execute("UPDATE schema_version SET version = ?", (SCHEMA + 1,))
    with pytest.raises(StoreError, match=rf"newer version \(schema {SCHEMA + 1}, this one reads {SCHEMA}\)"):
        Store()


def test_a_damaged_store_says_so(store_file: Path) -> None:
    store_file.parent.mkdir()
    store_file.write_bytes(b"no database, but long enough to look like one" * 100)
    with pytest.raises(StoreError, match="it is no database: move it away"):
        Store()
    store_file.unlink()
    with Store() as store:
        store.begin_run("r1", "/", "h", {})
    whole = bytearray(store_file.read_bytes())
    whole[4096:] = b"\xa5" * (len(whole) - 4096)  # all pages but the first one
    store_file.write_bytes(bytes(whole))
    with pytest.raises(StoreError, match="it is damaged"), Store() as store:
        promise(store)


def test_a_store_that_stays_locked_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="another process has kept it locked for 5 s"):
        promise(store)
    other.execute("ROLLBACK")
    promise(store)
    other.close()


def test_a_path_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "store", tmp_path, Path("/proc/nowhere/store")):
        with pytest.raises(StoreError, match="CHAOS_STORE"):
            Store(path)


# On a small disk of its own, in a private mount namespace: root, or an ordinary user through a user namespace.
ON_A_DISK = """
import os, sys
import test_store as t
from chaos.lab import keeper, namespace as ns
if os.geteuid():
    keeper._map_user()
ns.unshare(ns.NEWNS)
ns.mount(None, "/", None, ns.MS_REC | ns.MS_PRIVATE)
disk = sys.argv[1]
ns.mount("tmpfs", disk, "tmpfs", 0, "size=1m")
store = t.Store(t.Path(disk, "store.sqlite"))
store.begin_run("r1", "/", "h", {})
t.promise(store, "before")
if sys.argv[2] == "full":
    with open(f"{disk}/ballast", "wb", buffering=0) as ballast:
        try:
            while ballast.write(b"x" * 4096):
                pass
        except OSError:
            pass
else:
    store.close()
    ns.mount(None, disk, None, 32 | 1)  # MS_REMOUNT, MS_RDONLY
try:
    if sys.argv[2] != "full":
        store = t.Store(store.path)
    for n in range(1000):
        t.promise(store, f"f{n}")
except t.StoreError as error:
    print(error)
if sys.argv[2] == "full":
    os.unlink(f"{disk}/ballast")
    t.promise(store, "after")
    assert {"before", "after"} <= {each.fault for each in store.open_promises()}
"""


@pytest.mark.parametrize(
    ("how", "expected"), [("full", "full: make room"), ("read-only", "its folder cannot be written")]
)
def test_a_disk_that_takes_nothing_is_told_and_nothing_that_was_written_is_lost(
    tmp_path: Path, how: str, expected: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    process = python(ON_A_DISK, str(disk), how)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert expected in output
    assert output.count("\n") == 1, output


def test_whether_a_promise_may_be_open_is_known_without_the_database_layer(store_file: Path) -> None:
    assert not store_file.exists()
    ask = (
        "import sys; from chaos import store_file as f; print(f.may_be_open(f.location()), 'sqlalchemy' in sys.modules)"
    )

    def asked() -> str:
        return str(python(ask).communicate(timeout=60)[0])

    assert asked() == "False False\n"
    assert not store_file.exists()
    with Store() as store:
        store.begin_run("r1", "/", "h", {})
        assert asked() == "False False\n"
        promise(store)
        assert asked() == "True False\n"
        store.close_promise("f1", "x")
        assert asked() == "False False\n"
    store_file.write_bytes(b"x" * 5000)
    assert asked() == "True False\n"


def test_the_store_lies_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_file.location() == Path(os.environ["CHAOS_STORE"])
    monkeypatch.delenv("CHAOS_STORE")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert store_file.location() == Path("/var/lib/chaos/store.sqlite")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/state")
    assert store_file.location() == Path("/home/me/state/chaos/store.sqlite")


def test_another_controllers_lock_is_waited_for(store: Store) -> None:
    """For a moment, not for ever."""
    holder = python(
        "import sqlite3, os, time; c = sqlite3.connect(os.environ['CHAOS_STORE'], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(0.5); c.execute('COMMIT')"
    )
    assert holder.stdout.readline() == "held\n"
    promise(store)
    assert eventually(lambda: holder.poll() == 0, "its end")
