"""Conditions: a probe, its parameters, and a tolerance whose operand fits what is compared."""

from __future__ import annotations

import pytest
from experiment_documents import Load, Refused, placed


def hold(text: str) -> str:
    """A document's lines with one condition."""
    return f"steady_state: {{hold: [{{{text}}}]}}\n"


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        ("probe: workload.throughput, at_least: 95%, of: baseline", {"at_least": 0.95}),
        ("probe: workload.throughput, between: [90%, 110%], of: baseline", {"between": [0.9, 1.1]}),
        ("probe: workload.throughput, at_least: 45.5", {"at_least": 45.5}),
        ("probe: workload.throughput, at_least: 0", {"at_least": 0}),
        ("probe: workload.loss, is: finite", {"is": "finite"}),
        ("probe: workload.loss, is: 5", {"is": 5}),
        ("probe: workload.loss, one_of: [1, 2.5]", {"one_of": [1, 2.5]}),
        ("probe: workload.replicas_agree, at_least: 99.99%", {"at_least": 0.9999}),
        ("probe: workload.replicas_agree, is: 100%", {"is": 1.0}),
        ("probe: workload.alive, is: true", {"is": True}),
        ("probe: command, argv: ['true'], is: 0", {"is": 0}),
        ("probe: command, argv: [date], value: stdout, matches: '^20'", {"matches": "^20"}),
        ("probe: http, url: 'http://x', is: null", {"is": None}),
        ("probe: http, url: 'http://x', value: json, pointer: a.b, one_of: [a, 1, true]", {"one_of": ["a", 1, True]}),
        ("probe: file, path: x, value: age, at_most: 10s", {"at_most": 10.0}),
        ("probe: file, path: x, value: size, between: [1kB, 4MiB]", {"between": [1000, 4 * 2**20]}),
        ("probe: file, path: x, value: size, at_least: 10", {"at_least": 10}),
    ],
)
def test_a_tolerance_is_read_by_what_the_probe_measures(load_text: Load, text: str, tolerance: object) -> None:
    read = load_text(hold(text)).steady_state.hold[0].tolerance
    assert read == tolerance
    assert [type(value) for value in read.values()] == [type(value) for value in tolerance.values()]  # type: ignore[attr-defined]


