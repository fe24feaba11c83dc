"""How fast does a job come back, with the right numbers, at what price, and without crying wolf?

Five parts, each callable alone; without arguments all but the third:

1. The shipped experiments, many times and in turn: the RTO with its stages, against the marks.
2. The same runs again: every content hash of every rank and step against those of a job that nothing happened to.
3. False alarms (`--busy-minutes 60`): an undisturbed job in a lab, with every core kept busy by something else.
4. What the watcher costs an undisturbed step, in CPU time that the kernel counts for its thread. Comparing the lengths
   of steps with and without it would not do: runs differ by more than it costs.
5. Hundreds of generations in one job: memory, descriptors and threads of a survivor and of the launcher.

    python -m bench.recovery --runs 25 --keep runs/bench --json recovery.json
    python -m bench.recovery --only rank-kill nvswitch --runs 5 --cost-seconds 0 --kills 0
    python -m bench.recovery --no-runs --cost-seconds 0 --kills 0 --busy-minutes 60
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.figures import quantile, show
from chaos.engine.folder import RunFolder
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.workload import launch
from chaos.workload.events import Tail, tail

Event = dict[str, Any]

MEDIAN_MS = {"rank-kill": 100.0, "node-loss": 200.0, "nvswitch": 200.0, "rank-hang": 450.0}
LONGEST_MS = 800.0
WATCHER_SHARE = 0.01  # of a step
STEP_S = 0.02
SPEC = LabSpec(nodes=2, gpus=2, spare_nodes=1)
REFERENCE_STEPS = 1500  # at first; more are done when a run went further
START_S = 60.0
LOOK_S = 0.5
ROUNDS = 2  # of each recovery, in turn, when the watcher's cost is measured
MS = 1e6  # ns


def met(good: bool) -> str:
    """How a mark is printed."""
    return "met" if good else "MISSED"


# -- 1 and 2: the shipped experiments ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What one run was worth.

    Attributes:
        ms: the RTO; infinite if the throughput did not come back.
        stages: milliseconds from the fault to the end of each.
        phase: where in a step the fault hit, as a share of the step.
        compared, after: digests that were compared with the undisturbed job's, and how many of them after the fault.
        differing: steps at which some rank's digest was another.
    """

    experiment: str
    run: str
    exit_code: int
    reason: str
    ms: float = math.inf
    stages: Mapping[str, float] = field(default_factory=dict)
    phase: float | None = None
    compared: int = 0
    after: int = 0
    differing: Sequence[int] = ()

    @property
    def identical(self) -> bool:
        """Whether every digest is the undisturbed one; a run that shows none after its fault proves nothing."""
        return self.after > 0 and not self.differing

    def as_json(self) -> Event:
        """Plain JSON."""
        return asdict(self) | {"ms": self.ms if math.isfinite(self.ms) else None, "identical": self.identical}


