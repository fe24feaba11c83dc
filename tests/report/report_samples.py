"""Runs as they could have been: journal and step events of two nodes with two GPUs, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chaos import scoring

MS = 1_000_000
S = 1_000_000_000
ORIGIN = 3_000 * S
STEP = 20 * MS
TOKENS = 64
Event = dict[str, Any]

SOURCE = """\
# One NVSwitch path between two GPUs of a node drops everything for half a second.
experiment: nvswitch-path-blackhole
cluster: lab
lab: {nodes: 2, gpus: 2, spare_nodes: 1}
workload: {reference: llama-bytes, recovery: checkpoint, step: 20ms}
faults:
  - {name: blackhole, inject: fabric.blackhole, on: {node: 0}, after: 1s, for: 500ms}
score: {rto: 800ms, recovered_at: 95%, consistency: 99.99%}
"""


@dataclass
class Job:
    """Writes the step events of a training job, step by step."""

    rng: random.Random
    t: int
    ranks: int = 4
    gen: int = 1
    step: int = 0
    jitter: float = 0.012
    corrupt_from: int | None = None
    events: list[Event] = field(default_factory=list)

    def hello(self) -> None:
        for rank in range(self.ranks):
            self._add("hello", self.t - S, rank, v=1, node=rank // 2, gpu=rank % 2, hash_alg="xxh3_64")
            self._add("member", self.t - S // 2, rank, rank=rank, gen=1, world=self.ranks)

    def until(self, end: int) -> Job:
        while self.t + STEP < end:
            self.one()
        return self

    def one(self) -> None:
        self.t += round(STEP * max(0.6, self.rng.gauss(1, self.jitter)))
        self.step += 1
        for rank in range(self.ranks):
            wrong = self.corrupt_from is not None and self.step >= self.corrupt_from and rank == self.ranks - 1
            self._add(
                "step",
                self.t + self.rng.randrange(MS),
                rank,
                rank=rank,
                gen=self.gen,
                world=self.ranks,
                step=self.step,
                tokens=TOKENS,
                loss=3.0 - 0.001 * self.step,
                gnorm=1.0,
                hash=f"{self.step:015x}{'f' if wrong else '0'}",
                work_ns=9 * MS,
            )

    def regroup(self, since: int, ms: float, back_to: int) -> None:
        """Lose the group at ``since`` and stand again ``ms`` later, from step ``back_to`` on."""
        self.gen, self.step = self.gen + 1, back_to
        stages = {"symptom": 0.5, "detected": 0.62, "aborted": 0.7, "group": 0.8, "agreed": 0.86, "restored": 0.97}
        for what, share in stages.items():
            for rank in range(self.ranks):
                self._add("mark", since + round(ms * share * MS) + rank * 200_000, rank, what=what, gen=self.gen)
        self.t = since + round(ms * MS)
        for rank in range(self.ranks):
            self._add("member", self.t - 3 * MS, rank, rank=rank, gen=self.gen, world=self.ranks)

    def _add(self, kind: str, t: int, place: int, **more: Any) -> None:
        self.events.append({"e": kind, "t": t, **more, "inc": f"40265326{place:02d}-{place + 3}-31284{place}"})


@dataclass
class Run:
    """A run that is being written: its journal beside its job."""

    seed: int = 7
    faults: list[Event] = field(default_factory=list)
    journal: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = Job(random.Random(self.seed), ORIGIN + 3 * S)
        self.job.hello()
        self.write(
            "journal", ORIGIN, schema="chaos.journal/1", run="20261130-224000-nvswitch-839b", boot="e900e2a5-f352"
        )
        self.journal[-1] |= {"wall": "2026-11-30T22:40:00.578+00:00", "version": "0.1.0"}
        score = {"rto": 0.8, "recovered_at": 0.95, "consistency": 0.9999, "hold": 2.0, "require": "observed"}
        experiment = {
            "name": "nvswitch-path-blackhole",
            "about": "One NVSwitch path between two GPUs of a node drops everything for half a second.",
            "cluster": "lab",
            "lab": {"nodes": 2, "gpus": 2, "spare_nodes": 1},
            "workload": {"reference": "llama-bytes", "command": None, "recovery": "checkpoint", "step": 0.02},
            "steady_state": {"baseline": 5.0, "hold": [{"probe": "workload.throughput", "when": ["before", "after"]}]},
            "score": score,
        }
        source = SOURCE if self.faults else SOURCE.replace("faults:\n", "").replace("  - {name", "# - {name")
        self.write("plan", ORIGIN + MS, experiment=experiment, seed=1143396200, source=source, faults=self.faults)
        self.write("phase", ORIGIN + 2 * MS, phase="lab")
        self.write("clock", ORIGIN + 400 * MS, uncertainty_ns=47_594)
        self.write("phase", ORIGIN + 500 * MS, phase="workload")

    def write(self, kind: str, t: int, **more: Any) -> None:
        self.journal.append({"e": kind, "t": t, **more})

    def baseline(self) -> None:
        """Five seconds of the undisturbed job."""
        start = self.job.t
        self.write("phase", start, phase="baseline")
        self.job.until(start + 5 * S)
        self.write("baseline", self.job.t, from_ns=start, to_ns=self.job.t)

    def probes(self, when: str, *, throughput: bool = True, others: bool = True) -> None:
        """Checks the steady state now: throughput, and unless told otherwise loss and replicas."""
        t = self.job.t
        share = "99.9728%" if throughput else "61.3%"
        told = [("throughput", "at least 95% of baseline", throughput, f"{share} is at least 95% of the baseline")]
        if others:
            told += [("loss", "is finite", True, "2.14543 is finite")]
            told += [("replicas_agree", "at least 99.99%", True, "988 of 988 replica hashes agree")]
        if when in ("before", "after"):
            self.write("phase", t, phase=when)
        for name, tolerance, ok, text in told:
            said = text if ok else f"37.98 steps/s: {share} is below 95% of the baseline's 49.6"
            fields = {"value": 49.6, "error": None, "ms": 1.9}
            self.write("probe", t, when=when, probe=f"workload.{name}", tolerance=tolerance, ok=ok, text=said, **fields)

    def fault(self, number: int, at: int, lasts: int, *, witnessed: bool = True, residue: tuple[str, ...] = ()) -> None:
        """A fault that takes effect at ``at`` (ns) and is undone."""
        key = self.faults[number]["id"]
        well = "7 of 7 datagrams arrived from gpu0 to gpu1, 7 of 7 back"
        dead = "0 of 8 datagrams arrived from gpu0 to gpu1, 0 of 8 back; 23 packets dropped so far"
        text = dead if witnessed else well
        end = at + lasts
        self._told(key, at - S // 2, "possible", reality="emulated")
        self._told(key, at - S // 3, "armed", record={"implementation": "injectors.fabric:Blackhole"})
        self._told(key, at - S // 4, "witness", phase="before", effective=False, text=well, numbers={})
        self._told(key, at + MS, "fired", scheduled_ns=at - 84_000, effect_ns=at)
        self._told(key, at + 100 * MS, "witness", phase="during", effective=witnessed, text=text, numbers={})
        self._told(key, end + MS, "ended", scheduled_ns=end, ended_ns=end + 112_000, early=False)
        self._told(key, end + 100 * MS, "witness", phase="after", effective=False, text=well, numbers={})
        self._told(key, end + 101 * MS, "undone", residue=list(residue))

    def _told(self, key: str, t: int, what: str, **more: Any) -> None:
        self.write("fault", t, id=key, what=what, **more)

    def end(self, reason: str = "completed") -> Run:
        if reason == "completed":
            self.probes("after")
        self.write("phase", self.job.t, phase="stop")
        self.write("end", self.job.t + S // 3, reason=reason, wall="2026-11-30T22:40:23.768+00:00")
        return self

    @property
    def steps(self) -> list[Event]:
        return sorted(self.job.events, key=lambda event: event["t"])

    @property
    def card(self) -> Event:
        return scoring.score(self.journal, self.steps)


def planned(name: str = "blackhole", number: int = 0, **more: Any) -> Event:
    return {
        "id": f"20261130-224000-{number}",
        "name": name,
        "kind": "fabric.blackhole",
        "target": {"node": 0, "gpu": None, "rank": None},
        "params": {"source": "gpu0", "to": "gpu1", "direction": "both"},
        "after_s": 1.0,
        "for_s": 0.5,
        "drawn": True,
    } | more


def _until_fault(run: Run) -> int:
    run.baseline()
    run.probes("before")
    run.write("phase", run.job.t, phase="faults")
    at = run.job.t + S
    run.job.until(at)
    return at


def _recovered(run: Run, at: int, ms: float) -> None:
    run.job.regroup(at, ms, run.job.step - 1)
    run.write("phase", at + S, phase="recovery")
    run.job.until(at + 4 * S)
    run.write("phase", run.job.t, phase="settle")
    run.job.until(run.job.t + S)


def passing() -> Run:
    """Recovered 338 ms after the fault."""
    run = Run(faults=[planned()])
    at = _until_fault(run)
    run.fault(0, at, 500 * MS)
    _recovered(run, at, 318)
    return run.end()


def slow() -> Run:
    """Recovered, but after 2.4 s, and one replica is wrong from then on."""
    run = Run(faults=[planned()])
    at = _until_fault(run)
    run.fault(0, at, 500 * MS)
    run.job.corrupt_from = run.job.step + 40
    _recovered(run, at, 2_400)
    return run.end()


def never_back() -> Run:
    """The job stops with the fault and takes no further step."""
    run = Run(faults=[planned()])
    at = _until_fault(run)
    run.fault(0, at, 500 * MS)
    run.write("phase", at + S, phase="recovery")
    run.job.t = at + 10 * S
    run.probes("after", throughput=False)
    run.write("phase", run.job.t, phase="stop")
    run.write("end", run.job.t, reason="completed", wall="2026-11-30T22:40:23.768+00:00")
    return run


def unwitnessed() -> Run:
    """The fault had no effect that could be measured."""
    run = Run(faults=[planned()])
    at = _until_fault(run)
    run.fault(0, at, 500 * MS, witnessed=False)
    run.job.until(at + 5 * S)
    return run.end()


def noisy() -> Run:
    """The undisturbed job varies too much for a recovery time."""
    run = Run(faults=[planned()])
    run.job.jitter = 0.25
    at = _until_fault(run)
    run.fault(0, at, 500 * MS)
    _recovered(run, at, 318)
    return run.end()


def gate_failed() -> Run:
    """The job was unwell before anything was broken."""
    run = Run(faults=[planned()])
    run.baseline()
    run.probes("before", throughput=False)
    return run.end("gate failed")


def undrawn() -> Run:
    """Chance drew no fault."""
    run = Run(faults=[planned(drawn=False)])
    run.baseline()
    run.probes("before")
    run.job.until(run.job.t + 3 * S)
    return run.end()


def aborted() -> Run:
    """A guard ended the run while the fault lasted."""
    run = Run(faults=[planned()])
    at = _until_fault(run)
    run.fault(0, at, 500 * MS)
    run.job.t = at + 700 * MS
    run.write("guard", run.job.t, text="stop_if: workload.alive: no step for 30 s")
    return run.end("guard")


def left_over() -> Run:
    """Something of the fault is left on its node."""
    run = Run(faults=[planned()])
    at = _until_fault(run)
    run.fault(0, at, 500 * MS, residue=("nftables table chaos_20261130 in the namespace of nvswitch, node 0",))
    _recovered(run, at, 318)
    return run.end()


def never_began() -> Run:
    """The lab could not be brought up."""
    run = Run(faults=[planned()])
    run.job.events.clear()
    run.write("error", ORIGIN + S, text="the lab could not be brought up: no permission to make a network namespace")
    run.write("end", ORIGIN + S, reason="error", wall="2026-11-30T22:40:01.768+00:00")
    return run


def control() -> Run:
    """Nothing is broken."""
    run = Run()
    run.baseline()
    run.probes("before")
    run.job.until(run.job.t + 6 * S)
    return run.end()


def storm() -> Run:
    """Three faults after each other, of which the last two overlap; checked during them as well."""
    run = Run(faults=[planned(), planned("second path", 1), planned("rank killed", 2, kind="process.signal")])
    at = _until_fault(run)
    run.fault(0, at, 500 * MS)
    run.probes("during", others=False)
    _recovered(run, at, 318)
    later = run.job.t + S
    run.job.until(later)
    run.fault(1, later, 500 * MS)
    run.probes("during", throughput=False, others=False)
    run.fault(2, later + 200 * MS, 100 * MS)
    _recovered(run, later, 640)
    return run.end()


def long_storm() -> Run:
    """Twenty faults, each judged by itself; the fifth costs the most."""
    names = [f"{what}@{n}/rank{n % 4}" if n > 1 else f"{what}/rank1" for n in range(1, 11) for what in ("dark", "kill")]
    run = Run(faults=[planned(name, number) for number, name in enumerate(names)])
    at = _until_fault(run)
    for number in range(len(names)):
        run.fault(number, at, 300 * MS)
        run.job.regroup(at, 410 if number == 4 else 120 + 10 * (number % 3), run.job.step - 1)
        at += 4 * S
        run.job.until(at)
    run.write("phase", run.job.t, phase="settle")
    run.job.until(run.job.t + S)
    return run.end()


SAMPLES: dict[str, tuple[Callable[[], Run], str]] = {
    "passing": (passing, "pass"),
    "slow": (slow, "fail"),
    "never_back": (never_back, "fail"),
    "unwitnessed": (unwitnessed, "inconclusive"),
    "noisy": (noisy, "inconclusive"),
    "gate_failed": (gate_failed, "inconclusive"),
    "undrawn": (undrawn, "inconclusive"),
    "aborted": (aborted, "aborted"),
    "left_over": (left_over, "error"),
    "never_began": (never_began, "error"),
    "control": (control, "pass"),
    "storm": (storm, "fail"),
    "long_storm": (long_storm, "pass"),
}
