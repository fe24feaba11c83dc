"""Several targets, several occurrences, and what chance may choose: how a document says it."""

from __future__ import annotations

import pytest
from experiment_documents import Load, Refused, placed

from chaos.experiment import Experiment, Place, Target
from chaos.experiment.places import places


def power_off(more: str) -> str:
    return f"faults: [{{inject: power.off, after: 1s, for: 1s, {more}}}]\n"


@pytest.mark.parametrize(
    ("kind", "on", "single"),
    [
        ("power.off", "{node: [2, 0]}", [Place(node=2), Place(node=0)]),
        ("power.off", "{node: all}", [Place(node=0), Place(node=1)]),  # the spare node is none of the job's
        ("device.reset", "{node: 1, gpu: all}", [Place(node=1, gpu=0), Place(node=1, gpu=1)]),
        ("device.reset", "{node: [0, 2], gpu: [1]}", [Place(node=0, gpu=1), Place(node=2, gpu=1)]),
        ("process.signal", "{rank: all}", [Place(rank=rank) for rank in range(4)]),
        ("process.signal", "{process: launcher}", [Place(process="launcher")]),
    ],
)
def test_a_fault_may_be_aimed_at_several_targets(load_text: Load, kind: str, on: str, single: list[Place]) -> None:
    rest = {"power.off": ", for: 1s", "process.signal": ", with: {signal: KILL}", "device.reset": ""}[kind]
    experiment = load_text(f"faults: [{{inject: {kind}, after: 1s, on: {on}{rest}}}]\n")
    assert places(experiment.faults[0].on, experiment.lab) == single


def test_without_a_lab_nobody_knows_how_many_all_are(load_text: Load) -> None:
    text = "experiment: x\ncluster: site.yaml\nworkload: {command: [a]}\n"
    experiment = load_text(text + power_off("on: {node: all}"), whole=True)
    assert places(experiment.faults[0].on, None) == []
    assert places(Target(node=[5, 6]), None) == [Place(node=5), Place(node=6)]


@pytest.mark.parametrize(
    ("on", "problem"),
    [
        ("{node: »[]}", "found an empty list; write at least one number, or 'all'"),
        ("{node: »[0, 1, 0]}", "found 0 twice; write each number once"),
        ("{node: »[0, all]}", "found 'all'; write a whole number, a list of them, or 'all'"),
        ("{node: »[0, -1]}", "found -1; write 0 or more"),
        ("{node: [0, »3]}", "found node 3, but the lab has nodes 0 to 2 (1 spare among them)"),
        ("{node: »ALL}", "found 'ALL'; write a whole number, a list of them, or 'all'"),
    ],
)
def test_a_list_of_targets_is_read_strictly(refused: Refused, on: str, problem: str) -> None:
    document, place = placed("faults: [{inject: power.off, after: 1s, for: 1s, on: ", on, "}]\n")
    assert refused(document) == [f"{place}: {problem}"]


@pytest.mark.parametrize(
    ("pick", "of_four"),
    [("one", 1), ("3", 3), ("4", 4), ("25%", 1), ("50%", 2), ("60%", 2), ("63%", 3), ("1%", 1), ("100%", 4)],
)
def test_a_share_of_the_targets_is_rounded_to_the_nearest_and_is_at_least_one(
    load_text: Load, pick: str, of_four: int
) -> None:
    text = f"faults: [{{inject: process.signal, after: 1s, on: {{rank: all}}, with: {{signal: KILL}}, pick: {pick}}}]\n"
    assert load_text(text).faults[0].number_of(4) == of_four


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("pick: »two", "found 'two'; write one, a number of 1 or more, or a share such as 25%"),
        ("pick: »0", "found 0; write one, a number of 1 or more, or a share such as 25%"),
        ("pick: »0%", "found '0%'; write one, a number of 1 or more, or a share such as 25%"),
        ("pick: »101%", "found '101%'; write one, a number of 1 or more, or a share such as 25%"),
        ("pick: »0.5", "found 0.5; write one, a number of 1 or more, or a share such as 25%"),
        ("pick: »true", "found true; write one, a number of 1 or more, or a share such as 25%"),
        ("pick: »3", "found 3, but the fault has 2 targets; write at most 2"),
        ("times: »0, every: 2s", "found 0; write 1 or more"),
        ("times: »1001, every: 2s", "found 1001; write 1000 or less"),
        ("times: 2, every: »0", "found 0; write a duration above zero"),
        ("times: 2, every: »2", "found '2' without a unit; write 2s or 2ms"),
        ("jitter: »5", "found '5' without a unit; write 5s or 5ms"),
    ],
)
def test_chance_and_time_are_read_strictly(refused: Refused, more: str, problem: str) -> None:
    document, place = placed("faults: [{inject: power.off, after: 1s, for: 1s, on: {node: all}, ", more, "}]\n")
    (found,) = refused(document + "at_most: 1h\n")
    assert found.startswith(f"{place}: {problem}")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("every: 2s", "found 'every' without 'times'; write both, such as every: 2s, times: 5"),
        ("times: 2", "found 'times' without 'every'; write both, such as every: 2s, times: 5"),
        (
            "times: 2, every: 1200ms, jitter: 200ms",
            "found every 1.2s, but an occurrence may take until 1.2s later ('for' and 'jitter'); write more than that",
        ),
    ],
)
def test_occurrences_never_overlap_and_are_said_whole(refused: Refused, more: str, problem: str) -> None:
    assert refused(power_off(f"on: {{node: 0}}, {more}")) == [f"4:10: {problem}"]


def test_the_bound_of_a_run_counts_the_last_occurrence_with_its_jitter(load_text: Load, refused: Refused) -> None:
    """Baseline 5 s, the last occurrence at 1 + 2 * 10 + 1 s for 1 s, and 1 s to settle."""
    lines = power_off("on: {node: 0}, every: 10s, times: 3, jitter: 1s")
    assert load_text(lines + "at_most: 29s\n")
    assert refused(lines + "at_most: 28s\n") == [
        "5:10: found at_most 28s, but baseline, faults and settle alone take 29s; write more than that"
    ]


def test_chance_and_time_survive_json(load_text: Load) -> None:
    experiment = load_text(
        power_off("on: {node: [0, 1]}, pick: 100%, every: 2s, times: 3, jitter: 100ms")
        + "guards: {protect: {labels: [spare]}, allowed: {from: 22:00, to: 06:00, days: [mon]}}\n"
    )
    assert Experiment.model_validate(experiment.model_dump(mode="json")) == experiment
