"""Torn, older, foreign and mangled records: a verdict with a reason, never a traceback."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.scoring import SCHEMA, score
from tests.scoring.recorded import EFFECT, MS, ends, happened, journal, planned, regrouped, stalled

VERDICTS = {"pass", "fail", "inconclusive", "aborted", "error"}
BOOK = journal([planned()], happened())
STEPS = regrouped(stalled(ends(), EFFECT, 200 * MS), lost=1, since=EFFECT, back_to=380)
FEW = [event for event in STEPS if event["e"] != "step" or event["step"] % 10 == 0]

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.sampled_from(["", "nan", "inf", "before", "after", "during", "step", "fault", "completed"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def sound(card):
    """What every scorecard has, whatever it was made of."""
    assert card["schema"] == SCHEMA
    assert card["verdict"] in VERDICTS
    assert isinstance(card["reason"], str)
    assert card["reason"]
    json.dumps(card)
    return card


def places(value, path=()):
    """Every place in a JSON document."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


def put(document, path, value):
    """The document with one place replaced."""
    changed = copy.deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


BOOK_PLACES = list(places(BOOK))


@pytest.mark.parametrize("length", range(len(BOOK) + 1))
def test_a_journal_cut_after_any_line_has_a_verdict(length):
    card = sound(score(BOOK[:length], STEPS))
    if length < len(BOOK):
        assert card["verdict"] in ("aborted", "error")


def test_a_cut_journal_is_an_error_exactly_while_a_fault_is_open():
    told = [(event.get("what"), score(BOOK[: k + 1], [])["verdict"]) for k, event in enumerate(BOOK)]
    opened = next(k for k, (what, _) in enumerate(told) if what == "armed")
    closed = next(k for k, (what, _) in enumerate(told) if what == "undone")
    assert {verdict for _, verdict in told[1:opened]} == {"aborted"}
    assert {verdict for _, verdict in told[opened:closed]} == {"error"}
    assert {verdict for _, verdict in told[closed:-1]} == {"aborted"}


@pytest.mark.parametrize("line", range(len(BOOK)))
def test_a_journal_that_lacks_any_line_has_a_verdict(line):
    sound(score(BOOK[:line] + BOOK[line + 1 :], STEPS))


def test_nothing_at_all_is_an_error():
    card = sound(score([], []))
    assert card["verdict"] == "error"
    assert "no plan" in card["reason"]


def test_a_run_without_step_events_is_inconclusive():
    card = sound(score(BOOK, []))
    assert card["verdict"] == "inconclusive"
    assert card["rto"]["ms"] is None


def test_a_journal_without_a_baseline_is_inconclusive():
    card = sound(score([event for event in BOOK if event["e"] != "baseline"], STEPS))
    assert card["verdict"] == "inconclusive"
    assert card["baseline"] is None


def test_an_older_journal_without_score_and_without_targets_is_read_with_the_defaults():
    older = copy.deepcopy(BOOK)
    plan = older[1]
    del plan["experiment"]["score"]
    for key in ("target", "params", "for_s", "drawn", "reality"):
        del plan["faults"][0][key]
    card = sound(score(older, STEPS))
    assert card["verdict"] == "pass"
    assert card["rto"]["pass_ms"] == 800


@pytest.mark.parametrize("schema", [None, "chaos.journal/0", "chaos.journal/2", 7])
@pytest.mark.control
def test_a_journal_of_another_schema_is_never_a_pass(schema):
    card = sound(score([{**BOOK[0], "schema": schema}, *BOOK[1:]], STEPS))
    assert card["verdict"] == "inconclusive"
    assert "chaos.journal/1" in card["reason"]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BOOK_PLACES), junk)
def test_a_journal_with_any_field_mangled_has_a_verdict(path, value):
    mangled = put(BOOK, path, value)
    sound(score([event for event in mangled if isinstance(event, dict)], FEW))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(FEW) - 1), st.sampled_from(list(FEW[-1])), junk), max_size=12))
def test_step_events_with_fields_mangled_do_no_harm(damage):
    events = [dict(event) for event in FEW]
    for place, key, value in damage:
        events[place][key] = value
    sound(score(BOOK, events))


@settings(max_examples=100, deadline=None)
@given(st.lists(junk, max_size=5), st.lists(junk, max_size=5))
def test_events_that_are_no_objects_do_no_harm(lines, rows):
    sound(score([*BOOK, *lines], [*FEW, *rows]))


def test_instants_of_another_boot_do_no_harm():
    later = [{**event, "t": event["t"] + 10**15} for event in STEPS]
    assert sound(score(BOOK, later))["verdict"] == "inconclusive"
