"""The experiments that ship load, and are what their comments say."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chaos.engine.catalogue import catalogue, injectors
from chaos.experiment import Experiment, Fault, load

FOLDER = Path(__file__).parents[2] / "experiments"
NAMES = {
    "container-kill",
    "double-fault",
    "launcher-loss",
    "memory-pressure",
    "node-loss",
    "nvswitch",
    "nvswitch-flap",
    "pcie-throttle",
    "rank-hang",
    "rank-kill",
    "rank-kill-restart",
    "storm",
    "straggler",
    "undisturbed",
}


@pytest.fixture(scope="module")
def shipped() -> dict[str, Experiment]:
    return {path.stem: load(path, catalogue(), {}) for path in sorted(FOLDER.glob("*.yaml"))}


def test_all_of_them_load(shipped: dict[str, Experiment]) -> None:
    assert set(shipped) == NAMES


def test_all_of_them_run_the_same_job_and_hold_the_same_hypothesis(shipped: dict[str, Experiment]) -> None:
    for experiment in shipped.values():
        assert experiment.lab is not None
        assert (experiment.lab.nodes, experiment.lab.gpus, experiment.lab.spare_nodes) == (2, 2, 1)
        assert (experiment.workload.reference, experiment.workload.step) == ("llama-bytes", 0.02)
        assert experiment.steady_state == shipped["undisturbed"].steady_state
    assert len({experiment.name for experiment in shipped.values()}) == len(shipped)


PATH = {"source": "gpu0", "to": "gpu1"}
KILL, STOP = {"signal": "KILL"}, {"signal": "STOP"}
# Of each fault: its kind, target and parameters, when it starts and how long it lasts (s).
Broken = tuple[str, dict[str, Any], dict[str, Any], float, float | None]


def written(fault: Fault) -> dict[str, Any]:
    """Its parameters, without those that the document leaves as they are."""
    defaults = {item.name: item.default for item in dataclasses.fields(injectors()[fault.inject].Params)}
    return {name: value for name, value in fault.with_.items() if value != defaults[name]}


@pytest.mark.parametrize(
    ("name", "recovery", "faults", "nodes"),
    [
        ("nvswitch", "peer", [("fabric.blackhole", {"node": 0}, PATH, 1.0, 0.5)], 1),
        (
            "nvswitch-flap",
            "peer",
            [("fabric.blackhole", {"node": 0}, PATH, after, 0.3) for after in (1.0, 1.65, 2.3, 2.95)],
            1,
        ),
        ("pcie-throttle", "peer", [("pcie.throttle", {"node": 0, "gpu": 1}, {"rate": 20e6}, 1.0, 0.5)], 1),
        (
            "container-kill",
            "peer",
            [
                (
                    "container.signal",
                    {"node": 0},
                    KILL | {"label": "chaos.target=training"},
                    1.0,
                    None,
                )
            ],
            1,
        ),
        ("rank-kill", "peer", [("process.signal", {"rank": 1}, KILL, 1.0, None)], 1),
        ("rank-kill-restart", "restart", [("process.signal", {"rank": 1}, KILL, 1.0, None)], 1),
        ("rank-hang", "peer", [("process.signal", {"rank": 1}, STOP, 1.0, 2.0)], 1),
        (
            "double-fault",
            "peer",
            [("process.signal", {"rank": rank}, KILL, after, None) for rank, after in ((1, 1.0), (2, 1.03))],
            2,
        ),
        (
            "launcher-loss",
            "peer",
            [
                ("process.signal", {"process": "launcher"}, KILL, 1.0, None),
                ("process.signal", {"rank": 1}, KILL, 4.0, None),
            ],
            1,
        ),
        ("straggler", "peer", [("process.limit", {"rank": 1}, {"cpu": 0.1}, 1.0, 0.5)], 1),
        ("memory-pressure", "peer", [("process.oom", {"rank": 1}, {}, 1.0, None)], 1),
        ("node-loss", "peer", [("power.off", {"node": 1}, {}, 1.0, 3.0)], 1),
    ],
)
def test_each_breaks_what_it_says(
    shipped: dict[str, Experiment], name: str, recovery: str, faults: list[Broken], nodes: int
) -> None:
    experiment = shipped[name]
    found = [
        (fault.inject, fault.on.model_dump(exclude_none=True), written(fault), fault.after, fault.for_)
        for fault in experiment.faults
    ]
    assert found == faults
    assert (experiment.workload.recovery, experiment.guards.nodes_at_most) == (recovery, nodes)
    assert experiment.score.rto == 0.8


def test_faults_that_are_meant_to_be_one_are_judged_as_one_and_others_apart(shipped: dict[str, Experiment]) -> None:
    """One that begins within the hold period of the one before belongs to it."""
    for name, experiment in shipped.items():
        gaps = [later.after - each.after - (each.for_ or 0) for each, later in pairwise(experiment.faults)]
        together = name in ("nvswitch-flap", "double-fault")
        assert all((gap <= experiment.score.hold) is together for gap in gaps), name


def test_the_faults_of_the_storm_are_apart_however_they_are_drawn(shipped: dict[str, Experiment]) -> None:
    storm = shipped["storm"]
    spans = sorted(
        (start, start + fault.jitter + (fault.for_ or 0))
        for fault in storm.faults
        for number in range(fault.times or 1)
        for start in [fault.after + number * (fault.every or 0)]
    )
    assert len(spans) == 5 and storm.seed is not None
    assert all(later - end > storm.score.hold for (_, end), (later, _) in pairwise(spans))


def test_the_control_breaks_nothing(shipped: dict[str, Experiment]) -> None:
    assert shipped["undisturbed"].faults == []


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_explains_itself_in_comments_and_says_what_it_is_about(shipped: dict[str, Experiment], name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith("# ")]) >= 3
    assert shipped[name].about.endswith(".")
