"""One fault's life on its node: armed, fired at its instant, witnessed, ended, proven gone.

Each fault has a thread of its own, so that none waits for another; the main loop only rings it.
"""

from __future__ import annotations

import importlib
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any, Callable, List, Optional

from chaos.agent.clock import Bell, real_time
from chaos.agent.protocol import Message
from chaos.agent.records import Records
from injectors import kernel
from injectors.contract import Evidence, Injector, InjectorError, Order, Phase, Target, UndoRecord

SLACK = 5.0  # seconds after a fault's scheduled end at which anybody may undo it
WITNESS_BUDGET = 0.1
# A signal's or a power cut's effect may take a while to show; a fault without an end has the time.
PATIENT_BUDGET = 2.0
UNDO_RETRIES = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)  # seconds before each attempt

Emit = Callable[[Message], None]


def load(implementation: str) -> Injector:
    """An injector by ``module:Class``.

    Raises:
        InjectorError: there is none of that name here.
    """
    module, _, name = implementation.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise InjectorError(f"this agent has no injector {implementation}: {error}") from error
    return made  # type: ignore[no-any-return]


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


class Holder(threading.Thread):
    """The thread of one fault.

    Args:
        job: what was asked for.
        records: where its undo record goes.
        emit: sends a message to the controller; must not raise when the controller has gone.
    """

    def __init__(self, job: Job, records: Records, emit: Emit) -> None:
        super().__init__(name=f"fault {job.fault}")
        self.job = job
        self._records = records
        self._emit = emit
        self._bell = Bell()
        self._fire_at: Optional[int] = None
        self.refused = False  # before anything was written or made: the id may be used again
        self._stop_asked = False

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
                self._live(*armed)
        finally:
            self._bell.close()

    def _arm(self) -> Optional[tuple[Injector, UndoRecord]]:
        job = self.job
        try:
            injector = load(job.implementation)
            order = Order(job.fault, injector.Params(**job.params), Target(**job.target), job.duration)
            record = injector.plan(order)
            record.boot, record.owner = kernel.boot_id(), job.owner
            record.deadline_ns = self._deadline(job.at)
            self._records.write(record)
        except Exception as error:  # noqa: BLE001 - whatever it is, the controller must hear it; nothing was changed
            self.refused = True
            self._emit({"re": job.request, "error": _describe(error)})
            return None
        try:
            injector.prepare(record)
            evidence = injector.witness(record, "before", WITNESS_BUDGET)
        except Exception as error:  # noqa: BLE001 - as above, but something may have been changed
            self._emit({"re": job.request, "error": _describe(error)})
            self._undo(injector, record)
            return None
        self._emit({"re": job.request, "record": record.as_dict(), "evidence": _as_json(evidence)})
        return injector, record

    def _live(self, injector: Injector, record: UndoRecord) -> None:
        try:
            if self._ordered(record):
                # Ahead of all ordinary threads from before the effect to after the end: not the firing alone must be
                # exact, and a witness that a busy machine holds up would delay the end.
                with real_time():
                    self._be_in_effect(injector, record)
        except Exception as error:  # noqa: BLE001 - an injector of a site may raise anything; the undo comes first
            self._event("failed", error=_describe(error))
        self._undo(injector, record)

    def _deadline(self, at_ns: int) -> int:
        return at_ns + int(((self.job.duration or 0) + SLACK) * 1e9)

    def _ordered(self, record: UndoRecord) -> bool:
        """Wait for the order to fire; false if the fault was disarmed before."""
        while self._fire_at is None:
            if self._stop_asked:
                return False
            self._bell.wait()
        if self._fire_at > self.job.at:  # later than was planned when the record was written
            record.deadline_ns = self._deadline(self._fire_at)
            self._records.write(record)
        return True

    def _be_in_effect(self, injector: Injector, record: UndoRecord) -> None:
        """Fire at the instant, witness the effect, and end it at its own instant, counted from the effect."""
        scheduled = self._fire_at
        assert scheduled is not None
        while not self._stop_asked and self._bell.wait(scheduled):
            pass
        if self._stop_asked:
            return
        effect = injector.inject(record)
        self._event("fired", scheduled_ns=scheduled, effect_ns=effect)
        if self.job.duration is None:
            self._witness(injector, record, "during", PATIENT_BUDGET)
            return
        end = effect + int(self.job.duration * 1e9)
        # Measuring may take half of the time there is, so that it does not delay the end.
        self._witness(injector, record, "during", min(PATIENT_BUDGET, (end - time.monotonic_ns()) / 2e9))
        while not self._stop_asked and self._bell.wait(end):
            pass
        ended = injector.undo(record)
        self._event("ended", scheduled_ns=end, ended_ns=ended, early=self._stop_asked)

    def _undo(self, injector: Injector, record: UndoRecord) -> None:
        """Undo, as often as it takes, prove it, and only then forget the record."""
        left: List[str] = ["not undone yet"]
        for pause in UNDO_RETRIES:
            time.sleep(pause)
            try:
                injector.undo(record)
                left = injector.residue(record)
            except Exception as error:  # noqa: BLE001 - an undo that fails is tried again
                left = [f"the undo failed: {_describe(error)}"]
            if not left:
                break
        self._witness(injector, record, "after", WITNESS_BUDGET)
        if not left:
            try:
                self._records.remove(record.fault)
            except OSError as error:
                left = [f"the undo record cannot be removed: {error.strerror}"]
        self._event("undone", residue=left)

    def _witness(self, injector: Injector, record: UndoRecord, phase: Phase, budget: float) -> None:
        try:
            evidence = injector.witness(record, phase, budget)
        except Exception as error:  # noqa: BLE001 - a witness that fails has seen nothing
            evidence = Evidence(None, f"not measured: {_describe(error)}")
        self._event("witness", phase=phase, **_as_json(evidence))

    def _event(self, what: str, **fields: Any) -> None:
        self._emit({"event": what, "fault": self.job.fault, **fields})


def undo_orphan(record: UndoRecord, records: Records) -> List[str]:
    """Undo a fault whose holder died, from its record alone. Returns what is left."""
    injector = load(record.implementation)
    injector.undo(record)
    left = injector.residue(record)
    if not left:
        records.remove(record.fault)
    return left


def _as_json(evidence: Evidence) -> Message:
    return {"effective": evidence.effective, "text": evidence.text, "numbers": evidence.numbers}


def _describe(error: BaseException) -> str:
    """An error for the controller: our own say what they mean, others need their name; the trace goes to stderr."""
    if isinstance(error, InjectorError):
        return str(error)
    traceback.print_exception(type(error), error, error.__traceback__)
    return f"{type(error).__name__}: {error}"
