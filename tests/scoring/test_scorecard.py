"""The scorecard as a whole: what it holds, and that scoring is pure."""

import ast
import copy
import json
from pathlib import Path

import pytest

import chaos.scoring
from chaos.scoring import score, watch
from chaos.scoring.rto import Terms
from tests.scoring.recorded import (
    BASELINE,
    BEGAN,
    EFFECT,
    MS,
    PACE,
    STOPPED,
    S,
    ends,
    happened,
    job,
    journal,
    planned,
    probe,
    regrouped,
    regrown,
    stalled,
)
from tests.scoring.test_consistency import AFTER, plant, rolled_back

AT = stalled(ends(), EFFECT, 120 * MS)
SHRUNK = {"before": 4, "least": 3}


def card(events=None, **more):
    return score(journal([planned()], happened(), **more), job(AT) if events is None else events)


def test_it_says_which_run_it_is_of():
    found = card()
    assert found["schema"] == "chaos.scorecard/1"
    assert found["run"] == "20261130-120000-made-up-0001"
    assert found["experiment"] == "made-up"
    assert found["seed"] == 7
    assert found["started"] == "2026-11-30T12:00:00.000+00:00"
    assert found["ended"] == "2026-11-30T12:00:20.000+00:00"
    assert found["workload"]["recovery"] == "checkpoint"
    assert found["workload"]["world"] == 4
    assert found["workload"]["tokens_per_step"] == 4 * 512


def test_the_baseline_is_in_steps_a_second():
    found = card()["baseline"]
    assert found["steps_per_s"]["median"] == pytest.approx(50)
    assert (found["from_ns"], found["to_ns"]) == BASELINE


def test_a_fault_is_told_in_seconds_from_the_runs_start_with_what_was_seen():
    (fault,) = card()["faults"]
    assert fault["name"] == "blackhole"
    assert fault["reality"] == "emulated"
    assert fault["started"] == pytest.approx((EFFECT - BEGAN) / S)
    assert fault["scheduled"] == pytest.approx((EFFECT - BEGAN) / S - 0.0004)
    assert fault["start_error_ms"] == pytest.approx(0.4)
    assert fault["ended"] == pytest.approx((EFFECT - BEGAN) / S + 0.5)
    assert fault["stop_error_ms"] == pytest.approx(0.3)
    assert fault["witness"]["effective"] is True
    assert fault["witness"]["gone"] is True
    assert set(fault["witness"]["evidence"]) == {"before", "during", "after"}
    assert fault["undone"] is True
    assert fault["residue"] == []


def test_the_hypothesis_is_told_by_phase():
    found = card(extra=[probe("during", EFFECT + 10 * MS)])["steady_state"]
    assert [len(found[when]) for when in ("before", "during", "after")] == [1, 1, 1]
    assert found["after"][0]["text"] == "49.9 steps/s"


def test_agreement_is_told_with_its_evidence():
    found = card()["consistency"]
    assert found["ratio"] == 1
    assert found["compared"] > 2000
    assert found["level"] == "observed"
    assert found["verdict"] == "pass"
    assert found["pass"] == 0.9999
    first = card(plant(job(AT), rank=2, step=AFTER + 9))["consistency"]["first_disagreement"]
    assert first["step"] == AFTER + 9
    assert sorted(first["ranks"].values(), key=len)[0] == [2]


def test_it_is_plain_json_and_changes_nothing_that_it_was_given():
    book, events = journal([planned()], happened()), job(AT)
    before = copy.deepcopy((book, events))
    first = score(book, events)
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert (book, events) == before
    assert score(book, events) == first


# -- findings --------------------------------------------------------------------------------------------------------


def findings(*given, **more):
    return [(each["priority"], each["text"]) for each in card(*given, **more)["findings"]]


def has(found, priority, *words):
    return any(p == priority and all(word in told for word in words) for p, told in found)


def test_an_ordinary_pass_has_no_findings():
    assert findings() == []


def test_findings_are_sorted_by_priority_and_have_a_remedy():
    found = score(
        journal([planned()], happened(residue=["rule 12"])),
        plant(job(stalled(ends(), EFFECT, 900 * MS)), rank=1, step=AFTER + 60),
    )["findings"]
    assert [each["priority"] for each in found] == sorted(each["priority"] for each in found)
    assert all(each["remedy"] for each in found)
    told = [(each["priority"], each["text"]) for each in found]
    assert has(told, "P0", "left something behind", "rule 12")
    assert has(told, "P0", "replicas differ", str(AFTER + 60))
    assert has(told, "P1", "913 ms")


