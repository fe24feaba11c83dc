"""The plots of throughput: the whole run, and closely around each fault."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from markupsafe import Markup

from chaos.report import svg, words
from chaos.report.curve import Curve, Episode
from chaos.report.scale import Scale, label
from chaos.scoring.fields import NS, NS_PER_MS

BEFORE_NS = NS // 2  # of the fault, in the close view
AFTER_NS = NS  # of the recovery
_LETTER = 7.8  # pixels, in bold, on average
_At = Callable[[int], float]  # from ns to pixels


@dataclass(frozen=True)
class Paper:
    """The size of a drawing in pixels; a page shows the one that fits its width."""

    name: str
    width: int
    height: int
    ticks: int
    top: int = 46

    left = 52
    right = 14
    bottom = 46


PAPERS = (Paper("wide", 1080, 342, 12), Paper("narrow", 370, 272, 4))


@dataclass(frozen=True)
class View:
    """A part of the run: from ``first`` to ``last`` (ns), told as ``(t - zero) / unit_ns`` on the axis."""

    first: int
    last: int
    zero: int
    unit_ns: int
    axis: str


def overview(curve: Curve) -> Markup:
    """The whole run."""
    view = View(curve.first, max(curve.last, curve.first + 1), curve.origin, NS, "seconds since the run began")
    said = f"Throughput of the whole run in steps a second, {_told(curve)}"
    return Markup().join(_draw(curve, view, paper, said, phases=True) for paper in PAPERS)


def close(curve: Curve, episode: Episode) -> Markup:
    """From half a second before a fault to a second after its recovery."""
    view = close_view(curve, episode)
    said = f"Throughput around {episode.name}, {_recovered(episode)}"
    papers = (replace(paper, top=28, height=paper.height - 18) for paper in PAPERS)  # no phases at the top
    return Markup().join(_draw(curve, view, paper, said, phases=False) for paper in papers)


def close_view(curve: Curve, episode: Episode) -> View:
    """What the close view shows; without a recovery, until well after the fault's end and the pass mark."""
    if episode.recovered is not None:
        last = episode.recovered + AFTER_NS
    else:
        ends = [span.ended for span in curve.spans if span.ended and span.name in episode.name.split(" + ")]
        mark = episode.figure.get("pass_ms")
        beyond = round(2 * mark * NS_PER_MS) if isinstance(mark, int | float) else 0
        last = min(episode.observed, max([episode.since + beyond, *ends]) + AFTER_NS)
    first = max(min(curve.first, episode.since), episode.since - BEFORE_NS)
    last = max(min(last, curve.last), episode.since + AFTER_NS // 2)
    long = last - first > 10 * NS
    what = f"since {episode.name} took effect"
    return View(first, last, episode.since, NS if long else NS_PER_MS, f"{'seconds' if long else 'ms'} {what}")


def _told(curve: Curve) -> str:
    if not curve.episodes:
        return "no fault took effect"
    return "; ".join(f"{each.name}: {_recovered(each)}" for each in curve.episodes)


def _recovered(episode: Episode) -> str:
    if episode.recovered is None:
        return "not recovered while it was observed"
    return f"recovered {words.ms((episode.recovered - episode.since) / NS_PER_MS)} after the fault took effect"


def _draw(curve: Curve, view: View, paper: Paper, said: str, *, phases: bool) -> Markup:
    x = Scale(
        (view.first - view.zero) / view.unit_ns,
        (view.last - view.zero) / view.unit_ns,
        paper.left,
        paper.width - paper.right,
    )
    y = Scale(0, curve.top, paper.height - paper.bottom, paper.top)

    def at(t: int) -> float:
        return x((t - view.zero) / view.unit_ns)

    seen_dots = [(at(t), y(rate)) for t, rate in curve.dots if view.first <= t <= view.last]
    children = [
        *_baseline(curve, x, y),
        *_grid(x, y, paper, view.axis),
        *_faults(curve, view, at, paper),
        svg.dots(seen_dots, "dot"),
        svg.polyline(_thin(_inside(curve, view), at, y), "line"),
        *_recoveries(curve, view, at, paper),
        *(_phases(curve, at) if phases else ()),
    ]
    return svg.drawing(paper.width, paper.height, said, f"plot {paper.name}", *children)


def _grid(x: Scale, y: Scale, paper: Paper, axis: str) -> Iterable[Markup]:
    for tick in y.ticks(5):
        yield svg.element("line", x1=x.first, x2=x.last, y1=y(tick), y2=y(tick), class_="grid")
        yield svg.text(x.first - 8, y(tick) + 4, label(tick), "tick", "end")
    for tick in x.ticks(paper.ticks):
        yield svg.element("line", x1=x(tick), x2=x(tick), y1=y.first, y2=y.first + 5, class_="axis")
        yield svg.text(x(tick), y.first + 18, label(tick), "tick", "middle")
    yield svg.element("line", x1=x.first, x2=x.last, y1=y.first, y2=y.first, class_="axis")
    yield svg.text((x.first + x.last) / 2, y.first + 37, axis, "axis-name", "middle")
    middle = (y.first + y.last) / 2
    yield svg.element(
        "text", "steps/s", class_="axis-name", text_anchor="middle", transform=f"translate(13 {middle:.0f}) rotate(-90)"
    )


def _baseline(curve: Curve, x: Scale, y: Scale) -> Iterable[Markup]:
    if curve.median is None or curve.mark is None:
        return
    spread = 2 * curve.variation * curve.median
    high, low = y(curve.median + spread), y(curve.median - spread)
    yield svg.element("rect", x=x.first, y=high, width=x.last - x.first, height=max(1, low - high), class_="band")
    yield svg.element("line", x1=x.first, x2=x.last, y1=y(curve.median), y2=y(curve.median), class_="median")
    yield svg.element("line", x1=x.first, x2=x.last, y1=y(curve.mark), y2=y(curve.mark), class_="mark")


def _faults(curve: Curve, view: View, at: _At, paper: Paper) -> Iterable[Markup]:
    bottom = paper.height - paper.bottom
    free_from = 0.0
    for span in sorted(curve.spans, key=lambda each: each.since):
        if span.since > view.last or (span.ended or span.since) < view.first:
            continue
        start, end = at(span.since), at(span.ended or span.since)
        yield svg.element(
            "rect", x=start, y=paper.top, width=max(0, end - start), height=bottom - paper.top, class_="fault"
        )
        yield svg.element("line", x1=start, x2=start, y1=paper.top - 4, y2=bottom, class_="fault-edge")
        place = _placed(start, span.name, paper)
        if place >= free_from:  # names that would be written over one another are left to the table
            yield svg.text(place, paper.top - 9, span.name, "fault-name")
            free_from = place + _LETTER * (len(span.name) + 1)


def _placed(x: float, content: str, paper: Paper) -> float:
    """Where a text begins that should begin at ``x`` and has to end on the paper."""
    return max(2.0, min(x, paper.width - _LETTER * len(content) - 4))


def _recoveries(curve: Curve, view: View, at: _At, paper: Paper) -> Iterable[Markup]:
    bottom = paper.height - paper.bottom
    free_from = 0.0
    for episode in curve.episodes:
        if episode.recovered is None or not view.first <= episode.recovered <= view.last:
            continue
        x = at(episode.recovered)
        yield svg.element("line", x1=x, x2=x, y1=paper.top, y2=bottom, class_="recovered")
        yield svg.element("path", d=f"M{x - 5:.1f} {bottom + 7}h10l-5 -7z", class_="recovered-foot")
        told = f"recovered {words.ms((episode.recovered - episode.since) / NS_PER_MS)}"
        fits = x + 6 + _LETTER * len(told) <= paper.width
        place = x + 6 if fits else x - 6 - _LETTER * len(told)
        if place >= free_from:
            yield svg.text(place, bottom - 8, told, "recovered-name")
            free_from = place + _LETTER * (len(told) + 1)


def _phases(curve: Curve, at: _At) -> Iterable[Markup]:
    for name, first, last in curve.phases:
        start, end = at(first), at(last)
        if end - start < 2:
            continue
        yield svg.element("line", x1=start + 1, x2=end - 1, y1=5, y2=5, class_="phase")
        if end - start > _LETTER * len(name):
            yield svg.text((start + end) / 2, 17, name, "phase-name", "middle")


def _inside(curve: Curve, view: View) -> list[tuple[int, float]]:
    """The points of the line in view, with one on each side, cut at the edges."""
    line = curve.line
    inside = [k for k, (t, _) in enumerate(line) if view.first <= t <= view.last]
    if not inside:
        return []
    chosen = list(line[inside[0] : inside[-1] + 1])
    for k, edge in ((inside[0] - 1, view.first), (inside[-1] + 1, view.last)):
        if 0 <= k < len(line):
            (t0, r0), (t1, r1) = sorted((line[k], chosen[0] if k < inside[0] else chosen[-1]))
            crossing = (edge, r0 + (r1 - r0) * (edge - t0) / max(1, t1 - t0))
            chosen.insert(0, crossing) if k < inside[0] else chosen.append(crossing)
    return chosen


def _thin(points: list[tuple[int, float]], at: _At, y: Scale) -> list[tuple[float, float]]:
    """Pixels of a line: of the points in one column of pixels, the first, the extremes and the last."""
    columns: dict[int, list[tuple[float, float]]] = {}
    for t, rate in points:
        columns.setdefault(round(at(t) * 2), []).append((at(t), y(rate)))
    thinned: list[tuple[float, float]] = []
    for column in columns.values():
        kept = {0, len(column) - 1}
        kept |= {
            min(range(len(column)), key=lambda k: column[k][1]),
            max(range(len(column)), key=lambda k: column[k][1]),
        }
        thinned += [column[k] for k in sorted(kept)]
    return thinned
