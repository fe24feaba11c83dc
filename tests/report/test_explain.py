"""Plain sentences: why, and what to change."""

from __future__ import annotations

import pytest
from report_samples import (
    SAMPLES,
    aborted,
    gate_failed,
    left_over,
    noisy,
    passing,
    slow,
    undrawn,
    unwitnessed,
)

from chaos.report.explain import advice, explain


@pytest.mark.parametrize("name", SAMPLES)
def test_the_first_line_gives_verdict_and_reason(name):
    make, verdict = SAMPLES[name]
    card = make().card
    lines = explain(card)
    assert lines[0].startswith(f"nvswitch-path-blackhole: {verdict}. {card['reason'][:40]}")
    assert all(lines) and not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (unwitnessed, "not seen in effect"),
        (noisy, "make steps longer (`workload.step`)"),
        (gate_failed, "unwell before anything was broken"),
        (undrawn, "raise the faults' `probability`"),
        (aborted, "what ended the run"),
        (left_over, "go to node 0 and remove what blackhole may have left"),
    ],
)
def test_what_to_change_follows_from_the_cause(make, told):
    assert told in " ".join(advice(make().card))


def test_a_pass_needs_no_advice():
    assert advice(passing().card) == []


def test_a_failure_is_explained_by_its_findings():
    lines = explain(slow().card)
    assert any(line.startswith("P0: replicas differ from step") and "Remedy:" in line for line in lines)


def test_a_run_that_was_not_observed_for_long_enough():
    card = passing().card
    card |= {"verdict": "inconclusive"}
    card["rto"]["faults"][0] |= {"verdict": "inconclusive", "held": False, "reason": "not observed for 2 s after that"}
    assert any("observe for longer" in each for each in advice(card))


def test_demonstrated_asks_for_a_series():
    card = passing().card
    card |= {"verdict": "inconclusive"}
    card["rto"]["faults"][0] |= {"verdict": "inconclusive", "reason": "`require: demonstrated` asks for a series"}
    assert any("repeat the experiment" in each for each in advice(card))


def test_where_the_time_went_is_told_in_one_line():
    (line,) = (line for line in explain(slow().card) if line.startswith("Where the recovery of blackhole went: "))
    names = ["symptom", "detected", "aborted", "group", "agreed", "restored", "first step", "recovered"]
    assert [part.split("\u00a0")[0].rpartition(" ")[0] for part in line.split(": ")[1].split(", ")] == names