@pytest.mark.control
def test_a_state_that_was_not_restored_exactly_is_found_and_fails():
    found = card(rolled_back("other"))
    assert found["verdict"] == "fail"
    assert found["consistency"]["replayed"] == {"compared": 30, "disagreed": 30}
    assert has([(f["priority"], f["text"]) for f in found["findings"]], "P0", "done again", "other parameters")


def test_an_isolated_dip_is_found_with_the_strict_figure():
    at = stalled(AT, EFFECT + 1200 * MS, 150 * MS)
    found = card(job(at))
    assert found["verdict"] == "pass"
    (dip,) = found["rto"]["dips"]
    assert dip["lost_ms"] == pytest.approx(150, abs=20)
    assert found["rto"]["strict_ms"] == pytest.approx(1350, abs=30)
    assert has([(f["priority"], f["text"]) for f in found["findings"]], "P1", "dipped once more", "read strictly")


def test_a_job_that_lost_a_member_for_good_is_told_what_it_can_reach():
    found = findings(regrouped(AT, lost=3, since=EFFECT, spare=False))
    assert has(found, "P1", "blackhole: ", "3 of 4 ranks to its end", "75%", "own pace after 133 ms", "by design")


def test_a_job_that_shrank_and_grew_again_is_told_for_how_long_it_was_smaller():
    found = card(regrown(AT, lost=3, since=EFFECT, again=EFFECT + 1513 * MS))
    (told,) = found["shrunk"]
    assert told == {**SHRUNK, "fault": "blackhole", "after": 4, "regrown": True, "s": pytest.approx(1.4)}
    assert found["rto"]["world"] == {"before": 4, "least": 3, "after": 4}
    said = [(each["priority"], each["text"]) for each in found["findings"]]
    assert has(said, "P2", "blackhole: ", "3 of 4 ranks for 1.4 s", "by design")
    assert not has(said, "P1", "to its end")


@pytest.mark.control
def test_a_job_that_shrinks_without_a_fault_is_told_as_well():
    control = score(journal(), regrouped(AT, lost=3, since=EFFECT, spare=False))
    assert control["rto"] is None
    told = [{key: value for key, value in each.items() if key != "s"} for each in control["shrunk"]]
    assert told == [{**SHRUNK, "fault": None, "after": 3, "regrown": False}]
    (finding,) = control["findings"]
    assert finding["text"].startswith("without a fault: the job went on with 3 of 4 ranks to its end")


def test_the_fault_that_shrank_the_job_is_named_and_not_the_one_that_came_after():
    later = EFFECT + 5 * S
    faults, told = [planned(), planned("f2", "later")], [*happened(), *happened("f2", at=later)]
    found = score(journal(faults, told), regrouped(AT, lost=3, since=EFFECT, spare=False))
    assert [each["fault"] for each in found["shrunk"]] == ["blackhole"]
    assert [each["world"]["before"] for each in found["rto"]["faults"]] == [4, 3]


def test_ranks_that_leave_when_the_job_is_stopped_are_no_loss():
    at = [t for t in AT if t <= STOPPED + 200 * MS]
    assert card(regrouped(at, lost=3, since=STOPPED - PACE, spare=False), stopped=STOPPED - PACE)["shrunk"] == []


def test_a_job_that_keeps_its_ranks_has_not_shrunk():
    assert card()["shrunk"] == []
    assert card(regrouped(AT, lost=1, since=EFFECT))["shrunk"] == []


def test_steps_done_again_are_advice():
    assert has(findings(rolled_back()), "P2", "30 steps were done a second time")


def test_what_the_run_itself_found_is_passed_on():
    said = {"e": "finding", "t": STOPPED, "priority": "P1", "text": "a spare was missing"}
    assert has(findings(extra=[said]), "P1", "a spare was missing")


# -- while the run goes on -------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_knows_when_it_has_recovered_and_held():
    def so_far(until):
        return watch.recovered([e for e in job(AT) if e["t"] <= until], BASELINE, [EFFECT], Terms())

    recovered = EFFECT + 133 * MS
    assert not so_far(EFFECT + 50 * MS)
    assert not so_far(recovered + 1900 * MS)
    assert so_far(recovered + 2100 * MS)
    assert not watch.recovered([], BASELINE, [EFFECT], Terms())


# -- purity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", sorted(Path(chaos.scoring.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_scoring_reads_no_clock_no_file_no_network_and_no_dice(module):
    pure = {"math", "typing", "dataclasses", "collections", "collections.abc", "bisect", "functools", "itertools"}
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name in pure or name.split(".")[:2] in (["chaos", "scoring"], ["chaos", "quantities"]), name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print", "input", "eval", "exec", "__import__")
