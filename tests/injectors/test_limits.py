"""`process.limit` and `process.oom` on real processes in real control groups; `process.signal` by what a process is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_help import eventually

from injectors import _cgroup, kernel
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.limits import Limit, LimitParams, Oom, OomParams
from injectors.process import Signal, SignalParams

BUSY = "print('ready', flush=True)\nwhile True: pass"
IDLE = "print('ready', flush=True); import time; time.sleep(1000)"
GROWS = """
print('ready', flush=True)
import time
kept = []
while True:
    kept.append(bytearray(1 << 20))
    time.sleep(0.005)
"""
FAMILY = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


def limitable(controller: str) -> bool:
    there = _cgroup.hierarchy(controller)
    return there is not None and os.access(there.mount, os.W_OK)


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (limitable("cpu") and limitable("memory")),
    reason="NOT RUN: control groups of our own take root and the controllers cpu and memory",
)
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not [each for each in Limit().strays(Target(node=0)) if "of fault lim" in each.text]


def target(pid: int) -> Target:
    ticks = kernel.start_ticks(pid)
    assert ticks is not None
    process = {"pid": pid, "start": ticks, "pidns": Path("/proc/self/ns/pid").stat().st_ino}
    return Target(node=0, rank=3, process=process)


def prepared(injector: Any, params: Any, pid: int, duration: float | None = 60.0) -> UndoRecord:
    record: UndoRecord = injector.plan(Order("lim1", params, target(pid), duration))
    record.boot = kernel.boot_id()
    injector.prepare(record)
    return record


def groups(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cgroup").read_text().splitlines()


def used(pid: int, seconds: float = 0.5) -> float:
    """The share of a CPU that a process uses."""
    first, since = kernel.stat_fields(pid), time.monotonic()
    time.sleep(seconds)
    second = kernel.stat_fields(pid)
    assert first is not None
    assert second is not None
    ticks = sum(int(second[k]) - int(first[k]) for k in (11, 12))
    return ticks / os.sysconf("SC_CLK_TCK") / (time.monotonic() - since)


def test_a_busy_process_gets_its_share_and_no_more_until_the_undo(start: Start) -> None:
    child = start(BUSY)
    home = groups(child.pid)
    injector = Limit()
    record = prepared(injector, LimitParams(cpu=0.1), child.pid)
    assert injector.witness(record, "before", 0.3).effective is False
    assert used(child.pid) > 0.15, "prepared, it is limited by nothing"
    injector.inject(record)
    during = injector.witness(record, "during", 0.6)
    assert during.effective is True, during.text
    assert used(child.pid) < 0.14
    assert "is still there" in injector.residue(record)[0]
    injector.undo(record)
    assert injector.residue(record) == []
    assert injector.witness(record, "after", 0.3).effective is False
    assert groups(child.pid) == home, "exactly where it was"


def test_children_and_those_forked_meanwhile_share_it_and_go_home(start: Start) -> None:
    parent = start(FAMILY)
    injector = Limit()
    record = prepared(injector, LimitParams(cpu=0.1), parent.pid)
    injector.inject(record)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert used(int(children[0])) < 0.14
    injector.undo(record)
    assert injector.residue(record) == []
    assert groups(int(children[0])) == groups(parent.pid) == groups(os.getpid())


def test_a_frozen_process_uses_nothing(start: Start) -> None:
    if not (limitable("freezer") or Path("/sys/fs/cgroup/cgroup.controllers").exists()):
        pytest.skip("NOT RUN: there is no freezer")
    child = start(BUSY)
    injector = Limit()
    record = prepared(injector, LimitParams(freeze=True), child.pid)
    injector.witness(record, "before", 0.2)
    injector.inject(record)
    assert injector.witness(record, "during", 0.5).effective is True
    assert used(child.pid, 0.2) == 0
    injector.undo(record)
    assert injector.residue(record) == []
    assert used(child.pid, 0.2) > 0


def test_another_process_undoes_it_from_the_record_alone_and_twice(start: Start) -> None:
    child = start(BUSY)
    record = prepared(Limit(), LimitParams(cpu=0.1), child.pid)
    Limit().inject(record)
    again = UndoRecord.from_dict(record.as_dict())
    stranger = Limit()
    stranger.undo(again)
    stranger.undo(again)
    assert stranger.residue(again) == []


def test_without_a_record_the_groups_are_found_by_their_name(start: Start) -> None:
    child = start(BUSY)
    record = prepared(Limit(), LimitParams(cpu=0.1), child.pid)
    Limit().inject(record)
    found = [each for each in Limit().strays(Target(node=0)) if "of fault lim1" in each.text]
    assert found
    for each in found:
        Limit().clear(each)
    assert Limit().residue(record) == []
    assert groups(child.pid) == groups(os.getpid())


def test_a_process_that_dies_meanwhile_leaves_nothing(start: Start) -> None:
    child = start(BUSY)
    injector = Limit()
    record = prepared(injector, LimitParams(cpu=0.1), child.pid)
    injector.inject(record)
    child.kill()
    child.wait()
    injector.undo(record)
    assert injector.residue(record) == []


@pytest.mark.control
def test_a_limit_that_was_never_set_is_not_witnessed(start: Start) -> None:
    """CASES 31."""
    child = start(BUSY)
    injector = Limit()
    record = prepared(injector, LimitParams(cpu=0.1), child.pid)
    injector.witness(record, "before", 0.3)
    assert injector.witness(record, "during", 0.6).effective is not True
    injector.undo(record)


@pytest.mark.control
def test_an_undo_that_does_nothing_is_found_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start(BUSY)
    injector = Limit()
    record = prepared(injector, LimitParams(cpu=0.1), child.pid)
    injector.inject(record)
    with monkeypatch.context() as patch:
        patch.setattr(_cgroup.Group, "dissolve", lambda self: None)
        injector.undo(record)
        assert "is still there" in injector.residue(record)[0]
    injector.undo(record)
    assert injector.residue(record) == []


def test_the_oom_killer_takes_the_process_and_nobody_else(start: Start) -> None:
    child, beside = start(GROWS), start(IDLE)
    injector = Oom()
    record = prepared(injector, OomParams(), child.pid, None)
    assert injector.witness(record, "before", 0.1).effective is False
    injector.inject(record)
    during = injector.witness(record, "during", 10)
    assert during.effective is True, during.text
    assert child.wait(10) == -signal.SIGKILL
    assert beside.poll() is None
    injector.undo(record)
    assert injector.residue(record) == []


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "found no limit"),
        ({"cpu": 0.5, "freeze": True}, "beside freeze"),
        ({"cpu": 0.0001}, "write 0.1% or more"),
        ({"disk": "/dev/sda", "cpu": 1.0}, "a disk without read or write"),
    ],
)
def test_what_is_no_limit_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        LimitParams(**params)


# -- whose process it is ---------------------------------------------------------------------------------------------


def signalled(**match: Any) -> UndoRecord:
    injector = Signal()
    return injector.plan(Order("sig1", SignalParams("STOP", **match), Target(node=0), 5.0))


def test_the_whole_argument_vector_counts_and_not_its_first_word(start: Start) -> None:
    """CASES 61."""
    meant, other = start(IDLE, "train.py", "--rank", "1"), start(IDLE, "train.py", "--rank", "2")
    argv = [sys.executable, "-c", IDLE, "train.py", "--rank", "1"]
    found = signalled(argv=argv).before["processes"]
    assert [each["pid"] for each in found] == [meant.pid]
    with pytest.raises(InjectorError, match=str(other.pid)):
        signalled(argv_matches=r"train\.py --rank [12]$")
    with pytest.raises(InjectorError):
        signalled(argv=argv[:-1])
    every = signalled(argv_matches=r"train\.py --rank [12]$", which="all").before["processes"]
    assert {each["pid"] for each in every} == {meant.pid, other.pid}


def test_quotes_in_arguments_do_not_matter_for_the_undo(start: Start) -> None:
    """CASES 61: the record knows the process itself."""
    child = start(IDLE, 'it\'s "quoted" $HOME `x`')
    injector = Signal()
    order = Order(
        "sig1", SignalParams("STOP", argv=[sys.executable, "-c", IDLE, 'it\'s "quoted" $HOME `x`']), Target(), 5.0
    )
    record = injector.plan(order)
    record.boot = kernel.boot_id()
    injector.prepare(record)
    injector.inject(record)
    eventually(lambda: (kernel.stat_fields(child.pid) or [""])[0] == "T", "it is stopped")
    Signal().undo(UndoRecord.from_dict(record.as_dict()))
    eventually(lambda: (kernel.stat_fields(child.pid) or ["T"])[0] != "T", "it goes on")
    assert Signal().residue(record) == []


def test_nothing_that_matches_is_an_error_or_a_fault_without_effect(start: Start) -> None:
    """CASES 61: what is missing may be accepted, and then nothing was done, which is told."""
    with pytest.raises(InjectorError, match="no-such-program-anywhere"):
        signalled(argv=["no-such-program-anywhere"])
    injector = Signal()
    params = SignalParams("STOP", argv=["no-such-program-anywhere"], missing="ok")
    record = injector.plan(Order("sig1", params, Target(node=0), 5.0))
    record.boot = kernel.boot_id()
    injector.prepare(record)
    injector.inject(record)
    assert injector.witness(record, "during", 0.1).effective is False
    injector.undo(record)
    assert injector.residue(record) == []