class Undisturbed:
    """The digests of a job of the same seed and world that nothing happens to, on this host and as fast as it goes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._digests: dict[int, str] = {}

    def up_to(self, step: int) -> Mapping[int, str]:
        """Digests by step, at least up to that one."""
        if step > len(self._digests):
            self._train(max(REFERENCE_STEPS, step * 3 // 2))
        return self._digests

    def _train(self, steps: int) -> None:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            self._run_job(root, steps)
            told: dict[int, list[str]] = {}
            for event in _everything(tail(root / "events")):
                if event["e"] == "step":
                    told.setdefault(event["step"], []).append(event["hash"])
        for step in range(1, steps + 1):
            if len(told.get(step, ())) != SPEC.world or len(set(told[step])) != 1:
                raise SystemExit(f"the undisturbed job's replicas do not agree at step {step}: {told.get(step)}")
        self._digests = {step: digests[0] for step, digests in told.items()}
        print(f"undisturbed reference: {steps} steps in {time.monotonic() - began:.1f} s", flush=True)

    def _run_job(self, root: Path, steps: int) -> None:
        config = {
            "events_dir": str(root / "events"),
            "logs_dir": str(root / "logs"),
            "checkpoint_dir": str(root / "checkpoints"),
            "seed": self._seed,
            "recovery": "none",
            "world": [dict(zip(("node", "gpu"), SPEC.place(rank), strict=True)) for rank in range(SPEC.world)],
            "max_steps": steps,
        }
        (root / "job.json").write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, "-m", launch.JOB, str(root / "job.json")]
        # Its standard input is its lifeline: it ends when we do.
        with (root / "job.log").open("wb") as log:
            job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        with job:
            if job.wait() != 0:
                raise SystemExit(f"the undisturbed job failed:\n{_end_of(root / 'job.log')}")


def _everything(events: Tail) -> Iterator[Event]:
    while fresh := events.poll():
        yield from fresh


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def run_once(name: str, runs: Path, recovery: str, seed: int, reference: Undisturbed) -> Outcome:
    """Run an experiment, and judge it."""
    before = set(runs.iterdir())
    command = [sys.executable, "-m", "chaos", "run", name, "--quiet", "--recovery", recovery]
    command += ["--runs", str(runs), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for path in set(runs.iterdir()) - before:
        folder = RunFolder(path)
        if folder.scorecard.is_file():
            return judge(name, folder, done.returncode, reference)
    said = (done.stdout + done.stderr).strip().splitlines()
    return Outcome(name, "", done.returncode, said[-1] if said else "it said nothing")


def judge(name: str, folder: RunFolder, exit_code: int, reference: Undisturbed) -> Outcome:
    """Read what a run left behind."""
    card = json.loads(folder.scorecard.read_text(encoding="utf-8"))
    steps = [event for event in folder.read_steps() if event.get("e") == "step"]
    effects = [fault["started_ns"] for fault in card["faults"] if fault["started_ns"] is not None]
    outcome = Outcome(name, folder.path.name, exit_code, card["reason"] or "")
    if not effects or not steps:
        return outcome
    rto = card["rto"] or {}
    hashed = [step for step in steps if "hash" in step]
    right = reference.up_to(max(step["step"] for step in steps))
    return Outcome(
        **{key: getattr(outcome, key) for key in ("experiment", "run", "exit_code", "reason")},
        ms=math.inf if rto.get("ms") is None else rto["ms"],
        stages={stage["stage"]: stage["end_ms"] for stage in rto.get("breakdown") or ()},
        phase=_phase(steps, effects[0]),
        compared=len(hashed),
        after=sum(step["t"] > effects[0] for step in hashed),
        differing=sorted({step["step"] for step in hashed if step["hash"] != right[step["step"]]}),
    )


def _phase(steps: Sequence[Event], effect: int) -> float | None:
    """Where in a step the fault hit: the time since a rank last completed one, as a share of the pace."""
    before = [step["t"] for step in steps if step["t"] <= effect]
    return min(1.0, (effect - max(before)) / (STEP_S * 1e9)) if before else None


def run_all(names: Sequence[str], options: argparse.Namespace) -> list[Outcome]:
    """Run the experiments in turn, so that a slow phase of the machine hits all alike."""
    reference = Undisturbed(options.seed)
    found = []
    with tempfile.TemporaryDirectory() if options.keep is None else nullcontext(options.keep) as kept:
        runs = Path(kept)
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, options.runs + 1):
            for name in names:
                told = run_once(name, runs, options.recovery, options.seed, reference)
                found.append(told)
                same = "bit-identical" if told.identical else f"NOT bit-identical at steps {list(told.differing)[:5]}"
                why = "" if told.exit_code == 0 else f"  exit code {told.exit_code}: {told.reason}"
                print(f"  {number:>3}/{options.runs} {name:<10} {told.ms:7.1f} ms  {same}{why}", flush=True)
    return found


def tell(name: str, runs: Sequence[Outcome]) -> bool:
    """Print what the runs of one experiment show; returns whether all marks are met."""
    times = [run.ms for run in runs]
    fast = quantile(times, 0.5) < MEDIAN_MS[name] and max(times) < LONGEST_MS
    show(f"{name}: RTO", times, must=f"median must be < {MEDIAN_MS[name]:g}, all < {LONGEST_MS:g}: {met(fast)}")
    passed = sum(run.exit_code == 0 for run in runs)
    same = sum(run.identical for run in runs)
    print(
        f"  passed {passed} of {len(runs)}; bit-identical in {same} of {len(runs)} runs "
        f"({sum(run.compared for run in runs)} digests, {sum(run.after for run in runs)} of them after the fault)"
    )
    told = [f"{stage} {quantile(ends, 0.5):.1f}" for stage, ends in stages(runs).items()]
    print(f"  medians of the stages, from the fault: {', '.join(told) or 'none'}")
    quarters = Counter(min(3, int(run.phase * 4)) for run in runs if run.phase is not None)
    print(f"  the fault hit each quarter of a step so often: {', '.join(str(quarters[each]) for each in range(4))}")
    return fast and passed == same == len(runs)


def stages(runs: Iterable[Outcome]) -> dict[str, list[float]]:
    """The ends (ms) of each stage, the stages in order of their medians."""
    ends: dict[str, list[float]] = {}
    for run in runs:
        for stage, end in run.stages.items():
            ends.setdefault(stage, []).append(end)
    return dict(sorted(ends.items(), key=lambda item: quantile(item[1], 0.5)))


# -- an undisturbed job in a lab --------------------------------------------------------------------------------------


class Training:
    """A job that runs, and its events as they come.

    Attributes:
        ranks: the hello of each process that has completed a step.
    """

    def __init__(self, job: launch.Job, events: Path, log: Path) -> None:
        self._job = job
        self._events = tail(events)
        self._log = log
        self._hellos: dict[str, Event] = {}
        self.ranks: dict[str, Event] = {}

    def poll(self) -> list[Event]:
        """The events since the last call. Raises SystemExit if the job has ended by itself."""
        fresh = list(_everything(self._events))
        for event in fresh:
            if event["e"] == "hello":
                self._hellos[event["inc"]] = event
            elif event["e"] == "step" and event["inc"] not in self.ranks:
                self.ranks[event["inc"]] = self._hellos[event["inc"]]
        if self._job.ended():
            raise SystemExit(f"the job has ended by itself:\n{_end_of(self._log)}")
        return fresh

    def until(self, end: float) -> Iterator[Event]:
        """The events up to an instant of `time.monotonic`."""
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left))
            yield from self.poll()

    def await_start(self) -> int:
        """Wait until all ranks step; returns the generation that they are in."""
        generation = 0
        end = time.monotonic() + START_S
        while len(self.ranks) < SPEC.world:
            if time.monotonic() > end:
                raise SystemExit(f"the job does not train:\n{_end_of(self._log)}")
            time.sleep(0.05)
            generation = max([generation, *(event["gen"] for event in self.poll() if event["e"] == "step")])
        return generation


@contextmanager
def training(recovery: str, seed: int) -> Iterator[Training]:
    """An undisturbed job in a lab of its own, as `chaos run` starts it."""
    settings = {"seed": seed, "step_s": STEP_S, "checkpoint_every": 50, "hash_every": 1}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        work, logs = Path(folder) / "work", Path(folder) / "logs"
        work.mkdir()
        logs.mkdir()
        lab = stack.enter_context(Lab.up(SPEC, Path(folder) / "lab"))
        job = launch.start(lab, SPEC, recovery=recovery, settings=settings, work=work, logs=logs)
        stack.callback(job.stop)
        yield Training(job, work / "events", logs / "job.log")


# -- 3: false alarms --------------------------------------------------------------------------------------------------

#: Keeps one core busy for as long as its parent lives.
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(1_000_000): pass"


class Vigil:
    """Counts what an undisturbed job must not do, and how evenly it steps.

    Args:
        generation: the one in which it began.

    Attributes:
        alarms: generations that should not be, each with a reason.
        gaps: milliseconds between steps, of every rank.
    """

    def __init__(self, generation: int) -> None:
        self._first = generation
        self._last: dict[str, int] = {}
        self._steps = [0, 0]
        self.alarms: dict[int, str] = {}
        self.gaps = array("d")

    @property
    def steps(self) -> int:
        """Steps that the job has done since."""
        return self._steps[1] - self._steps[0]

    def see(self, event: Event) -> None:
        """Take one event."""
        if event["e"] == "step":
            self._step(event)
        elif event["e"] == "mark" and event["what"] in ("detected", "aborted", "successor", "switched"):
            self._alarm(event["gen"], event["what"] + (f": {event['why']}" if "why" in event else ""))
        elif event["e"] == "member" and event["gen"] > self._first:
            self._alarm(event["gen"], "members changed")

    def _step(self, event: Event) -> None:
        if event["inc"] in self._last:
            self.gaps.append((event["t"] - self._last[event["inc"]]) / MS)
        self._last[event["inc"]] = event["t"]
        self._steps = [self._steps[0] or event["step"], max(self._steps[1], event["step"])]

    def _alarm(self, generation: int, why: str) -> None:
        if generation not in self.alarms:
            print(f"  FALSE ALARM, generation {generation}: {why}", flush=True)
        self.alarms.setdefault(generation, why)


@contextmanager
def busy_cores() -> Iterator[int]:
    """Keep every core that we may use busy, at normal priority; gives how many."""
    cores = len(os.sched_getaffinity(0))
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())]) for _ in range(cores)]
    try:
        yield cores
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def false_alarms(minutes: float, recovery: str, seed: int) -> Event:
    """Watch an undisturbed job on busy cores for so many minutes."""
    with training(recovery, seed) as job:
        vigil = Vigil(job.await_start())
        with busy_cores() as cores:
            began = time.monotonic()
            minute = 1
            for event in job.until(began + minutes * 60):
                vigil.see(event)
                if time.monotonic() - began >= minute * 60:
                    print(f"  {minute} min: {_vigil_so_far(vigil)}", flush=True)
                    minute += 1
            took = (time.monotonic() - began) / 60
    show(f"between steps, {cores} cores kept busy", vigil.gaps or [math.inf])
    good = not vigil.alarms and vigil.steps > 0
    print(f"recovery {recovery}, {took:.1f} min undisturbed: {_vigil_so_far(vigil)} (must be none: {met(good)})")
    return {
        "minutes": took,
        "busy_cores": cores,
        "steps": vigil.steps,
        "false_alarms": {str(generation): why for generation, why in vigil.alarms.items()},
        "largest_gap_ms": max(vigil.gaps, default=None),
        "good": good,
    }


def _vigil_so_far(vigil: Vigil) -> str:
    largest = f"largest gap between steps {max(vigil.gaps, default=math.inf):.0f} ms"
    return f"{vigil.steps} steps, {largest}, {len(vigil.alarms)} false alarms"


# -- 4: the watcher's cost --------------------------------------------------------------------------------------------


class WatcherClock:
    """Reads the CPU time of a rank's threads that watch, from this host.

    The kernel does not know the names that Python gives to threads. But the main thread asks to be scheduled as a batch
    (`pace.compute_in_batches`) when it has started the threads that must react at once, and before any other: these
    alone keep the ordinary policy. Should a thread be called "watcher", it is that one.
    """

    def __init__(self, hello: Event) -> None:
        tasks = Path("/proc") / str(_pid_here(hello)) / "task"
        others = [task for task in tasks.iterdir() if task.name != tasks.parent.name]
        named = [task for task in others if (task / "comm").read_text().strip() == "watcher"]
        self._watch = named or [task for task in others if os.sched_getscheduler(int(task.name)) == os.SCHED_OTHER]
        if not self._watch:
            raise SystemExit(f"no thread of process {tasks.parent.name} is known to watch")
        self.threads = len(self._watch)

    def read(self) -> int:
        """Nanoseconds so far."""
        return sum(int((task / "schedstat").read_text().split()[0]) for task in self._watch)


def _pid_here(hello: Event) -> int:
    """This host's id of the process that said hello in a PID namespace of its own."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            stat = (process / "stat").read_text(encoding="ascii", errors="replace")
            same = int(stat.rpartition(")")[2].split()[19]) == hello["start"]
            if same and (process / "ns/pid").stat().st_ino == hello["pidns"] and _inner(process) == hello["pid"]:
                return int(process.name)
        except OSError:  # it has just ended
            continue
    raise SystemExit(f"process {hello['pid']} of PID namespace {hello['pidns']} is not in /proc")


