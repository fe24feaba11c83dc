"""``process.limit`` and ``process.oom`` on real processes in real cgroups."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_help import eventually

from injectors import _cgroup, _processes, kernel
from injectors._cgroup import Group, Hierarchy
from injectors.contract import InjectorError, Order, Stray, Target, UndoRecord
from injectors.limits import Limit, LimitParams, Oom, OomParams

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: making cgroups needs root")

ROOT = Path(__file__).parents[2]
READY = "print('ready', flush=True)\n"
BUSY = READY + "while True: pass"
IDLE = READY + "import time; time.sleep(1000)"
# Takes a MiB more every 5 ms up to 64, and begins anew: something is always allocated.
HUNGRY = READY + (
    "import mmap, time\nkept = []\nwhile True:\n"
    "    page = mmap.mmap(-1, 1 << 20); page[::4096] = b'x' * 256; kept.append(page); time.sleep(0.005)\n"
    "    if len(kept) > 64: kept.clear()"
)
THREADS = READY + (
    "import threading, time\n"
    "for _ in range(3): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    "while True: pass"
)
FORKS = READY + "import os, sys, time\nsys.stdin.readline()\nprint(os.fork() or 'child', flush=True)\ntime.sleep(1000)"
PARENT = "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {!r}]); c.wait()"

Child = subprocess.Popen[bytes]
Start = Callable[[str], Child]


FAULTS: set[str] = set()


def fault_id() -> str:
    """A fault's id that no other test of this machine has."""
    FAULTS.add(name := f"f-{uuid.uuid4().hex}")
    return name


@pytest.fixture(autouse=True)
def nothing_of_ours_is_left() -> Iterator[None]:
    FAULTS.clear()
    yield
    left = [path for path in _cgroup.found() if Group.at(path).fault in FAULTS]
    for path in left:  # so that the next test begins with a clean slate
        Limit().clear(Stray("", path, {"path": path}))
    assert not left


def controller(name: str) -> Hierarchy:
    found = _cgroup.hierarchy(name)
    if found is None:
        pytest.skip(f"NOT RUN: this kernel has no cgroup controller {name}")
    return found


def version_1(name: str) -> Hierarchy:
    found = controller(name)
    if found.version != 1:
        pytest.skip(f"NOT RUN: the controller {name} is in version 2 here")
    return found


@pytest.fixture
def home() -> Iterator[Callable[[Hierarchy, str], Path]]:
    """Makes cgroups for a test's processes to be at home in; empties and removes them in the end."""
    name, made = f"home-{uuid.uuid4().hex}", []

    def make(hierarchy: Hierarchy, below: str = "") -> Path:
        # In version 2 no cgroup but the root may hand controllers on beside the processes that it holds.
        base = hierarchy.home(os.getpid()) if hierarchy.version == 1 else hierarchy.mount
        folder = Path(base) / name / below
        for each in (*reversed(folder.parents), folder):
            if not each.exists():
                each.mkdir()
                made.append((each, base))
        return folder

    yield make
    for folder, above in reversed(made):
        for planted in folder.glob("chaos-*") if folder.exists() else ():
            planted.rmdir()  # by a test that failed
        if folder.exists():
            for pid in _cgroup.members(str(folder)):
                (Path(above) / "cgroup.procs").write_text(str(pid))
            folder.rmdir()


def enter(folder: Path, pid: int, file: str = "cgroup.procs") -> None:
    (folder / file).write_text(str(pid))


def process_of(pid: int) -> dict[str, int]:
    start_ticks = kernel.start_ticks(pid)
    assert start_ticks is not None
    return {"pid": pid, "start": start_ticks, "pidns": _processes.namespace()}


def prepared(params: LimitParams | OomParams, pid: int) -> tuple[Limit | Oom, UndoRecord]:
    made_by, duration = (Limit, 60.0) if isinstance(params, LimitParams) else (Oom, None)
    injector = made_by()
    order = Order(fault_id(), params, Target(node=0, rank=1, process=process_of(pid)), duration)
    record = injector.plan(order)
    record.boot = kernel.boot_id()
    injector.prepare(record)
    assert injector.witness(record, "before", 0.1).effective is False
    return injector, record


