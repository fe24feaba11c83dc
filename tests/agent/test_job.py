"""The training job's end on a node: what it prints and reports comes back, nothing outlives its controller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from injectors import kernel

ROOT = Path(__file__).parents[2]


class Started:
    """A job under way."""

    def __init__(
        self,
        state: Path,
        code: str,
        *,
        env: dict[str, str] | None = None,
        argv: list[str] | None = None,
        attach: Path | None = None,
    ):
        self.state = state
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chaos.agent.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT), "CHAOS_STATE": str(state)},
        )
        assert self.process.stdin is not None
        order: dict[str, Any] = (
            {"argv": argv or [sys.executable, "-c", textwrap.dedent(code)], "env": env or {}, "cwd": None}
            if attach is None
            else {"attach": str(attach)}
        )
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "nothing more comes"
        message: dict[str, Any] = json.loads(line)
        return message

    def until(self, event: str) -> list[dict[str, Any]]:
        found = [self.next()]
        while found[-1]["event"] != event:
            found.append(self.next())
        return found

    def leave(self) -> list[dict[str, Any]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        rest = [json.loads(line) for line in self.process.stdout.read().splitlines()]
        assert self.process.wait(20) == 0
        return rest


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    started = []

    def one(code: str = "", **options: Any) -> Started:
        started.append(Started(tmp_path, code, **options))
        return started[-1]

    yield one
    for each in started:
        each.process.kill()
        each.process.wait()


def alive(pid: int) -> bool:
    fields = kernel.stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def test_output_steps_and_the_end_come_back_in_that_order(start: Callable[..., Started]) -> None:
    job = start(
        """
        import os
        print("hello", os.environ["RANKS"], flush=True)
        with open(os.environ["CHAOS_EVENTS"] + "/a.jsonl", "a") as file:
            for step in range(3):
                file.write('{"step": %d}\\n' % step)
                file.flush()
            file.write('{"half')
        raise SystemExit(7)
        """,
        env={"RANKS": "2"},
    )
    told = job.until("exit")
    assert told[0]["event"] == "started"
    assert [json.loads(each["line"])["step"] for each in told if each["event"] == "step"] == [0, 1, 2]
    assert "".join(each["text"] for each in told if each["event"] == "output") == "hello 2\n"
    assert told[-1]["code"] == 7
    job.leave()
    assert not list((job.state / "jobs").iterdir()), "its files have gone"


def test_a_line_comes_when_it_is_whole_and_garbage_is_skipped(start: Callable[..., Started]) -> None:
    job = start(
        """
        import os, time
        with open(os.environ["CHAOS_EVENTS"] + "/a.jsonl", "ab", buffering=0) as file:
            file.write(b"x" * 100_000)
            file.write(b"\\nfirst")
            time.sleep(0.1)
            file.write(b" half\\n")
        """
    )
    assert [each["line"] for each in job.until("exit") if each["event"] == "step"] == ["first half"]


def test_a_job_that_prints_much_is_never_held_up_by_whoever_should_read(start: Callable[..., Started]) -> None:
    job = start("import sys\nsys.stdout.write('x' * 5_000_000)\n")
    pid = job.next()["pid"]
    end = time.monotonic() + 30
    while alive(pid):  # and nobody has read a byte of it
        assert time.monotonic() < end
        time.sleep(0.01)
    assert sum(len(each["text"]) for each in job.until("exit") if each["event"] == "output") == 5_000_000


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(
    [
        *(sys.executable, "-c"),
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)",
    ],
    start_new_session=True,
)
print(child.pid, flush=True)
if {dies}:
    os._exit(0)
time.sleep(1000)
"""


@pytest.mark.parametrize("dies", [False, True])
def test_at_the_end_of_input_all_that_it_has_started_is_ended(start: Callable[..., Started], dies: bool) -> None:
    """Also what ignores SIGTERM, has a session of its own, and has lost its parent: CASES 53."""
    job = start(STUBBORN.replace("{dies}", str(dies)))
    pids, text = {job.next()["pid"]}, ""
    while text.count("\n") < 2:
        message = job.next()
        text += message.get("text", "")
    pids.add(next(int(line) for line in text.splitlines() if line.isdigit()))
    job.leave()
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_as_well(start: Callable[..., Started], number: signal.Signals) -> None:
    job = start("import time; time.sleep(1000)")
    pid = job.next()["pid"]
    job.process.send_signal(number)
    assert job.process.wait(20) == 0
    assert not alive(pid)


