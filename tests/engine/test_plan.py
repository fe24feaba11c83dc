"""Drawing a run: seeded chance, ids, limits."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chaos.engine import plan
from chaos.engine.agents import HEAD
from chaos.engine.catalogue import catalogue
from chaos.engine.errors import InputError
from chaos.engine.faults import holder_of
from chaos.experiment import Experiment, loads

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def experiment(faults: str, more: str = "") -> Experiment:
    text = f"""
experiment: drawn
cluster: lab
lab: {{nodes: 2, gpus: 2}}
workload: {{reference: llama-bytes, step: 20ms}}
faults: {faults}
{more}
"""
    return loads(text, catalogue(), {})


def kills(probability: str, count: int = 40) -> str:
    each = f"{{inject: process.signal, on: {{rank: 1}}, with: {{signal: KILL}}, after: 1s, probability: {probability}}}"
    return "[" + ", ".join([each] * count) + "]"


def test_the_same_seed_draws_the_same_faults_and_another_draws_others():
    document = experiment(kills("50%"))
    drawn = [[fault.drawn for fault in plan.draw(document, NOW, seed).faults] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(("probability", "expected"), [("0%", 0), ("100%", 40)])
def test_probability_nought_never_hits_and_certainty_always_does(probability, expected):
    """CASES 63: probability 0 still hits."""
    for seed in range(20):
        assert len(plan.draw(experiment(kills(probability)), NOW, seed).drawn) == expected


def test_a_seed_is_drawn_and_recorded_where_none_is_given():
    assert plan.draw(experiment("[]"), NOW).seed != plan.draw(experiment("[]"), NOW).seed
    assert plan.draw(experiment("[]", "seed: 5"), NOW).seed == 5
    assert plan.draw(experiment("[]", "seed: 5"), NOW, 6).seed == 6


def test_every_fault_has_an_id_of_its_own():
    """CASES 8 and 17."""
    ids = [fault.id for _ in range(3) for fault in plan.draw(experiment(kills("100%")), NOW, 1).faults]
    assert len(set(ids)) == len(ids)


def test_a_rank_is_found_on_the_node_on_which_it_starts():
    faults = "[{inject: process.signal, on: {rank: 3}, with: {signal: KILL}, after: 1s}]"
    drawn = plan.draw(experiment(faults), NOW, 1)
    assert drawn.node_of(drawn.faults[0]) == 1


LAUNCHER = "[{name: a, inject: process.signal, on: {process: launcher}, with: {signal: KILL}, after: 1s}]"


def test_the_launcher_is_on_no_node_and_counts_as_none():
    drawn = plan.draw(experiment(LAUNCHER, "guards: {nodes_at_most: 0}"), NOW, 1)
    (fault,) = drawn.faults
    assert drawn.node_of(fault) is None
    assert fault.as_json()["target"] == {"process": "launcher"}
    assert holder_of(drawn, fault) == HEAD


def test_a_recovery_that_leaves_no_launcher_to_aim_at_is_refused():
    """The recovery may be overridden after the document was loaded."""
    document = experiment(LAUNCHER)
    restart = document.workload.model_copy(update={"recovery": "restart"})
    with pytest.raises(
        InputError, match="fault 'a' is aimed at the launcher, but a job with recovery restart has none"
    ):
        plan.draw(document.model_copy(update={"workload": restart}), NOW)


def test_a_cluster_that_is_no_lab_is_refused_for_now():
    document = experiment("[]").model_copy(update={"cluster": "site.yaml"})
    with pytest.raises(InputError, match=r"site\.yaml"):
        plan.draw(document, NOW)
