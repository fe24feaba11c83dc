"""The plots: the line says what the scorecard says."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

import pytest
from report_samples import MS, S, control, never_back, passing, slow, storm

from chaos.report import curve, plot, stages, svg
from chaos.report.scale import Scale, label


def _curve(run):
    return curve.build(run.card, run.journal, run.steps)


def _at(line, t):
    """The last rate up to an instant."""
    return [rate for when, rate in line if when <= t][-1]


@pytest.mark.parametrize("make", [passing, slow])
def test_the_line_falls_where_the_fault_begins_and_meets_the_mark_where_the_recovery_is_counted(make):
    run = make()
    card = run.card
    drawn = _curve(run)
    since, recovered = card["faults"][0]["started_ns"], card["rto"]["recovered_ns"]
    step = round(1e9 / drawn.median)
    assert _at(drawn.line, since - 1) > drawn.mark
    assert _at(drawn.line, since) < drawn.mark
    assert _at(drawn.line, recovered - 2 * step) < drawn.mark
    assert _at(drawn.line, recovered) >= drawn.mark


def test_the_line_is_in_order_of_time():
    for make in (passing, storm, never_back, control):
        times = [t for t, _ in _curve(make()).line]
        assert times == sorted(times)


def test_a_job_that_stops_is_drawn_at_zero():
    run = never_back()
    drawn = _curve(run)
    assert drawn.line[-1] == (drawn.last, 0.0)
    assert _at(drawn.line, run.card["faults"][0]["started_ns"] + S) == 0.0


def test_an_undisturbed_job_never_leaves_its_baseline():
    drawn = _curve(control())
    assert all(rate > drawn.mark for _, rate in drawn.line)
    assert not drawn.episodes


def test_the_close_view_reaches_from_half_a_second_before_to_a_second_after_the_recovery():
    drawn = _curve(passing())
    (episode,) = drawn.episodes
    view = plot.close_view(drawn, episode)
    assert view.first == episode.since - S // 2
    assert view.last == episode.recovered + S


def test_the_close_view_of_what_never_recovered_shows_its_pass_mark():
    drawn = _curve(never_back())
    (episode,) = drawn.episodes
    view = plot.close_view(drawn, episode)
    assert view.last >= episode.since + 1600 * MS


def test_overlapping_faults_are_one_episode():
    drawn = _curve(storm())
    assert [each.name for each in drawn.episodes] == ["blackhole", "second path + rank killed"]
    assert [span.name for span in drawn.spans] == ["blackhole", "second path", "rank killed"]


@pytest.mark.parametrize("make", [passing, slow, storm, never_back, control])
def test_drawings_are_well_formed_and_stay_on_their_paper(make):
    drawn = _curve(make())
    drawings = plot.overview(drawn) + "".join(plot.close(drawn, each) for each in drawn.episodes)
    for drawing in Xml.fromstring(f"<all>{drawings}</all>"):
        width, height = (float(each) for each in drawing.get("viewBox").split()[2:])
        assert drawing.get("role") == "img" and drawing.get("aria-label")
        for path in drawing.iter("path"):
            pairs = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d"))
            assert pairs
            assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in pairs)
        for text in drawing.iter("text"):
            # Letters of DejaVu Sans are wide: what fits with them fits with the others.
            size = 7.8 * len(text.text)
            x = float(text.get("x", "13"))
            start = {"start": x, "middle": x - size / 2, "end": x - size}[text.get("text-anchor")]
            assert start + size <= width + 8 or text.get("class") in ("tick", "axis-name")


def test_a_long_run_stays_a_small_drawing():
    run = control()
    run.job.until(run.job.t + 240 * S)
    drawn = _curve(run)
    assert len(drawn.dots) > 10_000
    assert len(plot.overview(drawn)) < 300_000


STAGES = ["symptom", "detected", "aborted", "group", "agreed", "restored", "first step", "recovered"]


def test_stages_fill_the_recovery():
    figure = slow().card["rto"]
    found = stages.stages(figure)
    assert [stage.name for stage in found] == STAGES
    assert all(stage.meaning for stage in found)
    assert len({stage.colour for stage in found}) == len(STAGES)
    assert found[-1].end_ms == pytest.approx(figure["ms"])
    bars = Xml.fromstring(f"<all>{stages.bar(found)}</all>")[0].findall("rect")
    assert sum(float(bar.get("width")) for bar in bars) == pytest.approx(1080 - 16 - 8, abs=1)


def test_no_marks_no_stages():
    assert stages.stages({"ms": 5.0}) == []
    assert stages.bar([]) == ""


@pytest.mark.parametrize(
    ("low", "high", "about", "ticks"),
    [(0, 63, 5, [0, 20, 40, 60]), (-500, 1338, 8, [-500, 0, 500, 1000]), (2.9, 22.8, 10, list(range(4, 23, 2)))],
)
def test_ticks_are_round(low, high, about, ticks):
    found = Scale(low, high, 0, 100).ticks(about)
    assert found == pytest.approx(ticks)


def test_a_scale_of_nothing_has_one_tick():
    assert Scale(3, 3, 0, 100).ticks(5) == [3]
    assert Scale(3, 3, 0, 100)(3) == 0


def test_labels():
    assert label(-500.0) == "−500"
    assert label(0.30000000000000004) == "0.3"


def test_elements_are_escaped():
    assert (
        svg.text(0, 1, '<b> & "', "x") == '<text x="0" y="1" class="x" text-anchor="start">&lt;b&gt; &amp; &#34;</text>'
    )
