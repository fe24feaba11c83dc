"""Guards: what ends a run."""

from __future__ import annotations

import json

import pytest
from lab_help import eventually

from chaos.engine.catalogue import catalogue
from chaos.engine.guards import Guards
from chaos.engine.journal import Journal
from chaos.engine.live import View
from chaos.engine.stop import Stop
from chaos.experiment import loads

TEXT = """
experiment: guarded
cluster: lab
lab: {{nodes: 1, gpus: 2}}
workload: {{reference: llama-bytes, step: 20ms}}
steady_state: {{baseline: 1s}}
guards: {{stop_if: {{probe: file, path: {path}, value: exists, is: true, for: 100ms}}}}
score: {{hold: 100ms}}
settle: 0s
at_most: {at_most}
"""


@pytest.fixture
def guarded(tmp_path):
    def make(at_most="60s"):
        flag = tmp_path / "flag"
        document = loads(TEXT.format(path=flag, at_most=at_most), catalogue(), {})
        stop = Stop()
        journal = Journal(tmp_path / "journal.jsonl", "run")
        return Guards(document, lambda: View(0, 1, 2, {}, [], []), journal, stop), stop, flag

    return make


def test_a_condition_that_holds_for_its_time_stops_the_run_once_guards_are_armed(guarded, tmp_path):
    guards, stop, flag = guarded()
    flag.write_text("")
    assert not stop.wait(0.8)  # not armed: the workload is only starting
    guards.arm()
    assert stop.wait(20)
    assert stop.reason.cause == "guard"

    def events():
        return [json.loads(line)["e"] for line in (tmp_path / "journal.jsonl").read_text().splitlines()]

    eventually(lambda: "guard" in events(), "the guard in the journal")
    assert events() == ["journal", "probe", "guard"]


def test_a_run_that_lasts_too_long_is_stopped(guarded):
    guards, stop, _ = guarded("2s")
    assert stop.wait(20)
    assert "at_most: 2s" in stop.reason.text
    guards.close()


def test_a_probe_that_hangs_does_not_delay_the_bound_on_the_run(tmp_path):
    """CASES 23."""
    hangs = "stop_if: {probe: command, argv: [sleep, '60'], value: exit_code, is: 0, timeout: 60s, for: 100ms}"
    text = TEXT.format(path="x", at_most="2s")
    text = "\n".join(f"guards: {{{hangs}}}" if line.startswith("guards:") else line for line in text.splitlines())
    stop = Stop()
    with Journal(tmp_path / "journal.jsonl", "run") as journal:
        guards = Guards(loads(text, catalogue(), {}), lambda: View(0, 1, 2, {}, [], []), journal, stop)
        guards.arm()
        assert stop.wait(10)
        guards.close()
    assert "at_most: 2s" in stop.reason.text
