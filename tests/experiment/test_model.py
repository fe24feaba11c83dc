"""The experiment as a model: what a document becomes, its defaults, and what is refused of its shape."""

from __future__ import annotations

import pytest
from experiment_documents import Load, Refused
from pydantic import ValidationError

from chaos.experiment import Experiment, Fault, Hold, LabSpec, Score, StopIf, Target, Workload


def test_a_document_becomes_si(load_text: Load) -> None:
    experiment = load_text(
        """
experiment: everything
about: All keys.
cluster: lab
lab: {nodes: 2, gpus: 2, spare_nodes: 1}
workload:
  reference: llama-bytes
  recovery: restart
  step: 20ms
  checkpoint_every: 25
  hash_every: 2
  seed: 3
steady_state:
  baseline: 5s
  hold:
    - {probe: workload.throughput, at_least: 95%, of: baseline, when: [before, during, after], timeout: 500ms}
    - {probe: workload.alive, is: true, within: 1500ms}
faults:
  - name: blackhole
    inject: fabric.blackhole
    on: {node: 0}
    with: {from: gpu0, to: gpu1}
    after: 2s
    for: 500ms
    probability: 50%
guards:
  nodes_at_most: 1
  stop_if: {probe: workload.alive, is: false, for: 30s}
score: {rto: 800ms, recovered_at: 90%, consistency: 99.9%, hold: 3s, require: demonstrated}
settle: 2s
at_most: 1h30m
recover_within: 20s
seed: 7
""",
        whole=True,
    )
    assert experiment == Experiment(
        name="everything",
        about="All keys.",
        cluster="lab",
        lab=LabSpec(nodes=2, gpus=2, spare_nodes=1),
        workload=Workload(
            reference="llama-bytes", recovery="restart", step=0.02, checkpoint_every=25, hash_every=2, seed=3
        ),
        steady_state={
            "baseline": 5,
            "hold": [
                Hold(
                    probe="workload.throughput",
                    tolerance={"at_least": 0.95},
                    of="baseline",
                    when=["before", "during", "after"],
                    timeout=0.5,
                ),
                Hold(probe="workload.alive", params={"within": 1.5}, tolerance={"is": True}),
            ],
        },
        faults=[
            Fault(
                name="blackhole",
                inject="fabric.blackhole",
                on=Target(node=0),
                with_={"source": "gpu0", "to": "gpu1", "direction": "both"},
                after=2,
                for_=0.5,
                probability=0.5,
            )
        ],
        guards={
            "nodes_at_most": 1,
            "stop_if": [
                StopIf(probe="workload.alive", params={"within": 2.0}, tolerance={"is": False}, for_=30),
            ],
        },
        score=Score(rto=0.8, recovered_at=0.9, consistency=0.999, hold=3, require="demonstrated"),
        settle=2,
        at_most=5400,
        recover_within=20,
        seed=7,
    )


def test_the_smallest_document_gets_the_defaults(load_text: Load) -> None:
    experiment = load_text()
    assert (experiment.cluster, experiment.about, experiment.faults, experiment.seed) == ("lab", "", [], None)
    assert (experiment.settle, experiment.at_most, experiment.recover_within) == (1, 120, 10)
    assert (experiment.steady_state.baseline, experiment.steady_state.hold) == (5, [])
    assert experiment.score == Score(rto=0.8, recovered_at=0.95, consistency=0.9999, hold=2, require="observed")
    assert (experiment.workload.checkpoint_every, experiment.workload.hash_every) == (50, 1)
    assert (experiment.guards.nodes_at_most, experiment.guards.stop_if) == (None, [])


def test_an_experiment_survives_json(load_text: Load) -> None:
    experiment = load_text(
        "faults: [{inject: power.off, on: {node: 1}, after: 1s, for: 3s}]\n"
        "guards: {stop_if: {probe: workload.alive, is: false}}\n"
    )
    dumped = experiment.model_dump(mode="json")
    assert dumped["faults"][0]["for_"] == 3.0
    assert Experiment.model_validate(dumped) == experiment


