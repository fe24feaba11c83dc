"""Runs a real reference job for a test, watches its events, and ends every process that it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from lab_help import alive_in

from chaos.lab.client import LabProcess
from chaos.lab.cluster import Lab
from chaos.workload.events import tail

Event = dict[str, Any]
T = TypeVar("T")

#: How long a test waits for an event before it calls it missing; never a measure of speed.
PATIENCE = 40.0

#: How many steps the undisturbed job does that others are compared with.
STEPS = 120
#: Two spares on a node of their own.
SPARES = [{"node": 2, "gpu": 0}, {"node": 2, "gpu": 1}]


class Job:
    """A job under ``folder``: what runs it, and its events as they come.

    Args:
        lab: where it runs; by default on this host.
        command: what runs it, before the configuration's path; by default the job.
        node: the lab's node to run the command on; by default the head.
        env: additions to the environment.
        config: keys of the job's configuration.
    """

    def __init__(
        self,
        folder: Path,
        lab: Lab | None = None,
        command: Sequence[str] = (sys.executable, "-m", "chaos.workload.reference.job"),
        node: int | None = None,
        env: Mapping[str, str] | None = None,
        **config: Any,
    ) -> None:
        self._lab = lab
        self.config = {
            "events_dir": str(folder / "events"),
            "logs_dir": str(folder / "logs"),
            "checkpoint_dir": str(folder / "checkpoints"),
            "seed": 7,
            "recovery": "checkpoint",
            "checkpoint_every": 20,
            "world": [{"node": n, "gpu": g} for n in (0, 1) for g in (0, 1)],
            "lab_socket": None if lab is None else str(lab.directory),
        } | config
        self.events: list[Event] = []
        self._tail = tail(folder / "events")
        path = folder / "config.json"
        path.write_text(json.dumps(self.config), encoding="utf-8")
        self._log = folder / "job.log"
        argv, environment = [*command, str(path)], os.environ | (env or {})
        reader, self._lifeline = os.pipe()
        with open(self._log, "wb") as log:
            streams = {"stdin": reader, "stdout": log.fileno(), "stderr": log.fileno()}
            self.process: subprocess.Popen[bytes] | LabProcess
            if lab is None:
                self.process = subprocess.Popen(argv, env=environment, **streams)
            else:
                self.process = lab.spawn(argv, node=node, env=environment, **streams)
        os.close(reader)

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def end_input(self) -> None:
        """Close the job's standard input."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_input()
        if self._lab is not None:  # whatever is left goes with the lab
            self.process.signal(signal.SIGTERM)
            self.process.wait(10)
            return
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for hello in self.all("hello"):
            assert not alive(hello), f"process {hello['pid']} outlived its launcher"

    def update(self) -> None:
        while fresh := self._tail.poll():
            self.events += fresh

    def all(self, kind: str, **fields: Any) -> list[Event]:
        self.update()
        return [
            event for event in self.events if event["e"] == kind and all(event.get(k) == v for k, v in fields.items())
        ]

    def await_event(self, kind: str, where: Callable[[Event], bool] = lambda _: True, **fields: Any) -> Event:
        """The first event of that kind with those fields."""
        return self.await_true(
            lambda: next((event for event in self.all(kind, **fields) if where(event)), None), f"{kind} {fields}"
        )

    def await_true(self, look: Callable[[], T | None], what: str) -> T:
        end = time.monotonic() + PATIENCE
        while not (found := look()):
            assert time.monotonic() < end, f"no {what}\n{self.log}"
            assert self.process.poll() is None or look(), f"no {what}, and the job has ended\n{self.log}"
            time.sleep(0.01)
        return found

    def await_step(self, step: int, **fields: Any) -> Event:
        return self.await_event("step", lambda event: event["step"] >= step, **fields)

    def await_end(self) -> int:
        """The job's exit code; what it said is shown beside a failed comparison."""
        code = self.process.wait(PATIENCE)
        self.update()
        print(self.log, file=sys.stderr)
        return code

    def member(self, rank: int) -> Event:
        """The hello of the process that is ``rank`` in the newest generation."""
        self.update()
        newest = max((e for e in self.events if e["e"] == "member" and e["rank"] == rank), key=lambda e: e["gen"])
        return next(e for e in self.events if e["e"] == "hello" and e["inc"] == newest["inc"])

    def signal(self, rank: int, number: signal.Signals) -> Event:
        """Signal the process that is ``rank``; returns its hello."""
        hello = self.member(rank)
        if self._lab is None:
            os.kill(hello["pid"], number)
        else:
            order = {"op": "signal", "node": hello["node"], "pid": hello["pid"], "signal": int(number)}
            self._lab.request(order)
        return hello

    @contextmanager
    def stopped(self, rank: int) -> Iterator[Event]:
        """Stop the process that is ``rank``, and let it go on at the end; gives its hello. On this host only."""
        hello = self.signal(rank, signal.SIGSTOP)
        try:
            yield hello
        finally:
            os.kill(hello["pid"], signal.SIGCONT)

    def kill_launcher(self) -> Event:
        """SIGKILL the launcher; returns what it had said of itself."""
        launcher = max(self.all("launcher"), key=lambda event: event["t"])
        os.kill(self.host_pid(launcher), signal.SIGKILL)
        return launcher

    def host_pid(self, process: Event) -> int:
        """The number by which this test knows a process that has told its own."""
        if self._lab is None:
            return int(process["pid"])
        for pid in alive_in(process["pidns"]):
            numbers = Path(f"/proc/{pid}/status").read_text(encoding="ascii").partition("NSpid:")[2].splitlines()[0]
            if int(numbers.split()[-1]) == process["pid"]:
                return pid
        raise AssertionError(f"no process {process['pid']} in that namespace")

    def hashes(self) -> dict[int, set[str]]:
        """Every digest that was seen at a step, by step."""
        seen: dict[int, set[str]] = {}
        for event in self.all("step"):
            seen.setdefault(event["step"], set()).add(event["hash"])
        return seen


def assert_seamless(job: Job, undisturbed: Mapping[int, set[str]]) -> None:
    """The result is the undisturbed one's, to the bit, and no process did a step twice."""
    done: dict[str, list[int]] = {}
    for event in job.all("step"):
        done.setdefault(event["inc"], []).append(event["step"])
    for steps in done.values():
        assert steps == sorted(set(steps))
        # Who had not the last sum when the group broke gets the state of one that had, and has skipped that step.
        assert steps[-1] - steps[0] + 1 - len(steps) <= len({event["gen"] for event in job.all("member")})
    hashes = job.hashes()
    assert sorted(hashes) == list(range(1, max(hashes) + 1))
    assert all(digests == undisturbed[step] for step, digests in hashes.items() if step in undisturbed)
    assert all(len(digests) == 1 for digests in hashes.values())
    assert max(hashes) >= max(undisturbed)


def alive(hello: Event) -> bool:
    """Whether the process that said ``hello`` still runs."""
    return alive_pid(hello["pid"], hello["start"])


def alive_pid(pid: int, start: int | None = None) -> bool:
    """Whether a process runs, and is the one that started at that instant."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()
    return start in (None, int(fields[19])) and fields[0] != "Z"
