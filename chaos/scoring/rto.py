"""Recovery time: when throughput is back, and staying there.

Definition. From the injector's stamped instant of effect to the end of the first step

1. from which the next ten steps average at least `recovered_at` (95 %) of the baseline's median, and
2. after which, for a hold period (2 s), no window of ten steps falls below both that mark and the baseline's own 1st
   percentile, and
3. the middle (median) window of the hold period meets the mark as well.

Rule 2 forgives a machine its ordinary hiccups as far as the baseline shows them. A baseline of a few seconds cannot
show a hiccup that comes once a minute, so up to two *isolated dips* in the hold period are not taken for a relapse
either: each is short (its windows begin within twenty steps: one stall, however it smears) and together they cost at
most an eighth of the hold period. They are listed with what they cost, beside the recovery time under the strict
reading, in which each of them is a relapse. `bench/scorer_noise.py` measures why, on made-up undisturbed jobs with
hiccups of 10-200 ms and a baseline of 5 s: with one every 10 s, the strict reading calls 9.8 % of them "not recovered
in 800 ms" (488 of 5000), this one 0.4 % (19). The rule has its limit: with one every 5 s it is 1.0 % (50 of 5000),
and 0.7 % (36) with a baseline of 20 s. A machine that stumbles that often needs the longer baseline to stay below one
of 100.

Where several faults are judged as one, a dip at a later one's effect is that fault's doing, and always a relapse.

Rule 3 is the counterpart: where hiccups in the baseline put its 1st percentile far down, rule 2 alone would let a
lasting slow-down pass as soon as one window met the mark by luck.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.scoring.baseline import Baseline
from chaos.scoring.fields import NS
from chaos.scoring.statistics import median
from chaos.scoring.windows import WINDOW, Step, windows

MAX_DIPS = 2
DIP_STEPS = 2 * WINDOW  # within which a short dip's windows begin; one stall between two steps spoils ten windows
DIP_SHARE = 0.125  # of the hold period, all dips together


@dataclass(frozen=True)
class Terms:
    """What counts as recovered: `recovered_at` a ratio of the baseline, `hold_s` the hold period in seconds."""

    recovered_at: float = 0.95
    hold_s: float = 2.0

    @property
    def hold_ns(self) -> int:
        return round(self.hold_s * NS)


@dataclass(frozen=True)
class Dip:
    """A stretch of throughput below the floor, from `start` to `end` (ns), with the time lost in it.

    `last` is its last low window, `short` whether its windows begin within `DIP_STEPS` steps, `over` whether its end
    was observed.
    """

    start: int
    end: int
    lost_ns: int
    last: int
    short: bool
    over: bool


@dataclass(frozen=True)
class Recovery:
    """When throughput was back after `since` (ns), observed up to `until` (ns).

    `at` is None if no step qualifies. `held` is False if observation ended before the hold period of `at` did.
    `strict_at` is the instant under the reading without isolated dips (None if none qualifies and held).
    """

    since: int
    until: int
    at: int | None
    held: bool
    dips: tuple[Dip, ...]
    strict_at: int | None

    @property
    def ns(self) -> int | None:
        """The recovery time in nanoseconds."""
        return None if self.at is None else self.at - self.since


class _Observed:
    """The windows of one sequence of steps up to the end of observation, and those that fall below the floor."""

    def __init__(
        self, steps: Sequence[Step], baseline: Baseline, since: int, until: int, *, terms: Terms, further: Sequence[int]
    ) -> None:
        self.further = further
        self.steps = [s for s in steps if since <= s.t <= until]
        self.ends = [s.t for s in self.steps]
        self.windows = windows(self.steps)
        self.until = until
        self.pace = baseline.median / NS  # steps a nanosecond
        self.mark = terms.recovered_at * self.pace
        self.floor = min(self.mark, baseline.p1 / NS)
        self.hold_ns = terms.hold_ns
        # A window falls below the floor at the instant by which it should have been complete: a stall is seen while
        # it lasts, and so is one that never ends.
        due = [(k, self._due(k)) for k in range(len(self.steps))]
        low = [(k, t) for k, t in due if t <= until and not self._complete_by(k, t)]
        self.low = [k for k, _ in low]
        self.low_at = [t for _, t in low]

    def _due(self, k: int) -> int:
        following = self.steps[k + 1 : k + 1 + WINDOW]
        work = sum(s.weight for s in following) + (WINDOW - len(following)) * self.steps[-1].weight
        return self.steps[k].t + round(work / self.floor)

    def _complete_by(self, k: int, t: int) -> bool:
        return k < len(self.windows) and self.windows[k].end <= t

    def low_in_hold(self, k: int) -> list[int]:
        """The windows from step k on that have fallen below the floor by the end of its hold period."""
        hold_end = self.ends[k] + self.hold_ns
        first, last = bisect_left(self.low, k), bisect_left(self.low, bisect_right(self.ends, hold_end))
        return [self.low[i] for i in range(first, last) if self.low_at[i] <= hold_end]

    def middle_of_hold(self, k: int) -> float:
        """The rate of the median window of step k's hold period; of its own window if the hold is shorter than that."""
        last = bisect_right(self.ends, self.ends[k] + self.hold_ns) - WINDOW
        return median([w.rate / NS for w in self.windows[k : max(k + 1, last)]])

    def dips(self, low: Sequence[int]) -> tuple[Dip, ...]:
        """The dips that these low windows belong to, followed to their ends, also past the hold period."""
        found: list[Dip] = []
        for k in low:
            if not found or k > found[-1].last:
                found.append(self._dip(k))
        return tuple(found)

    def _dip(self, k: int) -> Dip:
        last = k
        for i in range(bisect_left(self.low, k), len(self.low)):
            if self.low[i] - last > WINDOW:
                break
            last = self.low[i]
        over = last < len(self.windows)
        start, end = self.ends[k], self.windows[last].end if over else self.until
        work = sum(s.weight for s in self.steps[k + 1 : last + 1 + WINDOW])
        return Dip(start, end, max(0, end - start - round(work / self.pace)), last, last - k < DIP_STEPS, over)


