"""Runs experiments as a user does, as a process of its own, and looks at what they leave."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Small, so that a run takes seconds; what is tested is the life of a run, not its figures.
DOCUMENT = """
experiment: small
cluster: lab
lab: {{nodes: 1, gpus: 2, spare_nodes: {spares}}}
workload: {{reference: llama-bytes, recovery: checkpoint, step: 20ms, checkpoint_every: 10}}
steady_state:
  baseline: 2s
  hold:
    - {{probe: workload.throughput, at_least: {throughput}, of: baseline}}
    - {{probe: workload.loss, is: finite}}
    - {{probe: workload.replicas_agree, at_least: 99.99%}}
faults: {faults}
score: {{rto: 800ms, hold: 1s}}
recover_within: 8s
settle: 500ms
seed: 7
"""

BLACKHOLE = (
    "[{{name: hole, inject: fabric.blackhole, on: {{node: 0}}, with: {{from: gpu0, to: gpu1}}, "
    "after: 500ms, for: {length}}}]"
)
KILL = "[{name: kill, inject: process.signal, on: {rank: 1}, with: {signal: KILL}, after: 500ms}]"


def document(folder: Path, faults: str = "[]", *, throughput: str = "50%", spares: int = 0) -> Path:
    """Write a small experiment."""
    path = folder / "small.yaml"
    path.write_text(DOCUMENT.format(faults=faults, throughput=throughput, spares=spares), encoding="utf-8")
    return path


@dataclass
class Finished:
    """A run that has ended."""

    code: int
    output: str
    folder: Path | None

    @property
    def card(self) -> dict[str, Any]:
        """Its scorecard."""
        assert self.folder is not None, self.output
        return json.loads((self.folder / "scorecard.json").read_text(encoding="utf-8"))

    @property
    def journal(self) -> list[dict[str, Any]]:
        """Its journal."""
        assert self.folder is not None, self.output
        return [json.loads(line) for line in (self.folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()]

    def faults(self, what: str) -> list[dict[str, Any]]:
        """The journal's fault events of one kind."""
        return [event for event in self.journal if event["e"] == "fault" and event["what"] == what]


class Started:
    """A run under way."""

    def __init__(
        self,
        experiment: Path | str,
        runs: Path,
        *options: str,
        by: str = "run",
        before: Sequence[str] = (),
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.STDOUT,
    ) -> None:
        self.runs = runs
        command = [sys.executable, "-m", "chaos", by, str(experiment), "--runs", str(runs), *options]
        heeds_hangups = ["env", "--default-signal=HUP"]  # even if the tests themselves run under nohup
        self.process = subprocess.Popen(
            [*heeds_hangups, *before, *command],
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def folder(self) -> Path | None:
        """The run's folder, if it has one."""
        return next(iter(self.runs.iterdir()), None) if self.runs.is_dir() else None

    def wait_for(self, key: str, value: str, patience: float = 90.0) -> None:
        """Wait until the journal holds an event with this value; fail if the run ends before."""
        end = time.monotonic() + patience
        wanted = f'"{key}": "{value}"'
        while time.monotonic() < end:
            folder = self.folder()
            journal = folder / "journal.jsonl" if folder else None
            if journal is not None and journal.exists() and wanted in journal.read_text(encoding="utf-8"):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"{wanted} has not come: {self.finish().output}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def finish(self, patience: float = 120.0) -> Finished:
        """Wait for the end."""
        output, _ = self.process.communicate(timeout=patience)
        return Finished(self.process.returncode, output, self.folder())


def run(experiment: Path | str, runs: Path, *options: str) -> Finished:
    """Run an experiment to its end."""
    return Started(experiment, runs, *options).finish()


def replay(finished: Finished, runs: Path) -> Finished:
    """Repeat a run to its end."""
    assert finished.folder is not None, finished.output
    return Started(finished.folder, runs, by="replay").finish()


# In the environment of everything that a test of this session starts; whatever else runs on the machine lacks it.
MARK = "CHAOS_TEST_SESSION"
os.environ[MARK] = str(uuid.uuid4())


def processes() -> set[int]:
    """Ids of all processes that the tests of this session have started, directly or not."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = set()
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid():
            try:
                environment = (each / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment:
                found.add(int(each.name))
    return found


def wait_gone(former: set[int], patience: float = 10.0) -> set[int]:
    """Wait until no process is there that was not there before; those that are left."""
    end = time.monotonic() + patience
    while (left := processes() - former) and time.monotonic() < end:
        waits = []
        for pid in left:
            try:
                waits.append(os.pidfd_open(pid))
            except ProcessLookupError:
                continue
        if waits:
            select.select(waits, [], [], 0.5)
        for fd in waits:
            os.close(fd)
    return left
