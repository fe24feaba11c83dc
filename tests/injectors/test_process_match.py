"""Which processes of a node are meant: by arguments, device, cgroup, container and job (case 61)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_help import eventually

from chaos.engine.catalogue import catalogue
from chaos.experiment import DocumentErrors, load
from injectors import _processes, kernel
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.limits import LimitParams, OomParams
from injectors.process import Signal, SignalParams

WAITS = "print('ready', flush=True); import time; time.sleep(1000)"
CHILD = subprocess.Popen[bytes]
Start = Callable[..., CHILD]


@pytest.fixture
def start(start: Callable[..., CHILD]) -> Start:
    """The same for a script that waits, with further arguments."""
    return lambda *arguments, script=WAITS, **more: start(script, *arguments, **more)


@pytest.fixture
def mark() -> str:
    """A word that no other process of the machine has in its arguments."""
    return f"m{uuid.uuid4().hex}"


def ordered(params: SignalParams, duration: float | None = None) -> Order:
    return Order("f1", params, Target(node=0), duration)


def planned(name: str = "KILL", duration: float | None = None, **params: Any) -> UndoRecord:
    return Signal().plan(ordered(SignalParams(name, **params), duration))  # type: ignore[arg-type]


def pids(record: UndoRecord) -> list[int]:
    return [each["pid"] for each in record.before["processes"]]


def live(record: UndoRecord) -> tuple[Signal, UndoRecord]:
    """The fault of a record, in effect."""
    injector = Signal()
    record.boot = kernel.boot_id()
    injector.prepare(record)
    injector.inject(record)
    return injector, record


# -- case 61 ----------------------------------------------------------------------------------------------------------


def test_case_61_the_whole_argument_vector_counts_not_its_first_word(start: Start, mark: str) -> None:
    """chaosblade#788: only the first word was compared, and too many were killed."""
    wanted, other, longer = start(mark, "--rank", "1"), start(mark, "--rank", "2"), start(mark, "--rank", "1", "more")
    assert pids(planned(argv=[sys.executable, "-c", WAITS, mark, "--rank", "1"])) == [wanted.pid]
    assert pids(planned(argv_matches=f"{mark} --rank 1$")) == [wanted.pid]
    assert pids(planned(argv_matches=f"{mark} --rank 2")) == [other.pid]
    with pytest.raises(InjectorError, match="nothing matches argv"):
        planned(argv=[sys.executable, "-c", WAITS, mark])
    injector, record = live(planned(argv=[sys.executable, "-c", WAITS, mark, "--rank", "1"]))
    assert injector.witness(record, "during", 20).effective is True
    assert wanted.wait() == -signal.SIGKILL
    assert other.poll() is None
    assert longer.poll() is None


def test_case_61_quoting_plays_no_part_in_the_undo(start: Start, mark: str) -> None:
    """chaosblade#398: a process was stopped, and could not be resumed, since its arguments were quoted otherwise."""
    awkward = [mark, 'it\'s "quoted"', "a\nline", "$HOME", "", "back\\slash", "*"]
    child = start(*awkward)
    injector, record = live(planned("STOP", 60.0, argv=[sys.executable, "-c", WAITS, *awkward]))
    eventually(lambda: kernel.stat_fields(child.pid)[0] == "T", "the stopped process")
    assert injector.residue(record) == [f"process {child.pid} (node 0) is still stopped"]
    assert mark not in json.dumps(record.before["processes"]), "the id and the start time are all that is needed"
    record.params["argv"] = ["something", "else"]
    stranger, again = Signal(), UndoRecord.from_dict(json.loads(json.dumps(record.as_dict())))
    stranger.undo(again)
    eventually(lambda: stranger.residue(again) == [], "the running process")
    assert child.poll() is None


def test_case_61_an_expression_is_found_in_arguments_quoted_as_a_shell_would(start: Start, mark: str) -> None:
    child = start(mark, "two words")
    assert pids(planned(argv_matches=re.escape(f"{mark} 'two words'"))) == [child.pid]


