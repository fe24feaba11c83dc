"""Stands in the storm: a lab that stays, trials on its nodes, and a look into the kernel after each.

What is looked at is the kernel's own state, by other means than the injectors' (whole dumps, /proc), from outside of
the node that was hit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.nftables.main import NFTables

from chaos.lab import namespace
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.transport.pipe import SLACK
from tests.storm.controller import CUT
from tests.storm.weather import LEAD, PARTIES, Party, Strike, Trial

ROOT = Path(__file__).resolve().parents[2]
START_PATIENCE = 60.0  # seconds for a controller to begin, with everything else that the machine does meanwhile
GRACE = 1.0  # seconds after the deadline at which nothing may be left
GPUS = 2
SMALL = "2m"  # of a node's disk
ENDED_BY_KERNEL = "fabric.blackhole: table"
# How the parties show in /proc/PID/cmdline.
AGENTS = (b"chaos.agent.main", b"tests.storm import bugs")
GUARDIAN = b"guardian.main()"


@dataclass
class Outcome:
    """What came of one trial.

    Attributes:
        killed: who was killed.
        dead: the process ids of those, who may take a moment to go, and of who is frozen, who does nothing any more.
        frozen: whether the agent was frozen: what the kernel ends with a process then waits for that.
        survived: parties that were alive after the last blow.
        residue: what was left after the deadline.
        reported, swept: where residue was allowed: whether the next command told of it, and `chaos sweep` cleared it.
        wrong: what must not be, in words.
    """

    trial: Trial
    killed: list[Party] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    frozen: bool = False
    survived: bool = True
    residue: list[str] = field(default_factory=list)
    reported: bool | None = None
    swept: bool | None = None
    wrong: list[str] = field(default_factory=list)

    def excuses(self, what: str) -> bool:
        """Whether this may be left: nobody is alive who could undo it, and the kernel does not.

        Nothing is changed before a guardian watches it; so nothing is left in the kernel where none was killed. What
        the kernel ends goes with the last thread of its process, a moment after its main one.
        """
        unguarded = "guardian" in self.killed or "record" in what
        ended = what.startswith(ENDED_BY_KERNEL) and not self.frozen
        return not self.survived and unguarded and not ended


class Node:
    """One node of the lab, with a process that may be stopped for each of its GPUs."""

    def __init__(self, lab: Lab, number: int, state: Path) -> None:
        self.lab = lab
        self.number = number
        self.state = state
        self.pidns = lab.show()["nodes"][number]["pidns"]
        self.networks = lab.namespaces(number)
        self.ranks = {}
        for gpu in range(GPUS):
            process = lab.spawn(["sleep", "infinity"], node=number, gpu=gpu)
            self.ranks[str(number * GPUS + gpu)] = {
                "pid": process.pid,
                "pidns": self.pidns,
                "node": number,
                "start": self._start_of(process.pid),
            }

    def _start_of(self, pid: int) -> int:
        told = self.lab.run(["cat", f"/proc/{pid}/stat"], node=self.number)
        return int(told.stdout.rpartition(b")")[2].split()[19])

    def inside(self) -> Iterator[tuple[int, bytes]]:
        """Every process of the node: its id out here, and its command line."""
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                with contextlib.suppress(OSError):
                    if (each / "ns/pid").stat().st_ino == self.pidns:
                        yield int(each.name), (each / "cmdline").read_bytes().replace(b"\0", b" ")

    def party(self, party: Party) -> list[int]:
        """The living processes of a party on this node."""
        marks = (GUARDIAN,) if party == "guardian" else AGENTS
        return [pid for pid, line in self.inside() if any(mark in line for mark in marks) and not is_dead(pid)]

    def residue(self) -> list[str]:
        """What of any fault is left: in the kernel, and on the disk."""
        return [*self._tables(), *self._qdiscs(), *self._stopped(), *self._records()]

    def _tables(self) -> Iterator[str]:
        with namespace.inside_network(self.networks["nvswitch"]):
            nft = NFTables(nfgen_family=7)
        try:
            for table in nft.get_tables():
                yield f"fabric.blackhole: table {table.get_attr('NFTA_TABLE_NAME')}"
        finally:
            nft.close()

    def _qdiscs(self) -> Iterator[str]:
        for name in ("net", "nvswitch", *(f"gpu{gpu}" for gpu in range(GPUS))):
            with namespace.inside_network(self.networks[name]), IPRoute() as net:
                for qdisc in net.get_qdiscs():
                    if qdisc.get_attr("TCA_KIND") != "noqueue":
                        yield f"pcie.throttle: {qdisc.get_attr('TCA_KIND')} {qdisc['handle']:x} in {name}"

    def _stopped(self) -> Iterator[str]:
        for pid, line in self.inside():
            if line.startswith(b"sleep"):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt":
                        yield f"process.signal: process {pid} is stopped"

    def _records(self) -> Iterator[str]:
        folder = self.state / "faults"
        if folder.is_dir():
            for each in folder.iterdir():
                kind = "a record"
                with contextlib.suppress(OSError, ValueError, KeyError):
                    kind = json.loads(each.read_text())["kind"]
                yield f"{kind}: the record {each.name}"

    def locked(self) -> list[str]:
        """Devices of this node that are still locked."""
        return [each.name for each in (self.lab.directory / "run/locks").glob("*") if is_locked(each, self)]


def is_locked(path: Path, node: Node) -> bool:
    """Whether a device of a node is locked: its name tells the namespace that it is in."""
    inodes = {os.fstat(fd).st_ino for fd in node.networks.values()}
    if not any(str(inode) in path.name for inode in inodes):
        return False
    with contextlib.suppress(OSError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_dead(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def document(trial: Trial, node: int, nodes: int) -> str:
    """The trial's faults as an experiment."""
    faults = []
    for number, fault in enumerate(trial.faults):
        match fault.kind:
            case "fabric.blackhole":
                what = f"on: {{node: {node}}}, with: {{from: gpu0, to: gpu1}}"
            case "pcie.throttle":
                what = f"on: {{node: {node}, gpu: {fault.gpu}}}, with: {{rate: 50Mbit/s}}"
            case "process.signal":
                what = f"on: {{rank: {node * GPUS + fault.gpu}}}, with: {{signal: STOP}}"
        timing = f"after: {round(LEAD * 1000) + number}ms, for: {round(fault.length * 1000)}ms"
        faults.append(f"  - {{name: f{number}, inject: {fault.kind}, {what}, {timing}}}")
    return (
        f"experiment: storm\nlab: {{nodes: {nodes}, gpus: {GPUS}}}\nworkload: {{reference: llama-bytes}}\nfaults:\n"
        + "\n".join(faults)
        + "\n"
    )


