"""Reading YAML: version 1.2, every place kept, and one clear line for each text that is no document."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from experiment_documents import MINIMAL, Load, Refused

from chaos.documents.nodes import Items, Scalar, Table, locate, plain
from chaos.documents.reader import compose
from chaos.documents.scalars import typed
from chaos.experiment import Catalogue, DocumentErrors, load, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("22:22", "22:22"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1e3", 1000.0),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("true", True),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("~", None),
        ("", None),
        ("Null", None),
        ("-12", -12),
        ("9" * 5000, "9" * 5000),
        ("1e999", "1e999"),
    ],
)
def test_plain_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    """Case 42: YAML 1.1 made booleans of on and off, 90 of 1:30, 8 of 010 and text of 1e3."""
    assert typed(text) == value
    assert type(typed(text)) is type(value)


def test_the_traps_of_yaml_1_1_stay_what_they_look_like() -> None:
    """Case 42, through the whole reader, keys included."""
    text = "{on: {node: 0}, yes: no, at: 22:22, zone: 010, quoted: '010', tagged: !!str 010, number: !!int '7'}"
    assert plain(compose(text, "x", {}).root) == {
        "on": {"node": 0},
        "yes": "no",
        "at": "22:22",
        "zone": 10,
        "quoted": "010",
        "tagged": "010",
        "number": 7,
    }


def test_every_key_and_value_knows_its_place() -> None:
    root = compose("a: 1\nb:\n  - x\n  - {c: 2}\nd:\n", "x", {}).root
    assert isinstance(root.values["b"], Items) and isinstance(root.values["b"].items[1], Table)
    places = {
        ("a",): (1, 4),
        ("b", 0): (3, 5),
        ("b", 1, "c"): (4, 9),
        ("b", 1, "missing"): (4, 5),
        ("d",): (5, 1),  # a value that is not there stands where its key does
    }
    for path, (line, column) in places.items():
        mark = locate(root, path)
        assert (mark.line, mark.column) == (line, column), path
    key = locate(root, ("b", 1, "c"), at_key=True)
    assert (key.line, key.column) == (4, 6)


def test_anchors_and_aliases_repeat_a_value(load_text: Load) -> None:
    holds = "steady_state: {hold: [&h {probe: workload.loss, is: finite, when: &w [before]}, *h]}\n"
    experiment = load_text(holds)
    assert experiment.steady_state.hold[0] == experiment.steady_state.hold[1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1:1: the document is empty; write one experiment"),
        ("# a comment\n", "1:1: the document is empty; write one experiment"),
        ("---\n...\n", "1:1: the document is empty; write one experiment"),
        ("- a\n- b\n", "1:1: found a list; write a mapping that starts with 'experiment: NAME'"),
        ("just text\n", "1:1: found 'just text'; write a mapping that starts with 'experiment: NAME'"),
        ("a: 1\n---\nb: 2\n", "2:1: a second document starts here; write one experiment a file"),
        ("%YAML 1.1\n---\na: 1\n", "2:1: found another version of YAML; write %YAML 1.2, or no directive"),
        ("a:\n\tb: 1\n", "2:1: found a tab; indent with spaces"),
        ("a: {n: ${X}}\n", '1:9: found ${ inside { } or [ ], where YAML needs quotes; write "${NAME}"'),
        ("a: \x01\n", "1:4: found the control character U+0001; remove it"),
        ("a: *x\n", "1:4: no anchor &x ends before this; write the value out"),
        ("a: &x [*x]\n", "1:8: no anchor &x ends before this; write the value out"),
        ("a: b: c\n", "1:5: is not YAML: mapping values are not allowed here"),
        ("a: 'x\n", "2:1: is not YAML: found unexpected end of stream while scanning a quoted scalar"),
        ("[" * 100_000, "1:42: nested more than 40 deep; write the document flat"),
        ("a: " + "{b: " * 100 + "1" + "}" * 100, "1:164: nested more than 40 deep; write the document flat"),
        ("x" * (1 << 20) + ": 1", "1:1: found 1048579 characters; write at most 1048576"),
    ],
)
def test_a_text_that_is_no_document_gives_one_clear_line(refused: Refused, text: str, problem: str) -> None:
    """Cases 44 (chaos-mesh#2452: an empty document) and 46: no traceback, whatever the text."""
    assert refused(text, whole=True) == [problem]


def test_aliases_cannot_unfold_a_few_lines_into_gigabytes(refused: Refused) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (problem,) = refused("\n".join(lines), whole=True)
    assert "more than 20000 values (aliases count each time)" in problem


def test_aliases_cannot_nest_deeper_than_the_document_may(refused: Refused) -> None:
    lines = ["a0: &a0 " + "[" * 30 + "]" * 30]
    lines += [f"a{i}: &a{i} " + "[" * 30 + f"*a{i - 1}" + "]" * 30 for i in range(1, 20)]
    (problem,) = refused("\n".join(lines), whole=True)
    assert "nested more than 40 deep" in problem


def test_repeated_keys_are_refused_with_both_places(refused: Refused) -> None:
    """Case 41: the last of two equal keys won, and nobody was told."""
    text = MINIMAL + "seed: 1\nscore: {rto: 1s, consistency: 99%, rto: 2s}\nseed: 2\n'seed': 3\n"
    assert refused(text, whole=True) == [
        "5:36: the key 'rto' stands at 5:9 already; write it once",
        "6:1: the key 'seed' stands at 4:1 already; write it once",
        "7:1: the key 'seed' stands at 4:1 already; write it once",
    ]


def test_repeated_keys_do_not_hide_other_problems(refused: Refused) -> None:
    assert refused("seed: x\nseed: 2\nabuot: x\n") == [
        "4:7: found 'x'; write a whole number",
        "5:1: the key 'seed' stands at 4:1 already; write it once",
        "6:1: unknown key 'abuot'; did you mean 'about'?",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("about: !shout hello", "4:8: found the tag !shout; remove it"),
        ("score: !!set {rto: 1s}", "4:8: found the tag tag:yaml.org,2002:set; remove it"),
        ("? [a, b]\n: 1", "4:3: found a key that is no text; write a name"),
        ("score: {<<: {rto: 1s}}", "4:9: found a merge key '<<', which YAML 1.2 does not have; write the keys out"),
    ],
)
def test_what_yaml_offers_beyond_an_experiments_needs_is_refused(refused: Refused, line: str, problem: str) -> None:
    problems = refused(line + "\n")
    assert problems[0].startswith(problem)


