"""Strictness beyond the ordinary mistake: secrets in odd places, the schema, limits, what is imported when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chaos.documents.nodes import plain
from chaos.documents.reader import compose
from chaos.inventory import access
from chaos.inventory.access import Secret, SecretError
from chaos.inventory.load import DocumentErrors, loads
from chaos.inventory.ranges import MOST
from chaos.inventory.schema import json_schema

HEAD = "inventory: x\n"


def problems(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(DocumentErrors) as told:
        loads(HEAD + text, environ or {})
    lines = str(told.value).splitlines()
    assert len(lines) == len(told.value.problems)
    return [line.removeprefix("<text>:") for line in lines]


@pytest.mark.parametrize(
    "written",
    [
        "hunter2",
        "'hunter2'",
        "12345678",
        "!hunter2 x",
        "*hunter2",
        "!!str hunter2",
        "{hunter2: }",
        "{env: 'hunter2 is long'}",
        "{file: [hunter2]}",
        "{command: hunter2}",
        "{env: A, file: hunter2}",
        "[hunter2]",
        "${BMC_PASSWORD}",
        "${OTHER}",
        "hun: ter2",
    ],
)
def test_no_message_repeats_what_stands_where_a_secret_should(written: str) -> None:
    """CASES 47. Whatever is wrong with it, for YAML or for us."""
    told = "\n".join(
        problems(f"nodes:\n  a:\n    password: {written}\n", {"BMC_PASSWORD": "hunter2", "OTHER": "hunter2"})
    )
    assert told.startswith("4:"), told
    assert "hunter2" not in told and "12345678" not in told and "ter2" not in told
    assert any(way in told for way in ("env", "file", "command"))


def test_an_open_quote_is_told_without_what_follows_it() -> None:
    (told,) = problems("nodes:\n  a:\n    password: 'hunter2\n")
    assert told.startswith("5:1: is not YAML")
    assert "hunter2" not in told


@pytest.mark.parametrize("key", ["address: root:hunter2@h", "user: 'root:hunter2'"])
def test_a_password_within_an_address_or_a_user_is_not_repeated(key: str) -> None:
    (told,) = problems(f"nodes:\n  a: {{{key}}}\n")
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: {a: {nics: [{name: eth0}]}}", "found no 'role'"),
        ("nodes: {a: {nics: [{name: eth0, role: data, rle: 1}]}}", "did you mean 'role'?"),
        ("nodes: {a: {nics: [{name: gpu0, role: data}]}}", "how a GPU or NPU is called"),
        ("nodes: {a: {nics: [{name: 'r[0-1]', role: data, rdma: m0}]}}", "found 1 RDMA device for 2 interfaces"),
        ("nodes: {a: {nics: [{name: e, role: data}, {name: e, role: control}]}}", "found 'e' twice"),
        ("nodes: {a: {gpus: {pci: ['0000:1A:00.0']}}}", "as lspci -D shows it"),
        ("nodes: {a: {gpus: {count: 2, pci: ['0000:1a:00.0']}}}", "leave 'count' out"),
        ("nodes: {a: {bmc: {user: u}}}", "found no 'address'"),
        ("nodes: {a: {bmc: {address: b, protocol: ipmy}}}", "write 'ipmi' or 'redfish'".replace("'", "")),
        ("nodes: {a: {bmc: {address: b}}, c: {bmc: {address: b}}}", "found the BMC 'b' for 'c'"),
        ("nodes: {a: {labels: {rack: 7}}}", "write text, in quotes: '7'"),
        ("nodes: {a: {labels: {rack: 'a b'}}}", "text without spaces"),
        ("nodes: {all: {}}", "a word of its own"),
        ("nodes: {a/b: {}}", "write the name of a host"),
        ("groups: {a: {}}\nnodes: {a: {}}", "found 'a', which names a node too"),
        ("groups: {g: {address: h}}\nnodes: {a: {}}", "write one with {name} in it"),
        ("jumps: {j: {jump: j}}\nnodes: {a: {jump: j}}", "a loop: j -> j"),
        ("jumps: {j: {become: sudo}}\nnodes: {a: {}}", "unknown key 'become'"),
        (f"nodes: {{'n[1-{MOST + 1}]': {{}}}}", f"write at most {MOST}"),
        ("nodes: {'n[1-': {}}", "brackets do not match"),
        ("nodes: [a]", "write a mapping"),
    ],
)
def test_every_mistake_is_one_line_that_says_what_would_be_right(text: str, said: str) -> None:
    (told,) = problems(text + "\n")
    assert said in told


def test_many_mistakes_are_told_at_once() -> None:
    told = problems("nods: {}\nnodes:\n  a: {prt: 1, user: 5}\n  b: {groups: [x]}\n")
    assert [line.partition(": ")[0] for line in told] == ["2:1", "4:7", "4:21", "5:16"]


def test_a_variable_of_the_environment_stands_for_a_value() -> None:
    (node,) = loads(HEAD + "nodes:\n  a: {user: '${WHO}', port: '${PORT:-2222}'}\n", {"WHO": "ops"}).nodes
    assert (node.access.user, node.access.port) == ("ops", 2222)


def test_paths_start_at_the_documents_folder_and_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ops")
    text = HEAD + "nodes:\n  a: {key: ~/.ssh/k, known_hosts: [hosts], password: {file: word}}\n"
    (node,) = loads(text, {}, file=str(tmp_path / "x.yaml")).nodes
    assert node.access.key == Path("/home/ops/.ssh/k")
    assert node.access.known_hosts == (tmp_path / "hosts",)
    assert node.access.password == Secret(file=tmp_path / "word")


def test_a_secret_of_many_lines_is_its_first_without_the_end_of_line(tmp_path: Path) -> None:
    (tmp_path / "word").write_bytes(b"hunter2\r\nmore\r\n")
    assert Secret(file=tmp_path / "word").value() == "hunter2"


def test_an_empty_variable_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "")
    with pytest.raises(SecretError, match="environment variable WORD is empty"):
        Secret(env="WORD").value()


def test_a_command_that_tells_no_secret_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 53: the grandchild holds the pipe; it ends too."""
    monkeypatch.setattr(access, "_PATIENCE", 2.0)
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(SecretError, match="gave no secret within 2 s"):
            Secret(command=("sh", "-c", f"exec 3>{fifo}; sleep 600 & wait")).value()
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b"", "whoever had the pipe open has ended"
    finally:
        os.close(reader)


