"""Drawing a run: seeded chance, ids, limits."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from chaos.engine import plan
from chaos.engine.catalogue import catalogue, injectors
from chaos.engine.cluster import HEAD
from chaos.engine.errors import InputError
from chaos.engine.faults import holder_of
from chaos.experiment import Experiment, loads

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

# What process.signal may be told beside the signal, as it is where a document says nothing.
OTHERS = {
    item.name: item.default
    for item in dataclasses.fields(injectors()["process.signal"].Params)
    if item.name != "signal"
}


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


KILL = "inject: process.signal, with: {signal: KILL}"


def names(faults: str, seed: int = 1) -> list[str]:
    return [fault.spec.name for fault in plan.draw(experiment(faults), NOW, seed).faults]


def test_each_occurrence_at_each_target_is_a_fault_with_a_name_and_an_id_of_its_own():
    faults = f"[{{name: kill, {KILL}, on: {{rank: [0, 3]}}, after: 1s, every: 2s, times: 2}}]"
    drawn = plan.draw(experiment(faults), NOW, 1)
    found = [(fault.spec.name, fault.spec.on.rank, fault.spec.after) for fault in drawn.faults]
    assert found == [("kill/rank0", 0, 1), ("kill/rank3", 3, 1), ("kill@2/rank0", 0, 3), ("kill@2/rank3", 3, 3)]
    assert [fault.id for fault in drawn.faults] == [f"{drawn.run}-{number}" for number in range(4)]
    assert drawn.faults[3].as_json() == {
        "id": f"{drawn.run}-3",
        "name": "kill@2/rank3",
        "kind": "process.signal",
        "target": {"rank": 3},
        "params": {"signal": "KILL", **OTHERS},
        "after_s": 3.0,
        "for_s": None,
        "drawn": True,
    }


def test_a_fault_that_is_single_keeps_its_name():
    assert names(f"[{{name: kill, {KILL}, on: {{rank: 3}}, after: 1s}}]") == ["kill"]
    repeated = f"[{{name: kill, {KILL}, on: {{process: launcher}}, after: 1s, every: 2s, times: 2}}]"
    assert names(repeated) == ["kill", "kill@2"]


PICKED = f"{{name: a, {KILL}, on: {{rank: all}}, pick: 50%, after: 1s, every: 2s, times: 30, jitter: 1s}}"


def test_targets_are_picked_anew_for_each_occurrence():
    drawn = plan.draw(experiment(f"[{PICKED}]"), NOW, 1).faults
    pairs = [{first.spec.on.rank, second.spec.on.rank} for first, second in zip(drawn[::2], drawn[1::2], strict=True)]
    assert len(pairs) == 30 and all(len(pair) == 2 for pair in pairs)
    assert {frozenset(pair) for pair in pairs} == {frozenset((a, b)) for a in range(4) for b in range(a)}  # all six


def test_each_occurrence_starts_up_to_its_jitter_later_and_all_its_targets_at_once():
    drawn = plan.draw(experiment(f"[{PICKED}]"), NOW, 1).faults
    late = [fault.spec.after - (1 + 2 * (number // 2)) for number, fault in enumerate(drawn)]
    assert late[::2] == late[1::2]
    assert all(0 <= each < 1 for each in late)
    assert min(late) < 0.2 and max(late) > 0.8


def test_probability_is_drawn_for_each_occurrence():
    fault = f"{{name: a, {KILL}, on: {{rank: [0, 1]}}, after: 1s, every: 2s, times: 40, probability: 50%}}"
    drawn = [each.drawn for each in plan.draw(experiment(f"[{fault}]"), NOW, 1).faults]
    assert drawn[::2] == drawn[1::2]  # an occurrence happens at all of its targets, or not at all
    assert 10 < sum(drawn[::2]) < 30


def test_editing_one_fault_does_not_change_the_luck_of_the_others():
    other = f"{{name: b, {KILL}, on: {{rank: all}}, pick: 3, after: 9s, every: 1s, times: 9, jitter: 500ms}}"

    def luck(faults: str) -> list[dict[str, object]]:
        planned = [fault.as_json() for fault in plan.draw(experiment(faults), NOW, 1).faults]
        return [{key: fault[key] for key in fault if key != "id"} for fault in planned if fault["name"].startswith("a")]

    alone = luck(f"[{PICKED}]")
    assert luck(f"[{other}, {PICKED}]") == alone
    assert luck(f"[{PICKED.replace('times: 30', 'times: 31')}]")[: len(alone)] == alone


def test_the_same_seed_draws_the_same_in_every_version():
    """What a journal recorded can be repeated later: these were drawn when this test was written."""
    drawn = plan.draw(experiment(f"[{PICKED}]"), NOW, 7).faults[:4]
    assert [(fault.spec.name, fault.spec.after) for fault in drawn] == [
        ("a/rank0", 1.117522),
        ("a/rank1", 1.117522),
        ("a@2/rank1", 3.259554),
        ("a@2/rank3", 3.259554),
    ]


@pytest.mark.parametrize(
    ("guards", "fault", "problem"),
    [
        (
            "nodes_at_most: 1",
            f"{KILL}, on: {{rank: all}}, pick: 1, after: 1s, every: 2s, times: 9",
            r"the faults touch 2 nodes \(node 0, node 1\), guards\.nodes_at_most allows 1: allow that many, or aim",
        ),
        (
            "devices_at_most: 1",
            f"{KILL}, on: {{rank: [0, 1]}}, pick: 1, after: 1s, every: 2s, times: 9",
            r"the faults touch 2 GPUs \(0:gpu0, 0:gpu1\), guards\.devices_at_most allows 1",
        ),
        (
            "share_at_most: 50%",
            f"{KILL}, on: {{rank: all}}, pick: 1, after: 1s, every: 2s, times: 9",
            r"the faults touch 2 of the job's 2 nodes \(100%\), guards\.share_at_most allows 50%",
        ),
        (
            "at_once_at_most: 1",
            "inject: power.off, on: {node: [0, 1]}, after: 1s, for: 1s, jitter: 500ms",
            r"2 faults are in effect at once \(1\.\d+s after the gate\), guards\.at_once_at_most allows 1",
        ),
        (
            "protect: {nodes: [0]}",
            f"{KILL}, on: {{rank: all}}, pick: 1, after: 1s, every: 2s, times: 9",
            r"fault '.*/rank[01]' touches node 0, which guards\.protect forbids: aim elsewhere",
        ),
        (
            "allowed: {from: 04:00, to: 05:00}",  # it is 03:04:05
            f"{KILL}, on: {{rank: 1}}, after: 1s",
            r"the run may last from Fri 03:04 to Fri 03:05 UTC, guards\.allowed has 04:00 to 05:00 UTC: start in",
        ),
        (
            "allowed: {from: 03:00, to: 03:05}",  # the job may take a minute to start, its baseline takes 5 s
            f"{KILL}, on: {{rank: 1}}, after: 1s",
            r"guards\.allowed has 03:00 to 03:05 UTC",
        ),
    ],
)
def test_a_plan_that_passes_a_limit_is_refused(guards, fault, problem):
    """What only the draw decides: the document is fine."""
    document = experiment(f"[{{{fault}}}]", f"guards: {{{guards}}}")
    with pytest.raises(InputError, match=problem):
        plan.draw(document, NOW, 1)


def test_a_fault_that_chance_leaves_out_reaches_no_limit():
    document = experiment(kills("0%"), "guards: {nodes_at_most: 0, at_once_at_most: 0, protect: {labels: [job]}}")
    assert plan.draw(document, NOW, 1).drawn == ()


def test_a_plan_within_its_limits_says_what_it_reaches():
    guards = "guards: {nodes_at_most: 1, share_at_most: 50%, protect: {nodes: [1]}, allowed: {from: 03:00, to: 04:00}}"
    document = experiment(f"[{{{KILL}, on: {{rank: [0, 1]}}, after: 1s}}]", guards)
    limits = plan.reached(plan.draw(document, NOW, 1), NOW)
    assert [(each.guard, each.reached, each.allowed, each.problem) for each in limits] == [
        ("nodes_at_most", "1 (node 0)", "1", None),
        ("devices_at_most", "2 (0:gpu0, 0:gpu1)", None, None),
        ("share_at_most", "1 of the job's 2 nodes (50%)", "50%", None),
        ("at_once_at_most", "2 (1s after the gate)", None, None),
        ("protect", "none touched", "not node 1", None),
        ("allowed", "Fri 03:04 to Fri 03:05 UTC", "03:00 to 04:00 UTC", None),
    ]


def test_more_faults_than_one_run_can_hold_are_refused():
    fault = f"{{{KILL}, on: {{rank: all}}, after: 1s, every: 10ms, times: 251}}"
    with pytest.raises(InputError, match="asks for 1004 faults; 1000 are possible in one run"):
        plan.draw(experiment(f"[{fault}]"), NOW)


def test_a_cluster_that_is_no_lab_is_refused_for_now():
    document = experiment("[]").model_copy(update={"cluster": "site.yaml"})
    with pytest.raises(InputError, match=r"site\.yaml"):
        plan.draw(document, NOW)