def test_an_experiment_cannot_be_changed(load_text: Load) -> None:
    with pytest.raises(ValidationError):
        load_text().settle = 5  # type: ignore[misc]


@pytest.mark.parametrize("value", [True, "5s", float("nan"), -1.0])
def test_in_python_a_quantity_is_a_finite_si_number(value: object) -> None:
    with pytest.raises(ValidationError):
        Score.model_validate({"rto": value})


def test_ranks_are_numbered_over_the_nodes_that_are_not_spare() -> None:
    lab = LabSpec(nodes=2, gpus=4, spare_nodes=1)
    assert (lab.all_nodes, lab.ranks) == (3, 8)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("abuot: x", "4:1: unknown key 'abuot'; did you mean 'about'?"),
        ("name: x", "4:1: unknown key 'name'; write one of about, at_most,"),
        ("score: {rtoo: 1s}", "4:9: unknown key 'rtoo'; did you mean 'rto'?"),
        ("score: {rto: 1}", "4:14: found '1' without a unit; write 1s or 1ms"),
        ("score: {rto: 0}", "4:14: found 0; write a duration above zero"),
        ("score: {rto: 95%}", "4:14: found '95%', a ratio; write a duration such as"),
        ("score: {rto: .nan}", "4:14: found 'nan', which is not a finite number"),
        ("score: {rto: 99999999999d}", "4:14: found '99999999999d', which is more than can be held"),
        ("score: {recovered_at: 0.95}", "4:23: found '0.95' without a unit; write 0.95%"),
        ("score: {recovered_at: 101%}", "4:23: found '101%'; write at most 100%"),
        ("score: {require: proven}", "4:18: found 'proven'; write observed or demonstrated"),
        ("score:", "4:1: found nothing; write a mapping"),
        ("score: []", "4:8: found a list; write a mapping"),
        ("seed: true", "4:7: found true; write a whole number"),
        ("seed: 1.5", "4:7: found 1.5; write a whole number"),
        ("seed: -1", "4:7: found -1; write 0 or more"),
        ("seed: 9223372036854775808", "4:7: found 9223372036854775808; write less than 9223372036854775808"),
        ("about: 5", "4:8: found 5; write text, in quotes: '5'"),
        ("about: [a]", "4:8: found a list; write text"),
        ("faults: {}", "4:9: found a mapping; write a list"),
        ("faults: [5]", "4:10: found 5; write a mapping"),
        ("guards: {nodes_at_most: many}", "4:25: found 'many'; write a whole number"),
        ("guards: {stop_if: [5]}", "4:20: found 5; write a mapping"),
        ("steady_state: {hold: {}}", "4:22: found a mapping; write a list"),
        ("steady_state: {baseline: -5s}", "4:26: found '-5s', which is negative; write a duration of 0 or more"),
        ("settle: 1:30", "4:9: found '1:30', where ':' is no unit of a duration"),
        ("settle: yes", "4:9: found 'yes'; write a duration such as"),
    ],
)
def test_a_wrong_shape_is_told_with_its_place_and_its_remedy(refused: Refused, lines: str, problem: str) -> None:
    """Cases 42, 43 (a misspelt key passed) and 44 (no unit, null)."""
    (found,) = refused(lines + "\n")
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("experiment: x\nlab: {nodes: 1, gpus: 1}\n", "1:1: found no 'workload'; write it: the training job"),
        ("experiment: x\nworkload: {reference: llama-bytes}\n", "1:1: found no 'lab'; write its size"),
        ("experiment: x y\nlab: {nodes: 1, gpus: 1}\nworkload: {command: [a]}\n", "1:13: found 'x y'; write a name"),
        ("experiment: ../x\nlab: {nodes: 1, gpus: 1}\nworkload: {command: [a]}\n", "1:13: found '../x'"),
        (
            "experiment: x\ncluster: site.yaml\nlab: {nodes: 1, gpus: 1}\nworkload: {command: [a]}\n",
            "3:1: found 'lab' beside cluster 'site.yaml'; leave one of them out",
        ),
        (
            "experiment: x\nlab: {nodes: 0, gpus: 1}\nworkload: {command: [a]}\n",
            "2:14: found 0; write 1 or more",
        ),
        (
            "experiment: x\nlab: {nodes: true, gpus: 1}\nworkload: {command: [a]}\n",
            "2:14: found true; write a whole number",
        ),
    ],
)
def test_a_document_says_what_runs_where(refused: Refused, text: str, problem: str) -> None:
    (found,) = refused(text, whole=True)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("workload", "problem"),
    [
        ("{}", "3:11: found none of 'reference', 'command' and 'attach'; write one of them"),
        ("{reference: llama-bytes, command: [a]}", "3:11: found reference and command of 'reference', 'command'"),
        ("{command: python train.py}", "3:21: found 'python train.py'; write a list"),
        ("{command: []}", "3:21: found a list; write at least one entry"),
        ("{command: [a, 5]}", "3:25: found 5; write text, in quotes: '5'"),
        ("{command: [a], step: 20ms}", "3:11: found step beside 'command'; only the reference trainer has it"),
        ("{attach: {events: ranks}}", "3:29: found 'ranks'; write an absolute path"),
        ("{attach: {events: /e}, step: 20ms}", "3:11: found step beside 'attach'; only the reference trainer has it"),
        ("{reference: llama-bytes, recovery: spare}", "3:46: found 'spare'; write none, restart, checkpoint or peer"),
        ("{reference: llama-bytes, hash_every: 0}", "3:48: found 0; write 1 or more"),
    ],
)
def test_a_workload_is_one_job(refused: Refused, workload: str, problem: str) -> None:
    text = f"experiment: x\nlab: {{nodes: 1, gpus: 1}}\nworkload: {workload}\n"
    (found,) = refused(text, whole=True)
    assert found.startswith(problem)