class Storm:
    """A lab, and trials on all of its nodes at once.

    Args:
        agent: Python code that runs in the place of the agent, to plant a bug; None is the agent as it is.
    """

    def __init__(self, folder: Path, lab: Lab, nodes: list[Node], *, seed: int, agent: str | None) -> None:
        self._folder = folder
        self._lab = lab
        self._nodes = nodes
        self._seed = seed
        self._agent = agent
        self.environment = os.environ | {"CHAOS_STORE": str(folder / "store.sqlite"), "PYTHONPATH": str(ROOT)}

    @classmethod
    @contextlib.contextmanager
    def gather(cls, folder: Path, *, nodes: int, seed: int, agent: str | None = None) -> Iterator[Storm]:
        """Bring up a lab that stays, whose nodes have small disks of their own."""
        lab_folder = folder / "lab"
        states = [lab_folder / f"node{number}" for number in range(nodes)]
        with contextlib.ExitStack() as stack:
            for state in states:
                state.mkdir(parents=True)
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "chaos-storm", str(state)], check=True)
                stack.callback(subprocess.run, ["umount", "--lazy", str(state)], check=True)
            lab = Lab.up(LabSpec(nodes, GPUS, 0), lab_folder, stays=True)
            stack.callback(lab.close)
            made = [Node(lab, number, state) for number, state in enumerate(states)]
            for node in made:
                stack.callback(lambda node: [os.close(fd) for fd in node.networks.values()], node)
            yield cls(folder, lab, made, seed=seed, agent=agent)

    def blow(self, trials: list[Trial]) -> list[Outcome]:
        """Run these trials, several at a time."""
        waiting: queue.SimpleQueue[Trial | None] = queue.SimpleQueue()
        for trial in [*trials, *([None] * len(self._nodes))]:
            waiting.put(trial)
        outcomes: list[Outcome] = []

        def stand(node: Node) -> None:
            while (trial := waiting.get()) is not None:
                outcomes.append(self._one(trial, node))

        threads = [threading.Thread(target=stand, args=(node,)) for node in self._nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(outcomes, key=lambda outcome: outcome.trial.number)

    # -- one trial ---------------------------------------------------------------------------------------------------

    def _one(self, trial: Trial, node: Node) -> Outcome:
        folder = Path(tempfile.mkdtemp(prefix=f"trial{trial.number}-", dir=self._folder))
        outcome = Outcome(trial)
        controller = self._start(trial, node, folder)
        try:
            promised = self._promised(folder, controller)
            for strike in trial.strikes:
                time.sleep(max(0.0, promised + strike.at - time.monotonic()))
                self._strike(strike, node, controller, outcome)
            self._look(outcome, node, controller, promised, folder)
        except Exception as error:  # noqa: BLE001 - a storm goes on; what went wrong in it is told at its end
            outcome.wrong.append(f"the trial itself failed: {type(error).__name__}: {error}")
        finally:
            controller.kill()
            controller.wait()
            (node.state / "ballast").unlink(missing_ok=True)
        log = node.state / "guardian.log"
        if log.exists():
            (folder / log.name).write_bytes(log.read_bytes())
            log.unlink()
        self._clear(outcome, node)
        return outcome

    def _start(self, trial: Trial, node: Node, folder: Path) -> subprocess.Popen[bytes]:
        config = {
            "lab": str(self._lab.directory),
            "folder": str(folder),
            "document": document(trial, node.number, len(self._nodes)),
            "seed": self._seed,
            "ranks": node.ranks,
            "flaky": trial.flaky,
            "agent": self._agent,
        }
        (folder / "config.json").write_text(json.dumps(config | {"trial": asdict(trial)}, indent=1))
        with (folder / "controller.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.storm.controller", str(folder / "config.json")],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @staticmethod
    def _promised(folder: Path, controller: subprocess.Popen[bytes]) -> float:
        """Wait for the trial's first promise; when it was given, on the monotonic clock, in seconds."""
        end = time.monotonic() + START_PATIENCE
        journal = folder / "journal.jsonl"
        while time.monotonic() < end:
            if journal.exists():
                for line in journal.read_text().splitlines():
                    if '"what": "promised"' in line:
                        return float(json.loads(line)["t"]) / 1e9
            if controller.poll() is not None:
                raise AssertionError(f"the controller ended: {(folder / 'controller.log').read_text()[-2000:]}")
            time.sleep(0.005)
        raise AssertionError("nothing was promised")

    def _strike(self, strike: Strike, node: Node, controller: subprocess.Popen[bytes], outcome: Outcome) -> None:
        if strike.blow == "fill":
            with contextlib.suppress(OSError), (node.state / "ballast").open("wb", buffering=0) as ballast:
                while True:
                    ballast.write(b"x" * 4096)
        elif strike.blow == "cut":
            if controller.poll() is None:
                controller.send_signal(CUT)
        else:
            assert strike.party is not None
            number = signal.SIGKILL if strike.blow == "kill" else signal.SIGSTOP
            if strike.party == "controller":
                victims = [] if controller.poll() is not None else [controller.pid]
            else:
                victims = node.party(strike.party)
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, number)
                    outcome.dead.add(victim)
                    outcome.frozen |= (strike.blow, strike.party) == ("freeze", "agent")
                    if strike.blow == "kill":
                        outcome.killed.append(strike.party)

    def _look(
        self, outcome: Outcome, node: Node, controller: subprocess.Popen[bytes], promised: float, folder: Path
    ) -> None:
        """Wait until nobody is left who could do anything, or the deadline has passed by the grace; then look."""
        alive = self._alive(node, controller, outcome.dead)
        outcome.survived = bool(alive)
        length = max(fault.length for fault in outcome.trial.faults)
        end = promised + LEAD + length + SLACK + GRACE
        while True:
            nobody = not self._alive(node, controller, set())
            outcome.residue = node.residue()
            unexcused = [what for what in outcome.residue if not outcome.excuses(what)]
            if time.monotonic() > end or (nobody and not unexcused):
                break
            time.sleep(0.05)
        if not outcome.residue:
            return
        if unexcused:
            outcome.wrong.append(f"left after the deadline, with {', '.join(alive) or 'nobody'} alive: {unexcused}")
        # With all three dead, and nothing in the kernel that ends it: the next command tells, and a sweep clears it.
        # A process that was killed keeps its locks until the last of its threads has gone.
        for _ in range(3):
            told = self._chaos(node, "runs")
            outcome.reported = all(name in told.stdout.decode() for name in records_of(outcome.residue))
            if outcome.reported:
                break
            time.sleep(0.2)
        if not outcome.reported and not outcome.survived:
            outcome.wrong.append(f"the next command does not tell of {outcome.residue}: {told.stdout.decode()}")

    @staticmethod
    def _alive(node: Node, controller: subprocess.Popen[bytes], dead: set[int]) -> list[str]:
        """Who is there, but for these processes."""
        parties = [party for party in PARTIES[1:] if set(node.party(party)) - dead]
        there = controller.poll() is None and controller.pid not in dead
        return [*(["controller"] if there else []), *parties]

    def _clear(self, outcome: Outcome, node: Node) -> None:
        """Sweep what is left, and begin anew."""
        for party in ("agent", "guardian"):
            for pid in node.party(party):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if not outcome.residue and not node.residue():
            return
        swept = self._chaos(node, "sweep")
        outcome.swept = not node.residue()
        if not outcome.swept or swept.returncode != 0:
            outcome.wrong.append(f"a sweep leaves {node.residue()}: {swept.returncode} {swept.stdout.decode()}")

    def _chaos(self, node: Node, *words: str) -> subprocess.CompletedProcess[bytes]:
        return self._lab.run([sys.executable, "-m", "chaos", *words], node=node.number, env=self.environment, cwd="/")

    def sweep_all(self) -> subprocess.CompletedProcess[bytes]:
        """`chaos sweep --all`, from outside of the lab: afterwards no promise is open."""
        return subprocess.run(
            [sys.executable, "-m", "chaos", "sweep", "--all"],
            env=self.environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )


def records_of(residue: list[str]) -> list[str]:
    """The ids of the faults whose records are left."""
    return [what.rpartition(" ")[2].removesuffix(".json") for what in residue if "the record" in what]
