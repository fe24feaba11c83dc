"""The baseline: how fast the undisturbed job steps, and whether it is steady enough to measure a recovery against."""

from collections.abc import Sequence
from dataclasses import dataclass

from chaos.quantities import format as show
from chaos.scoring.fields import NS
from chaos.scoring.statistics import cv, median, percentile
from chaos.scoring.windows import WINDOW, Step, windows

MIN_WINDOWS = 4 * WINDOW  # five windows that do not overlap: below that the 1st percentile is one unlucky window
MAX_SHARE_BELOW = 0.10


@dataclass(frozen=True)
class Baseline:
    """Throughput over every window of ten steps between two instants (ns).

    `median`, `p1` (1st percentile) in steps a second, `cv` a ratio, `rates` one value a window (steps a second).
    """

    from_ns: int
    to_ns: int
    median: float
    cv: float
    p1: float
    rates: tuple[float, ...]

    @property
    def n(self) -> int:
        """Number of windows."""
        return len(self.rates)

    @property
    def step_ns(self) -> int:
        """One step of the undisturbed job (ns): the resolution of everything measured in steps."""
        return round(NS / self.median)

    def share_below(self, mark: float) -> float:
        """Share of the undisturbed job's own windows that fall below `mark` (a ratio) of its median."""
        return sum(rate < mark * self.median for rate in self.rates) / self.n


def measure(steps: Sequence[Step], from_ns: int, to_ns: int) -> Baseline | None:
    """The baseline from the steps that ended in [from_ns, to_ns]; None if not even one window is complete."""
    rates = tuple(w.rate for w in windows([s for s in steps if from_ns <= s.t <= to_ns]))
    if not rates or median(rates) <= 0:
        return None
    return Baseline(from_ns, to_ns, median(rates), cv(rates), percentile(rates, 1), rates)


def unusable(baseline: Baseline | None, mark: float) -> str | None:
    """Why no recovery can be told from this baseline, or None.

    Recovery is judged by single windows against `mark` (a ratio). If the undisturbed job's own windows miss the mark
    more often than one in ten (for a normal spread: a variation of more than 3.9 % at a mark of 95 %), then a job that
    is back to normal looks unrecovered about as often as its ordinary noise decides, and a slow-down of the size of
    (1 - mark) hides in that noise: the figure would say more about the machine than about the job.
    """
    if baseline is None or baseline.n < MIN_WINDOWS:
        found = baseline.n if baseline else 0
        pace = f": lengthen steady_state.baseline to at least {_long_enough(baseline)}" if baseline else ""
        return f"the baseline holds {found} windows of {WINDOW} steps, {MIN_WINDOWS} are needed{pace}"
    share = baseline.share_below(mark)
    if share > MAX_SHARE_BELOW:
        return (
            f"the baseline is too noisy: {show('ratio', round(share, 3))} of the undisturbed job's own windows "
            f"of {WINDOW} steps fall below {show('ratio', mark)} of its median "
            f"(at most {show('ratio', MAX_SHARE_BELOW)} may; variation {show('ratio', round(baseline.cv, 4))})"
        )
    return None


def _long_enough(baseline: Baseline) -> str:
    needed = (MIN_WINDOWS + WINDOW) * NS / baseline.median / NS
    return show("duration", float(max(1, round(needed * 1.2 + 0.5))))
