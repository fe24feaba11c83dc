"""The JSON Schema: it accepts what loads, and refuses by itself what an editor can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from experiment_documents import CATALOGUE, MINIMAL, Load
from jsonschema import Draft202012Validator

from chaos.documents.nodes import plain
from chaos.documents.reader import compose
from chaos.engine.catalogue import catalogue
from chaos.experiment import json_schema

SHIPPED = sorted(Path(__file__).parents[2].joinpath("experiments").glob("*.yaml"))


class AsWritten(dict[str, str]):
    """An environment in which a variable stands for itself: what an editor sees of it."""

    def get(self, name: str, default: object = None) -> Any:
        return f"${{{name}}}"


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json_schema(CATALOGUE)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def as_an_editor_sees_it(text: str) -> Any:
    return plain(compose(text, "x", AsWritten()).root)


def problems(validator: Draft202012Validator, text: str) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(as_an_editor_sees_it(text))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_experiments_fit_the_schema(path: Path) -> None:
    assert problems(Draft202012Validator(json_schema(catalogue())), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "lines",
    [
        "faults: [{inject: power.off, on: {node: 1}, after: 0, for: 1s, probability: 50%, name: a}]",
        "faults: [{inject: device.reset, on: {node: 1, gpu: 1}, after: 1m30s}]",
        "faults: [{inject: process.signal, on: {process: launcher}, after: 0, with: {signal: KILL}}]",
        "faults: [{inject: net.netem, on: {node: 1}, after: 0, for: 1s,"
        " with: {delay: 5ms, loss: 0.1%, rate: 1Gbit/s, limit: 1MiB, ports: ['80'], correlated: true}}]",
        "faults: [{inject: net.netem, on: {node: 1, gpu: 0}, after: 0, for: 1s}]",
        "steady_state: {hold: [{probe: workload.throughput, between: [90%, 110%], of: baseline}]}",
        "steady_state: {hold: [{probe: workload.throughput, at_least: 40, when: [during], timeout: 1s}]}",
        "steady_state: {hold: [{probe: workload.replicas_agree, is: 100%}]}",
        "steady_state: {hold: [{probe: command, argv: [a, b], value: stdout, matches: x}]}",
        "steady_state: {hold: [{probe: http, url: 'http://x', value: json, pointer: a.0, one_of: [a, 1, null]}]}",
        "steady_state: {hold: [{probe: file, path: x, value: age, at_most: 10s}]}",
        "guards: {nodes_at_most: 1, stop_if: [{probe: workload.alive, is: false, for: 30s}]}",
        "faults: [{inject: power.off, on: {node: [0, 2]}, pick: 1, after: 0, for: 1s, every: 2s, times: 3, jitter: 0}]",
        "faults: [{inject: process.signal, on: {rank: all}, pick: one, after: 0, with: {signal: KILL}}]",
        "faults: [{inject: device.reset, on: {node: all, gpu: [1]}, pick: 50%, after: 0}]",
        "faults: [{inject: device.reset, on: {node: '${SEED}', gpu: [0]}, after: 0}]",
        "guards: {devices_at_most: 1, share_at_most: 25%, at_once_at_most: 2, protect: {nodes: [1], labels: [spare]}}",
        "guards: {allowed: {from: 22:00, to: 06:00}}",
        "guards: {allowed: [{from: 00:00, to: 24:00, days: [sat, sun], zone: Europe/Berlin}]}",
        "seed: ${SEED}\nat_most: ${BOUND:-2m}\nguards: {nodes_at_most: '${NODES:-1}'}",
        "steady_state: {hold: [{probe: workload.throughput, at_least: '${SHARE:-95}%', of: baseline}]}",
    ],
)
def test_what_loads_fits_the_schema(validator: Draft202012Validator, load_text: Load, lines: str) -> None:
    environ = {"SEED": "1", "SHARE": "90"}
    assert load_text(lines + "\n", environ)
    assert problems(validator, MINIMAL + lines + "\n") == []


@pytest.mark.parametrize(
    "lines",
    [
        "abuot: x",
        "settle: 5",
        "settle: 5min",
        "settle: 95%",
        "at_most: 0",
        "seed: true",
        "seed: -1",
        "score: {recovered_at: 0.95}",
        "score: {require: proven}",
        "faults: [{inject: power.of, on: {node: 1}, after: 0, for: 1s}]",
        "faults: [{on: {node: 1}, after: 0, for: 1s}]",
        "faults: [{inject: power.off, on: {node: 1}, after: 0}]",
        "faults: [{inject: power.off, on: {node: 1}, for: 1s}]",
        "faults: [{inject: power.off, on: {rank: 1}, after: 0, for: 1s}]",
        "faults: [{inject: power.off, after: 0, for: 1s}]",
        "faults: [{inject: power.off, on: {node: -1}, after: 0, for: 1s}]",
        "faults: [{inject: power.off, on: {node: 1}, after: 0, for: 1s, with: {hard: true}}]",
        "faults: [{inject: device.reset, on: {node: 1, gpu: 1}, after: 0, for: 1s}]",
        "faults: [{inject: device.reset, on: {gpu: 1}, after: 0}]",
        "faults: [{inject: process.signal, on: {rank: 1}, after: 0}]",
        "faults: [{inject: process.signal, on: {process: zygote}, after: 0, with: {signal: KILL}}]",
        "faults: [{inject: power.off, on: {process: launcher}, after: 0, for: 1s}]",
        "faults: [{inject: process.signal, on: {rank: 1}, after: 0, with: {signal: KIL}}]",
        "faults: [{inject: fabric.blackhole, on: {node: 1}, after: 0, for: 1s, with: {source: gpu0, to: gpu1}}]",
        "faults: [{inject: net.netem, on: {node: 1}, after: 0, for: 1s, with: {delay: 5}}]",
        "faults: [{inject: net.netem, on: {node: 1}, after: 0, for: 1s, with: {correlated: 1}}]",
        "faults: [{inject: power.off, name: a b, on: {node: 1}, after: 0, for: 1s}]",
        "steady_state: {hold: [{probe: workload.thruput, at_least: 1}]}",
        "steady_state: {hold: [{probe: workload.throughput}]}",
        "steady_state: {hold: [{probe: workload.throughput, at_least: 1, at_most: 2}]}",
        "steady_state: {hold: [{probe: workload.throughput, at_least: 95%}]}",
        "steady_state: {hold: [{probe: workload.throughput, at_least: 0.95, of: baseline}]}",
        "steady_state: {hold: [{probe: workload.throughput, is: 1, of: baseline}]}",
        "steady_state: {hold: [{probe: workload.throughput, matches: a}]}",
        "steady_state: {hold: [{probe: workload.loss, between: [1]}]}",
        "steady_state: {hold: [{probe: workload.loss, is: finit}]}",
        "steady_state: {hold: [{probe: workload.alive, is: 1}]}",
        "steady_state: {hold: [{probe: workload.alive, is: true, withing: 2s}]}",
        "steady_state: {hold: [{probe: workload.alive, is: true, when: [befor]}]}",
        "steady_state: {hold: [{probe: command, argv: ls, is: 0}]}",
        "steady_state: {hold: [{probe: command, is: 0}]}",
        "guards: {stop_if: {probe: workload.alive, is: false, for: 30}}",
        "guards: {stop_if: {probe: workload.alive, is: false, when: [after]}}",
        "guards: {nodes_at_most: many}",
        "faults: [{inject: power.off, on: {node: []}, after: 0, for: 1s}]",
        "faults: [{inject: power.off, on: {node: [1, 1]}, after: 0, for: 1s}]",
        "faults: [{inject: power.off, on: {node: ALL}, after: 0, for: 1s}]",
        "faults: [{inject: power.off, on: {node: 0}, pick: two, after: 0, for: 1s}]",
        "faults: [{inject: power.off, on: {node: 0}, every: 2s, after: 0, for: 1s}]",
        "faults: [{inject: power.off, on: {node: 0}, every: 2s, times: 0, after: 0, for: 1s}]",
        "guards: {share_at_most: 0.25}",
        "guards: {protect: {node: [1]}}",
        "guards: {allowed: {from: '25:00', to: '06:00'}}",
        "guards: {allowed: {from: '22:00'}}",
        "guards: {allowed: [{from: '22:00', to: '23:00', days: [monday]}]}",
    ],
)
def test_what_an_editor_can_tell_is_refused_by_the_schema(validator: Draft202012Validator, lines: str) -> None:
    assert problems(validator, MINIMAL + lines + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "experiment: x\nworkload: {reference: llama-bytes}\n",
        "experiment: x\nlab: {nodes: 1, gpus: 1}\n",
        "experiment: x\nlab: {nodes: 1, gpus: 1}\nworkload: {}\n",
        "experiment: x\nlab: {nodes: 1, gpus: 1}\nworkload: {reference: llama-bytes, command: [a]}\n",
        "experiment: x\nlab: {nodes: 1, gpus: 1}\nworkload: {attach: 5}\n",
        "experiment: x y\nlab: {nodes: 1, gpus: 1}\nworkload: {reference: llama-bytes}\n",
    ],
)
def test_what_every_experiment_needs_is_in_the_schema(validator: Draft202012Validator, text: str) -> None:
    assert problems(validator, text)


def test_the_schema_explains_itself() -> None:
    schema = json_schema(CATALOGUE)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["properties"]["at_most"]["default"] == "2m"
    blackhole = schema["$defs"]["Fault.fabric.blackhole"]["properties"]
    assert blackhole["inject"] == {"const": "fabric.blackhole", "description": "a path drops everything"}
    assert blackhole["with"]["properties"]["from"]["description"] == "the GPU whose traffic is dropped"
    assert blackhole["with"]["required"] == ["from", "to"]
    assert blackhole["probability"]["default"] == "100%"
    alive = schema["$defs"]["Hold.workload.alive"]["properties"]
    assert alive["within"]["default"] == "2s" and alive["timeout"]["default"] == "2s"