def test_parameters_stand_beside_the_probe_and_become_si(load_text: Load) -> None:
    (condition,) = load_text(hold("probe: workload.alive, is: true, within: 500ms, timeout: 1s")).steady_state.hold
    assert (condition.params, condition.timeout, condition.of) == ({"within": 0.5}, 1.0, None)
    assert condition.when == ["before", "after"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "probe: »workload.thruput, at_least: 95%",
            "found 'workload.thruput', which is no probe; did you mean 'workload.throughput'?",
        ),
        ("»at_least: 95%", "found no 'probe'; write it: what is measured"),
        ("probe: »[a]", "found a list; write text"),
        ("»probe: workload.loss", "found no tolerance; write one of at_least, at_most, between, is, one_of"),
        ("probe: workload.loss, at_least: 1, »at_most: 2", "found at_least and at_most; write one of"),
        (
            "probe: workload.throughput, at_least: »95%",
            "found '95%', but per cent of what? write a number, or add 'of: baseline'",
        ),
        (
            "probe: workload.throughput, at_least: »95, of: baseline",
            "found '95' without a unit; write 95%",
        ),
        (
            "probe: workload.throughput, is: »finite, of: baseline",
            "found 'is' with 'of: baseline'; write at_least, at_most, between with a ratio such as 95%",
        ),
        (
            "probe: workload.alive, is: »true, of: baseline",
            "found 'is' with 'of: baseline'; write at_least, at_most, between with a ratio",
        ),
        ("probe: workload.loss, at_least: 1%, of: »yesterday", "found 'yesterday'; write baseline"),
        ("probe: workload.replicas_agree, at_least: »0.9999", "found '0.9999' without a unit; write 0.9999%"),
        ("probe: workload.alive, is: »1", "found 1; write true or false"),
        ("probe: workload.alive, is: »'true'", "found 'true'; write true or false"),
        ("probe: workload.alive, is: »null", "found nothing; write true or false"),
        (
            "probe: workload.alive, »at_least: 1",
            "found 'at_least', but workload.alive measures true or false; write 'is'",
        ),
        (
            "probe: workload.loss, »matches: a",
            "found 'matches', but workload.loss measures a number; write one of at_least,",
        ),
        ("probe: workload.loss, is: »finit", "found 'finit'; write a number"),
        ("probe: workload.loss, is: »true", "found true; write a number"),
        ("probe: workload.loss, at_least: »true", "found true; write a number"),
        ("probe: workload.loss, at_least: »null", "found nothing; write a number"),
        ("probe: workload.loss, at_least: ».nan", "found nan, with which nothing compares; write a finite"),
        ("probe: workload.loss, between: »[5, 3]", "found a range from 5 down to 3; write [3, 5]"),
        ("probe: workload.loss, between: »[a, z]", "found 'a'; write a number"),
        ("probe: workload.loss, between: »[1]", "found a list; write a list of two, [LOW, HIGH]"),
        ("probe: workload.loss, between: »5", "found 5; write a list of two, [LOW, HIGH]"),
        ("probe: workload.loss, one_of: »[]", "found a list; write a list of values"),
        ("probe: workload.loss, one_of: »[a]", "found 'a'; write a number"),
        (
            "probe: command, argv: [a], matches: »'('",
            "found '(', which is no regular expression: missing ), unterminated subpattern",
        ),
        ("probe: command, argv: [a], matches: »5", "found 5; write a regular expression, in quotes"),
        ("probe: command, argv: [a], is: ».nan", "found nan, which equals nothing; write a finite number"),
        ("probe: command, argv: [a], is: »[1]", "found a list; write a single value"),
        ("probe: command, argv: [a], at_least: »soon", "found 'soon'; write a number, or a quantity such as"),
        ("»probe: command, is: 0", "found no 'argv'; write it: the program and its arguments"),
        ("»probe: command, argv: [], is: 0", "found an empty 'argv'; write the program and its arguments"),
        ("probe: command, argv: »ls -l, is: 0", "found 'ls -l'; write a list"),
        ("»probe: http, url: ftp://x, is: 0", "found the url 'ftp://x'; write one that starts with http://"),
        ("probe: http, »uri: x, url: 'http://x', is: 0", "unknown key 'uri'; did you mean 'url'?"),
        ("probe: workload.alive, »withing: 2s, is: true", "unknown key 'withing'; did you mean 'within'?"),
        ("probe: workload.alive, within: »2, is: true", "found '2' without a unit; write 2s or 2ms"),
        ("probe: workload.alive, is: true, when: [»befor]", "found 'befor'; write before, during or after"),
        ("probe: workload.alive, is: true, when: »before", "found 'before'; write a list"),
        ("probe: workload.alive, is: true, when: »[]", "found a list; write at least one entry"),
        ("probe: workload.alive, is: true, timeout: »0", "found 0; write a duration above zero"),
        ("probe: workload.alive, is: true, »for: 5s", "unknown key 'for'; write one of at_least, at_most, between"),
        ("probe: workload.alive, is: true, »tolerance: {}", "unknown key 'tolerance'; "),
        ("probe: workload.alive, is: true, »params: {}", "unknown key 'params'; "),
    ],
)
def test_a_condition_that_could_not_be_judged_is_refused(refused: Refused, text: str, problem: str) -> None:
    """Cases 36 (a tolerance is ignored where it stands), 40 (1 equals true, lexical or reversed ranges, NaN) and 43."""
    document, place = placed("steady_state: {hold: [{", text, "}]}\n")
    (found,) = refused(document)
    assert found.startswith(f"{place}: {problem}")


def test_a_guard_is_one_condition_or_several(load_text: Load) -> None:
    one = "{probe: workload.alive, is: false, for: 30s}"
    single = load_text(f"guards: {{stop_if: {one}}}\n").guards.stop_if
    several = load_text(f"guards: {{stop_if: [{one}, {one}]}}\n").guards.stop_if
    assert [*single, *single] == several
    assert (single[0].for_, single[0].tolerance, single[0].params) == (30, {"is": False}, {"within": 2})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{probe: workload.alive, is: »0}", "found 0; write true or false"),
        ("[{probe: workload.alive, is: »0}]", "found 0; write true or false"),
        ("{probe: workload.alive, is: false, for: »30}", "found '30' without a unit; write 30s or 30ms"),
        ("{probe: workload.alive, is: false, »when: [after]}", "unknown key 'when'; "),
        ("»{probe: workload.alive}", "found no tolerance; write 'is'"),
        ("»5", "found 5; write a list"),
    ],
)
def test_a_guard_that_could_not_be_judged_is_refused(refused: Refused, text: str, problem: str) -> None:
    document, place = placed("guards: {stop_if: ", text, "}\n")
    (found,) = refused(document)
    assert found.startswith(f"{place}: {problem}")
