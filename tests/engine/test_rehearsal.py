"""`chaos run --rehearse`: everything but the fault itself, on the real nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.engine.ledger import Ledger
from chaos.engine.rehearsal import RehearsedFault, _take
from chaos.lab.client import LabClient
from tests.engine.runs import BLACKHOLE, KILL, Started, document, run

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("nothing_left")]


def test_every_fault_is_armed_and_disarmed_and_none_is_fired(tmp_path: Path, store_file: Path) -> None:
    path = document(tmp_path, BLACKHOLE.format(length="300ms").replace("after:", "every: 1s, times: 2, after:"))
    finished = run(path, tmp_path / "runs", "--rehearse")
    assert finished.code == 0, finished.output
    assert len(finished.faults("armed")) == 2, "one after the other, since both are on the same path"
    assert finished.faults("fired") == []
    assert [event["residue"] for event in finished.faults("undone")] == [[], []]
    assert not [event for event in finished.journal if event.get("phase") == "workload"], "no job is needed for it"
    assert "Every fault can be made" in finished.output
    assert finished.folder is not None
    told = json.loads((finished.folder / "rehearsal.json").read_text())
    assert told["conclusion"] == "ready"
    assert [fault["reality"] for fault in told["faults"]] == ["emulated", "emulated"]
    assert not (finished.folder / "scorecard.json").exists()
    with Ledger.open(store_file) as ledger:
        assert ledger.open_promises() == []


@pytest.mark.train
def test_a_fault_on_a_rank_is_rehearsed_on_the_running_job(tmp_path: Path) -> None:
    finished = run(document(tmp_path, KILL), tmp_path / "runs", "--rehearse", "--json")
    assert finished.code == 0, finished.output
    assert finished.faults("fired") == []
    told = json.loads(finished.output)
    assert told["rehearsal"]["conclusion"] == "ready"
    [fault] = told["rehearsal"]["faults"]
    assert fault["before"].startswith("process ")
    assert fault["undone"]


@pytest.mark.train
def test_an_interrupt_undoes_at_once(tmp_path: Path) -> None:
    started = Started(document(tmp_path, KILL), tmp_path / "runs", "--rehearse")
    started.wait_for("phase", "workload")
    started.signal(signal.SIGINT)
    finished = started.finish()
    assert finished.code == 4, finished.output
    assert "The rehearsal was interrupted" in finished.output


@pytest.mark.train
def test_one_that_breaks_down_is_an_error_and_not_a_fault_that_cannot_be_made(tmp_path: Path) -> None:
    started = Started(document(tmp_path, KILL), tmp_path / "runs", "--rehearse")
    started.wait_for("phase", "workload")
    folder = started.folder()
    assert folder is not None
    os.kill(LabClient(folder / "lab").keeper, signal.SIGKILL)
    finished = started.finish()
    assert finished.code == 5, finished.output
    assert "The rehearsal broke off. None was fired, and nothing is left." in finished.output
    assert "it was not reached" in finished.output


def test_there_is_nothing_to_score_and_the_list_says_so(tmp_path: Path) -> None:
    finished = run(document(tmp_path, BLACKHOLE.format(length="300ms")), tmp_path / "runs", "--rehearse")
    assert finished.code == 0
    for words, code, text in ((["runs"], 0, "rehearsal"), (["explain", "last"], 2, "was a rehearsal")):
        command = [sys.executable, "-m", "chaos", *words, "--runs", str(tmp_path / "runs")]
        told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True)
        assert told.returncode == code
        assert text in told.stdout
        assert "Traceback" not in told.stdout


def test_it_is_either_a_rehearsal_or_a_dry_run(tmp_path: Path) -> None:
    finished = run(document(tmp_path), tmp_path / "runs", "--rehearse", "--dry-run")
    assert finished.code == 2
    assert finished.output == "chaos: --dry-run starts nothing, --rehearse does: name one of them\n"


ARMED = {"what": "armed", "t": 5_000_000}


@pytest.mark.parametrize(
    ("events", "undone", "problem"),
    [
        ([{"what": "failed", "error": "the link is taken"}], False, "the link is taken"),
        ([ARMED], False, "it is not proven undone"),
        ([ARMED, {"what": "undone", "residue": ["a table"]}], False, "left: a table"),
        ([ARMED, {"what": "undone", "residue": []}], True, None),
        ([ARMED, {"what": "failed", "error": "the agent died"}, {"what": "proven"}], True, "the agent died"),
    ],
)
def test_what_the_journal_says_of_a_fault(events: list[dict[str, Any]], undone: bool, problem: str | None) -> None:
    fault = RehearsedFault("f1", "a", "a.kind")
    promised: dict[str, int] = {}
    for event in [{"what": "promised", "t": 2_000_000}, *events]:
        _take(fault, event, promised)
    assert (fault.undone, fault.problem) == (undone, problem)
    assert fault.armed_ms == (3.0 if ARMED in events else None)