def test_a_commands_arguments_are_not_shown() -> None:
    secret = Secret(command=("vault", "read", "-token=hunter2"))
    assert "hunter2" not in repr(secret) + str(secret) + f"{secret!r}"


# The schema

VALIDATOR = Draft202012Validator(json_schema())


def as_an_editor_sees_it(text: str) -> Any:
    return plain(compose(text, "x", {}).root)


FULL = (
    HEAD
    + """
about: All that can be said.
defaults: {user: ops, port: 22, become: sudo, become_password: {env: W}, jump: j, bmc: none}
jumps: {j: {address: gate, password: {command: [pass, show, x]}}}
groups:
  g: {about: x, gpus: 8, npus: {count: 4, vendor: huawei}, bmc: {address: "{name}-bmc", user: u, password: {file: f}}}
nodes:
  n[1-2]: {groups: [g], labels: {rack: r1}, nics: [{name: "r[0-1]", role: data, rdma: "m[0-1]"}]}
  plain:
  odd: {jump: none, become_password: none, python: /opt/python3, known_hosts: [a], ssh_config: b}
"""
)


def test_what_loads_fits_the_schema() -> None:
    Draft202012Validator.check_schema(json_schema())
    assert len(loads(FULL, {}).nodes) == 4
    assert list(VALIDATOR.iter_errors(as_an_editor_sees_it(FULL))) == []


@pytest.mark.parametrize(
    "line",
    [
        "nodes: {}",
        "nodes: {a: {pasword: x}}",
        "nodes: {a: {password: hunter2}}",
        "nodes: {a: {password: {env: A, file: b}}}",
        "nodes: {a: {port: 0}}",
        "nodes: {a: {become: doas}}",
        "nodes: {a: {nics: [{name: e, role: both}]}}",
        "nodes: {a: {gpus: many}}",
        "nodes: {a: {jump: 5}}",
        "jumps: {j: {become: su}}\nnodes: {a: {}}",
    ],
)
def test_what_an_editor_can_tell_is_refused_by_the_schema(line: str) -> None:
    assert list(VALIDATOR.iter_errors(as_an_editor_sees_it(HEAD + line + "\n")))
    assert problems(line + "\n")


# Commands


def test_the_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "paramiko", "pydantic", "ruamel.yaml", "rich.table")
    code = f"import sys, chaos.cli.main; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_no_command_shows_a_secret_anywhere(tmp_path: Path) -> None:
    """Three secrets that are there, and all that the commands write to both outputs and to files."""
    (tmp_path / "word").write_text("hunter-file")
    (tmp_path / "word").chmod(0o644)
    teller = tmp_path / "teller"
    teller.write_text("#!/bin/sh\necho hunter-command\n")
    teller.chmod(0o755)
    file = tmp_path / "x.yaml"
    file.write_text(
        HEAD + "defaults: {become: sudo, become_password: {env: WORD}}\n"
        f"nodes:\n  a: {{password: {{file: word}}, bmc: {{address: b, user: u, password: {{command: [{teller}]}}}}}}\n"
    )
    shown = ""
    for words in (["check"], ["check", "--json"], ["show"], ["show", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "chaos", "inventory", words[0], str(file), *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"WORD": "hunter-env", "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert done.returncode == 0, done.stderr
        shown += done.stdout + done.stderr
    assert "hunter" not in shown
    assert "weak: password of a" in shown and "can be read by others: chmod 600 it" in shown
    assert json.dumps("environment variable WORD") in shown
