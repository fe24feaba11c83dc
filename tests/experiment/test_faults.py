"""Faults: their kind, parameters, target, duration and names, and what several parts of a document say together."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from experiment_documents import CATALOGUE, Load, NetemParams, Refused, placed

from chaos.experiment.catalogue import params_model

# What a fault of each kind needs beside its target.
REST = {"power.off": ", for: 1s", "process.signal": ", with: {signal: KILL}", "device.reset": ""}


def fault(text: str) -> str:
    """A document's lines with one fault."""
    return f"faults: [{{{text}}}]\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "inject: »fabric.blakhole, on: {node: 0}, after: 1s, for: 1s, with: {what: ever}",
            "found 'fabric.blakhole', which is no injector; did you mean 'fabric.blackhole'?",
        ),
        (
            "inject: »zzz, on: {node: 0}, after: 1s",
            "found 'zzz', which is no injector; write one of device.reset, fabric.blackhole, net.netem,",
        ),
        ("inject: »5, after: 1s", "found 5; write text, in quotes: '5'"),
        ("»after: 1s", "found no 'inject'; write it: the kind of fault"),
        ("»inject: power.off, on: {node: 0}, for: 1s", "found no 'after'; write it: when it starts"),
        ("»inject: power.off, on: {node: 0}, after: 1s", "found no 'for'; power.off needs one"),
        ("inject: power.off, on: {node: 0}, after: 1s, »for: ", "found no 'for'; power.off needs one"),
        ("inject: power.off, on: {node: 0}, after: 1s, for: »0s", "found 0; write a duration above zero"),
        ("inject: power.off, on: {node: 0}, after: 1s, for: »5", "found '5' without a unit; write 5s or 5ms"),
        (
            "inject: device.reset, on: {node: 0, gpu: 1}, after: 1s, »for: 2s",
            "found 'for', but device.reset happens at an instant; leave it out",
        ),
        (
            "inject: power.off, on: {node: 0}, after: 1s, for: 1s, »duration: 5s",
            "unknown key 'duration'; write one of after, danger, every, for, inject, jitter, name, on, pick,",
        ),
        (
            "inject: power.off, on: {node: 0}, after: 1s, for: 1s, »with_: {}",
            "unknown key 'with_'; did you mean 'with'?",
        ),
        (
            "inject: power.off, on: {node: 0}, after: 1s, for: 1s, probability: »110%",
            "found '110%'; write at most 100%",
        ),
        (
            "inject: power.off, on: {node: 0}, after: 1s, for: 1s, with: »[a]",
            "found a list; write a mapping",
        ),
        (
            "inject: power.off, on: {node: 0}, after: 1s, for: 1s, with: {»hard: true}",
            "unknown key 'hard'; nothing can stand here",
        ),
        (
            "inject: process.signal, on: {rank: 1}, after: 1s, with: {signal: »KIL}",
            "found 'KIL'; write KILL, TERM, STOP, SEGV, INT, HUP or USR1",
        ),
        (
            "»inject: process.signal, on: {rank: 1}, after: 1s, with: {signal: STOP}",
            "found no 'for'; a STOP needs one",
        ),
        (
            "inject: process.signal, on: {rank: 1}, after: 1s, with: {signal: KILL}, »for: 1s",
            "found 'for' with a KILL; leave it out",
        ),
        (
            "inject: process.signal, on: {rank: 1}, after: 1s, with: {signal: KILL}, for: »1",
            "found '1' without a unit; write 1s or 1ms",
        ),
        (
            "»inject: process.signal, on: {rank: 1}, after: 1s",
            "found no 'signal'; write it: it is needed",
        ),
        (
            "inject: fabric.blackhole, on: {node: 0}, after: 1s, for: 1s, with: »{from: gpu0}",
            "found no 'to'; write it: the GPU that it is for",
        ),
        (
            "inject: fabric.blackhole, on: {node: 0}, after: 1s, for: 1s, with: {»source: gpu0, from: gpu0, to: gpu1}",
            "unknown key 'source'; write one of direction, from, to",
        ),
        (
            "inject: fabric.blackhole, on: {node: 0}, after: 1s, for: 1s, with: »{from: gpu0, to: gpu0}",
            "found 'gpu0' at both ends; write two GPUs",
        ),
        (
            "inject: fabric.blackhole, on: {node: 0}, after: 1s, for: 1s, with: {from: gpu0, to: »gpu2}",
            "found 'gpu2', but a node of the lab has gpu0 to gpu1",
        ),
        (
            "inject: fabric.blackhole, on: {node: 0}, after: 1s, for: 1s, with: {from: »0, to: gpu1}",
            "found 0; write text, in quotes: '0'",
        ),
        (
            "inject: fabric.blackhole, on: {node: 0}, after: 1s, for: 1s, with: {from: »nic0, to: gpu1}",
            "found 'nic0'; write a GPU of the node, such as gpu0",
        ),
        (
            "inject: net.netem, on: {node: 0}, after: 1s, for: 1s, with: {delay: »5}",
            "found '5' without a unit; write 5s or 5ms",
        ),
        (
            "inject: net.netem, on: {node: 0}, after: 1s, for: 1s, with: {rate: »10MB}",
            "found '10MB', a size; write a rate such as",
        ),
        (
            "inject: net.netem, on: {node: 0}, after: 1s, for: 1s, with: {correlated: »1}",
            "found 1; write true or false",
        ),
        (
            "inject: net.netem, on: {node: 0}, after: 1s, for: 1s, with: {packets: »true}",
            "found true; write a whole number",
        ),
        (
            "inject: net.netem, on: {node: 0}, after: 1s, for: 1s, with: {ports: »80}",
            "found 80; write a list",
        ),
        (
            "inject: net.netem, on: {node: 0}, after: 1s, for: 1s, with: {ports: [»80]}",
            "found 80; write text, in quotes: '80'",
        ),
    ],
)
def test_a_fault_that_cannot_be_made_is_refused(refused: Refused, text: str, problem: str) -> None:
    """Cases 43 and 44: nothing unknown, nothing without its unit, no time that is cut or counted otherwise."""
    document, place = placed("faults: [{", text, "}]\n")
    (found,) = refused(document)
    assert found.startswith(f"{place}: {problem}")


