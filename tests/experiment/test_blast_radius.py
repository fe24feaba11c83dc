"""Limits in a document: how they are written, and what a document is sure to break."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from experiment_documents import Load, Refused, placed

from chaos.experiment.radius import most_at_once
from chaos.experiment.windows import Window

KILL = "inject: process.signal, with: {signal: KILL}"
OFF = "inject: power.off, for: 1s"
HOLE = "inject: fabric.blackhole, with: {from: gpu0, to: gpu1}, for: 1s"


def document(guards: str, *faults: str) -> str:
    return f"guards: {{{guards}}}\nfaults: [{', '.join('{' + each + '}' for each in faults)}]\n"


@pytest.mark.parametrize(
    ("guards", "problem"),
    [
        ("devices_at_most: »-1", "found -1; write 0 or more"),
        ("share_at_most: »0.25", "found '0.25' without a unit; write 0.25%"),
        ("share_at_most: »101%", "found '101%'; write at most 100%"),
        ("at_once_at_most: »some", "found 'some'; write a whole number"),
        ("protect: »[1]", "found a list; write a mapping"),
        ("protect: {nodes: [»3]}", "found node 3, but the lab has nodes 0 to 2"),
        ("protect: {labels: [»spair]}", "found 'spair', which no node of the lab has; did you mean 'spare'?"),
        ("protect: {»label: [spare]}", "unknown key 'label'; did you mean 'labels'?"),
        ("allowed: {from: »25:00, to: 06:00}", "found '25:00'; write a time of day from 00:00 to 24:00, such as 22:00"),
        ("allowed: {from: »9:00, to: 17:00}", "found '9:00'; write a time of day from 00:00 to 24:00, such as 22:00"),
        ("allowed: {from: 09:00, to: »24:01}", "found '24:01'; write a time of day"),
        ("allowed: {from: 09:00, to: »17}", "found 17; write text, in quotes: '17'"),
        ("allowed: »{from: 09:00}", "found no 'to'; write it: when it ends"),
        (
            "allowed: »{from: 09:00, to: 09:00}",
            "found a window from 09:00 to 09:00; for a whole day write 00:00 to 24:00",
        ),
        (
            "allowed: [{from: 09:00, to: 17:00, days: [»monday]}]",
            "found 'monday'; write mon, tue, wed, thu, fri, sat or",
        ),
        ("allowed: [{from: 09:00, to: 17:00, days: »[]}]", "found a list; write at least one entry"),
        (
            "allowed: {from: 09:00, to: 17:00, zone: »Europe/Berlinn}",
            "found 'Europe/Berlinn', which is no time zone of",
        ),
        ("allowed: {from: 09:00, to: 17:00, zone: »../UTC}", "found '../UTC', which is no time zone"),
    ],
)
def test_a_limit_is_read_strictly(refused: Refused, guards: str, problem: str) -> None:
    text, place = placed("guards: {", guards, "}\n")
    (found,) = refused(text)
    assert found.startswith(f"{place}: {problem}")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            document("devices_at_most: 1", f"{HOLE}, on: {{node: 0}}, after: 1s"),
            "4:27: found 1, but the faults touch 2 GPUs (0:gpu0, 0:gpu1); allow that many, or aim at fewer",
        ),
        (
            document("devices_at_most: 2", f"{OFF}, on: {{node: 0}}, after: 1s", f"{KILL}, on: {{rank: 3}}, after: 1s"),
            "4:27: found 2, but the faults touch 3 GPUs (0:gpu0, 0:gpu1, 1:gpu1)",
        ),
        (
            document("devices_at_most: 2", f"{KILL}, on: {{rank: all}}, pick: 3, after: 1s"),
            "4:27: found 2, but one fault alone touches 3 GPUs; allow that many, or pick fewer",
        ),
        (
            document("nodes_at_most: 1", f"{KILL}, on: {{rank: all}}, pick: 3, after: 1s"),
            "4:25: found 1, but one fault alone touches 2 nodes; allow that many, or pick fewer",
        ),
        (
            document("share_at_most: 49%", f"{KILL}, on: {{rank: 0}}, after: 1s"),
            "4:25: found 49%, but the faults touch 1 of the job's 2 nodes (50%); allow that share, or aim at fewer",
        ),
        (
            document(
                "at_once_at_most: 1", f"{OFF}, on: {{node: 0}}, after: 1s", f"{KILL}, on: {{rank: 2}}, after: 1500ms"
            ),
            "4:27: found 1, but 2 faults are in effect at once 1.5s after the gate; allow that many, or set them apart",
        ),
        (
            document("at_once_at_most: 2", f"{KILL}, on: {{rank: all}}, pick: 3, after: 1s"),
            "4:27: found 2, but 3 faults are in effect at once 1s after the gate",
        ),
        (
            document("protect: {nodes: [1]}", f"{KILL}, on: {{rank: 2}}, after: 1s"),
            "5:61: found a target on node 1, which 'protect' keeps from all faults; aim elsewhere",
        ),
        (
            document("protect: {labels: [job]}", f"{OFF}, on: {{node: all}}, pick: one, after: 1s"),
            "5:43: found too few targets that are not on nodes 0, 1, which 'protect' keeps from all faults",
        ),
    ],
)
def test_what_is_over_a_limit_however_chance_draws_is_refused_at_once(
    refused: Refused, lines: str, problem: str
) -> None:
    (found,) = refused(lines)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "lines",
    [
        # Within the limit as it stands.
        document("devices_at_most: 2", f"{HOLE}, on: {{node: 0}}, after: 1s", f"{KILL}, on: {{rank: 1}}, after: 1s"),
        document("share_at_most: 0%", f"{OFF}, on: {{node: 2}}, after: 1s"),  # the spare is none of the job's nodes
        document("at_once_at_most: 1", f"{OFF}, on: {{node: 0}}, after: 1s", f"{OFF}, on: {{node: 1}}, after: 2s"),
        document("protect: {labels: [spare]}", f"{OFF}, on: {{node: all}}, after: 1s"),
        # The draw may keep to it.
        document("nodes_at_most: 1", f"{KILL}, on: {{rank: all}}, pick: 2, after: 1s"),
        document("nodes_at_most: 0", f"{KILL}, on: {{rank: 1}}, after: 1s, probability: 50%"),
        document("protect: {nodes: [0]}", f"{OFF}, on: {{node: all}}, pick: one, after: 1s"),
        document(
            "at_once_at_most: 1",
            f"{KILL}, on: {{rank: 1}}, after: 1s, jitter: 1s",
            f"{KILL}, on: {{rank: 2}}, after: 1s, jitter: 1s",
        ),
    ],
)
def test_what_may_be_within_its_limits_loads(load_text: Load, lines: str) -> None:
    assert load_text(lines)


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], (0, 0.0)),
        ([(1, 2)], (1, 1)),
        ([(1, 2), (2, 3)], (1, 1)),  # one ends as the other begins
        ([(1, 3), (2, 4), (2.5, 2.6)], (3, 2.5)),
        ([(1, 1), (1, 1)], (2, 1)),  # two kills
        ([(1, 1), (0, 1)], (1, 0)),
        ([(1, 1), (1, 2), (0, 3)], (3, 1)),
    ],
)
def test_the_most_at_one_instant_are_counted(spans: list[tuple[float, float]], most: tuple[int, float]) -> None:
    assert most_at_once(spans) == most


NEW_YORK = {"zone": "America/New_York"}
NIGHT = {"from": "22:00", "to": "06:00", "days": ["mon", "tue"], "zone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("window", "first", "last", "admitted"),
    [
        # Monday 2 March 2026: Berlin is an hour ahead of UTC.
        (NIGHT, "2026-03-02T21:00", "2026-03-02T21:30", True),
        (NIGHT, "2026-03-02T20:59", "2026-03-02T21:30", False),
        (NIGHT, "2026-03-02T22:59", "2026-03-03T04:59", True),  # across midnight
        (NIGHT, "2026-03-03T01:00", "2026-03-03T05:00", True),  # Tuesday morning belongs to Monday's window
        (NIGHT, "2026-03-03T01:00", "2026-03-03T05:01", False),
        (NIGHT, "2026-03-02T01:00", "2026-03-02T02:00", False),  # Monday morning to Sunday's
        (NIGHT, "2026-03-04T01:00", "2026-03-04T02:00", True),  # Wednesday morning to Tuesday's
        (NIGHT, "2026-03-04T21:30", "2026-03-04T22:00", False),
        (NIGHT, "2026-03-02T21:30", "2026-03-03T21:30", False),  # from one window into the next
        ({"from": "00:00", "to": "24:00"}, "2026-03-02T23:00", "2026-03-03T00:00", True),
        ({"from": "00:00", "to": "24:00"}, "2026-03-02T23:00", "2026-03-03T00:01", False),
        # In New York 02:30 is not there on 9 March 2025, and 01:30 is there twice on 2 November.
        (NEW_YORK | {"from": "02:30", "to": "04:00"}, "2025-03-09T07:30", "2025-03-09T08:00", True),
        (NEW_YORK | {"from": "02:30", "to": "04:00"}, "2025-03-09T07:29", "2025-03-09T08:00", False),
        (NEW_YORK | {"from": "01:30", "to": "02:00"}, "2025-11-02T05:30", "2025-11-02T07:00", True),
        (NEW_YORK | {"from": "01:30", "to": "02:00"}, "2025-11-02T05:30", "2025-11-02T07:01", False),
        # On 29 March 2026 Berlin's clocks go from 2 to 3: this window is four hours long.
        ({"from": "00:00", "to": "05:00", "zone": "Europe/Berlin"}, "2026-03-28T23:00", "2026-03-29T03:00", True),
        ({"from": "00:00", "to": "05:00", "zone": "Europe/Berlin"}, "2026-03-28T23:00", "2026-03-29T03:01", False),
    ],
)
def test_a_window_admits_what_begins_and_ends_in_it(
    window: dict[str, object], first: str, last: str, admitted: bool
) -> None:
    """CASES 49: computed in UTC, whatever the clocks show."""
    begins, ends = (datetime.fromisoformat(instant).replace(tzinfo=UTC) for instant in (first, last))
    assert Window.model_validate(window).admits(begins, ends) is admitted