def _inner(process: Path) -> int:
    """The process's id in its innermost PID namespace."""
    status = (process / "status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))


@dataclass(frozen=True)
class Cost:
    """Of one undisturbed job: milliseconds.

    Attributes:
        steps: steps that were measured, of all ranks.
        watcher: CPU a step, mean of all ranks.
        worst: the same of the rank where it is most.
        threads: how many threads a rank has that watch.
        work: a step without its pacing, median.
    """

    recovery: str
    steps: int
    watcher: float
    worst: float
    threads: int
    work: float


def measure_cost(recovery: str, seconds: float, seed: int) -> Cost:
    """Measure an undisturbed job for so long, a second after its start."""
    with training(recovery, seed) as job:
        job.await_start()
        for _ in job.until(time.monotonic() + 1):
            pass
        clocks = {inc: WatcherClock(hello) for inc, hello in job.ranks.items()}
        since, before = time.monotonic_ns(), {inc: clock.read() for inc, clock in clocks.items()}
        seen = [event for event in job.until(time.monotonic() + seconds) if event["e"] == "step"]
        until, spent = time.monotonic_ns(), {inc: clock.read() - before[inc] for inc, clock in clocks.items()}
        seen += [event for event in job.poll() if event["e"] == "step"]
    seen = [event for event in seen if since <= event["t"] < until]
    steps = Counter(event["inc"] for event in seen)
    each = [spent[inc] / steps[inc] / MS for inc in clocks]
    threads = max(clock.threads for clock in clocks.values())
    work = quantile([event["work_ns"] / MS for event in seen], 0.5)
    return Cost(recovery, len(seen), sum(spent.values()) / len(seen) / MS, max(each), threads, work)


def watcher_cost(seconds: float, recovery: str, seed: int) -> Event:
    """Measure the recovery and none in turn, and print both."""
    costs = [measure_cost(name, seconds / ROUNDS, seed) for _ in range(ROUNDS) for name in (recovery, "none")]
    pace = STEP_S * 1e3
    good = False
    for name in dict.fromkeys((recovery, "none")):
        mine = [cost for cost in costs if cost.recovery == name]
        steps = sum(cost.steps for cost in mine)
        spent = sum(cost.watcher * cost.steps for cost in mine) / steps
        must = ""
        if name == recovery:
            good = spent / pace < WATCHER_SHARE
            must = f" (must be < {WATCHER_SHARE:.0%}: {met(good)})"
        print(
            f"watcher, recovery {name}: {spent:.4f} ms CPU a step = {spent / pace:.2%} of {pace:g} ms{must}; "
            f"worst rank {max(cost.worst for cost in mine):.4f} ms, {mine[0].threads} thread(s), {steps} steps of ranks"
        )
        medians = ", ".join(f"{cost.work:.2f}" for cost in mine)
        print(f"  a step without its pacing, median of each round: {medians} ms (for information)", flush=True)
    return {"rounds": [asdict(cost) for cost in costs], "good": good}


# -- 5: hundreds of generations ---------------------------------------------------------------------------------------

VICTIM, SURVIVOR = 1, 0  # ranks
LOOKS = 5  # so often the processes are looked at
GROWTH = 0.05  # of memory, from the second look to the last


@dataclass(frozen=True)
class Size:
    """Of a process: resident memory (MiB), descriptors, threads."""

    memory: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Size:
        """Of a process of this host."""
        process = Path("/proc") / str(pid)
        status = (process / "status").read_text(encoding="ascii", errors="replace")
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return cls(resident / 1024, len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())))