def test_parameters_become_si_by_the_names_of_the_dataclass_and_none_is_left_out(load_text: Load) -> None:
    experiment = load_text(
        fault(
            "inject: net.netem, on: {node: 0}, after: 1s, for: 1m, "
            "with: {delay: 1500us, loss: 0.5%, rate: 100Mbit/s, limit: 4MiB, ports: ['80', '81']}"
        )
    )
    with_ = experiment.faults[0].with_
    assert with_ == {
        "delay": 0.0015,
        "loss": 0.005,
        "rate": 1e8,
        "limit": 4 * 2**20,
        "ports": ["80", "81"],
        "correlated": False,
        "packets": 1000,
    }
    assert NetemParams(**with_).limit == 4 * 2**20
    assert experiment.faults[0].for_ == 60


def test_a_python_name_may_differ_from_the_documents(load_text: Load) -> None:
    experiment = load_text(
        fault("inject: fabric.blackhole, on: {node: 0}, after: 0, for: 5000h, with: {from: gpu0, to: gpu1}")
        + "at_most: 6000h\n"
    )
    assert experiment.faults[0].with_ == {"source": "gpu0", "to": "gpu1", "direction": "both"}
    assert experiment.faults[0].for_ == 5000 * 3600  # chaos-mesh#4452 ended it after a day


@pytest.mark.parametrize(
    ("kind", "on"),
    [
        ("power.off", "{node: 2}"),  # the spare
        ("device.reset", "{node: 1, gpu: 1}"),
        ("process.signal", "{rank: 3}"),
        ("process.signal", "{process: launcher}"),
    ],
)
def test_a_fault_may_be_aimed_at_whatever_the_lab_has(load_text: Load, kind: str, on: str) -> None:
    assert load_text(fault(f"inject: {kind}, after: 1s, on: {on}{REST[kind]}")).faults


