"""How long does a fault outlive whoever made it? Kills of controller and agent, a controller that falls silent, what a
fault costs from arming to its proof, and a sweep of a clean node."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.figures import show
from chaos.lab.client import LabClient
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.transport import lab as transport
from chaos.transport.pipe import AgentClient
from injectors.contract import Evidence, Phase, UndoRecord
from injectors.fabric import Blackhole
from injectors.pcie import Throttle

LEASE_MS = 3000


class QuietBlackhole(Blackhole):
    """A black hole that is not measured: what is timed is the fault, not its witness."""

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        return Evidence(None, "not measured")


class QuietThrottle(Throttle):
    """As above."""

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        return Evidence(None, "not measured")


class Sleeper:
    """A process on the lab's node that a fault stops, watched from outside."""

    def __init__(self, lab: Lab) -> None:
        process = lab.spawn(["sleep", "infinity"], node=0)
        stat = lab.run(["cat", f"/proc/{process.pid}/stat"], node=0).stdout
        pidns = lab.show()["nodes"][0]["pidns"]
        self.target = {"pid": process.pid, "start": int(stat.rpartition(b")")[2].split()[19]), "pidns": pidns}
        self._stat = Path(f"/proc/{find(b'sleep', pidns)}/stat")

    def wait(self, stopped: bool) -> int:
        """Wait until it is stopped, or runs; when that was seen (ns)."""
        while (self._stat.read_text().rpartition(")")[2].split()[0] == "T") != stopped:
            time.sleep(0.0005)
        return time.monotonic_ns()


def find(mark: bytes, pidns: int) -> int:
    """The process in a PID namespace whose command line has this in it, by its id out here."""
    for each in Path("/proc").iterdir():
        try:
            marked = each.name.isdigit() and mark in (each / "cmdline").read_bytes()
            if marked and (each / "ns/pid").stat().st_ino == pidns:
                return int(each.name)
        except OSError:  # it has just ended, or may not be looked at
            continue
    raise LookupError(f"no process has {mark!r} in its command line")


def arm(agent: AgentClient, fault: str, implementation: str, duration: float, **more: Any) -> None:
    """Arm a fault for now."""
    at = agent.clock.theirs(time.monotonic_ns())
    agent.request("arm", fault=fault, implementation=implementation, duration=duration, at=at, owner="bench", **more)
    agent.request("fire", fault=fault, at=at)


def be_controller(lab: str, fault: str, pid: str, start: str, pidns: str) -> None:
    """A controller that stops a process, and then does nothing but keep its lease."""
    agent = transport.start(LabClient(Path(lab)), 0, Path(os.devnull), lambda _: None)
    process = {"pid": int(pid), "start": int(start), "pidns": int(pidns)}
    arm(
        agent,
        fault,
        "injectors.process:Signal",
        60.0,
        params={"signal": "STOP"},
        target={"node": 0, "rank": 0, "process": process},
    )
    print(agent.hello["pid"], flush=True)
    signal.pause()


@contextmanager
def controller(lab: Lab, sleeper: Sleeper, fault: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A controller with a fault in effect, and the process id of its agent as seen from here."""
    words = [str(lab.directory), fault, *(str(sleeper.target[key]) for key in ("pid", "start", "pidns"))]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.undo", "--controller", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    sleeper.wait(stopped=True)
    agent = find(b"chaos.agent.main", sleeper.target["pidns"])
    try:
        yield process, agent
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def deaths(lab: Lab, count: int) -> None:
    """Kill whoever holds the fault."""
    sleeper = Sleeper(lab)
    alone, together, silent = [], [], []
    for number in range(count):
        with controller(lab, sleeper, f"alone-{number}") as (process, _):
            killed = time.monotonic_ns()
            process.kill()
            alone.append((sleeper.wait(stopped=False) - killed) / 1e6)
        with controller(lab, sleeper, f"together-{number}") as (process, agent):
            killed = time.monotonic_ns()
            os.kill(agent, signal.SIGKILL)
            process.kill()
            together.append((sleeper.wait(stopped=False) - killed) / 1e6)
    for number in range(max(3, count // 5)):
        with controller(lab, sleeper, f"silent-{number}") as (process, _):
            process.send_signal(signal.SIGSTOP)  # its pipe stays open
            stopped = time.monotonic_ns()
            silent.append((sleeper.wait(stopped=False) - stopped) / 1e6)
    show("controller killed, to the end of its fault", alone, must="must be < 100")
    show("controller and agent killed, to the end", together, must="must be < 1000")
    show("controller silent, to the end of its fault", silent, must=f"must be < {LEASE_MS + 100}")


def costs(lab: Lab, count: int) -> None:
    """From the order to arm to the proof that nothing is left, without what measuring the effect takes."""
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    agent = transport.start(lab, 0, Path(os.devnull), events.put)
    for implementation, params, target in (
        ("bench.undo:QuietBlackhole", {"source": "gpu0", "to": "gpu1"}, {"node": 0}),
        ("bench.undo:QuietThrottle", {"rate": 20e6}, {"node": 0, "gpu": 0}),
    ):
        ended, proven = [], []
        for number in range(count + 1):
            began = time.monotonic_ns()
            arm(agent, f"{implementation[11:]}-{number}", implementation, 0.0, params=params, target=target)
            while (event := events.get(timeout=10)["event"]) != "undone":
                if event == "ended":
                    ended.append((time.monotonic_ns() - began) / 1e6)
            proven.append((time.monotonic_ns() - began) / 1e6)
        show(f"arm, fire and undo: {implementation[16:]}", ended[1:], must="must be < 20 (p99)")
        show(f"the same, to the proof that nothing is left: {implementation[16:]}", proven[1:])
    agent.close()


def sweeps(count: int) -> None:
    """Sweep a clean node."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "CHAOS_STATE": f"{folder}/state",
            "CHAOS_RUNTIME": f"{folder}/run",
            "CHAOS_STORE": f"{folder}/store.sqlite",
        }
        times = []
        for _ in range(count):
            began = time.monotonic_ns()
            subprocess.run(
                [sys.executable, "-m", "chaos", "sweep"], env=environment, check=True, stdout=subprocess.DEVNULL
            )
            times.append((time.monotonic_ns() - began) / 1e6)
    show("chaos sweep of a clean node", times, must="must be < 500")


def main(count: int = 25) -> None:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder, Lab.up(LabSpec(1, 2, 0), Path(folder) / "lab") as lab:
        deaths(lab, count)
        costs(lab, count * 8)
    sweeps(count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--controller", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.controller:
        be_controller(*arguments.controller)
    else:
        main(arguments.count)
