"""`chaos faults`: every kind explains itself, its example is a valid document, and the docs' pages are not stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_help import chaos

from chaos.engine import faultbook
from chaos.engine.catalogue import catalogue, injectors
from chaos.experiment import DocumentErrors, LabSpec, Nodes, loads

ROOT = Path(__file__).parents[2]
KINDS = faultbook.kinds()


def nodes(cluster: str, workload: object) -> Nodes:
    return Nodes(cluster, ("a", "b"), LabSpec(nodes=2, gpus=2), lambda _: [0])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_kind_says_everything_of_itself(kind: faultbook.Kind) -> None:
    for said in (kind.about, kind.mechanism, kind.undoing, kind.proof, kind.witnessed):
        assert said.endswith((".", "...")), f"a sentence: {said!r}"
    assert set(kind.where) <= {"lab", "node"}
    assert kind.where
    assert all(each.help for each in kind.parameters), "each parameter is explained"
    experiment = loads(kind.example, catalogue(), {}, clusters=nodes)
    assert experiment.faults[0].inject == kind.kind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_its_page_in_the_docs_is_what_make_docs_would_write(kind: faultbook.Kind) -> None:
    page = ROOT / "docs" / "faults" / f"{kind.kind}.md"
    assert page.read_text(encoding="utf-8") == faultbook.page(kind), "run `make docs`"


def test_the_index_lists_all_and_there_is_no_page_of_anything_else() -> None:
    folder = ROOT / "docs" / "faults"
    assert (folder / "README.md").read_text(encoding="utf-8") == faultbook.index(KINDS), "run `make docs`"
    assert {page.stem for page in folder.glob("*.md")} == {"README", *(kind.kind for kind in KINDS)}


def test_the_table_and_the_json_list_all_kinds() -> None:
    table = chaos("faults")
    assert table.returncode == 0
    assert all(kind in table.stdout for kind in injectors())
    told = json.loads(chaos("faults", "--json").stdout)
    assert [each["kind"] for each in told["faults"]] == sorted(injectors())


def test_one_kind_is_explained_with_its_parameters() -> None:
    told = chaos("faults", "process.signal")
    assert told.returncode == 0
    for said in ("signal", "one of KILL", "required", "SIGCONT", "inject: process.signal"):
        assert said in told.stdout
    [kind] = json.loads(chaos("faults", "process.signal", "--json").stdout)["faults"]
    assert next(each for each in kind["parameters"] if each["name"] == "signal")["required"] is True


def test_an_unknown_kind_is_told_with_the_nearest() -> None:
    told = chaos("faults", "proces.signal")
    assert told.returncode == 2
    assert told.stdout == "chaos: there is no fault 'proces.signal'; did you mean 'process.signal'?\n"


DOCUMENT = """experiment: x
lab: {{nodes: 1, gpus: 1}}
workload: {{reference: llama-bytes}}
faults:
  - {{name: f, inject: power.off, on: {{node: 0}}, after: 1s, for: 1s{danger}}}
"""


def test_what_may_be_lost_must_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injectors()["power.off"], "danger", "the disk's cache is lost")
    catalogue.cache_clear()
    try:
        with pytest.raises(DocumentErrors, match=r"5:5: found no 'danger'; power\.off is dangerous \(the disk's cache"):
            loads(DOCUMENT.format(danger=""), catalogue(), {})
        assert loads(DOCUMENT.format(danger=", danger: accepted"), catalogue(), {}).faults[0].danger == "accepted"
        with pytest.raises(DocumentErrors, match="accepted"):
            loads(DOCUMENT.format(danger=", danger: yes"), catalogue(), {})
    finally:
        monkeypatch.undo()
        catalogue.cache_clear()
    with pytest.raises(DocumentErrors, match=r"found 'danger', but power\.off has none; leave it out"):
        loads(DOCUMENT.format(danger=", danger: accepted"), catalogue(), {})
