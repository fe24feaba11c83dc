"""The hypothesis: every condition of a phase judged, and no probe that can hold it up or bring it down."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from workload_views import SECOND, View, steady

from steady_state import PROBES, Checks, Hypothesis, Measurement, Probe, ProbeFailed, ToleranceError

LONG = 60.0


@dataclass(frozen=True)
class Condition:
    probe: str
    tolerance: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)
    of: str | None = None
    when: tuple[str, ...] = ("before", "after")
    timeout: float = LONG


@dataclass(frozen=True)
class NoParams:
    pass


class Scripted:
    """A probe that does what the test says."""

    name = "scripted"
    about = "what the test says"
    value = "any"
    Params = NoParams

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def measure(self, _params: NoParams, _view: View, _timeout: float, /) -> Measurement:
        return Measurement(self.act(), "scripted", {"figure": 1})


def scripted(act: Callable[[], Any]) -> dict[str, Probe]:
    return {**PROBES, "scripted": Scripted(act)}  # type: ignore[dict-item]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hung probe waits for; opened when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_each_phase_judges_its_own_conditions_in_their_order() -> None:
    hypothesis = Hypothesis(
        [
            Condition("workload.alive", {"is": True}),
            Condition("workload.loss", {"is": "finite"}, when=("during",)),
            Condition("workload.loss", {"at_most": 1.0}, when=("before", "during", "after")),
        ]
    )
    view = View(steady(100))
    found = {when: hypothesis.evaluate(when, view) for when in ("before", "during", "after", "guard")}
    assert {when: [(one["probe"], one["ok"]) for one in results] for when, results in found.items()} == {
        "before": [("workload.alive", True), ("workload.loss", False)],
        "during": [("workload.loss", True), ("workload.loss", False)],
        "after": [("workload.alive", True), ("workload.loss", False)],
        "guard": [],
    }


def test_a_result_is_the_journals_event() -> None:
    ticks = iter(range(0, 10**9, 5_000_000))
    checks = Checks([Condition("workload.loss", {"at_most": 1.5})], clock=lambda: next(ticks))
    (result,) = checks.run("after", View(steady(100)))
    assert result.pop("ms") > 0
    assert result == {
        "e": "probe",
        "when": "after",
        "probe": "workload.loss",
        "tolerance": "at most 1.5",
        "ok": False,
        "value": 2.0,
        "text": "loss 2 over 4 members: 2 is not at most 1.5",
        "error": None,
        "evidence": {"members": 4},
    }


def test_throughput_is_judged_against_the_baseline() -> None:
    hold = Condition("workload.throughput", {"at_least": 0.95}, of="baseline", when=("after",))
    hypothesis = Hypothesis([hold])
    baseline = hypothesis.baseline(View(steady(500)))
    assert baseline == {"workload.throughput": pytest.approx(50.0)}
    (well,) = hypothesis.evaluate("after", View(steady(500, every=20_500_000), baseline=baseline))
    (slow,) = hypothesis.evaluate("after", View(steady(500, every=22_000_000), baseline=baseline))
    assert (well["ok"], slow["ok"]) == (True, False)
    assert slow["text"] == "45.45 steps/s: 90.9091% is not at least 95% of the baseline's 50"
    assert slow["tolerance"] == "at least 95% of baseline"


def test_without_a_baseline_a_share_of_it_fails() -> None:
    hypothesis = Hypothesis([Condition("workload.throughput", {"at_least": 0.95}, of="baseline")])
    (result,) = hypothesis.evaluate("before", View(steady(500)))
    assert (result["ok"], result["error"]) == (False, None)
    assert "nothing was measured during the baseline" in result["text"]


@pytest.mark.parametrize("act", [lambda: float("nan"), lambda: None, lambda: True, lambda: "5", lambda: 10**400])
def test_a_baseline_that_is_no_finite_number_is_none(act: Callable[[], Any]) -> None:
    hypothesis = Hypothesis([Condition("scripted", {"at_least": 0.5}, of="baseline")], scripted(act))
    assert hypothesis.baseline(View()) == {}


def test_the_same_probe_with_other_parameters_has_its_own_baseline() -> None:
    argv = {value: {"argv": ["/bin/echo", value], "value": "stdout_number"} for value in ("4", "8")}
    holds = [Condition("command", {"at_least": 1.0}, params=params, of="baseline") for params in argv.values()]
    hypothesis = Hypothesis(holds)
    baseline = hypothesis.baseline(View())
    assert sorted(baseline.values()) == [4.0, 8.0]
    assert [one["ok"] for one in hypothesis.evaluate("after", View(baseline=baseline))] == [True, True]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "text", [1], {"a": 1}, True, 10**4200])
def test_whatever_a_probe_measures_is_a_typed_outcome_that_json_can_hold(value: object) -> None:
    """Cases 22 and 40: nothing and NaN against a range raised, and took the run down."""
    (result,) = Checks([Condition("scripted", {"between": [1, 2]})], scripted(lambda: value)).run("after", View())
    assert (result["ok"], result["error"]) == (False, None)
    json.dumps(result, allow_nan=False)


def failing(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ProbeFailed("nothing compared"), "nothing compared"),
        (ZeroDivisionError("division by zero"), "the probe broke: ZeroDivisionError: division by zero"),
        (RecursionError("too deep"), "the probe broke: RecursionError: too deep"),
    ],
)
def test_a_probe_that_fails_has_failed_and_nothing_more(error: BaseException, text: str) -> None:
    """Cases 37 (a failed probe counted as passed) and 39 (a failure taken for an error of the tool)."""
    conditions = [Condition("scripted", {"is": None}), Condition("workload.alive", {"is": True})]
    broken, well = Checks(conditions, scripted(failing(error))).run("after", View(steady(10)))
    assert (broken["ok"], broken["value"], broken["error"], broken["text"]) == (False, None, text, text)
    assert well["ok"]


def test_a_failed_measurement_does_not_trip_a_guard() -> None:
    (result,) = Checks([Condition("scripted", {"is": False})], scripted(failing(ProbeFailed("gone")))).run(
        "guard", View()
    )
    assert (result["when"], result["ok"]) == ("guard", False)


def test_a_hung_probe_fails_at_its_own_time_limit_and_delays_nobody(gate: threading.Event) -> None:
    """Cases 23 (a hung probe delayed the rollback) and 37 (a long time-out made a failed probe pass)."""
    conditions = [Condition("scripted", {"is": None}, timeout=0.05), Condition("workload.alive", {"is": True})]
    hung, well = Checks(conditions, scripted(gate.wait)).run("after", View(steady(10)))
    assert not gate.is_set()  # it still hangs, and the results are here
    assert (hung["ok"], hung["error"], hung["ms"]) == (False, "no answer within 0.05 s", 50.0)
    assert well["ok"]


def test_a_probe_that_still_hangs_is_not_started_again(gate: threading.Event) -> None:
    started = threading.Semaphore(0)
    ended = threading.Event()

    def act() -> None:
        started.release()
        gate.wait()
        ended.set()

    checks = Checks([Condition("scripted", {"is": None}, timeout=0.05)], scripted(act))
    assert checks.run("during", View())[0]["error"] == "no answer within 0.05 s"
    assert checks.run("during", View())[0]["error"] == "the probe still hangs from an earlier time"
    assert started.acquire(blocking=False) and not started.acquire(blocking=False)
    gate.set()
    assert ended.wait(LONG)
    while checks.run("during", View())[0]["error"] is not None:  # until its thread has ended too
        continue


def test_probes_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=LONG)
    conditions = [Condition("scripted", {"one_of": [0, 1, 2]})] * 3
    results = Checks(conditions, scripted(barrier.wait)).run("after", View())
    assert [result["ok"] for result in results] == [True, True, True]


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        (Condition("workload.loss", {"between": [3, 1]}), ToleranceError),
        (Condition("workload.loss", {"is": "finite"}, of="baseline"), ToleranceError),
        (Condition("no.such.probe", {"is": 1}), KeyError),
        (Condition("workload.alive", {"is": True}, params={"withing": 1.0}), TypeError),
    ],
)
def test_a_condition_that_cannot_be_judged_is_told_before_the_run(condition: Condition, error: type[Exception]) -> None:
    with pytest.raises(error):
        Hypothesis([condition])


def test_replicas_that_were_not_compared_fail_the_hypothesis() -> None:
    (result,) = Checks([Condition("workload.replicas_agree", {"at_least": 0.9999})]).run(
        "after", View(steady(100), now_ns=10 * SECOND)
    )
    assert (result["ok"], result["tolerance"]) == (False, "at least 99.99%")
    assert result["error"].startswith("nothing compared")