def meets_mark(observed: _Observed, k: int) -> bool:
    """Rule 1: do the ten steps after step k average the mark?"""
    return observed.windows[k].rate / NS >= observed.mark


def relapses(observed: _Observed, dips: Sequence[Dip]) -> bool:
    """Rule 2: are the dips in a hold period more than a machine's hiccups?"""
    if any(dip.start <= effect <= dip.end for dip in dips for effect in observed.further):
        return True
    together = sum(dip.lost_ns for dip in dips)
    return len(dips) > MAX_DIPS or not all(dip.short for dip in dips) or together > DIP_SHARE * observed.hold_ns


def stays_slow(observed: _Observed, k: int) -> bool:
    """Rule 3: does the middle window of the hold period miss the mark?"""
    return observed.middle_of_hold(k) < observed.mark


def find(
    steps: Sequence[Step], baseline: Baseline, since: int, until: int, terms: Terms, *, further: Sequence[int] = ()
) -> Recovery:
    """The recovery after `since` (ns), from steps in order of their ends, observed up to `until` (ns).

    `further` are the effects (ns) of later faults that are judged as one with the first.
    """
    observed = _Observed(steps, baseline, since, until, terms=terms, further=further)
    first: Recovery | None = None
    for k in range(len(observed.windows)):
        if not meets_mark(observed, k):
            continue
        low = observed.low_in_hold(k)
        dips = observed.dips(low)
        if relapses(observed, dips) or stays_slow(observed, k):
            continue
        at = observed.ends[k]
        held = at + terms.hold_ns <= until and all(dip.over for dip in dips)
        strict_at = at if held and not low else None
        first = first or Recovery(since, until, at, held, dips, strict_at)
        if not low or not held:
            return Recovery(since, until, first.at, first.held, first.dips, strict_at)
    return first or Recovery(since, until, None, False, (), None)


def trailing(steps: Sequence[Step], baseline: Baseline, recovery: Recovery, terms: Terms, span_ns: int) -> int | None:
    """When a dashboard that averages over the last `span_ns` would show the mark again: ns since the fault.

    Each step's work is spread evenly over its duration, so that the count in the window does not jump by whole steps.
    None where there was no recovery or observation ended before the average was back.
    """
    if recovery.at is None:
        return None
    seen = [s for s in steps if s.t <= recovery.until]
    ends = [s.t for s in seen]
    done = [0.0]
    for s in seen[1:]:
        done.append(done[-1] + s.weight)

    def progress(t: int) -> float:
        after = bisect_left(ends, t)
        if after == 0:
            return (t - ends[0]) * baseline.median / NS
        if after == len(ends):
            return done[-1]
        part = (t - ends[after - 1]) / (ends[after] - ends[after - 1])
        return done[after - 1] + part * (done[after] - done[after - 1])

    wanted = terms.recovered_at * baseline.median * span_ns / NS
    for s in seen[bisect_left(ends, recovery.at) :]:
        if progress(s.t) - progress(s.t - span_ns) >= wanted:
            return s.t - recovery.since
    return None
