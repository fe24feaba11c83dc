"""The experiments that ship load, and are what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.experiment import Catalogue, Experiment, load

FOLDER = Path(__file__).parents[2] / "experiments"
NAMES = {
    "node-loss",
    "nvswitch",
    "rank-hang",
    "rank-kill",
    "rank-kill-restart",
    "undisturbed",
}


@pytest.fixture(scope="module")
def shipped(catalogue: Catalogue) -> dict[str, Experiment]:
    return {path.stem: load(path, catalogue, {}) for path in sorted(FOLDER.glob("*.yaml"))}


def test_all_of_them_load(shipped: dict[str, Experiment]) -> None:
    assert set(shipped) == NAMES


def test_all_of_them_run_the_same_job_and_hold_the_same_hypothesis(shipped: dict[str, Experiment]) -> None:
    for experiment in shipped.values():
        assert experiment.lab is not None
        assert (experiment.lab.nodes, experiment.lab.gpus, experiment.lab.spare_nodes) == (2, 2, 1)
        assert (experiment.workload.reference, experiment.workload.step) == ("llama-bytes", 0.02)
        assert experiment.steady_state == shipped["undisturbed"].steady_state
    assert len({experiment.name for experiment in shipped.values()}) == len(shipped)


@pytest.mark.parametrize(
    ("name", "kind", "target", "parameters", "duration", "recovery"),
    [
        (
            "nvswitch",
            "fabric.blackhole",
            {"node": 0},
            {"source": "gpu0", "to": "gpu1", "direction": "both"},
            0.5,
            "checkpoint",
        ),
        ("rank-kill", "process.signal", {"rank": 1}, {"signal": "KILL"}, None, "checkpoint"),
        ("rank-kill-restart", "process.signal", {"rank": 1}, {"signal": "KILL"}, None, "restart"),
        ("rank-hang", "process.signal", {"rank": 1}, {"signal": "STOP"}, 2.0, "checkpoint"),
        ("node-loss", "power.off", {"node": 1}, {}, 3.0, "checkpoint"),
    ],
)
def test_each_breaks_what_it_says(
    shipped: dict[str, Experiment],
    name: str,
    kind: str,
    target: dict[str, int],
    parameters: dict[str, str],
    duration: float | None,
    recovery: str,
) -> None:
    experiment = shipped[name]
    (fault,) = experiment.faults
    assert (fault.inject, fault.after, fault.for_, fault.with_) == (kind, 1.0, duration, parameters)
    assert fault.on.model_dump(exclude_none=True) == target
    assert (experiment.workload.recovery, experiment.guards.nodes_at_most) == (recovery, 1)


def test_the_control_breaks_nothing(shipped: dict[str, Experiment]) -> None:
    assert shipped["undisturbed"].faults == []


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_explains_itself_in_comments_and_says_what_it_is_about(shipped: dict[str, Experiment], name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith("# ")]) >= 3
    assert shipped[name].about.endswith(".")