def test_another_cluster_needs_no_lab(load_text: Load) -> None:
    text = (
        "experiment: x\ncluster: site.yaml\nworkload: {command: [a]}\n"
        "faults: [{inject: process.signal, on: {rank: 900}, with: {signal: KILL}, after: 0}]\n"
    )
    experiment = load_text(text, whole=True)
    assert (experiment.cluster, experiment.lab) == ("site.yaml", None)


def test_all_problems_are_told_in_the_order_of_the_text(refused: Refused) -> None:
    problems = refused(
        """
experiment: a b
abuot: x
lab: {nodes: 2, gpus: 2}
workload: {reference: llama, step: 20}
steady_state:
  baseline: 500ms
  hold:
    - {probe: workload.thruput, at_least: 95%}
    - {probe: workload.alive, at_least: 1, withing: 2s}
faults:
  - {inject: fabric.blakhole, on: {node: 9}, after: 1}
  - {inject: fabric.blackhole, on: {node: 9}, with: {from: gpu0, to: gpu7, way: 1}, after: 1}
settle: nan
at_most: ${X}
""",
        whole=True,
    )
    starts = [
        "2:13: found 'a b'",
        "3:1: unknown key 'abuot'",
        "5:23: found 'llama'",
        "5:36: found '20' without a unit",
        "7:13: found '500ms', too short",
        "9:15: found 'workload.thruput', which is no probe",
        "10:31: found 'at_least', but workload.alive measures true or false; write 'is'",
        "10:44: unknown key 'withing'; did you mean 'within'?",
        "12:14: found 'fabric.blakhole', which is no injector; did you mean 'fabric.blackhole'?",
        "12:53: found '1' without a unit",
        "13:5: found no 'for'",
        "13:43: found node 9, but the lab has nodes 0 to 1",
        "13:70: found 'gpu7', but a node of the lab has gpu0 to gpu1",
        "13:76: unknown key 'way'",
        "13:92: found '1' without a unit",
        "14:9: found 'nan'",
        "15:10: the variable X is not set",
    ]
    assert len(problems) == len(starts)
    pairs = zip(problems, starts, strict=True)
    assert [(problem, start) for problem, start in pairs if not problem.startswith(start)] == []
