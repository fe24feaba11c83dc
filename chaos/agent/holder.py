"""One fault's life on its node: armed, fired at its instant, witnessed, ended, proven gone.

Each fault has a thread of its own, so that none waits for another; the main loop only rings it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from chaos import __version__
from chaos.agent import protocol, undo
from chaos.agent.clock import Bell, real_time
from chaos.agent.guard import Guard
from chaos.agent.locks import DeviceBusy, DeviceLocks, Locks
from chaos.agent.protocol import Message
from chaos.agent.records import Held, RecordGone, Records
from chaos.agent.undo import describe, load
from injectors import kernel
from injectors.contract import Evidence, Injector, InjectorError, Order, Phase, Target, UndoRecord

WITNESS_BUDGET = 0.1
_LOCK_AGAIN = 0.005  # seconds
# A signal's or a power cut's effect may take a while to show; a fault without an end has the time.
PATIENT_BUDGET = 2.0

Emit = Callable[[Message], None]


@dataclass(frozen=True)
class Node:
    """What all faults of a node share."""

    records: Records
    locks: DeviceLocks
    guard: Guard
    # By fault, from when it was asked for until it has its devices: its instant, and the devices once they are known.
    waiting: Dict[str, Tuple[int, Optional[Tuple[str, ...]]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What ``arm`` asked for."""

    request: int
    implementation: str
    fault: str
    params: Message
    target: Message
    duration: Optional[float]
    at: int
    owner: str
    hold_on_eof: bool

    @classmethod
    def of(cls, message: Message) -> Job:
        """Read an ``arm`` request.

        Raises:
            KeyError: something is missing in it.
        """
        return cls(
            request=message["id"],
            implementation=message["implementation"],
            fault=message["fault"],
            params=message["params"],
            target=message["target"],
            duration=message["duration"],
            at=message["at"],
            owner=message["owner"],
            hold_on_eof=message.get("on_eof") == "hold",
        )


@dataclass(frozen=True)
class _Armed:
    injector: Injector
    held: Held
    locks: Locks

    @property
    def record(self) -> UndoRecord:
        return self.held.record