def groups(record: UndoRecord) -> list[Group]:
    """The processes' own; in version 2 there is one more, for the rest of their home."""
    return [Group(**each) for each in record.before["groups"] if each["target"] is not None]


def undo_elsewhere(record: UndoRecord) -> list[str]:
    """Another process undoes the fault, from the record as JSON alone. Returns what it says is left."""
    script = (
        "import json, sys\nfrom injectors.contract import UndoRecord\nfrom injectors import limits\n"
        "record = UndoRecord.from_dict(json.load(sys.stdin))\n"
        "injector = getattr(limits, record.implementation.split(':')[1])()\n"
        "injector.undo(record); injector.undo(record)\n"
        "print(json.dumps(injector.residue(record)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(record.as_dict()).encode(),
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return list(json.loads(done.stdout))


def undone(injector: Limit | Oom, record: UndoRecord) -> None:
    assert injector.residue(record) != []
    assert undo_elsewhere(record) == []
    assert not any(Path(each["path"]).exists() for each in record.before["groups"])
    assert injector.witness(record, "after", 0.1).effective is False


# -- CPU --------------------------------------------------------------------------------------------------------------


def test_a_busy_process_gets_the_share_that_was_asked_for(start: Start) -> None:
    controller("cpu")
    child = start(BUSY)
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    injector.inject(record)
    during = injector.witness(record, "during", 0.5)
    assert during.effective is True, during
    figures = during.numbers["processes"][str(child.pid)]
    assert figures["throttled"] > 0
    assert figures["cpu"] <= 0.14
    undone(injector, record)
    assert child.poll() is None


def test_beforehand_nothing_is_limited(start: Start) -> None:
    """It is moved before the fault's instant: what is written at the instant is one value."""
    hierarchy = version_1("cpu")
    child = start(BUSY)
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    [group] = groups(record)
    assert hierarchy.home(child.pid) == group.path
    assert (Path(group.path) / "cpu.cfs_quota_us").read_text() == "-1\n"
    assert _cgroup.figures(f"{group.path}/cpu.stat")["nr_throttled"] == 0
    undone(injector, record)


@pytest.mark.parametrize(
    ("share", "period", "quota"), [(0.25, 10000, 2500), (2.5, 10000, 25000), (0.01, 100000, 1000), (0.001, 10**6, 1000)]
)
def test_a_share_becomes_a_quota_that_the_kernel_takes(start: Start, share: float, period: int, quota: int) -> None:
    version_1("cpu")
    injector, record = prepared(LimitParams(cpu=share), start(IDLE).pid)
    injector.inject(record)
    [group] = groups(record)
    found = [int((Path(group.path) / name).read_text()) for name in ("cpu.cfs_period_us", "cpu.cfs_quota_us")]
    assert found == [period, quota]
    undone(injector, record)


@pytest.mark.control
def test_a_limit_that_was_never_reached_is_not_in_effect(start: Start) -> None:
    controller("cpu")
    injector, record = prepared(LimitParams(cpu=0.5), start(IDLE).pid)
    injector.inject(record)
    during = injector.witness(record, "during", 0.2)
    assert during.effective is False
    assert "was held back in 0 of" in during.text
    undone(injector, record)


@pytest.mark.control
@pytest.mark.parametrize(
    ("params", "script"),
    [
        (LimitParams(cpu=0.1), BUSY),
        (LimitParams(freeze=True), BUSY),
        (LimitParams(memory_high=1), HUNGRY),
        (LimitParams(memory=1), HUNGRY),
    ],
)
def test_a_limit_that_was_not_written_is_not_witnessed(
    start: Start, monkeypatch: pytest.MonkeyPatch, params: LimitParams, script: str
) -> None:
    child = start(script)
    injector, record = prepared(params, child.pid)
    monkeypatch.setattr(Group, "tighten", lambda self: None)
    injector.inject(record)
    during = injector.witness(record, "during", 0.2)
    assert during.effective is False, during
    undone(injector, record)
    assert child.poll() is None


def test_a_share_that_a_cgroup_above_does_not_have_is_refused(start: Start, home: Callable[[Hierarchy], Path]) -> None:
    hierarchy = version_1("cpu")
    child, mine = start(IDLE), home(hierarchy)
    (mine / "cpu.cfs_quota_us").write_text("10000")  # of 100 ms
    enter(mine, child.pid)
    injector = Limit()
    record = injector.plan(
        Order(fault_id(), LimitParams(cpu=0.5), Target(node=0, rank=1, process=process_of(child.pid)), 1.0)
    )
    with pytest.raises(InjectorError, match="a cgroup above allows less than that already"):
        injector.prepare(record)
    undone(injector, record)
    assert hierarchy.home(child.pid) == str(mine)


# -- who is moved, and back -------------------------------------------------------------------------------------------


def test_everybody_goes_back_exactly_to_where_he_was(start: Start, home: Callable[..., Path]) -> None:
    """The process, a thread in a cgroup of its own, a child in a third one: each has a former place of its own."""
    hierarchy = version_1("cpu")
    child = start(THREADS)
    threads = eventually(
        lambda: found if len(found := sorted(_cgroup._threads(child.pid))) == 4 else None,
        "its threads",
    )
    mine, apart = home(hierarchy), home(hierarchy, "apart")
    enter(mine, child.pid)
    enter(apart, threads[-1], "tasks")
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    [group] = groups(record)
    assert group.home == str(mine)
    assert {hierarchy.home(child.pid, thread) for thread in threads} == {group.path}
    injector.inject(record)
    undone(injector, record)
    assert [hierarchy.home(child.pid, thread) for thread in threads] == [*[str(mine)] * 3, str(apart)]


def test_children_go_along_and_those_forked_meanwhile_go_back(start: Start, home: Callable[..., Path]) -> None:
    hierarchy = controller("cpu")
    parent = start(PARENT.format(FORKS))
    [child] = eventually(lambda: _processes.descendants(parent.pid), "its child")
    mine, theirs = home(hierarchy), home(hierarchy, "theirs")
    enter(mine, parent.pid)
    enter(theirs, child)
    injector, record = prepared(LimitParams(cpu=0.5), parent.pid)
    injector.inject(record)
    [group] = groups(record)
    assert set(group.members()) == {parent.pid, child}
    assert parent.stdin is not None  # the child has inherited it
    parent.stdin.write(b"fork\n")
    parent.stdin.flush()
    grandchild = eventually(lambda: set(_processes.descendants(parent.pid)) - {child}, "its grandchild").pop()
    assert hierarchy.home(grandchild) == group.path
    undone(injector, record)
    assert hierarchy.home(parent.pid) == str(mine)
    assert hierarchy.home(child) == hierarchy.home(grandchild) == str(theirs)


def test_a_home_that_has_vanished_is_told_and_the_one_above_takes_its_place(
    start: Start, home: Callable[..., Path]
) -> None:
    hierarchy = version_1("cpu")
    parent = start(PARENT.format(IDLE))
    [child] = eventually(lambda: _processes.descendants(parent.pid), "its child")
    mine, theirs = home(hierarchy), home(hierarchy, "theirs/inner")
    enter(mine, parent.pid)
    enter(theirs, child)
    injector, record = prepared(LimitParams(cpu=0.5), parent.pid)
    injector.inject(record)
    theirs.rmdir()
    assert undo_elsewhere(record) == []
    assert hierarchy.home(child) == str(theirs.parent)
    assert hierarchy.home(parent.pid) == str(mine)
    after = injector.witness(record, "after", 0.1)
    assert f"process {child} is in {theirs.parent} instead of {theirs}, which has gone" in after.text


def test_a_process_that_dies_meanwhile_leaves_nothing(start: Start) -> None:
    child = start(BUSY)
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    injector.inject(record)
    child.kill()
    child.wait()
    assert injector.witness(record, "during", 0.1).effective is False
    undone(injector, record)


def test_one_that_dies_before_it_is_moved_is_told(start: Start) -> None:
    child = start(IDLE)
    injector = Limit()
    order = Order(fault_id(), LimitParams(cpu=0.1), Target(node=0, rank=1, process=process_of(child.pid)), 1.0)
    record = injector.plan(order)
    child.kill()
    child.wait()
    with pytest.raises(InjectorError, match=f"the process {child.pid} has gone"):
        injector.prepare(record)
    undone(injector, record)


def test_a_process_in_another_faults_cgroup_is_refused(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    with pytest.raises(InjectorError, match="the cgroup of another fault"):
        Limit().plan(
            Order(fault_id(), LimitParams(cpu=0.5), Target(node=0, rank=1, process=process_of(child.pid)), 1.0)
        )
    undone(injector, record)


def test_each_of_several_processes_has_a_limit_of_its_own(start: Start) -> None:
    mark = f"m{uuid.uuid4().hex}"
    children = [start(f"# {mark}\n{BUSY}") for _ in range(2)]
    injector = Limit()
    record = injector.plan(
        Order(fault_id(), LimitParams(cpu=0.1, argv_matches=mark, which="all"), Target(node=0), 60.0)
    )
    record.boot = kernel.boot_id()
    injector.prepare(record)
    injector.inject(record)
    assert sorted(each.members() for each in groups(record)) == sorted([child.pid] for child in children)
    during = injector.witness(record, "during", 0.5)
    assert during.effective is True, during
    undone(injector, record)


def test_what_matches_nothing_and_may_be_missing_limits_nobody() -> None:
    params = LimitParams(cpu=0.1, argv_matches=f"m{uuid.uuid4().hex}", missing="ok")
    injector = Limit()
    record = injector.plan(Order(fault_id(), params, Target(node=0), 1.0))
    injector.prepare(record)
    injector.inject(record)
    assert injector.witness(record, "during", 0.1).effective is False
    injector.undo(record)
    assert injector.residue(record) == []


def test_what_is_locked_is_the_process_and_the_mark(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    there = process_of(child.pid)
    mark = _cgroup.name(record.fault)
    assert f"cgroup:{there['pidns']}:{there['pid']}:{there['start']}" in record.devices
    assert f"cgroup:{mark}" in record.devices
    strays = [each for each in injector.strays(Target()) if mark in each.text]
    assert len(strays) == len(record.before["groups"])
    assert {each.device for each in strays} <= set(record.devices), "a sweep must not touch what somebody holds"
    undone(injector, record)


# -- frozen -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_frozen_process_does_not_run(start: Start, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    there = [each for each in _cgroup.hierarchies() if each.version == version]
    there = [each for each in there if version == 2 or "freezer" in each.controllers]
    if not there:
        pytest.skip(f"NOT RUN: no freezer of cgroup version {version} is mounted")
    monkeypatch.setattr(_cgroup, "hierarchy", lambda name: there[0])
    parent = start(PARENT.format(BUSY))
    [child] = eventually(lambda: _processes.descendants(parent.pid), "its child")
    injector, record = prepared(LimitParams(freeze=True), parent.pid)
    assert groups(record)[0].version == version
    injector.inject(record)
    during = injector.witness(record, "during", 0.5)
    assert during.effective is True, during
    assert during.numbers["processes"][str(parent.pid)]["cpu"] == 0
    assert there[0].home(child) == groups(record)[0].path
    undone(injector, record)
    used = time_of(child)
    eventually(lambda: time_of(child) > used, "the child running again")


def time_of(pid: int) -> int:
    fields = kernel.stat_fields(pid)
    return 0 if fields is None else int(fields[11])


# -- memory -----------------------------------------------------------------------------------------------------------


def test_a_process_that_needs_more_waits_until_the_end(start: Start) -> None:
    controller("memory")
    child = start(HUNGRY)
    injector, record = prepared(LimitParams(memory_high=4 * 2**20), child.pid)
    injector.inject(record)
    eventually(lambda: injector.witness(record, "during", 0.05).effective, "the limit reached")
    memory = injector.witness(record, "during", 0.1).numbers["processes"][str(child.pid)]["memory"]
    assert memory["killed"] == 0
    undone(injector, record)
    used = time_of(child.pid)
    eventually(lambda: time_of(child.pid) > used, "the process going on")
    assert child.poll() is None


def test_a_process_that_needs_more_than_a_hard_limit_is_killed(start: Start) -> None:
    controller("memory")
    child = start(HUNGRY)
    injector, record = prepared(LimitParams(memory=4 * 2**20), child.pid)
    injector.inject(record)
    assert child.wait(30) == -signal.SIGKILL
    during = injector.witness(record, "during", 0.1)
    assert during.effective is True, during
    assert during.numbers["processes"][str(child.pid)]["memory"]["killed"] == 1
    undone(injector, record)


def test_the_oom_killer_takes_the_process(start: Start) -> None:
    hierarchy = controller("memory")
    parent = start(f"import os\nif os.fork():\n    import time; time.sleep(1000)\n{HUNGRY}")
    [child] = eventually(lambda: _processes.descendants(parent.pid), "its child")
    before = hierarchy.home(parent.pid)
    injector, record = prepared(OomParams(), child)
    injector.inject(record)
    during = injector.witness(record, "during", 20)
    assert during.effective is True, during
    assert during.numbers["processes"][str(child)]["killed"] == 1
    undone(injector, record)
    assert parent.poll() is None
    assert hierarchy.home(parent.pid) == before


@pytest.mark.control
def test_a_process_that_needs_nothing_is_not_killed_and_that_is_told(start: Start) -> None:
    controller("memory")
    child = start(READY + "while True: pass")
    injector, record = prepared(OomParams(headroom=256 * 2**20), child.pid)
    injector.inject(record)
    during = injector.witness(record, "during", 0.2)
    assert during.effective is False
    assert "still runs" in during.text
    undone(injector, record)
    assert child.poll() is None


@pytest.mark.control
def test_a_process_that_somebody_else_kills_was_not_killed_for_want_of_memory(start: Start) -> None:
    controller("memory")
    child = start(IDLE)
    injector, record = prepared(OomParams(headroom=256 * 2**20), child.pid)
    injector.inject(record)
    child.kill()
    during = injector.witness(record, "during", 20)
    assert during.effective is False
    assert "has ended" in during.text
    undone(injector, record)


def test_what_the_oom_killer_never_takes_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    controller("memory")
    child = start(IDLE)
    # Not every root may write it.
    monkeypatch.setattr(_cgroup, "figure", {f"/proc/{child.pid}/oom_score_adj": -1000}.__getitem__)
    with pytest.raises(InjectorError, match="the OOM killer never takes it"):
        Oom().plan(Order(fault_id(), OomParams(), Target(node=0, rank=1, process=process_of(child.pid)), None))


def test_memory_and_memory_high_need_version_2(start: Start) -> None:
    version_1("memory")
    params = LimitParams(memory=2**20, memory_high=2**20)
    with pytest.raises(InjectorError, match="memory and memory_high together need version 2"):
        Limit().plan(Order(fault_id(), params, Target(node=0, rank=1, process=process_of(start(IDLE).pid)), 1.0))


# -- input and output -------------------------------------------------------------------------------------------------


@pytest.fixture
def writes() -> Iterator[str]:
    """A script that writes to a disk, past the cache."""
    with tempfile.NamedTemporaryFile(dir=ROOT) as file:
        device = Path(file.name).stat().st_dev
        if not Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists():
            pytest.skip("NOT RUN: this tree is on no disk whose writing could be limited")
        yield READY + (
            f"import mmap, os\nfile = os.open({file.name!r}, os.O_RDWR | os.O_DIRECT)\npage = mmap.mmap(-1, 1 << 18)\n"
            "while True: os.pwrite(file, page, 0)"
        )


def test_writing_is_as_slow_as_was_asked_for(start: Start, writes: str) -> None:
    if _cgroup.hierarchy("blkio") is None and _cgroup.hierarchy("io") is None:
        pytest.skip("NOT RUN: this kernel limits no input and output")
    child = start(writes)
    injector, record = prepared(LimitParams(write=8 * 4 * 2**20), child.pid)
    injector.inject(record)
    eventually(lambda: injector.witness(record, "during", 1.0).effective, "the limit in effect")
    undone(injector, record)
    assert child.poll() is None


@pytest.mark.control
def test_a_process_that_writes_nothing_was_not_slowed(start: Start) -> None:
    if _cgroup.hierarchy("blkio") is None and _cgroup.hierarchy("io") is None:
        pytest.skip("NOT RUN: this kernel limits no input and output")
    if not any("/devices/virtual/" not in str(each.resolve()) for each in Path("/sys/block").iterdir()):
        pytest.skip("NOT RUN: this machine has no disks")
    injector, record = prepared(LimitParams(read=8 * 4 * 2**20), start(IDLE).pid)
    injector.inject(record)
    assert injector.witness(record, "during", 0.2).effective is False
    undone(injector, record)


def test_a_disk_that_is_not_there_is_refused(start: Start) -> None:
    child = start(IDLE)
    for disk, told in (("/dev/sdzz", "no disk /dev/sdzz on this node"), ("/dev/null", "/dev/null is no disk")):
        params = LimitParams(write=8e6, disk=disk)
        with pytest.raises(InjectorError, match=told):
            Limit().plan(Order(fault_id(), params, Target(node=0, rank=1, process=process_of(child.pid)), 1.0))


# -- version 2: a home that hands controllers on holds no process -----------------------------------------------------


@pytest.fixture
def hugetlb(home: Callable[..., Path]) -> Iterator[Path]:
    """A home in version 2 that has a controller to hand on; here only that of huge pages is in version 2."""
    there = next((each for each in _cgroup.hierarchies() if each.version == 2), None)
    if there is None or "hugetlb" not in there.controllers:
        pytest.skip("NOT RUN: no controller hugetlb in version 2")
    control = Path(there.mount) / "cgroup.subtree_control"
    if "hugetlb" in control.read_text().split():
        yield home(there)
        return
    control.write_text("+hugetlb")
    mine = home(there)
    yield mine
    for pid in _cgroup.members(str(mine)):
        enter(Path(there.mount), pid)
    mine.rmdir()
    control.write_text("-hugetlb")


def test_in_version_2_the_rest_of_the_home_moves_and_comes_back(
    start: Start, hugetlb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = next(each for each in _cgroup.hierarchies() if each.version == 2)
    child, other = start(BUSY), start(IDLE)
    for each in (child, other):
        enter(hugetlb, each.pid)
    monkeypatch.setattr(Limit, "_needs", lambda self, params: {"hugetlb": lambda found: ([], None)})
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    mark = _cgroup.name(record.fault)
    assert there.home(child.pid) == f"{hugetlb}/{mark}-0"
    assert there.home(other.pid) == f"{hugetlb}/{mark}-rest"
    assert (hugetlb / "cgroup.subtree_control").read_text().split() == ["hugetlb"]
    assert f"cgroup:{hugetlb}" in record.devices, "nobody else may rearrange this home meanwhile"
    with pytest.raises(OSError, match="busy"):
        enter(hugetlb, child.pid)  # what the kernel forbids: that is why the rest had to move
    injector.inject(record)
    undone(injector, record)
    assert there.home(child.pid) == there.home(other.pid) == str(hugetlb)
    assert (hugetlb / "cgroup.subtree_control").read_text().split() == []


def test_in_version_2_what_bears_our_mark_is_cleared_without_a_record(
    start: Start, hugetlb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = next(each for each in _cgroup.hierarchies() if each.version == 2)
    child, other = start(BUSY), start(IDLE)
    for each in (child, other):
        enter(hugetlb, each.pid)
    monkeypatch.setattr(Limit, "_needs", lambda self, params: {"hugetlb": lambda found: ([], None)})
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    strays = [each for each in injector.strays(Target()) if str(hugetlb) in each.where["path"]]
    assert len(strays) == 2
    for stray in strays:
        assert record.fault in stray.text
        injector.clear(stray)
    assert injector.residue(record) == []
    assert there.home(child.pid) == there.home(other.pid) == str(hugetlb)


# -- what is left -----------------------------------------------------------------------------------------------------


@pytest.mark.control
def test_a_planted_cgroup_is_residue(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    undone(injector, record)
    [group] = groups(record)
    Path(group.path).mkdir()
    assert injector.residue(record) == [f"the cgroup {group.path} is still there, with nobody in it"]
    enter(Path(group.path), child.pid)
    assert injector.residue(record) == [f"the cgroup {group.path} is still there, with process {child.pid} in it"]
    undone(injector, record)


@pytest.mark.control
def test_an_undo_that_did_nothing_is_found_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    injector, record = prepared(LimitParams(cpu=0.1), start(BUSY).pid)
    injector.inject(record)
    with monkeypatch.context() as patch:
        patch.setattr(Group, "dissolve", lambda self: None)
        injector.undo(record)
        assert injector.residue(record) != []
        assert injector.witness(record, "after", 0.1).effective is True
    undone(injector, record)


def test_a_stray_is_found_by_its_name_and_cleared(start: Start) -> None:
    hierarchy = controller("cpu")
    child = start(BUSY)
    before = hierarchy.home(child.pid)
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    injector.inject(record)
    strays = [each for each in Limit().strays(Target()) if _cgroup.name(record.fault) in each.text]
    assert len(strays) == len(record.before["groups"])
    assert f"of fault {record.fault}, with process {child.pid} in it" in strays[0].text
    for stray in strays:
        Limit().clear(json_again(stray))
        Limit().clear(stray)
    assert injector.residue(record) == []
    assert hierarchy.home(child.pid) == before


def json_again(stray: Any) -> Any:
    return type(stray)(stray.device, stray.text, json.loads(json.dumps(stray.where)))


def test_what_is_not_ours_is_no_stray(home: Callable[..., Path]) -> None:
    mine = home(controller("cpu"))
    named = ["chaos-lookalike", "chaos-1-0123456789abcdef-0", f"chaos-{_processes.namespace()}-0123456789abcdef"]
    for name in named[:1] + named[2:]:
        (mine / name).mkdir()
    try:
        assert not [each for each in Limit().strays(Target()) if str(mine) in each.where["path"]]
    finally:
        for name in named[:1] + named[2:]:
            (mine / name).rmdir()


def test_only_what_belongs_to_nobody_any_more_is_cleared_for_others(home: Callable[..., Path]) -> None:
    """A lab's node has a PID namespace of its own: what it has made is its own to sweep, as long as there is one."""
    if _processes.namespace() != _cgroup.INITIAL_PIDNS:
        pytest.skip("NOT RUN: only in the initial PID namespace can be told which others there are")
    mine = home(controller("cpu"))
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        [inside] = _processes.descendants(child.pid)
        theirs = Path(f"/proc/{inside}/ns/pid").stat().st_ino
        (mine / f"chaos-{theirs}-0123456789abcdef-0").mkdir()
        strays = [each for each in Limit().strays(Target()) if str(mine) in each.where["path"]]
        assert not strays
        child.kill()
    eventually(
        lambda: [each for each in Limit().strays(Target()) if str(mine) in each.where["path"]], "it belonging to nobody"
    )
    for stray in Limit().strays(Target()):
        if str(mine) in stray.where["path"]:
            Limit().clear(stray)
    assert list(mine.glob("chaos-*")) == []


def test_a_cgroup_that_somebody_made_inside_of_ours_is_named_and_not_touched(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared(LimitParams(cpu=0.1), child.pid)
    [group] = groups(record)
    foreign = Path(group.path) / "foreign"
    foreign.mkdir()
    with pytest.raises(InjectorError, match=re.escape(f"{foreign}, which somebody else has made, is in it")):
        injector.undo(record)
    assert foreign.is_dir()
    foreign.rmdir()
    undone(injector, record)


# -- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({}, "found no limit; write one of cpu, memory, memory_high, read, write or freeze: true"),
        ({"cpu": 0.1, "freeze": True}, "found cpu beside freeze"),
        ({"cpu": 0.0001}, r"found cpu 0\.01%; write 0\.1% or more"),
        ({"read": 4.0}, "found read below 1B/s"),
        ({"cpu": 0.1, "disk": "/dev/sda"}, "found a disk without read or write"),
    ],
)
def test_what_cannot_be_asked_for_is_told(params: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LimitParams(**params)


def test_what_is_missing_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Limit().support(LimitParams(cpu=0.1), Target()).possible
    monkeypatch.setattr(_cgroup, "hierarchy", lambda name: None)
    [missing] = Limit().support(LimitParams(cpu=0.1), Target()).missing
    assert missing.startswith("the cgroup controller cpu: mount it")
    read_only = Hierarchy(1, frozenset(["cpu"]), "/proc/sys/kernel/random", "/")
    monkeypatch.setattr(_cgroup, "hierarchy", lambda name: read_only)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    [missing] = Limit().support(LimitParams(cpu=0.1), Target()).missing
    assert missing == "the right to make cgroups in /proc/sys/kernel/random: run the agent as root of the node"