def test_case_61_what_matches_nothing_is_accepted_where_it_may_be_missing(start: Start, mark: str) -> None:
    """chaosblade#1119: "ignore what is not found" failed all the same; and it must not be taken for a fault either."""
    told = f"process.signal: nothing matches argv matches {mark}x on this node"
    with pytest.raises(InjectorError, match=told):
        planned(argv_matches=f"{mark}x")
    for name, duration in (("KILL", None), ("STOP", 60.0)):
        injector, record = live(planned(name, duration, argv_matches=f"{mark}x", missing="ok"))
        assert pids(record) == record.devices == []
        during = injector.witness(record, "during", 0.1)
        assert during.effective is False
        assert during.text == f"no process was there to hit: nothing matched argv matches {mark}x"
        injector.undo(record)
        assert injector.residue(record) == []
        assert injector.witness(record, "after", 0.1).effective is False


# -- several ----------------------------------------------------------------------------------------------------------


def test_several_are_refused_where_one_is_asked_for_and_listed(start: Start, mark: str) -> None:
    first, second = start(mark, "a b"), start(mark, "c")
    with pytest.raises(InjectorError) as refused:
        planned(argv_matches=mark)
    told = str(refused.value)
    assert f"2 processes match argv matches {mark} on this node, one is asked for" in told
    assert f"{first.pid} ({sys.executable} -c" in told
    assert f"{second.pid} (" in told
    assert "which: first or which: all" in told


def test_the_first_is_the_oldest(start: Start, mark: str) -> None:
    first, second = start(mark), start(mark)
    oldest = min((kernel.start_ticks(each.pid), each.pid) for each in (first, second))
    assert pids(planned(argv_matches=mark, which="first")) == [oldest[1]]


def test_all_are_one_fault_with_one_record(start: Start, mark: str) -> None:
    children = [start(mark) for _ in range(3)]
    injector, record = live(planned("STOP", 60.0, argv_matches=mark, which="all"))
    assert sorted(pids(record)) == sorted(child.pid for child in children)
    assert len(record.devices) == 3
    for child in children:
        eventually(lambda pid=child.pid: kernel.stat_fields(pid)[0] == "T", "a stopped process")
    during = injector.witness(record, "during", 0.1)
    assert during.effective is True, during
    children[0].kill()
    children[0].wait()
    stranger, again = Signal(), UndoRecord.from_dict(json.loads(json.dumps(record.as_dict())))
    assert len(stranger.residue(again)) == 2
    stranger.undo(again)
    eventually(lambda: stranger.residue(again) == [], "those that live running")
    assert stranger.witness(again, "after", 0.1).effective is False


def test_one_that_ends_before_the_signal_does_not_keep_the_others_from_it(start: Start, mark: str) -> None:
    early, late = start(mark), start(mark)
    injector, record = Signal(), planned(argv_matches=mark, which="all")
    record.boot = kernel.boot_id()
    injector.prepare(record)
    early.kill()
    early.wait()
    injector.inject(record)
    during = injector.witness(record, "during", 20)
    assert during.effective is True, during
    assert f"ended by itself before the signal: {early.pid}" in during.text
    assert late.wait() == -signal.SIGKILL


