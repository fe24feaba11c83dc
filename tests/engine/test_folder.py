"""Where runs are kept: making, finding, pruning."""

from __future__ import annotations

import pytest

from chaos.engine import folder
from chaos.engine.errors import InputError


def made(runs, name, *, ended=True, size=10):
    made = folder.create(runs, name)
    made.journal.write_text('{"e": "journal"}\n' + "x" * size)
    if ended:
        made.scorecard.write_text("{}")
    return made


def test_a_folder_that_cannot_be_written_is_one_clear_error_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        folder.create(tmp_path / "file", "run")
    with pytest.raises(InputError, match="CHAOS_RUNS"):
        folder.create(folder.Path("/proc/nowhere"), "run")


def test_a_run_is_found_by_path_id_beginning_and_as_the_last(tmp_path):
    first, second = made(tmp_path, "2026-a"), made(tmp_path, "2026-b")
    assert folder.find(tmp_path, "2026-a") == first
    assert folder.find(tmp_path, "2026-b") == second
    assert folder.find(tmp_path, str(second.path)) == second
    assert folder.find(tmp_path, "last") == second
    with pytest.raises(InputError, match="2026-a or 2026-b"):
        folder.find(tmp_path, "2026")
    with pytest.raises(InputError, match="no run 'x'"):
        folder.find(tmp_path, "x")


def test_pruning_keeps_the_newest_and_whatever_has_not_ended(tmp_path):
    for name in "abcd":
        made(tmp_path, name, ended=name != "a")
    removed = folder.prune(tmp_path, keep=2)
    assert [each.path.name for each in removed] == ["b"]
    assert [each.path.name for each in folder.everything(tmp_path)] == ["a", "c", "d"]


def test_pruning_by_size_stops_when_the_rest_fits(tmp_path):
    for name in "abcd":
        made(tmp_path, name, size=1000)
    removed = folder.prune(tmp_path, keep=0, bytes_at_most=2500)
    assert [each.path.name for each in removed] == ["a", "b"]


def test_a_torn_last_line_is_left_out(tmp_path):
    torn = folder.create(tmp_path, "torn")
    torn.journal.write_text('{"e": "journal"}\n{"e": "pha')
    assert torn.read_journal() == [{"e": "journal"}]
