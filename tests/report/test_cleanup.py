"""The clean-up is told apart from what the run measured."""

from __future__ import annotations

from typing import Any

import pytest
from report_samples import MS, aborted, left_over, passing, undrawn

from chaos import scoring


def without(card_of: Any, *whats: str) -> dict[str, Any]:
    """The scorecard of a run whose journal lacks some of its fault's events."""
    run = card_of()
    journal = [event for event in run.journal if event.get("what") not in whats]
    return scoring.score(journal, run.steps)


def told(run: Any, what: str, **fields: Any) -> None:
    """An event of the run's first fault, before the run's end."""
    run.journal.insert(
        -2, {"e": "fault", "t": run.journal[-2]["t"] - MS, "id": run.faults[0]["id"], "what": what} | fields
    )


def test_what_is_proven_undone_is_clean_and_the_verdict_stands_alone() -> None:
    card = passing().card
    assert card["cleanup"] == {
        "verdict": "clean",
        "text": "the fault is proven undone, nothing is left",
        "open": [],
    }
    assert card["measured"] is None


@pytest.mark.control
def test_a_residue_makes_the_run_an_error_and_keeps_what_was_measured() -> None:
    """CASES 20."""
    card = left_over().card
    assert card["verdict"] == "error"
    assert card["cleanup"]["verdict"] == "open"
    (open_,) = card["cleanup"]["open"]
    assert open_["fault"] == "blackhole"
    assert "nftables table" in open_["text"]
    assert card["measured"]["verdict"] == "pass"


def test_an_abort_without_a_proof_is_an_error_that_says_it_was_aborted() -> None:
    """CASES 20."""
    card = without(aborted, "undone")
    assert card["verdict"] == "error"
    assert card["measured"]["verdict"] == "aborted"
    assert "everything is undone" not in card["measured"]["reason"]
    assert card["cleanup"]["open"][0]["text"] == "its node has sent no proof"


def test_where_chance_drew_nothing_nothing_was_made() -> None:
    card = undrawn().card
    assert card["cleanup"]["verdict"] == "nothing made"
    assert card["measured"] is None


def test_a_fault_that_was_promised_and_of_which_nothing_was_heard_is_open() -> None:
    """CASES 9 and 18."""
    run = passing()
    run.journal = [event for event in run.journal if event["e"] != "fault"]
    assert run.card["cleanup"]["verdict"] == "nothing made"
    told(run, "promised")
    assert run.card["cleanup"]["verdict"] == "open"
    assert run.card["verdict"] == "error"
    told(run, "proven", text="never made: refused")
    assert run.card["cleanup"]["verdict"] == "nothing made"
    assert run.card["verdict"] == "inconclusive", "it was not witnessed"


def test_a_proof_from_elsewhere_cleans_up_and_is_no_witness() -> None:
    run = passing()
    run.journal = [event for event in run.journal if event.get("what") != "undone" and event.get("phase") != "after"]
    told(run, "failed", error="the agent of node 0 died while it held the fault")
    told(run, "unproven", why="node 0 does not answer")
    assert run.card["cleanup"]["open"][0]["text"] == "node 0 does not answer"
    told(run, "proven", text="gone with its lab")
    card = run.card
    assert card["cleanup"]["verdict"] == "clean"
    assert "blackhole: gone with its lab" in card["cleanup"]["text"]
    assert card["verdict"] == "inconclusive"
    assert "was not seen to its end" in card["reason"]
    assert card["faults"][0]["undone"] is True
