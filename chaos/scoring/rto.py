"""Recovery time: when throughput is back, and staying there.

Definition. From the injector's stamped instant of effect to the end of the first step

1. from which the next ten steps average at least `recovered_at` (95 %) of the baseline's median, and
2. after which, for a hold period (2 s), no window of ten steps falls below both that mark and the baseline's own 1st
   percentile, and
3. the middle (median) window of the hold period meets the mark as well.

Rule 2 forgives a machine its ordinary hiccups as far as the baseline shows them. A baseline of a few seconds cannot
show a hiccup that comes once a minute, so one *isolated dip* in the hold period is not taken for a relapse either: one
whose windows all lie within a stretch of thirty steps (one stall, however it smears) and which costs at most a tenth of
the hold period. It is listed as a dip with what it cost, beside the recovery time under the strict reading, in which it
is a relapse.
`bench/scorer_noise.py` measures why: without this, undisturbed jobs with a hiccup of 10-200 ms every 20 s are called
"not recovered in 800 ms" in several of 100 trials, with it in fewer than one.

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

DIP_STEPS = 2 * WINDOW  # starts of a dip's windows; each window is ten steps more
DIP_SHARE = 0.10  # of the hold period


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
    """A stretch of throughput below the floor: from `start` to `end` (ns), with the time lost in it.

    `last` is its last low window, `short` whether it lies within one short stretch of steps, `over` whether its end
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
    """When throughput was back after `since` (ns).

    `at` is None if no step qualifies. `held` is False if observation ended before the hold period of `at` did.
    `strict_at` is the instant under the reading without isolated dips (None if none qualifies or held).
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

    def __init__(self, steps: Sequence[Step], baseline: Baseline, since: int, until: int, terms: Terms) -> None:
        self.steps = [s for s in steps if since <= s.t <= until]
        self.ends = [s.t for s in self.steps]
        self.windows = windows(self.steps)
        self.until = until
        self.pace = baseline.median / NS  # steps a nanosecond
        self.mark = terms.recovered_at * self.pace
        self.floor = min(self.mark, baseline.p1 / NS)
        self.hold_ns = terms.hold_ns
        # A window falls below the floor at the instant by which it should have been complete: a stall is seen while
        # it lasts, and also one that never ends.
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

    def meets_mark(self, k: int) -> bool:
        """Do the ten steps after step k average the mark?"""
        window = self.windows[k]
        return window.work >= self.mark * (window.end - window.start)

    def low_in_hold(self, k: int) -> list[int]:
        """The windows from step k on that have fallen below the floor by the end of its hold period."""
        hold_end = self.ends[k] + self.hold_ns
        first, last = bisect_left(self.low, k), bisect_left(self.low, bisect_right(self.ends, hold_end))
        return [self.low[i] for i in range(first, last) if self.low_at[i] <= hold_end]

    def middle_meets_mark(self, k: int) -> bool:
        """Does the median window of step k's hold period meet the mark? True where the hold holds no window."""
        last = bisect_right(self.ends, self.ends[k] + self.hold_ns)
        inside = [w.rate / NS for w in self.windows[k : max(k + 1, last - WINDOW)]]
        return not inside or median(inside) >= self.mark

    def dip(self, k: int) -> Dip:
        """The dip that begins with low window k: low windows less than a window apart, also past the hold period."""
        place = bisect_left(self.low, k)
        last = k
        for w in self.low[place:]:
            if w - last > WINDOW:
                break
            last = w
        over = last < len(self.windows)
        start, end = self.ends[k], self.windows[last].end if over else self.until
        work = sum(s.weight for s in self.steps[k + 1 : last + 1 + WINDOW])
        return Dip(start, end, max(0, end - start - round(work / self.pace)), last, last - k < DIP_STEPS, over)


def relapses(observed: _Observed, k: int, low: Sequence[int]) -> bool:
    """Does throughput leave again in the hold period after step k, given its low windows?"""
    if not observed.middle_meets_mark(k):
        return True
    if not low:
        return False
    dip = observed.dip(low[0])
    return not (dip.short and low[-1] <= dip.last and dip.lost_ns <= DIP_SHARE * observed.hold_ns)


def find(steps: Sequence[Step], baseline: Baseline, since: int, until: int, terms: Terms) -> Recovery:
    """The recovery after `since` (ns), from steps in order of their ends, observed up to `until` (ns)."""
    observed = _Observed(steps, baseline, since, until, terms)
    strict_at: int | None = None
    found: tuple[int, bool, tuple[Dip, ...]] | None = None
    for k in range(len(observed.windows)):
        if not observed.meets_mark(k):
            continue
        low = observed.low_in_hold(k)
        if relapses(observed, k, low):
            continue
        dips = (observed.dip(low[0]),) if low else ()
        held = observed.ends[k] + terms.hold_ns <= until and all(d.over for d in dips)
        found = found or (observed.ends[k], held, dips)
        if not low or not held:
            strict_at = observed.ends[k] if held else None
            break
    if found is None:
        return Recovery(since, until, None, False, (), None)
    return Recovery(since, until, found[0], found[1], found[2], strict_at)


def trailing(steps: Sequence[Step], baseline: Baseline, recovery: Recovery, terms: Terms, span_ns: int) -> int | None:
    """When a dashboard that averages over the last `span_ns` would show the mark again: ns since the fault.

    Each step's work is spread evenly over its duration, so that the count in the window does not jump by whole steps.
    None where there was no recovery or observation ended before the window was back.
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
            return 0.0 - (ends[0] - t) * baseline.median / NS
        if after == len(ends):
            return done[-1]
        part = (t - ends[after - 1]) / (ends[after] - ends[after - 1])
        return done[after - 1] + part * (done[after] - done[after - 1])

    wanted = terms.recovered_at * baseline.median * span_ns / NS
    for s in seen[bisect_left(ends, recovery.at) :]:
        if progress(s.t) - progress(s.t - span_ns) >= wanted:
            return s.t - recovery.since
    return None
