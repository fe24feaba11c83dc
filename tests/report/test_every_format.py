"""All formats of every kind of run: written as a whole, with the scorecard's own figures, whatever is missing."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from report_samples import SAMPLES, Run, long_storm, passing, slow, storm

from chaos.report import explain, figures, html, junit, markdown, render


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {name: make() for name, (make, _) in SAMPLES.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_run_is_written_in_three_formats_that_state_its_verdict(name, runs, tmp_path):
    run, verdict = runs[name], SAMPLES[name][1]
    card = run.card
    assert card["verdict"] == verdict
    paths = render.render(card, run.journal, run.steps, tmp_path)
    assert [path.name for path in paths] == ["scorecard.html", "scorecard.md", "junit.xml"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    page, text, xml = (path.read_text(encoding="utf-8") for path in paths)
    assert f'<header class="banner {verdict}">' in page
    assert text.splitlines()[0].endswith(f"nvswitch-path-blackhole: {verdict}")
    assert Xml.fromstring(xml).find(".//property[@name='verdict']").get("value") == verdict


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_refers_to_nothing_outside_itself(name, runs):
    run = runs[name]
    page = html.page(run.card, run.journal, run.steps)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<img|<iframe", page)
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,"]


@pytest.mark.parametrize("format_", ["html", "markdown", "junit", "explain"])
def test_figures_are_those_of_the_scorecard(format_):
    run = passing()
    card = run.card
    # No figure that a report could have worked out from the steps by itself.
    card["rto"] |= {"ms": 712.4, "low_ms": 691.3, "high_ms": 713.2, "faults": []}
    card["consistency"] |= {"ratio": 0.999961, "compared": 77_001, "lower_bound": 0.99912}
    told = {
        "html": lambda: html.page(card, run.journal, run.steps),
        "markdown": lambda: markdown.page(card),
        "junit": lambda: junit.document(card),
        "explain": lambda: "\n".join(explain.explain(card)),
    }[format_]()
    assert "712" in told
    assert "99.9961%" in told


@pytest.mark.parametrize(
    ("world", "told"),
    [
        ({"before": 4, "least": 3, "after": 4}, "4 before, 3 at the least, 4 after"),
        ({"before": 4, "least": 3, "after": 3}, "4 before, 3 after"),
        ({"before": 3, "least": 3, "after": 4}, "3 before, 4 after"),
        ({"before": 4, "after": 3}, "4 before, 3 after"),
        ({"before": 4, "least": 4, "after": 4}, None),
    ],
)
def test_a_job_that_became_smaller_is_told_beside_its_recovery_time(world, told):
    card = passing().card
    card["rto"]["faults"][0]["world"] = world
    assert dict(figures.figures(card)[0].facts).get("ranks of the job") == told


def test_a_failure_while_writing_leaves_the_former_report(tmp_path, monkeypatch):
    run = passing()
    render.render(run.card, run.journal, run.steps, tmp_path)
    before = (tmp_path / "scorecard.html").read_bytes()

    def full(self: Path, *_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        render.render(slow().card, run.journal, run.steps, tmp_path)
    assert (tmp_path / "scorecard.html").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("card", [{}, {"schema": "chaos.scorecard/0"}, {"verdict": "excellent", "rto": None}])
def test_a_card_without_anything_is_inconclusive_and_renders(card, tmp_path):
    paths = render.render(card, [], [], tmp_path)
    page = paths[0].read_text(encoding="utf-8")
    assert '<header class="banner inconclusive">' in page
    assert "No steps of the job were recorded" in page
    assert Xml.parse(paths[2]).getroot().get("errors") == "1"
    assert explain.explain(card)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _without(card: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(card)
    place = changed
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


@pytest.mark.parametrize("value", [..., None, "x", -1, 2**63, float("nan"), [], {}, [None], True], ids=repr)
def test_an_older_or_damaged_scorecard_renders(value):
    """Any piece may be absent, or of another type, as in a scorecard that an older version wrote."""
    run = storm()
    card = json.loads(json.dumps(run.card))
    steps = [event for event in run.steps if event["e"] == "step"][::40]
    for path in _places(card):
        changed = _without(card, path, value)
        html.page(changed, run.journal, steps if path[-1] in ("ms", "recovered_ns", "started_ns", "median") else [])
        markdown.page(changed)
        Xml.fromstring(junit.document(changed))
        explain.explain(changed)


def test_a_torn_or_foreign_journal_renders():
    run = passing()
    card, steps = run.card, run.steps[:200]
    for left in range(0, len(run.journal), 7):
        html.page(card, run.journal[:left], steps)
    journal = {str(k): event for k, event in enumerate(run.journal)}
    for path in _places(journal):
        for value in (..., None, "x", [], 1.5):
            changed = _without(journal, path, value)
            html.page(card, [event for event in changed.values() if isinstance(event, dict)], [])


EVIL = "<script>alert(1)</script> | `a` [x](http://e.vil) **b**\x00\x1b\ud800 \"' &amp;\nnext"


def test_text_from_a_run_cannot_become_markup(tmp_path):
    run = passing()
    card = run.card
    card |= {"experiment": EVIL, "about": EVIL, "reason": EVIL, "seed": EVIL, "version": EVIL}
    card["faults"][0] |= {"name": EVIL, "kind": EVIL, "target": {"node": EVIL}, "params": {EVIL: EVIL}, "error": EVIL}
    card["faults"][0]["witness"]["evidence"]["during"] = EVIL
    card["findings"] = [{"priority": EVIL, "text": EVIL, "remedy": EVIL}]
    card["steady_state"]["after"][0] |= {"probe": EVIL, "tolerance": EVIL, "text": EVIL, "ok": False}
    card["rto"]["faults"][0] |= {"fault": EVIL, "reason": EVIL}
    card["rto"]["faults"][0]["breakdown"][0]["stage"] = EVIL
    run.write("error", run.job.t, text=EVIL)
    pages = render.render(card, run.journal, run.steps, tmp_path)
    page, text, xml = (path.read_text(encoding="utf-8") for path in pages)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in re.sub(r"\\.", "", text)
    assert "](http" not in re.sub(r"\\.", "", text)
    rows = [line for line in text.splitlines() if line.startswith("| <") or line.startswith("| \\<")]
    assert rows
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows[:1]}) == 1
    suite = Xml.fromstring(xml)
    assert suite.find("testsuite").get("name").startswith("<script>alert(1)</script>")
    assert "\x00" not in xml


def test_of_many_recoveries_the_worst_is_shown_and_the_others_are_folded_away():
    run = long_storm()
    page = html.page(run.card, run.journal, run.steps)
    worst = run.card["rto"]["fault"]
    assert worst == "dark@3/rank3"
    assert re.findall("<h3>Around (.*)</h3>", page) == [worst]
    assert len(re.findall("<summary>Around .*</summary>", page)) == 19
    few = storm()
    assert "<summary>Around" not in html.page(few.card, few.journal, few.steps)
