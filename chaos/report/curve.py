"""The throughput curve that the plots draw: the job's steps, smoothed over ten, without judging anything.

The line is the average of ten steps. Up to a fault these are the ten steps before an instant (what was known by then);
from the fault's effect until the recovery the ten that follow it, as the recovery time is defined: the line falls where
the fault takes effect and meets the mark where the recovery is counted. After that they are the ten before, again.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from chaos.report import reading
from chaos.scoring import record, timeline
from chaos.scoring.fields import NS, NS_PER_MS, integer, mapping, number, objects, text
from chaos.scoring.windows import WINDOW, Step, windows

_STALL_POINTS = 32  # of the line within one stall
Point = tuple[int, float]  # ns, steps a second


@dataclass(frozen=True)
class Span:
    """A fault in effect: from ``since`` to ``ended`` (ns); None where it has no end (a kill) or none was reported."""

    name: str
    since: int
    ended: int | None


@dataclass(frozen=True)
class Episode:
    """Faults that overlap, and the recovery after them (ns); ``observed`` is the end of what was seen of it."""

    name: str
    since: int
    recovered: int | None
    observed: int
    figure: Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """What there is to draw. ``origin``, ``first`` and ``last`` are ns; rates are baseline steps a second.

    ``mark`` is the rate that counts as recovered, ``share`` what share of the median that is; ``median`` is None
    without a baseline.
    """

    origin: int
    first: int
    last: int
    line: list[Point]
    dots: list[Point]
    median: float | None
    variation: float
    share: float
    spans: list[Span]
    episodes: list[Episode]
    phases: list[tuple[str, int, int]]

    @property
    def mark(self) -> float | None:
        """The rate that counts as recovered."""
        return None if self.median is None else self.median * self.share

    @property
    def top(self) -> float:
        """The highest rate of the plot: some room above what the job ordinarily does."""
        ordinary = self.median or max((rate for _, rate in self.line), default=1.0)
        return 1.05 * max(1.4 * ordinary, min(2 * ordinary, max((rate for _, rate in self.line), default=0.0)))


def build(
    card: Mapping[str, Any], journal: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
) -> Curve | None:
    """The curve of a run; None where there is no throughput to draw."""
    run = record.read(journal)
    found = timeline.build(steps).steps
    if len(found) < 2:
        return None
    last = max(found[-1].t, run.until)
    origin = integer(run.head, "t")
    paces = mapping(mapping(card, "baseline"), "steps_per_s")
    median = number(paces, "median")
    spans = [
        Span(text(fault, "name") or "fault", since, integer(fault, "ended_ns"))
        for fault in objects(card, "faults")
        for since in [integer(fault, "started_ns")]
        if since is not None
    ]
    episodes = sorted(_episodes(card, spans, last), key=lambda each: each.since)
    return Curve(
        origin=found[0].t if origin is None else origin,
        first=found[0].t,
        last=last,
        line=smooth(found, episodes, median, last),
        dots=[
            (step.t, step.weight * NS / (step.t - before.t)) for before, step in pairwise(found) if step.t > before.t
        ],
        median=median,
        variation=number(paces, "cv") or 0.0,
        share=run.marks.terms.recovered_at,
        spans=spans,
        episodes=episodes,
        phases=_phases(journal, found[0].t, last),
    )


def _episodes(card: Mapping[str, Any], spans: Sequence[Span], last: int) -> Iterable[Episode]:
    for figure in reading.recoveries(card):
        name = text(figure, "fault") or "fault"
        at, ms = integer(figure, "recovered_ns"), number(figure, "ms")
        if ms is None:
            at = None
        # Overlapping faults are told as one, their names joined.
        stamped = [span.since for span in spans if span.name in name.split(" + ")]
        counted = -1 if at is None or ms is None else at - round(ms * NS_PER_MS)
        since = min(stamped, default=counted)
        if since >= 0:
            seen = number(figure, "observed_s")
            yield Episode(name, since, at, last if seen is None else min(last, since + round(seen * NS)), figure)


def _phases(journal: Iterable[Mapping[str, Any]], first: int, last: int) -> list[tuple[str, int, int]]:
    told = [
        (text(event, "phase") or "", at)
        for event in journal
        for at in [integer(event, "t")]
        if text(event, "e") == "phase" and at is not None
    ]
    ends = [at for _, at in told[1:]] + [last]
    found = [(name, max(at, first), min(end, last)) for (name, at), end in zip(told, ends, strict=False)]
    return [(name, at, end) for name, at, end in found if at < end]


def smooth(steps: Sequence[Step], episodes: Sequence[Episode], median: float | None, until: int) -> list[Point]:
    """The line, in order of time."""
    starts = [episode.since for episode in episodes]
    points: list[Point] = []
    for k, window in enumerate(windows(steps)):
        place = bisect_right(starts, window.end) - 1
        episode = episodes[place] if place >= 0 else None
        following = steps[k + 1].t
        if episode is None or (episode.recovered is not None and window.start > episode.recovered):
            points.append((window.end, window.rate))
        elif following > episode.since:
            begin = max(window.start, episode.since)
            points += _stall(begin, following, window.end, window.work, median)
    if median and until - steps[-1].t > 2 * WINDOW * NS / median:  # it stopped, and never came back
        points += [(max([steps[-1].t, *(s for s in starts if s < until)]), 0.0), (until, 0.0)]
    return points


def _stall(begin: int, following: int, end: int, work: float, median: float | None) -> list[Point]:
    """The rate over the steps that follow each instant from ``begin`` to the next step.

    While a job stands still that rate rises with the nearness of the next steps, as a hyperbola: a straight line would
    show a recovery that creeps.
    """
    stop = following - round(NS / median) if median else begin
    gap = max(0, stop - begin)
    instants = (
        [begin + round(gap * (1 - 0.8**k)) for k in range(_STALL_POINTS)] if gap * (median or 0) > NS else [begin]
    )
    return [(at, work * NS / max(1, end - at)) for at in instants]
