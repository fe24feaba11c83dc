"""Variables of the environment in documents: typed, escaped, never structure, never a secret in a message."""

from __future__ import annotations

import pytest
from experiment_documents import Load, Refused

from chaos.documents.nodes import plain
from chaos.documents.reader import compose


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${N}", 4),
        ('"${N}"', 4),  # in { } and [ ] YAML wants the quotes
        ("!!str ${N}", "4"),
        ("x${N}", "x4"),
        ("${N}${N}", "44"),
        ("${F}", 0.5),
        ("${B}", True),
        ("${NULL}", None),
        ("${EMPTY}", None),
        ("${T}", "text"),
        ("${ON}", "on"),
        ("${YAML}", "{a: 1}"),
        ("${UNSET:-7}", 7),
        ("${UNSET:-}", None),
        ("${EMPTY:-full}", "full"),
        ("${UNSET:-a b}", "a b"),
        ("${N:-9}", 4),
        ("$${N}", "${N}"),
        ("cost $5 $N", "cost $5 $N"),
        ("${NESTED}", "${N}"),  # what a variable brings is not read again
    ],
)
def test_a_variable_keeps_its_type(written: str, value: object) -> None:
    """Case 45: variables became text where a number was meant."""
    environ = {
        "N": "4",
        "F": "0.5",
        "B": "true",
        "NULL": "null",
        "EMPTY": "",
        "T": "text",
        "ON": "on",
        "YAML": "{a: 1}",
        "NESTED": "${N}",
    }
    document = compose(f"key: {written}\n", "x", environ)
    assert document.problems == []
    values = plain(document.root)
    assert values == {"key": value}
    assert isinstance(values, dict) and type(values["key"]) is type(value)


def test_variables_fill_numbers_and_quantities_of_an_experiment(load_text: Load) -> None:
    """Case 45, end to end."""
    experiment = load_text(
        """
experiment: run-${NAME}
lab: {nodes: "${NODES}", gpus: "${GPUS:-2}"}
workload: {reference: llama-bytes, step: "${STEP_MS}ms"}
seed: ${SEED}
""",
        {"NAME": "seven", "NODES": "3", "STEP_MS": "20", "SEED": "7"},
        whole=True,
    )
    assert experiment.name == "run-seven"
    assert experiment.lab is not None and (experiment.lab.nodes, experiment.lab.gpus) == (3, 2)
    assert (experiment.workload.step, experiment.seed) == (0.02, 7)


def test_an_unset_variable_is_told_once_with_its_place(refused: Refused) -> None:
    """Case 45: nothing else is said of a value that could not be had, everything else still is."""
    faults = "faults: [{inject: power.off, on: {node: 0}, after: 1s, for: '${HOW_LONG}'}]\n"
    assert refused(f"at_most: ${{BOUND}}\n{faults}abuot: x\n") == [
        "4:10: the variable BOUND is not set; set it in the environment, or write ${BOUND:-default}",
        "5:61: the variable HOW_LONG is not set; set it in the environment, or write ${HOW_LONG:-default}",
        "6:1: unknown key 'abuot'; did you mean 'about'?",
    ]


@pytest.mark.parametrize("written", ["${", "${}", "${1A}", "${A", "${A:-${B}}", "${A-b}", "x ${ y }"])
def test_what_only_looks_like_a_variable_is_refused(refused: Refused, written: str) -> None:
    (problem,) = refused(f"about: '{written}'\n", {"A": "1", "B": "2"})
    assert problem.startswith("4:8: found ") and "opens no variable; write ${NAME}, ${NAME:-default}" in problem


def test_keys_are_never_substituted(refused: Refused) -> None:
    assert refused("${KEY}: 1\n", {"KEY": "seed"})[0].startswith("4:1: unknown key '${KEY}'")


def test_a_wrong_value_is_told_by_what_the_variable_held(refused: Refused) -> None:
    assert refused("settle: ${PAUSE}\n", {"PAUSE": "20"}) == ["4:9: found '20' without a unit; write 20s or 20ms"]


@pytest.mark.parametrize("secret", ["hunter2hunter2", "x" * 200, "p'q\"r\\s tüv", "line\nbreak"])
@pytest.mark.parametrize("line", ["settle: ${API_TOKEN}", "seed: ${API_TOKEN}", "experiment: ${API_TOKEN}!"])
def test_a_secrets_value_is_in_no_message(refused: Refused, secret: str, line: str) -> None:
    """Case 47: a message is a sink too."""
    text = "lab: {nodes: 1, gpus: 1}\nworkload: {reference: llama-bytes}\n" + line
    if not line.startswith("experiment"):
        text += "\nexperiment: x"
    problems = refused(text, {"API_TOKEN": secret}, whole=True)
    assert len(problems) == 1
    assert secret[:4] not in problems[0] and repr(secret)[1:5] not in problems[0]
    assert "found the value of ${API_TOKEN}; " in problems[0]
