"""Faults of processes: signals to a rank of the training job or to its launcher.

A process is held by pidfd and start time, since process ids are reused.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Type

from injectors import kernel
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

_CPU_SAMPLE = 0.03  # seconds between two looks at a process's CPU time


def _whose(target: Dict[str, Any]) -> str:
    """Whose process it is, in words."""
    return f"rank {target['rank']}" if target.get("role") is None else f"the {target['role']}"


def _ancestors() -> List[int]:
    """This process and all those above it: none of them may be hit."""
    found, pid = [], os.getpid()
    while pid > 0:
        found.append(pid)
        fields = kernel.stat_fields(pid)
        pid = int(fields[1]) if fields else 0
    return found


def _child_of_ours(pid: int) -> bool:
    """Whether this process has started it, or one of those above it."""
    while pid > 0:
        fields = kernel.stat_fields(pid)
        pid = int(fields[1]) if fields else 0
        if pid == os.getpid():
            return True
    return False


@dataclass(frozen=True)
class SignalParams:
    """Parameters of ``process.signal``."""

    signal: Literal["KILL", "TERM", "STOP", "INT", "HUP", "SEGV", "ABRT", "USR1", "USR2"] = field(
        metadata={"help": "the signal's name; STOP needs `for:`, and is followed by CONT"}
    )

    def problem(self, duration: Optional[float]) -> Optional[str]:
        """What is wrong with this signal and this `for:`; ``None`` where they fit."""
        if self.signal == "STOP" and duration is None:
            return "a STOP needs `for:`, the time after which the process is continued"
        if self.signal != "STOP" and duration is not None:
            return f"a {self.signal} is over at once: `for:` belongs to STOP alone"
        return None


class Signal:
    """``process.signal``: a signal to a process of the job: KILL (it dies), STOP (it hangs, unreported), TERM..."""

    kind: ClassVar[str] = "process.signal"
    about: ClassVar[str] = "A signal to the process of one rank, or to the launcher: KILL, TERM, STOP for a time, ..."
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
    targets: ClassVar[Tuple[TargetKey, ...]] = ("rank", "process")
    duration: ClassVar[Literal["required", "optional", "none"]] = "optional"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"

    Params: ClassVar[Type[Any]] = SignalParams

    def __init__(self) -> None:
        self._pidfd: Optional[int] = None

    def support(self, params: SignalParams, target: Target) -> Support:
        """Possible on any Linux from 5.3 on, for a process that this user may signal."""
        return Support("real", () if hasattr(os, "pidfd_open") else ("pidfds: Linux 5.3 and Python 3.9 or newer",))

    def plan(self, order: Order) -> UndoRecord:
        """Find the process and make sure that it is the one that is meant."""
        wanted, whose = order.target.process, _whose(asdict(order.target))
        if wanted is None:
            raise InjectorError(f"process.signal: no process of {whose} is known yet: it has not said that it runs")
        here = os.stat("/proc/self/ns/pid").st_ino
        if wanted["pidns"] != here:
            raise InjectorError(f"the process of {whose} is in PID namespace {wanted['pidns']}, this agent in {here}")
        if wanted["pid"] in _ancestors():
            raise InjectorError(f"process {wanted['pid']} is this agent or above it: it is never hit")
        if kernel.start_ticks(wanted["pid"]) != wanted["start"]:
            raise InjectorError(f"the process {wanted['pid']} of {whose} has gone")
        if _child_of_ours(wanted["pid"]):
            raise InjectorError(f"process {wanted['pid']} was started by this agent, such as its guardian: never hit")
        return UndoRecord.of(self, order, {"process": wanted, "state": self._state(wanted)})

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The process: what a second fault does to it would be undone with the first."""
        wanted = order.target.process
        return () if wanted is None else (f"process:{wanted['pidns']}:{wanted['pid']}:{wanted['start']}",)

    def prepare(self, record: UndoRecord) -> None:
        """Open the process's pidfd and make sure once more that it is still that process."""
        wanted = record.before["process"]
        try:
            self._pidfd = os.pidfd_open(wanted["pid"])
        except ProcessLookupError as error:
            raise InjectorError(f"the process {wanted['pid']} has gone") from error
        if kernel.start_ticks(wanted["pid"]) != wanted["start"]:
            raise InjectorError(f"the process {wanted['pid']} has gone, and its id was given to another")

    def inject(self, record: UndoRecord) -> int:
        """Send the signal."""
        assert self._pidfd is not None, "prepare comes first"
        number = signal.Signals[f"SIG{record.params['signal']}"]
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError as error:
            raise InjectorError("the process ended by itself before the signal") from error
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Look at the process: dead, stopped (and using no CPU), or running."""
        wanted = record.before["process"]
        if record.params["signal"] == "STOP":
            return self._witness_stop(wanted, phase, budget)
        if phase == "before":
            alive = kernel.start_ticks(wanted["pid"]) == wanted["start"]
            return Evidence(not alive, f"process {wanted['pid']} {'runs' if alive else 'has gone'}", {"alive": alive})
        started = time.monotonic()
        gone = self._gone_within(wanted, budget)
        waited = time.monotonic() - started
        if phase == "after":  # nothing to undo: what was to happen has happened
            return Evidence(False, "nothing to undo: the signal was over when it was delivered", {"gone": gone})
        if gone:
            return Evidence(True, f"process {wanted['pid']} has ended ({waited * 1000:.1f} ms later)", {"gone": True})
        if record.params["signal"] == "KILL":
            return Evidence(False, f"process {wanted['pid']} still runs {waited * 1000:.0f} ms after SIGKILL", {})
        return self._witness_delivered(wanted, record.params["signal"])

    def _gone_within(self, wanted: Dict[str, int], budget: float) -> bool:
        """Whether it ends within the budget: a pidfd becomes readable when the process has ended, zombie or not."""
        if self._pidfd is None:
            fields = kernel.stat_fields(wanted["pid"])
            return fields is None or fields[0] in "ZX" or int(fields[19]) != wanted["start"]
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
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

    def _witness_stop(self, wanted: Dict[str, int], phase: Phase, budget: float) -> Evidence:
        first = kernel.stat_fields(wanted["pid"])
        time.sleep(min(_CPU_SAMPLE, budget / 2))
        second = kernel.stat_fields(wanted["pid"])
        if first is None or second is None or int(second[19]) != wanted["start"]:
            gone = f"process {wanted['pid']} has gone"
            return Evidence(False if phase == "after" else None, gone, {"alive": False})
        ticks = sum(int(second[k]) - int(first[k]) for k in (11, 12))  # utime and stime
        stopped = second[0] in "Tt"
        text = f"process {wanted['pid']} is in state {second[0]} and used {ticks} ticks of CPU meanwhile"
        return Evidence(stopped and ticks == 0, text, {"state": second[0], "cpu_ticks": ticks})

    @staticmethod
    def _state(wanted: Dict[str, int]) -> str:
        fields = kernel.stat_fields(wanted["pid"])
        return fields[0] if fields else "gone"

    def undo(self, record: UndoRecord) -> int:
        """Continue a stopped process, if it is still the same one; the other signals leave nothing to undo."""
        if record.params["signal"] == "STOP" and record.boot == kernel.boot_id():
            self._continue(record.before["process"])
        return time.monotonic_ns()

    @staticmethod
    def _continue(wanted: Dict[str, int]) -> None:
        try:
            pidfd = os.pidfd_open(wanted["pid"])
        except ProcessLookupError:
            return
        try:
            if kernel.start_ticks(wanted["pid"]) == wanted["start"]:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        except ProcessLookupError:
            return
        finally:
            os.close(pidfd)

    def residue(self, record: UndoRecord) -> List[str]:
        """A process that is still stopped."""
        if record.params["signal"] != "STOP" or record.boot != kernel.boot_id():
            return []
        wanted = record.before["process"]
        fields = kernel.stat_fields(wanted["pid"])
        if fields is None or int(fields[19]) != wanted["start"] or fields[0] not in "Tt":
            return []
        return [f"process {wanted['pid']} ({_whose(record.target)}) is still stopped"]

    def strays(self, target: Target) -> List[Stray]:
        """None: a stopped process bears no mark, and one that somebody else has stopped looks the same."""
        return []

    def clear(self, stray: Stray) -> None:
        """Never called: there are no strays."""
        raise InjectorError(f"process.signal leaves no mark by which {stray.text} could be ours")
