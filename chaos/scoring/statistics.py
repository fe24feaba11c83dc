"""Small statistics: median, variation, percentiles and the exact binomial bounds that evidence rests on."""

import math
from collections.abc import Sequence

CONFIDENCE = 0.95  # one-sided, for every bound that a scorecard states

_TINY = 1e-300
_PRECISION = 1e-14
_MAX_TERMS = 200_000
_BISECTIONS = 200


def median(values: Sequence[float]) -> float:
    """The middle value (mean of the two middle ones). Raises ValueError on no values."""
    return percentile(values, 50)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean. Raises ValueError on no values."""
    if not values:
        raise ValueError("the mean of no values")
    return math.fsum(values) / len(values)


def cv(values: Sequence[float]) -> float:
    """Coefficient of variation: sample standard deviation / mean (a ratio); 0 below two values and for a zero mean."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    if centre == 0:
        return 0.0
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1)) / abs(centre)


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile with linear interpolation between order statistics.

    Type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996), which
    is also the default of R and NumPy. Raises ValueError on no values or a percentage outside 0..100.
    """
    if not values:
        raise ValueError("a percentile of no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent}: must lie in 0..100")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a, b > 0 and 0 <= x <= 1.

    By the continued fraction DLMF 8.17.22 (https://dlmf.nist.gov/8.17#E22), evaluated with the modified Lentz method
    (Thompson and Barnett 1986; Press et al., Numerical Recipes, 3rd ed., section 6.4), on the side where it converges
    fast, with I_x(a, b) = 1 - I_{1-x}(b, a) for the other.
    """
    if not (a > 0 and b > 0 and 0 <= x <= 1):
        raise ValueError(f"incomplete beta of a={a}, b={b}, x={x}: needs a, b > 0 and 0 <= x <= 1")
    if x in (0, 1):
        return float(x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, _away_from_zero(1 - (a + b) * x / (a + 1))
    d = 1 / d
    value = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        step = 1.0
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            step = d * c
            value *= step
        if abs(step - 1) < _PRECISION:
            return value
    raise ArithmeticError(f"the continued fraction of the incomplete beta did not settle (a={a}, b={b}, x={x})")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def proportion_lower_bound(successes: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The exact one-sided lower bound of a proportion: 0.9999 means "at least 99.99 % with this confidence".

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934): the p at which so many successes or more have probability 1 - confidence,
    I_p(successes, trials - successes + 1) = 1 - confidence. Raises ValueError unless 0 <= successes <= trials and
    trials > 0.
    """
    if trials <= 0 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials}: needs 0 <= successes <= trials and trials > 0")
    if successes == 0:
        return 0.0
    if successes == trials:
        return 1 - zero_failure_bound(trials, confidence)
    low, high = 0.0, successes / trials
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if incomplete_beta(successes, trials - successes + 1, middle) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def zero_failure_bound(trials: int, confidence: float = CONFIDENCE) -> float:
    """The highest failure rate that `trials` trials without a failure leave possible: 1 - (1 - confidence)^(1/trials).

    The Clopper-Pearson bound for no event; about 3/trials at 95 % (the "rule of three").
    """
    if trials <= 0:
        raise ValueError(f"{trials} trials: needs at least one")
    return -math.expm1(math.log1p(-confidence) / trials)


def zero_failure_trials(rate: float, confidence: float = CONFIDENCE) -> int:
    """How many trials, all without a failure, show that the failure rate is below `rate` (a ratio).

    30 000 comparisons (29 956) for 0.01 %, 59 drills for 5 %.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate {rate}: must lie between 0 and 1")
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))