class Members:
    """Who is which rank, and who the launcher is, as the job tells."""

    def __init__(self, job: Training) -> None:
        self._job = job
        self._hellos: dict[str, Event] = {}
        self._ranks: dict[int, tuple[int, str]] = {}
        self.launcher: Event | None = None
        self.stepping = 0  # the newest generation that has completed a step

    def look(self) -> None:
        """Read what is new."""
        for event in self._job.poll():
            match event["e"]:
                case "hello":
                    self._hellos[event["inc"]] = event
                case "launcher":
                    self.launcher = event
                case "member":
                    self._ranks[event["rank"]] = max(
                        self._ranks.get(event["rank"], (0, "")), (event["gen"], event["inc"])
                    )
                case "step":
                    self.stepping = max(self.stepping, event["gen"])

    def pid(self, rank: int) -> int:
        """This host's id of the process that is a rank now."""
        return _pid_here(self._hellos[self._ranks[rank][1]])

    def until_stepping(self, generation: int) -> None:
        """Wait for a step of that generation or a newer one. Raises SystemExit if none comes."""
        end = time.monotonic() + START_S
        while self.stepping < generation:
            if time.monotonic() > end:
                raise SystemExit(f"generation {generation} completes no step")
            time.sleep(0.01)
            self.look()


def many_generations(count: int, recovery: str, seed: int) -> Event:
    """Kill one rank of a job so often, each time as soon as the job steps again."""
    sizes: list[tuple[Size, Size]] = []
    with training(recovery, seed) as job:
        members = Members(job)
        members.until_stepping(1)
        began = time.monotonic()
        for number in range(count):
            if number % max(1, count // LOOKS) == 0:
                assert members.launcher is not None
                sizes.append((Size.of(members.pid(SURVIVOR)), Size.of(_pid_here(members.launcher))))
                print(f"  after {number} kills: survivor {sizes[-1][0]}, launcher {sizes[-1][1]}", flush=True)
            former = members.stepping
            os.kill(members.pid(VICTIM), signal.SIGKILL)
            members.until_stepping(former + 1)
        took = time.monotonic() - began
    grown = [last.memory / second.memory - 1 for second, last in zip(sizes[1], sizes[-1], strict=True)]
    good = max(grown) < GROWTH
    print(
        f"{count} ranks killed in one job in {took:.0f} s, {members.stepping} generations: from the second look to the "
        f"last the survivor's memory grew by {grown[0]:.1%}, the launcher's by {grown[1]:.1%} "
        f"(must be < {GROWTH:.0%}: {met(good)})"
    )
    told = [{"survivor": asdict(survivor), "launcher": asdict(launcher)} for survivor, launcher in sizes]
    return {"kills": count, "generations": members.stepping, "sizes": told, "good": good}


# -- all of it --------------------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25, help="of each experiment (default: 25)")
    parser.add_argument("--no-runs", dest="runs", action="store_const", const=0, help="no experiments")
    parser.add_argument("--only", nargs="+", choices=MEDIAN_MS, default=list(MEDIAN_MS), help="these experiments alone")
    parser.add_argument("--recovery", default="peer", help="of the job (default: peer)")
    parser.add_argument("--seed", type=int, default=7, help="of all runs: they share one undisturbed reference")
    parser.add_argument("--keep", type=Path, help="folder where the runs stay (default: they are removed)")
    parser.add_argument("--busy-minutes", type=float, default=0, help="how long to wait for false alarms (default: 0)")
    parser.add_argument("--cost-seconds", type=float, default=120, help="with and without recovery each (default: 120)")
    parser.add_argument("--kills", type=int, default=300, help="of a rank, in one job (default: 300; 0: skip)")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] = ()) -> int:
    """Measure. Returns 1 if a mark is missed, else 0."""
    options = parse(arguments)
    results: Event = {"recovery": options.recovery, "seed": options.seed}
    good = []
    if options.runs:
        found = run_all(options.only, options)
        results["runs"] = [run.as_json() for run in found]
        good += [tell(name, [run for run in found if run.experiment == name]) for name in options.only]
    if options.cost_seconds:
        results["cost"] = watcher_cost(options.cost_seconds, options.recovery, options.seed)
        good.append(results["cost"]["good"])
    if options.busy_minutes:
        results["busy"] = false_alarms(options.busy_minutes, options.recovery, options.seed)
        good.append(results["busy"]["good"])
    if options.kills:
        results["generations"] = many_generations(options.kills, options.recovery, options.seed)
        good.append(results["generations"]["good"])
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
