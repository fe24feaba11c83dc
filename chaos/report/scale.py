"""Axes: from values to pixels, and where the ticks stand."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """A linear scale: values from ``low`` to ``high`` onto pixels from ``first`` to ``last``."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; beyond the ends it stays at the end."""
        part = (value - self.low) / ((self.high - self.low) or 1)
        return self.first + min(1.0, max(0.0, part)) * (self.last - self.first)

    def ticks(self, about: int) -> list[float]:
        """About this many round values within the scale."""
        span = self.high - self.low
        if span <= 0 or not math.isfinite(span):
            return [self.low]
        rough = span / max(1, about)
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
        start = math.ceil(self.low / step - 1e-9)
        return [round(k * step, 12) for k in range(start, math.floor(self.high / step + 1e-9) + 1)]


def label(value: float) -> str:
    """A tick's text."""
    return f"{value:.10g}".replace("-", "−")