def test_a_file_is_read_as_utf_8_under_any_locale(tmp_path: pathlib.Path) -> None:
    """Case 46: UTF-8 under LC_ALL=C gave a traceback."""
    path = tmp_path / "x.yaml"
    path.write_text(MINIMAL + "about: Überlast – 負荷\n", encoding="utf-8")
    program = f"from chaos.experiment import read; print(ascii(read({str(path)!r}).splitlines()[-1]))"
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ascii("about: Überlast – 負荷")


def test_a_byte_order_mark_and_crlf_line_ends_are_fine(tmp_path: pathlib.Path, catalogue: Catalogue) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load(path, catalogue, {}).name == "minimal"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("about: Ü\nname: ".encode() + b"caf\xe9\n", "2:10: found the byte 0xe9; write the file as UTF-8"),
        (MINIMAL.encode("utf-16"), "1:1: found the byte 0xff; write the file as UTF-8"),
    ],
)
def test_a_file_that_is_not_utf_8_is_told_with_its_place(tmp_path: pathlib.Path, data: bytes, problem: str) -> None:
    """Case 46."""
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    with pytest.raises(DocumentErrors) as caught:
        read(path)
    assert str(caught.value) == f"{path}:{problem}"


def test_a_file_that_is_not_there_is_one_line(tmp_path: pathlib.Path, catalogue: Catalogue) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(DocumentErrors) as caught:
        load(path, catalogue, {})
    assert str(caught.value) == f"{path}:1:1: cannot be read: No such file or directory"


def test_a_repeated_value_is_a_copy_and_not_shared() -> None:
    root = compose("a: &x {k: 1}\nb: *x\n", "x", {}).root
    values = plain(root)
    assert isinstance(values, dict)
    assert values["a"] == values["b"] and values["a"] is not values["b"]
    assert isinstance(root.values["a"], Table) and isinstance(root.values["a"].values["k"], Scalar)