@pytest.mark.parametrize(
    ("kind", "on", "problem"),
    [
        ("power.off", "{node: »3}", "found node 3, but the lab has nodes 0 to 2 (1 spare among them)"),
        ("power.off", "{node: »-1}", "found -1; write 0 or more"),
        ("power.off", "{node: »true}", "found true; write a whole number, a list of them, or 'all'"),
        ("power.off", "{node: »every}", "found 'every'; write a whole number, a list of them, or 'all'"),
        ("power.off", "{»rack: 1}", "unknown key 'rack'; did you mean 'rank'?"),
        ("power.off", "{»rank: 1}", "found 'rank', but power.off is aimed with on: {node: 0}"),
        ("power.off", "»{}", "found no target; power.off is aimed with on: {node: 0}"),
        ("power.off", "»1", "found 1; write a mapping"),
        ("device.reset", "{node: 1, gpu: »2}", "found gpu 2, but the lab has gpus 0 to 1"),
        ("device.reset", "»{gpu: 1}", "found a gpu without its node; write on: {node: 0, gpu: 1}"),
        ("device.reset", "»{node: 1}", "found a node without a gpu of it; write on: {node: 0, gpu: 1}"),
        ("process.signal", "{rank: »4}", "found rank 4, but the lab has ranks 0 to 3"),
        (
            "process.signal",
            "{»node: 1}",
            "found 'node', but process.signal is aimed with on: {rank: 1} or on: {process: launcher}",
        ),
        ("process.signal", "{process: »zygote}", "found 'zygote'; write launcher"),
        ("process.signal", "»{process: launcher, rank: 1}", "found a process with a rank; write one of them"),
        ("power.off", "{»process: launcher}", "found 'process', but power.off is aimed with on: {node: 0}"),
    ],
)
def test_a_fault_is_not_aimed_at_what_is_not_there(refused: Refused, kind: str, on: str, problem: str) -> None:
    document, place = placed(f"faults: [{{inject: {kind}, after: 1s, on: ", on, REST[kind] + "}]\n")
    assert refused(document) == [f"{place}: {problem}"]


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (
            "{reference: llama-bytes, recovery: restart}",
            "a job with recovery restart has none (torchrun on every node starts its ranks)",
        ),
        ("{command: [train]}", "what launches a job that is not ours is not known"),
    ],
)
def test_a_job_without_a_launcher_cannot_lose_it(refused: Refused, workload: str, reason: str) -> None:
    faults = "faults: [{inject: process.signal, on: {process: launcher}, after: 1s, with: {signal: KILL}}]"
    text = f"experiment: x\nlab: {{nodes: 2, gpus: 2}}\nworkload: {workload}\n{faults}\n"
    assert refused(text, whole=True) == [f"4:49: found 'launcher', but {reason}; aim at a rank"]


def test_a_fault_without_any_target_is_refused(refused: Refused) -> None:
    (problem,) = refused(fault("inject: power.off, after: 1s, for: 1s"))
    assert problem == "4:10: found no target; power.off is aimed with on: {node: 0}"


def test_faults_without_a_name_are_numbered_by_kind(load_text: Load) -> None:
    experiment = load_text(
        """
faults:
  - {inject: power.off, on: {node: 0}, after: 1s, for: 1s}
  - {inject: process.signal, on: {rank: 0}, after: 1s, with: {signal: KILL}}
  - {name: power.off-2, inject: power.off, on: {node: 0}, after: 1s, for: 1s}
  - {inject: power.off, on: {node: 0}, after: 1s, for: 1s}
"""
    )
    assert [one.name for one in experiment.faults] == [
        "power.off-1",
        "process.signal-1",
        "power.off-2",
        "power.off-3",
    ]