def test_a_killed_helper_takes_the_command_along(start: Callable[..., Started]) -> None:
    job = start("import time; time.sleep(1000)")
    pid = job.next()["pid"]
    job.process.kill()
    end = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_command_that_does_not_exist_is_told(start: Callable[..., Started]) -> None:
    job = start(argv=["/no/such/program"])
    assert job.next() == {"event": "error", "error": "/no/such/program: No such file or directory"}
    assert job.process.wait(20) == 1


def test_its_clock_can_be_asked_at_any_time(start: Callable[..., Started]) -> None:
    job = start("import time; time.sleep(1000)")
    assert job.process.stdin is not None
    before = time.monotonic_ns()
    job.process.stdin.write(b"\n\n")
    job.process.stdin.flush()
    times = [job.until("time")[-1]["t"] for _ in range(2)]
    assert before < times[0] <= times[1] < time.monotonic_ns(), "both are on this machine"


def test_its_clock_is_known_before_anything_is_started(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "chaos.agent.job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CHAOS_STATE": str(tmp_path)},
    )
    order = json.dumps({"argv": ["true"], "env": {}, "cwd": None})
    said, _ = process.communicate(f"\n\n{order}\n\n".encode(), timeout=30)
    assert [json.loads(line)["event"] for line in said.splitlines()][:4] == ["time", "time", "time", "started"]


# -- a job that runs already ------------------------------------------------------------------------------------------

TRAINER = """
import sys
sys.path.insert(0, {root!r})
from chaos.workload.events import StepWriter
writer = StepWriter({events!r})
writer.hello(node=0, gpu=0, hash_alg="x")
writer.member(rank=0, gen=1, world=1)
writer.member(rank=0, gen=2, world=1)
step = 0
for line in sys.stdin:
    step += 1
    writer.step(t=step, rank=0, gen=2, world=1, step=step, tokens=1, loss=2.0, gnorm=1.0, work_ns=1)
    print(step, flush=True)
"""


class Trainer:
    """A process that was started by somebody else, and completes a step when it is told to."""

    def __init__(self, events: Path, *before: str) -> None:
        code = TRAINER.format(root=str(ROOT), events=str(events))
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def step(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def end(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    started: list[Trainer] = []

    def one(*before: str) -> Trainer:
        started.append(Trainer(tmp_path / "events", *before))
        started[-1].step()
        return started[-1]

    yield one
    for each in started:
        each.end()


def steps(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(message["line"]) for message in messages if message["event"] == "step"]


def test_a_job_that_runs_is_observed_from_where_it_stands_and_goes_on(
    start: Callable[..., Started], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    theirs = trainer()
    job = start(attach=tmp_path / "events")
    assert job.next() == {"event": "started", "pid": None}
    hello, member = steps([job.next(), job.next()])
    assert (hello["e"], hello["pid"]) == ("hello", theirs.process.pid)
    assert (member["e"], member["gen"]) == ("member", 2)
    theirs.step()
    assert [each["step"] for each in steps([job.next()])] == [2], "what had been before is told no more"
    later = trainer()  # one that takes a lost rank's place, say: all that it says counts
    assert [each["e"] for each in steps([job.next() for _ in range(4)])] == ["hello", "member", "member", "step"]
    assert job.leave() == []
    for each in (theirs, later):
        each.step()
    assert sorted((tmp_path / "events").iterdir()), "its files are its own"


def test_what_former_jobs_and_other_nodes_have_written_is_left_out(
    start: Callable[..., Started], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer().end()
    [dead] = (tmp_path / "events").iterdir()
    elsewhere = json.loads(dead.read_text().splitlines()[0]) | {"boot": "another", "pid": os.getpid()}
    (tmp_path / "events/elsewhere.jsonl").write_text(json.dumps(elsewhere) + "\n")
    (tmp_path / "events/garbage.jsonl").write_text("[1]\n")
    job = start(attach=tmp_path / "events")
    assert job.next()["event"] == "started"
    theirs = trainer()
    said = steps([job.next() for _ in range(4)])
    assert [each["e"] for each in said] == ["hello", "member", "member", "step"]
    assert said[0]["pid"] == theirs.process.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: a PID namespace of its own, as a container has, needs root")
def test_a_job_in_a_container_is_observed_as_well(
    start: Callable[..., Started], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    job = start(attach=tmp_path / "events")
    assert [each["e"] for each in steps([job.next() for _ in range(3)])] == ["hello", "member"]


def test_a_folder_that_is_not_there_is_told(start: Callable[..., Started], tmp_path: Path) -> None:
    job = start(attach=tmp_path / "events")
    assert job.next() == {"event": "error", "error": f"{tmp_path}/events: No such file or directory"}
