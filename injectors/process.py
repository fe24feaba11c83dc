"""Faults of processes: signals to a rank of the training job, to its launcher, or to what matches on a node.

A process is held by pidfd and start time, since process ids are reused.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Type

from injectors import _processes, kernel
from injectors.contract import (
    Evidence,
    Ground,
    InjectorError,
    Order,
    Phase,
    Reality,
    Stray,
    Support,
    Target,
    TargetKey,
    UndoRecord,
)


@dataclass(frozen=True)
class _What:
    signal: Literal["KILL", "TERM", "STOP", "INT", "HUP", "SEGV", "ABRT", "USR1", "USR2"] = field(
        metadata={"help": "the signal's name; STOP needs `for:`, and is followed by CONT"}
    )


@dataclass(frozen=True)
class SignalParams(_processes.Matching, _What):
    """Parameters of ``process.signal``: the signal and, on a node, which of its processes are meant."""

    def problem(self, duration: Optional[float]) -> Optional[str]:
        """What is wrong with this signal and this `for:`; ``None`` where they fit."""
        return _processes.signal_problem(self.signal, duration)


class Signal:
    """``process.signal``: a signal to processes: KILL (they die), STOP (they hang, unreported), TERM..."""

    kind: ClassVar[str] = "process.signal"
    about: ClassVar[str] = (
        "A signal to the process of one rank, to the launcher, or to processes of a node by arguments, device, "
        "container or job: KILL, TERM, STOP for a time, ..."
    )
    mechanism: ClassVar[str] = "The signal goes through a pidfd to the very process that said that it is the target."
    undoing: ClassVar[str] = "A stopped process is continued with SIGCONT; every other signal leaves nothing to undo."
    proof: ClassVar[str] = "The process is not in a stopped state (/proc/PID/stat), or has gone."
    witnessed: ClassVar[str] = (
        "The process has ended (its pidfd says so), is stopped and uses no CPU, or has been delivered a signal that it "
        "handles (/proc/PID/status)."
    )
    where: ClassVar[Mapping[Ground, Reality]] = {"lab": "real", "node": "real"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]] = {"on": "{rank: 1}", "with": "{signal: STOP}", "for": "2s"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"  # STOP is undone by CONT; the others leave nothing
    targets: ClassVar[Tuple[TargetKey, ...]] = ("rank", "process", "node")
    duration: ClassVar[Literal["required", "optional", "none"]] = "optional"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"

    Params: ClassVar[Type[Any]] = SignalParams

    def __init__(self) -> None:
        self._resolver = _processes.Resolver(self.kind)
        self._pidfds: Dict[int, int] = {}
        self._early: List[int] = []  # of several processes, those that ended before the signal

    def support(self, params: SignalParams, target: Target) -> Support:
        """Possible on any Linux from 5.3 on, for a process that this user may signal."""
        return Support("real", () if hasattr(os, "pidfd_open") else ("pidfds: Linux 5.3 and Python 3.9 or newer",))

    def plan(self, order: Order) -> UndoRecord:
        """Find the processes and make sure that they are those that are meant."""
        found = self._resolver.find(order)
        before = {"processes": list(found.processes), "asked": found.asked, "left_out": list(found.left_out)}
        return UndoRecord.of(self, order, before)

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The processes: what a second fault does to one would be undone with the first."""
        return tuple(f"process:{name}" for name in self._resolver.names(order))

    def prepare(self, record: UndoRecord) -> None:
        """Open the processes' pidfds and make sure once more that they are still those processes."""
        wanted = _held(record)
        for each in wanted:
            try:
                self._open(each)
            except InjectorError:
                if len(wanted) == 1:
                    raise
                self._early.append(each["pid"])
        if wanted and not self._pidfds:
            raise InjectorError("all of the processes have gone")

    def _open(self, wanted: Dict[str, int]) -> None:
        pid = wanted["pid"]
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise InjectorError(f"the process {pid} has gone") from error
        if kernel.start_ticks(pid) != wanted["start"]:
            os.close(pidfd)
            raise InjectorError(f"the process {pid} has gone, and its id was given to another")
        self._pidfds[pid] = pidfd

    def inject(self, record: UndoRecord) -> int:
        """Send the signal to each of them."""
        wanted = _held(record)
        assert self._pidfds or not wanted, "prepare comes first"
        number = signal.Signals[f"SIG{record.params['signal']}"]
        for pid, pidfd in self._pidfds.items():
            try:
                signal.pidfd_send_signal(pidfd, number)
            except ProcessLookupError:
                self._early.append(pid)
        if wanted and len(self._early) == len(wanted):
            ended = "the process" if len(wanted) == 1 else "each of the processes"
            raise InjectorError(f"{ended} ended by itself before the signal")
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Look at each process: dead, stopped (and using no CPU), or running."""
        wanted = [each for each in _held(record) if each["pid"] not in self._early or phase == "after"]
        if not wanted:
            asked = record.before["asked"]
            return Evidence(False, f"no process was there to hit: nothing matched {asked}", {"processes": 0})
        if record.params["signal"] == "STOP":
            seen = _processes.watch_stopped(wanted, phase, budget)
        else:
            end = time.monotonic() + budget
            seen = [self._witness_other(each, record.params["signal"], phase, end) for each in wanted]
        return self._together(wanted, seen)

    def _together(self, wanted: List[Dict[str, int]], seen: List[Evidence]) -> Evidence:
        """What was seen of all of them: each must be hit."""
        if len(seen) == 1 and not self._early:
            return seen[0]
        text = "; ".join(each.text for each in seen)
        if self._early:
            text += f"; ended by itself before the signal: {', '.join(str(pid) for pid in self._early)}"
        numbers = {str(process["pid"]): each.numbers for process, each in zip(wanted, seen)}
        return Evidence(_processes.all_effective(seen), text, {"processes": numbers, "ended_before": self._early})

    def _witness_other(self, wanted: Dict[str, int], name: str, phase: Phase, end: float) -> Evidence:
        if phase == "before":
            alive = kernel.start_ticks(wanted["pid"]) == wanted["start"]
            return Evidence(not alive, f"process {wanted['pid']} {'runs' if alive else 'has gone'}", {"alive": alive})
        started = time.monotonic()
        gone = self._gone_within(wanted, max(0.0, end - started))
        waited = time.monotonic() - started
        if phase == "after":  # nothing to undo: what was to happen has happened
            return Evidence(False, "nothing to undo: the signal was over when it was delivered", {"gone": gone})
        if gone:
            return Evidence(True, f"process {wanted['pid']} has ended ({waited * 1000:.1f} ms later)", {"gone": True})
        if name == "KILL":
            return Evidence(False, f"process {wanted['pid']} still runs {waited * 1000:.0f} ms after SIGKILL", {})
        return self._witness_delivered(wanted, name)

    def _gone_within(self, wanted: Dict[str, int], budget: float) -> bool:
        """Whether it ends within the budget: a pidfd becomes readable when the process has ended, zombie or not."""
        if wanted["pid"] not in self._pidfds:
            return not _processes.runs(wanted)
        poll = select.poll()
        poll.register(self._pidfds[wanted["pid"]], select.POLLIN)
        return bool(poll.poll(budget * 1000))

    @staticmethod
    def _witness_delivered(wanted: Dict[str, int], name: str) -> Evidence:
        """For a signal that a process may survive: it must have been delivered, and not be ignored."""
        bit = 1 << (signal.Signals[f"SIG{name}"] - 1)
        masks = {}
        with open(f"/proc/{wanted['pid']}/status", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key in ("SigPnd", "ShdPnd", "SigIgn", "SigCgt"):
                    masks[key] = bool(int(value, 16) & bit)
        if masks["SigIgn"]:
            return Evidence(False, f"process {wanted['pid']} ignores SIG{name}", masks)
        if masks["SigPnd"] or masks["ShdPnd"]:
            return Evidence(False, f"SIG{name} is still pending at process {wanted['pid']}", masks)
        handled = masks["SigCgt"]
        return Evidence(handled, f"SIG{name} was delivered; process {wanted['pid']} handles it and runs on", masks)

    def undo(self, record: UndoRecord) -> int:
        """Continue each stopped process that is still the same one; the other signals leave nothing to undo."""
        if record.params["signal"] == "STOP" and record.boot == kernel.boot_id():
            for each in _held(record):
                _processes.resume(each)
        return time.monotonic_ns()

    def residue(self, record: UndoRecord) -> List[str]:
        """Each process that is still stopped."""
        if record.params["signal"] != "STOP" or record.boot != kernel.boot_id():
            return []
        stopped = [wanted["pid"] for wanted in _held(record) if _processes.is_stopped(wanted)]
        return [f"process {pid} ({_processes.words(record.target)}) is still stopped" for pid in stopped]

    def strays(self, target: Target) -> List[Stray]:
        """None: a stopped process bears no mark, and one that somebody else has stopped looks the same."""
        return []

    def clear(self, stray: Stray) -> None:
        """Never called: there are no strays."""
        raise InjectorError(f"process.signal leaves no mark by which {stray.text} could be ours")


def _held(record: UndoRecord) -> List[Dict[str, int]]:
    """The processes of a record, also of one from when a fault had one process."""
    before = record.before
    return list(before["processes"]) if "processes" in before else [before["process"]]
