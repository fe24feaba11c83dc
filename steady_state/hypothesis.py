"""The hypothesis: every condition of a phase, measured and judged.

Each probe runs in a thread of its own and is given up at its own time limit, so that one that hangs delays neither
the others nor whoever waits for the phase; it is not started again before it has come back.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from steady_state.contract import Measurement, Probe, ProbeFailed
from steady_state.probes import PROBES
from steady_state.tolerance import Tolerance, of_baseline, show, tolerance
from steady_state.view import WorkloadView

Result = dict[str, Any]
_LONGEST_TEXT = 1000  # characters of a measured text that go into the journal


class Condition(Protocol):
    """A probe with its parameters and a tolerance, all in SI."""

    @property
    def probe(self) -> str:
        """The name of the probe."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The arguments of its ``Params``."""

    @property
    def tolerance(self) -> Mapping[str, Any]:
        """One entry, as ``steady_state.tolerance`` takes it."""

    @property
    def of(self) -> str | None:
        """``"baseline"`` where the tolerance is a ratio of the baseline."""

    @property
    def timeout(self) -> float:
        """Seconds after which the probe has failed."""


class Hold(Condition, Protocol):
    """A condition of the steady state."""

    @property
    def when(self) -> Sequence[str]:
        """The phases in which it must hold: before, during, after."""


class Hypothesis:
    """The steady-state hypothesis of an experiment."""

    def __init__(
        self,
        holds: Sequence[Hold],
        probes: Mapping[str, Probe] = PROBES,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Raises ``ToleranceError``, ``KeyError`` (no such probe) or ``TypeError`` (its parameters)."""
        relative = {key_of(hold): hold for hold in holds if hold.of}
        self._keys = list(relative)
        self._relative = Checks(list(relative.values()), probes, clock)
        phases = {when for hold in holds for when in hold.when}
        self._checks = {
            when: Checks([hold for hold in holds if when in hold.when], probes, clock) for when in sorted(phases)
        }

    def evaluate(self, when: str, view: WorkloadView) -> list[Result]:
        """The results of the conditions that must hold in this phase, in their order (see ``Checks.run``)."""
        checks = self._checks.get(when)
        return checks.run(when, view) if checks else []

    def baseline(self, view: WorkloadView) -> dict[str, float]:
        """What the probes with ``of: baseline`` measure over a view of the undisturbed job, for later views.

        A probe that fails, or measures no finite number, is left out; its conditions then fail for want of a baseline.
        """
        values = zip(self._keys, self._relative.measure(view), strict=True)
        return {key: number for key, measured in values if (number := _finite(measured)) is not None}


class Checks:
    """Conditions that are measured together: those of one phase, or the guards of a run."""

    def __init__(
        self,
        conditions: Sequence[Condition],
        probes: Mapping[str, Probe] = PROBES,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Raises ``ToleranceError``, ``KeyError`` (no such probe) or ``TypeError`` (its parameters)."""
        self._checks = [_Check(condition, probes[condition.probe], clock) for condition in conditions]

    def run(self, when: str, view: WorkloadView) -> list[Result]:
        """Measure all at once and wait for each no longer than its own time limit.

        Returns the journal's ``probe`` events, without their instant: when, probe, tolerance, ok, value, text, error
        (None where the probe measured), ms, evidence. A condition that could not be measured is not ok.
        """
        running = [check.start(view) for check in self._checks]
        return [check.result(run, when) for check, run in zip(self._checks, running, strict=True)]

    def measure(self, view: WorkloadView) -> list[Measurement | None]:
        """What each probe measures, whatever its tolerance; None for one that failed."""
        running = [check.start(view) for check in self._checks]
        return [run.measured if check.wait(run) else None for check, run in zip(self._checks, running, strict=True)]


class _Run:
    """One measurement under way; written by its thread alone until ``done``."""

    def __init__(self, started_ns: int, tolerance: Tolerance) -> None:
        self.started_ns = started_ns
        self.ended_ns = started_ns
        self.tolerance = tolerance
        self.done = threading.Event()
        self.measured: Measurement | None = None
        self.ok = False
        self.text = ""
        self.error: str | None = None


class _Check:
    """One condition with its probe."""

    def __init__(self, condition: Condition, probe: Probe, clock: Callable[[], int]) -> None:
        self._condition = condition
        self._probe = probe
        self._clock = clock
        self._params = probe.Params(**condition.params)
        self._hung: _Run | None = None
        self._tolerance(None)  # a wrong tolerance is told here, not during a run

    def start(self, view: WorkloadView) -> _Run:
        baseline = view.baseline.get(key_of(self._condition)) if self._condition.of else None
        run = _Run(self._clock(), self._tolerance(baseline))
        if self._hung is not None and not self._hung.done.is_set():
            run.error = "the probe still hangs from an earlier time"
            run.done.set()
            return run
        self._hung = run
        thread = threading.Thread(target=self._measure, args=(run, view), name=f"probe {self._probe.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            run.error = f"no thread to run the probe in: {error}"
            run.done.set()
        return run

    def wait(self, run: _Run) -> bool:
        """Whether the run has ended within the condition's time limit."""
        left_ns = run.started_ns + int(self._condition.timeout * 1e9) - self._clock()
        return run.done.wait(max(left_ns, 0) / 1e9)

    def result(self, run: _Run, when: str) -> Result:
        finished = self.wait(run)
        error = run.error if finished else f"no answer within {self._condition.timeout:g} s"
        measured = run.measured if finished else None
        elapsed = (run.ended_ns - run.started_ns) / 1e9 if finished else self._condition.timeout
        return {
            "e": "probe",
            "when": when,
            "probe": self._probe.name,
            "tolerance": str(run.tolerance),
            "ok": finished and run.ok,
            "value": _plain(measured.value) if measured else None,
            "text": error or run.text,
            "error": error,
            "ms": round(elapsed * 1e3, 3),
            "evidence": dict(measured.evidence) if measured else {},
        }

    def _measure(self, run: _Run, view: WorkloadView) -> None:
        try:
            measured = self._probe.measure(self._params, view, self._condition.timeout)
            outcome = run.tolerance.check(measured.value)
            run.ok, run.text = outcome.ok, f"{measured.text}: {outcome.why}"
            run.measured = measured
        except ProbeFailed as failure:
            run.error = str(failure)
        except Exception as error:  # noqa: BLE001 - a probe that breaks has failed, whatever it is that broke
            run.error = f"the probe broke: {type(error).__name__}: {error}"
        finally:
            run.ended_ns = self._clock()
            run.done.set()

    def _tolerance(self, baseline: float | None) -> Tolerance:
        if self._condition.of:
            return of_baseline(self._condition.tolerance, baseline)
        return tolerance(self._condition.tolerance, per_cent=self._probe.value == "ratio")


def key_of(condition: Condition) -> str:
    """The name under which a view's ``baseline`` holds what this condition's probe measured."""
    if not condition.params:
        return condition.probe
    return f"{condition.probe} {json.dumps(dict(condition.params), sort_keys=True, default=str)}"


def _finite(measured: Measurement | None) -> float | None:
    value = measured.value if measured else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _plain(value: object) -> bool | int | float | str | None:
    """The value as JSON has it: one that is not finite as text, a long text cut, a structure told in a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return show(value)