class Holder(threading.Thread):
    """The thread of one fault.

    Args:
        job: what was asked for.
        node: where its undo record goes, and who else watches it.
        emit: sends a message to the controller; must not raise when the controller has gone.
    """

    def __init__(self, job: Job, node: Node, emit: Emit) -> None:
        super().__init__(name=f"fault {job.fault}")
        self.job = job
        self._node = node
        self._emit = emit
        self._bell = Bell()
        self._fire_at: Optional[int] = None
        self.refused = False  # before anything was written or made: the id may be used again
        self._stop_asked = False
        node.waiting[job.fault] = (job.at, None)

    # -- asked by the main loop --------------------------------------------------------------------------------------

    def fire(self, at_ns: int) -> None:
        """Make the fault at this instant (now, if it has passed)."""
        self._fire_at = at_ns
        self._bell.ring()

    @property
    def ordered(self) -> bool:
        """Whether the order to fire has come: without it, nothing will ever end this thread but ``stop``."""
        return self._fire_at is not None

    def stop(self) -> None:
        """End the fault now, or never make it."""
        self._stop_asked = True
        self._bell.ring()

    # -- the thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The fault's whole life."""
        try:
            armed = self._arm()
            if armed is not None:
                self._live(armed)
        finally:
            self._bell.close()

    def _arm(self) -> Optional[_Armed]:
        try:
            armed = self._promise()
        except Exception as error:  # noqa: BLE001 - whatever it is, the controller must hear it; nothing was changed
            self.refused = True
            self._emit({"re": self.job.request, "error": describe(error)})
            return None
        try:
            armed.injector.prepare(armed.record)
            evidence = armed.injector.witness(armed.record, "before", WITNESS_BUDGET)
        except Exception as error:  # noqa: BLE001 - as above, but something may have been changed
            self._emit({"re": self.job.request, "error": describe(error)})
            self._undo(armed)
            return None
        answer = {"re": self.job.request, "record": armed.record.as_dict(), "evidence": _as_json(evidence)}
        self._emit({**answer, "guardian": self._node.guard.pid})
        return armed

    def _promise(self) -> _Armed:
        """Lock the fault's devices, plan it, write its record and have it watched: all of it, or nothing."""
        job = self.job
        with contextlib.ExitStack() as on_failure:
            try:
                injector = load(job.implementation)
                order = Order(job.fault, injector.Params(**job.params), Target(**job.target), job.duration)
                locks = self._lock(injector, order)
            finally:
                del self._node.waiting[job.fault]
            on_failure.callback(locks.release)
            record = injector.plan(order)
            record.boot, record.owner, record.agent = kernel.boot_id(), job.owner, __version__
            record.deadline_ns = job.at + int(((job.duration or 0) + protocol.SLACK) * 1e9)
            held = self._node.records.write(record)
            on_failure.callback(_forget, held)
            self._node.guard.watch(held, locks)
            on_failure.pop_all()
        return _Armed(injector, held, locks)

    def _lock(self, injector: Injector, order: Order) -> Locks:
        """Lock the devices; where an earlier fault of the same run still has one, when that has ended."""
        try:
            devices = injector.devices(order)
        except Exception:
            injector.plan(order)  # says better what is wrong with the target
            raise
        self._node.waiting[order.fault] = (self.job.at, devices)
        while True:
            try:
                if not self._is_next(devices):
                    raise DeviceBusy("an earlier fault of the same run waits for the same device", self.job.owner)
                return self._node.locks.take(devices, order.fault, self.job.owner)
            except DeviceBusy as busy:
                if busy.owner != self.job.owner or self._stop_asked or time.monotonic_ns() > self.job.at:
                    raise
                time.sleep(_LOCK_AGAIN)

    def _is_next(self, devices: Tuple[str, ...]) -> bool:
        """Whether nobody waits for one of these devices, or may yet do so, for an earlier instant."""
        others = list(self._node.waiting.values())
        return all(
            at >= self.job.at or (theirs is not None and not set(devices) & set(theirs)) for at, theirs in others
        )

    def _live(self, armed: _Armed) -> None:
        try:
            if self._ordered():
                # Ahead of all ordinary threads from before the effect to after the end: not the firing alone must be
                # exact, and a witness that a busy machine holds up would delay the end.
                with real_time():
                    self._be_in_effect(armed)
        except Exception as error:  # noqa: BLE001 - an injector of a site may raise anything; the undo comes first
            self._event("failed", error=describe(error))
        self._undo(armed)

    def _ordered(self) -> bool:
        """Wait for the order to fire; false if the fault was disarmed before."""
        while self._fire_at is None:
            if self._stop_asked:
                return False
            self._bell.wait()
        return True

    def _be_in_effect(self, armed: _Armed) -> None:
        """Fire at the instant, witness the effect, and end it at its own instant, counted from the effect."""
        scheduled = self._fire_at
        assert scheduled is not None
        while not self._stop_asked and self._bell.wait(scheduled):
            pass
        if self._stop_asked:
            return
        injector, record = armed.injector, armed.record
        with armed.held.working():
            late = (time.monotonic_ns() - self.job.at) / 1e9
            if late > protocol.LATEST:
                raise InjectorError(f"the fault was not made: its instant had passed {late:.1f} s ago")
            effect = injector.inject(record)
        self._event("fired", scheduled_ns=scheduled, effect_ns=effect)
        if self.job.duration is None:
            self._witness(armed, "during", PATIENT_BUDGET)
            return
        end = effect + int(self.job.duration * 1e9)
        # Measuring may take half of the time there is, so that it does not delay the end.
        self._witness(armed, "during", min(PATIENT_BUDGET, (end - time.monotonic_ns()) / 2e9))
        while not self._stop_asked and self._bell.wait(end):
            pass
        with armed.held.working():
            ended = injector.undo(record)
        self._event("ended", scheduled_ns=end, ended_ns=ended, early=self._stop_asked)

    def _undo(self, armed: _Armed) -> None:
        """Undo, prove it, and only then forget the record; what we cannot undo the guardian goes on with."""
        left: List[str] = []
        for pause in undo.RETRIES:
            time.sleep(pause)
            left = self._attempt(armed)
            if not left:
                break
        self._witness(armed, "after", WITNESS_BUDGET)
        left = left or self._remove(armed.held)
        if left:
            self._node.guard.leave(self.job.fault)
            armed.locks.close()
        else:
            self._node.guard.forget(self.job.fault)
            armed.locks.release()
        armed.held.close()
        self._event("undone", residue=left)

    @staticmethod
    def _attempt(armed: _Armed) -> List[str]:
        try:
            with armed.held.working():
                armed.injector.undo(armed.record)
                return armed.injector.residue(armed.record)
        except RecordGone:
            return []
        except Exception as error:  # noqa: BLE001 - an undo that fails is tried again
            return [f"the undo failed: {describe(error)}"]

    @staticmethod
    def _remove(held: Held) -> List[str]:
        try:
            with held.working():
                held.remove()
        except RecordGone:
            pass
        except (OSError, InjectorError) as error:
            return [f"the undo record cannot be removed: {getattr(error, 'strerror', None) or error}"]
        return []

    def _witness(self, armed: _Armed, phase: Phase, budget: float) -> None:
        try:
            evidence = armed.injector.witness(armed.record, phase, budget)
        except Exception as error:  # noqa: BLE001 - a witness that fails has seen nothing
            evidence = Evidence(None, f"not measured: {describe(error)}")
        self._event("witness", phase=phase, **_as_json(evidence))

    def _event(self, what: str, **fields: Any) -> None:
        self._emit({"event": what, "fault": self.job.fault, **fields})


def _forget(held: Held) -> None:
    """A promise that could not be given: nothing was made."""
    with contextlib.suppress(OSError, InjectorError):
        held.remove()
    held.close()


def _as_json(evidence: Evidence) -> Message:
    return {"effective": evidence.effective, "text": evidence.text, "numbers": evidence.numbers}
