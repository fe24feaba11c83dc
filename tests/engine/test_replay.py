"""Repeating a recorded run: the same storm, or a clear word on why not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chaos.engine import plan, replay
from chaos.engine.errors import InputError
from chaos.engine.folder import RunFolder
from tests.engine.test_plan import NOW, PICKED, experiment

LATER = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def recorded(tmp_path: Path, **changed: Any) -> RunFolder:
    """A folder whose journal begins as that of a run does."""
    drawn = plan.draw(experiment(f"[{PICKED}]"), NOW, 5)
    written = {
        "e": "plan",
        "experiment": drawn.experiment.model_dump(mode="json"),
        "seed": drawn.seed,
        "source": "experiment: drawn",
        "faults": [fault.as_json() for fault in drawn.faults],
    }
    lines = [{"e": "journal", "version": "0.0.9"}, {**written, **changed}]
    folder = RunFolder(tmp_path / "a-run")
    folder.path.mkdir()
    folder.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_replay_draws_the_recorded_faults_again_for_a_run_of_its_own(tmp_path):
    former = replay.read(recorded(tmp_path))
    again = replay.draw(former, LATER)
    assert (former.source, again.seed) == ("experiment: drawn", 5)
    assert again.run.startswith("20260304-050607-drawn-")
    first = plan.draw(experiment(f"[{PICKED}]"), NOW, 5)
    assert [fault.spec for fault in again.faults] == [fault.spec for fault in first.faults]


def test_another_storm_than_the_recorded_one_is_refused(tmp_path):
    faults = [fault.as_json() for fault in plan.draw(experiment(f"[{PICKED}]"), NOW, 5).faults]
    drawn = faults[0]["after_s"]
    faults[0]["after_s"] = 1.5
    expected = f"drawn by version 0.0.9; .* draws other faults .*after_s of .*: 1.5 was recorded, {drawn} is drawn"
    with pytest.raises(InputError, match=expected):
        replay.draw(replay.read(recorded(tmp_path, faults=faults)), LATER)


def test_a_fault_more_or_less_is_another_storm(tmp_path):
    faults = [fault.as_json() for fault in plan.draw(experiment(f"[{PICKED}]"), NOW, 5).faults]
    with pytest.raises(InputError, match="59 faults were recorded, 60 are drawn"):
        replay.draw(replay.read(recorded(tmp_path, faults=faults[:-1])), LATER)


def test_an_injector_that_is_not_installed_is_named(tmp_path):
    former = replay.read(recorded(tmp_path))
    stranger = former.experiment.faults[0].model_copy(update={"inject": "site.own"})
    other = former.experiment.model_copy(update={"faults": [stranger]})
    with pytest.raises(InputError, match=r"a-run needs the injector site\.own, which is not installed"):
        replay.draw(replay.Recorded("a-run", other, 5, "", [], "version 1"), LATER)


@pytest.mark.parametrize("text", ["", '{"e": "journal", "version": "0.0.9"}\n', '{"e": "plan", "exper', "\x00\xff\n"])
def test_a_journal_without_a_plan_is_refused(tmp_path, text):
    folder = RunFolder(tmp_path)
    folder.journal.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=f"the journal of {tmp_path.name} holds no plan"):
        replay.read(folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"experiment": {"name": "x"}},
        {"experiment": None},
        {"seed": None},
        {"faults": 5},
        {"faults": [5]},
    ],
)
def test_a_plan_that_this_version_cannot_read_is_refused(tmp_path, changed):
    with pytest.raises(InputError, match=r"the plan of a-run, written by version 0\.0\.9, cannot be read by version"):
        replay.read(recorded(tmp_path, **changed))
