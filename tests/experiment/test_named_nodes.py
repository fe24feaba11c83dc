"""Documents about the machines of an inventory: their nodes are named, and numbered from there on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chaos.engine.catalogue import catalogue
from chaos.experiment import DocumentErrors, Experiment, LabSpec, Nodes, loads

NAMES = ("alpha", "beta", "gamma", "delta")  # delta does not run the job

DOCUMENT = """experiment: named
cluster: site.yaml
workload: {{command: [train], nodes: rack=1}}
faults:
  - {{name: f, inject: process.signal, on: {on}, with: {{signal: KILL}}, after: 1s}}
guards: {guards}
"""


def select(text: str) -> list[int]:
    if text == "rack=1":
        return [0, 1, 2]
    if text not in NAMES:
        raise ValueError(f"found {text!r}, which is no node")
    return [NAMES.index(text)]


def resolve(cluster: str, workload: Any) -> Nodes:
    if cluster != "site.yaml":
        raise ValueError(f"there is no {cluster}")
    assert workload["nodes"] == "rack=1"
    return Nodes(f"/etc/{cluster}", NAMES, LabSpec(nodes=3, gpus=2, spare_nodes=1), select)


def read(on: str = "{rank: 0}", guards: str = "{}", text: str = DOCUMENT) -> Experiment:
    return loads(text.format(on=on, guards=guards), catalogue(), {}, clusters=resolve)


def test_the_cluster_gives_the_size_and_a_name_that_holds_everywhere() -> None:
    experiment = read()
    assert experiment.cluster == "/etc/site.yaml"
    assert experiment.lab == LabSpec(nodes=3, gpus=2, spare_nodes=1)
    assert experiment.workload.nodes == ["rack=1"]
    assert Experiment.model_validate(experiment.model_dump(mode="json")) == experiment, "as a replay reads it"


@pytest.mark.parametrize(
    ("written", "numbers"), [("beta", 1), ("[gamma, alpha]", [2, 0]), ("rack=1", [0, 1, 2]), ("all", "all"), ("3", 3)]
)
def test_selections_become_numbers(written: str, numbers: object) -> None:
    text = DOCUMENT.replace("process.signal", "power.off").replace(", with: {{signal: KILL}}", ", for: 1s")
    experiment = read(f"{{node: {written}}}", text=text)
    assert experiment.faults[0].on.node == numbers


def test_protected_nodes_and_labels_become_numbers() -> None:
    with pytest.raises(DocumentErrors, match=r"which 'protect' keeps from all faults"):
        read(guards="{protect: {nodes: [delta], labels: [rack=1]}}")
    kept = read(guards="{protect: {nodes: [delta, beta]}}").guards.protect
    assert (kept.nodes, kept.labels) == ([3, 1], [])


@pytest.mark.parametrize(
    ("on", "guards", "line", "said"),
    [
        ("{rank: 9}", "{}", 5, "found rank 9"),
        ("{node: epsilon}", "{}", 5, "found 'epsilon', which is no node"),
        ("{rank: 0}", "{protect: {nodes: [epsilon]}}", 6, "found 'epsilon', which is no node"),
        ("{rank: 0}", "{protect: {labels: [rack=2]}}", 6, "found 'rack=2', which is no node"),
    ],
)
def test_what_is_not_there_is_told_where_it_stands(on: str, guards: str, line: int, said: str) -> None:
    text = DOCUMENT
    if "node:" in on:
        text = text.replace("process.signal", "power.off").replace(", with: {{signal: KILL}}", ", for: 1s")
    with pytest.raises(DocumentErrors, match=rf"<text>:{line}:\d+: {re.escape(said)}"):
        read(on, guards, text)


def test_a_cluster_that_cannot_be_read_is_all_that_is_wrong() -> None:
    with pytest.raises(DocumentErrors) as told:
        read("{rank: 0}", "{protect: {nodes: [epsilon]}}", DOCUMENT.replace("site.yaml", "other.yaml"))
    assert str(told.value) == "<text>:2:10: there is no other.yaml"


def test_a_size_beside_an_inventory_is_refused() -> None:
    with pytest.raises(DocumentErrors, match=r"found 'lab' beside cluster 'site\.yaml'"):
        read(text=DOCUMENT + "lab: {{nodes: 1, gpus: 1}}\n")


@pytest.mark.parametrize("key", ["nodes: [a]", "ranks_per_node: 2"])
def test_the_reference_trainer_runs_on_all_of_the_lab(key: str) -> None:
    text = f"experiment: x\nlab: {{nodes: 1, gpus: 1}}\nworkload: {{reference: llama-bytes, {key}}}\n"
    with pytest.raises(DocumentErrors, match="beside 'reference'; only a job on an inventory's nodes has it"):
        loads(text, catalogue(), {})