@pytest.mark.control
def test_one_of_several_that_was_not_hit_is_not_witnessed(
    start: Start, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(mark)
    start(mark)
    send, sent = signal.pidfd_send_signal, []

    def only_the_first(pidfd: int, number: int) -> None:
        if not sent:
            send(pidfd, number)
        sent.append(pidfd)

    monkeypatch.setattr(signal, "pidfd_send_signal", only_the_first)
    injector, record = live(planned(argv_matches=mark, which="all"))
    assert injector.witness(record, "during", 0.2).effective is False


def test_what_was_locked_is_what_is_planned(start: Start, mark: str) -> None:
    """A process that comes in between belongs to nobody's lock, and is not hit."""
    child = start(mark)
    injector = Signal()
    order = ordered(SignalParams("KILL", argv_matches=mark, which="all"))
    devices = injector.devices(order)
    start(mark)
    record = injector.plan(order)
    assert pids(record) == [child.pid]
    assert tuple(record.devices) == devices
    child.kill()
    child.wait()
    with pytest.raises(InjectorError, match="has ended meanwhile"):
        injector.plan(order)


# -- what can be asked for --------------------------------------------------------------------------------------------


def test_by_a_device_that_it_has_open(start: Start, mark: str) -> None:
    holds = "f = open('/dev/full'); print('ready', flush=True); import time; time.sleep(1000)"
    holder, other = start(mark, script=holds), start(mark)
    assert pids(planned(device="/dev/full", argv_matches=mark)) == [holder.pid]
    assert other.poll() is None
    with pytest.raises(InjectorError, match="no device /dev/nvidia999 on this node: No such file"):
        planned(device="/dev/nvidia999")
    with pytest.raises(InjectorError, match="/dev/fd is no device"):
        planned(device="/dev/fd")


@pytest.fixture
def cgroup() -> Iterator[Callable[[str], str]]:
    """Makes cgroups below one of our own, in a hierarchy that has no limits to give."""
    if os.geteuid() != 0:
        pytest.skip("NOT RUN: making cgroups needs root")
    mounts = [
        line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line
    ]
    if not mounts or not os.access(mounts[0], os.W_OK):
        pytest.skip("NOT RUN: needs a cgroup2 file system that can be written to")
    base = Path(mounts[0]) / f"test-{uuid.uuid4().hex}"
    made = [base]
    base.mkdir()

    def make(below: str) -> str:
        folder = base
        for part in below.split("/"):
            folder = folder / part
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        return str(folder)

    yield make
    for folder in reversed(made):
        for pid in (folder / "cgroup.procs").read_text().split():
            (Path(mounts[0]) / "cgroup.procs").write_text(pid)
        folder.rmdir()


def enter(folder: str, child: CHILD) -> str:
    """Move a process; returns its cgroup as the kernel tells it."""
    (Path(folder) / "cgroup.procs").write_text(str(child.pid))
    lines = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()
    return next(line.split(":", 2)[2] for line in lines if line.startswith("0:"))


def test_by_cgroup_and_what_is_below_it(start: Start, cgroup: Callable[[str], str]) -> None:
    inside, below, beside = start(), start(), start()
    path = enter(cgroup("train"), inside)
    enter(cgroup("train/step"), below)
    enter(cgroup("trainer"), beside)
    assert sorted(pids(planned(cgroup=path, which="all"))) == sorted([inside.pid, below.pid])
    assert pids(planned(cgroup=f"{path}/step")) == [below.pid]


@pytest.mark.parametrize("name", ["{}", "docker-{}.scope", "cri-containerd-{}.scope"])
def test_by_container(start: Start, cgroup: Callable[[str], str], name: str) -> None:
    container, other = uuid.uuid4().hex + uuid.uuid4().hex, uuid.uuid4().hex * 2
    wanted, stranger = start(), start()
    enter(cgroup(name.format(container)), wanted)
    enter(cgroup(name.format(other)), stranger)
    assert pids(planned(container=container)) == [wanted.pid]
    assert pids(planned(container=container[:12])) == [wanted.pid]


def test_by_slurm_job_as_its_cgroup_says(start: Start, cgroup: Callable[[str], str]) -> None:
    job = 10**9 + os.getpid()
    task, other = start(), start()
    enter(cgroup(f"job_{job}/step_0/task_0"), task)
    enter(cgroup(f"job_{job}1/step_0"), other)
    assert pids(planned(slurm_job=job)) == [task.pid]


def test_by_slurm_job_as_its_environment_says(start: Start) -> None:
    job = 10**9 + os.getpid()
    task = start(SLURM_JOB_ID=str(job))
    start(SLURM_JOB_ID=f"{job}1")
    assert pids(planned(slurm_job=job)) == [task.pid]


def test_all_that_is_asked_for_must_hold(start: Start, mark: str) -> None:
    job = 10**9 + os.getpid()
    both = start(mark, SLURM_JOB_ID=str(job))
    start(mark)
    start(SLURM_JOB_ID=str(job))
    assert pids(planned(slurm_job=job, argv_matches=mark)) == [both.pid]


# -- what is never hit ------------------------------------------------------------------------------------------------


@pytest.mark.control
def test_agents_guardians_controllers_and_slurms_own_are_never_hit(start: Start, mark: str) -> None:
    agent = start("-m", "chaos.agent.main", mark)
    guardian = start("from chaos.agent import guardian; guardian.main()", mark)
    slurm = start(mark, title="slurmstepd: [7.0]")
    controller = start("run", mark, title="/opt/chaos/bin/chaos")
    wanted = start(mark)
    record = planned(argv_matches=mark, which="all")
    assert pids(record) == [wanted.pid]
    assert sorted(record.before["left_out"]) == sorted(
        [
            f"process {agent.pid} (an agent or a guardian)",
            f"process {guardian.pid} (an agent or a guardian)",
            f"process {slurm.pid} (Slurm's own)",
            f"process {controller.pid} (a controller)",
        ]
    )
    with pytest.raises(InjectorError, match=f"nothing matches .*never hit: process {agent.pid}"):
        planned(argv_matches=f"chaos.agent.main {mark}")


@pytest.mark.control
def test_neither_itself_nor_what_carries_it_is_ever_hit() -> None:
    with pytest.raises(InjectorError, match=r"nothing matches .*this agent, or what carries it"):
        planned(argv=_processes.argument_vector(os.getpid()))
    parent = os.getppid()
    if parent > 1:
        with pytest.raises(InjectorError) as refused:
            planned(argv=_processes.argument_vector(parent), which="all")
        assert f"process {parent} (this agent, or what carries it)" in str(refused.value)


@pytest.mark.control
def test_what_the_agent_has_started_is_never_among_those_that_match(mark: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", WAITS, mark], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(InjectorError, match=f"never hit: process {child.pid}"):
            planned(argv_matches=mark)
    finally:
        child.kill()
        child.communicate()


def test_what_has_ended_and_is_not_reaped_is_no_process(start: Start, mark: str) -> None:
    child = start(mark)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(InjectorError, match="nothing matches"):
        planned(argv_matches=mark)


# -- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"argv": []}, "found an empty argv"),
        ({"argv_matches": "("}, "no regular expression"),
        ({"device": "nvidia0"}, "write a device file, such as /dev/nvidia0"),
        ({"cgroup": "/sys/fs/cgroup/cpu/x"}, "write it as /proc/PID/cgroup does"),
        ({"container": "training"}, "write 12 to 64 hexadecimal digits of its id"),
        ({"slurm_job": 0}, "write the number of a job, 1 or more"),
    ],
)
def test_what_cannot_be_asked_for_is_told(params: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SignalParams("KILL", **params)


def test_criteria_belong_to_a_node() -> None:
    with pytest.raises(InjectorError, match="found a node, but not which of its processes; write one of argv, "):
        planned()
    with pytest.raises(InjectorError, match="found argv, which chooses among a node's processes"):
        Signal().plan(Order("f1", SignalParams("KILL", argv=["x"]), Target(node=0, rank=1), None))
    for params in (SignalParams("KILL"), LimitParams(cpu=0.1), OomParams()):
        assert params.target_problem(["rank"]) is None
        assert params.target_problem(["process"]) is None
        assert "found a node" in str(params.target_problem(["node"]))


DOCUMENT = """experiment: match
lab: {{nodes: 1, gpus: 1}}
workload: {{reference: llama-bytes}}
faults:
  - {{{}}}
"""


def read(folder: Path, fault: str) -> Any:
    path = folder / "match.yaml"
    path.write_text(DOCUMENT.format(fault))
    return load(path, catalogue(), {}).faults[0]


def test_a_document_says_it_beside_the_signal(tmp_path: Path) -> None:
    fault = read(
        tmp_path,
        "inject: process.signal, on: {node: 0}, after: 1s, "
        'with: {signal: TERM, argv: [python3, "train.py"], slurm_job: 7, which: all, missing: ok}',
    )
    given = {key: value for key, value in fault.with_.items() if value is not None}
    wanted = {"argv": ["python3", "train.py"], "slurm_job": 7, "which": "all", "missing": "ok"}
    assert given == {"signal": "TERM", **wanted}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            "inject: process.signal, on: {node: 0}, after: 1s, with: {signal: KILL}",
            "found a node, but not which of its processes",
        ),
        (
            "inject: process.signal, on: {rank: 0}, after: 1s, with: {signal: KILL, argv_matches: x}",
            "found argv_matches, which chooses among a node's processes",
        ),
        (
            "inject: process.signal, on: {rank: 0}, after: 1s, with: {signal: KILL, which: all}",
            "found which, which is for a node's processes",
        ),
        ("inject: process.limit, on: {rank: 0}, after: 1s, for: 1s, with: {}", "found no limit; write one of cpu"),
        (
            "inject: process.limit, on: {rank: 0}, after: 1s, for: 1s, with: {cpu: 10%, freeze: true}",
            "found cpu beside freeze",
        ),
        ("inject: process.limit, on: {rank: 0}, after: 1s, with: {cpu: 10%}", "process.limit needs one"),
    ],
)
def test_a_document_that_does_not_fit_is_refused_where_it_stands(tmp_path: Path, fault: str, told: str) -> None:
    with pytest.raises(DocumentErrors) as refused:
        read(tmp_path, fault)
    assert told in str(refused.value)
    assert "match.yaml:5:" in str(refused.value)