def test_a_name_given_twice_is_refused(refused: Refused) -> None:
    """Case 8: two undo records shared a name; here no two faults do."""
    one = "{name: a, inject: power.off, on: {node: 0}, after: 1s, for: 1s}"
    assert refused(f"faults:\n  - {one}\n  - {one}\n") == ["6:12: found 'a', which names fault 1; write another"]


@pytest.mark.parametrize("name", ["a b", "../a", "", "-a", "a" * 64, "ä"])
def test_a_name_is_fit_for_a_file(refused: Refused, name: str) -> None:
    (problem,) = refused(fault(f"name: '{name}', inject: power.off, on: {{node: 0}}, after: 1s, for: 1s"))
    assert problem.startswith(f"4:17: found {repr(name)[:40]}") and "write a name of letters, digits" in problem


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "guards: {nodes_at_most: 1}\n"
            "faults: [{inject: power.off, on: {node: 0}, after: 1s, for: 1s},"
            " {inject: process.signal, on: {rank: 3}, after: 1s, with: {signal: KILL}}]",
            "4:25: found 1, but the faults touch 2 nodes (0, 1); allow that many, or aim at fewer",
        ),
        (
            "guards: {nodes_at_most: 0}\nfaults: [{inject: power.off, on: {node: 2}, after: 1s, for: 1s}]",
            "4:25: found 0, but the faults touch 1 nodes (2)",
        ),
        (
            "steady_state: {baseline: 999ms}\nfaults: [{inject: power.off, on: {node: 0}, after: 1s, for: 1s}]",
            "4:26: found '999ms', too short to measure a fault's recovery against; write 1s or more",
        ),
        (
            "steady_state: {baseline: 0, hold: [{probe: workload.throughput, at_least: 95%, of: baseline}]}",
            "4:26: found 0, too short to measure 'of: baseline' against; write 1s or more",
        ),
        (
            "faults: [{inject: power.off, on: {node: 0}, after: 60s, for: 1m}]",
            "1:1: found at_most 2m, but baseline, faults and settle alone take 2m6s; write more than that",
        ),
        (
            "at_most: 6s\nsettle: 2s",
            "4:10: found at_most 6s, but baseline, faults and settle alone take 7s; write more than that",
        ),
        (
            "score: {rto: 60s}\nfaults: [{inject: power.off, on: {node: 0}, after: 1s, for: 1s}]",
            "4:14: found a score.rto of 1m with a recover_within of 10s; wait at least as long as the pass mark",
        ),
        (
            "recover_within: 500ms\nfaults: [{inject: power.off, on: {node: 0}, after: 1s, for: 1s}]",
            "4:17: found a score.rto of 800ms with a recover_within of 500ms",
        ),
    ],
)
def test_what_only_several_parts_together_tell_is_checked_too(refused: Refused, lines: str, problem: str) -> None:
    (found,) = refused(lines + "\n")
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "lines",
    [
        "steady_state: {baseline: 0}",  # nothing is compared with it
        "score: {rto: 60s}",  # nothing is broken
        "guards: {nodes_at_most: 1}\n"
        "faults: [{inject: power.off, on: {node: 1}, after: 1s, for: 1s},"
        " {inject: process.signal, on: {rank: 2}, after: 1s, with: {signal: KILL}}]",
        "guards: {nodes_at_most: 0}\n"  # the launcher is on no node
        "faults: [{inject: process.signal, on: {process: launcher}, after: 1s, with: {signal: KILL}}]",
    ],
)
def test_what_is_harmless_together_is_not_refused(load_text: Load, lines: str) -> None:
    assert load_text(lines + "\n")


@dataclass
class Unreadable:
    table: dict[str, int]


def test_parameters_that_no_document_could_fill_are_a_mistake_of_the_injector() -> None:
    with pytest.raises(TypeError, match=r"Unreadable: dict\[str, int\] cannot be a parameter of a document"):
        params_model(Unreadable)


def test_every_injector_and_probe_of_the_catalogue_has_readable_parameters() -> None:
    infos = (*CATALOGUE.injectors.values(), *CATALOGUE.probes.values())
    assert all(params_model(info.params).model_fields is not None for info in infos)
