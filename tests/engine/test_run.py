"""Whole runs on real training in the lab: what they write, how they end, what they leave."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.engine.runs import BLACKHOLE, KILL, Started, document, processes, replay, run, wait_gone

pytestmark = [pytest.mark.lab, pytest.mark.train, pytest.mark.usefixtures("nothing_left")]

PHASES = ["lab", "workload", "baseline", "before", "faults", "recovery", "settle", "after", "stop"]
KEYS = {
    *("schema", "run", "experiment", "seed", "verdict", "reason", "started", "ended", "workload", "baseline"),
    *("faults", "rto", "consistency", "steady_state", "findings"),
}


def test_a_black_hole_is_made_witnessed_ended_and_scored(tmp_path):
    finished = run(document(tmp_path, BLACKHOLE.format(length="300ms")), tmp_path / "runs")
    card = finished.card
    assert finished.code == {"pass": 0, "fail": 1, "inconclusive": 3}[card["verdict"]], finished.output
    assert card["schema"] == "chaos.scorecard/1"
    assert card.keys() >= KEYS
    [fault] = card["faults"]
    assert fault["reality"] == "emulated"
    assert fault["witness"]["effective"] is True
    assert fault["witness"]["gone"] is True
    assert fault["undone"] is True
    assert fault["residue"] == []
    assert card["rto"]["ms"] is not None
    assert card["rto"]["low_ms"] <= card["rto"]["ms"] <= card["rto"]["high_ms"]
    assert card["consistency"]["compared"] > 0
    assert card["consistency"]["disagreed"] == 0
    assert [event["phase"] for event in finished.journal if event["e"] == "phase"] == PHASES
    for name in ("journal.jsonl", "steps.jsonl", "scorecard.json", "scorecard.html", "scorecard.md", "junit.xml"):
        assert (finished.folder / name).stat().st_size > 0
    assert list((finished.folder / "logs").iterdir())
    assert not (finished.folder / "work").exists()
    assert not (finished.folder / "lab").exists()


def test_a_killed_rank_is_replaced_and_the_state_is_that_of_an_undisturbed_run(tmp_path):
    finished = run(document(tmp_path, KILL, spares=1), tmp_path / "runs")
    card = finished.card
    assert card["faults"][0]["witness"]["effective"] is True
    assert card["rto"]["ms"] is not None, finished.output
    assert {stage["stage"] for stage in card["rto"]["breakdown"]} >= {"detected", "group", "restored", "first step"}
    assert card["consistency"]["disagreed"] == 0
    assert card["consistency"]["replayed"]["disagreed"] == 0
    # CASES 21: the last look at the steady state comes after the recovery, and is never a part of it.
    recovered = finished.faults("fired")[0]["effect_ns"] + card["rto"]["ms"] * 1e6
    looks = [event["t"] for event in finished.journal if event["e"] == "probe" and event["when"] == "after"]
    assert looks
    assert min(looks) > recovered
    assert [survivor["rank"] for survivor in card["rto"]["survivors"]] == [0]


STORM = (
    "[{name: hole, inject: fabric.blackhole, on: {node: 0}, with: {from: gpu0, to: gpu1}, after: 200ms, for: 200ms, "
    "every: 1s, times: 2, jitter: 300ms}, "
    "{name: stop, inject: process.signal, on: {rank: all}, pick: one, with: {signal: STOP}, after: 2s, for: 200ms}]"
)


def test_a_replay_breaks_the_same_at_the_same_instants(tmp_path):
    first = run(document(tmp_path, STORM), tmp_path / "runs", "--seed", "3")
    again = replay(first, tmp_path / "again")
    plans = [next(event for event in each.journal if event["e"] == "plan") for each in (first, again)]
    assert [plan["seed"] for plan in plans] == [3, 3]
    faults = [[{**fault, "id": None} for fault in plan["faults"]] for plan in plans]
    assert faults[0] == faults[1]
    assert len({fault["id"] for plan in plans for fault in plan["faults"]}) == 6
    assert [fault["name"][:6] for fault in faults[0]] == ["hole", "hole@2", "stop/r"]
    for each in (first, again):
        assert [fault["started"] is not None for fault in each.card["faults"]] == [True] * 3
        late = [event["scheduled_ns"] for event in each.faults("fired")]
        planned = [fault["after_s"] for fault in faults[0]]
        assert late[1] - late[0] == pytest.approx((planned[1] - planned[0]) * 1e9, abs=1e6)


def test_a_rank_that_has_moved_to_a_protected_node_is_not_touched_there(tmp_path):
    path = document(tmp_path, KILL.replace("after", "every: 3s, times: 2, after"), spares=1)
    path.write_text(path.read_text(encoding="utf-8") + "guards: {protect: {labels: [spare]}}\n", encoding="utf-8")
    finished = run(path, tmp_path / "runs")
    [failed] = finished.faults("failed")
    assert failed["error"] == "rank 1 runs on node 1 by now, which guards.protect forbids"
    assert len(finished.faults("fired")) == 1
    assert finished.code == 3, finished.output


def test_a_failed_gate_starts_nothing(tmp_path):
    """CASES 3 and 6."""
    finished = run(document(tmp_path, KILL, throughput="100000%"), tmp_path / "runs")
    assert finished.code == 3, finished.output
    assert "gate failed" in finished.card["reason"]
    assert finished.faults("armed") == []
    assert finished.faults("fired") == []


def test_a_fault_that_chance_does_not_draw_is_no_pass(tmp_path):
    faults = KILL.replace("after:", "probability: 0%, after:")
    finished = run(document(tmp_path, faults), tmp_path / "runs")
    assert finished.code == 3, finished.output
    assert "no fault drawn" in finished.card["reason"]


def test_without_faults_the_control_has_no_recovery_to_score(tmp_path):
    finished = run(document(tmp_path, KILL), tmp_path / "runs", "--no-faults")
    assert finished.card["rto"] is None
    assert finished.card["faults"] == []
    assert finished.card["consistency"]["compared"] > 0


@pytest.mark.parametrize("phase", ["lab", "workload", "baseline", "faults", "recovery"])
def test_an_interrupt_in_any_phase_undoes_everything_and_is_scored_as_aborted(tmp_path, phase):
    """CASES 1, 2, 4 and 5: also with a second interrupt while the first is being obeyed."""
    length = "20s" if phase == "faults" else "300ms"
    started = Started(document(tmp_path, BLACKHOLE.format(length=length)), tmp_path / "runs")
    if phase == "faults":
        started.wait_for("what", "fired")
    else:
        started.wait_for("phase", phase)
    started.signal(signal.SIGINT)
    started.signal(signal.SIGINT)
    finished = started.finish()
    assert finished.code == 4, finished.output
    assert finished.card["verdict"] == "aborted"
    assert "SIGINT" in finished.card["reason"]
    for fault in finished.card["faults"]:
        assert fault["residue"] == []
        assert fault["started"] is None or fault["undone"]
    assert "Traceback" not in finished.output


def test_the_controller_killed_in_the_middle_of_a_fault_leaves_nothing(tmp_path):
    """CASES 13; the journal up to that instant is whole, and is no pass."""
    former = processes()
    started = Started(document(tmp_path, BLACKHOLE.format(length="20s")), tmp_path / "runs")
    started.wait_for("what", "fired")
    started.signal(signal.SIGKILL)
    started.process.communicate()
    assert not wait_gone(former)
    command = [sys.executable, "-m", "chaos", "report", "last", "--runs", str(tmp_path / "runs")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    finished = started.finish()
    assert finished.card["verdict"] == "error"
    assert "not proven undone" in finished.card["reason"]


def test_a_fault_that_is_not_possible_here_starts_nothing_and_leaves_no_folder(tmp_path):
    faults = "[{inject: power.off, on: {node: 0}, after: 1s, for: 1s}]"
    path = document(tmp_path, faults)
    path.write_text(path.read_text() + "guards: {nodes_at_most: 0}\n")
    finished = run(path, tmp_path / "runs")
    assert finished.code == 2
    assert finished.output.count("\n") == 1, finished.output
    assert finished.folder is None
