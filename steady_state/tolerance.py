"""Typed tolerances: whether a measured value is right.

A tolerance compares like with like. Nothing, NaN and a value of another type fail it and say so; no value makes it
raise. 1 is not true, '5' is not 5, and text has no order.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chaos import quantities

FINITE = "finite"
_LONGEST_SHOWN = 80
_LONGEST_SEARCHED = 1 << 16  # characters of a text that a regular expression looks at


class ToleranceError(ValueError):
    """Not a tolerance; the message says what was found and what would be right."""


@dataclass(frozen=True)
class Outcome:
    """Whether the value is right, and why or why not in one line."""

    ok: bool
    why: str


class Tolerance(ABC):
    """Says of any value whether it is right. ``str`` is the tolerance as an experiment has it."""

    @abstractmethod
    def check(self, value: object) -> Outcome:
        """The outcome for this value; never raises."""


@dataclass(frozen=True)
class AtLeast(Tolerance):
    """A number not below ``bound``."""

    bound: float
    per_cent: bool = False

    def check(self, value: object) -> Outcome:
        """Fails for what is no finite number."""
        return _compare(value, self, lambda number: number >= self.bound, self.per_cent)

    def __str__(self) -> str:
        return f"at least {_number(self.bound, self.per_cent)}"


@dataclass(frozen=True)
class AtMost(Tolerance):
    """A number not above ``bound``."""

    bound: float
    per_cent: bool = False

    def check(self, value: object) -> Outcome:
        """Fails for what is no finite number."""
        return _compare(value, self, lambda number: number <= self.bound, self.per_cent)

    def __str__(self) -> str:
        return f"at most {_number(self.bound, self.per_cent)}"


@dataclass(frozen=True)
class Between(Tolerance):
    """A number from ``low`` to ``high``, both included."""

    low: float
    high: float
    per_cent: bool = False

    def check(self, value: object) -> Outcome:
        """Fails for what is no finite number."""
        return _compare(value, self, lambda number: self.low <= number <= self.high, self.per_cent)

    def __str__(self) -> str:
        return f"between {_number(self.low, self.per_cent)} and {_number(self.high, self.per_cent)}"


@dataclass(frozen=True)
class Is(Tolerance):
    """The very value, of the very type: true, false, nothing, a number, a text; or any finite number."""

    wanted: bool | int | float | str | None

    def check(self, value: object) -> Outcome:
        """``is: finite`` is met by any finite number, and by the text 'finite'."""
        ok = _is_finite(value) if self.wanted == FINITE and _is_number(value) else _same(value, self.wanted)
        return Outcome(ok, f"{show(value)} {'is' if ok else 'is not'} {self._shown()}")

    def _shown(self) -> str:
        return FINITE if self.wanted == FINITE else show(self.wanted)

    def __str__(self) -> str:
        return f"is {self._shown()}"


@dataclass(frozen=True)
class OneOf(Tolerance):
    """One of several values, compared as ``Is`` does."""

    wanted: tuple[bool | int | float | str | None, ...]

    def check(self, value: object) -> Outcome:
        """Met by a value that is one of them, type and all."""
        ok = any(_same(value, one) for one in self.wanted)
        return Outcome(ok, f"{show(value)} {'is' if ok else 'is not'} {self}")

    def __str__(self) -> str:
        return f"one of {', '.join(map(show, self.wanted))}"


@dataclass(frozen=True)
class Matches(Tolerance):
    """A text in which a regular expression is found anywhere."""

    pattern: re.Pattern[str]

    def check(self, value: object) -> Outcome:
        """Fails for what is no text."""
        if not isinstance(value, str):
            return Outcome(False, f"{show(value)} is no text, which {self} needs")
        ok = self.pattern.search(value[:_LONGEST_SEARCHED]) is not None
        return Outcome(ok, f"{show(value)} {'matches' if ok else 'does not match'} {show(self.pattern.pattern)}")

    def __str__(self) -> str:
        return f"matches {show(self.pattern.pattern)}"


@dataclass(frozen=True)
class OfBaseline(Tolerance):
    """A comparison of the value's share of what was measured during the baseline."""

    share: AtLeast | AtMost | Between
    baseline: float | None

    def check(self, value: object) -> Outcome:
        """Fails for what is no finite number, and where there is no baseline to compare with."""
        if self.baseline is None:
            return Outcome(False, "nothing was measured during the baseline to compare with")
        if not _is_finite(self.baseline) or self.baseline <= 0:
            return Outcome(False, f"the baseline is {show(self.baseline)}, of which nothing is a share")
        try:
            ratio = value / self.baseline if isinstance(value, (int, float)) and _is_number(value) else value
        except OverflowError:
            return Outcome(False, f"{show(value)} is too large to compare with")
        outcome = self.share.check(ratio)
        return Outcome(outcome.ok, f"{outcome.why} of the baseline's {show(self.baseline)}")

    def __str__(self) -> str:
        return f"{self.share} of baseline"


def tolerance(written: Mapping[str, Any], *, per_cent: bool = False) -> Tolerance:
    """The tolerance of ``{"at_least": 0.95}`` and the like, operands in SI; ``per_cent`` shows numbers so.

    Raises ``ToleranceError`` for what is none: no or several keys, an operand of the wrong type, a range whose low end
    is above its high end, a text that is no regular expression.
    """
    if len(written) != 1:
        raise ToleranceError(f"found {' and '.join(sorted(written)) or 'nothing'}; give one tolerance")
    ((key, operand),) = written.items()
    match key:
        case "at_least":
            return AtLeast(_bound(operand), per_cent)
        case "at_most":
            return AtMost(_bound(operand), per_cent)
        case "between":
            return _between(operand, per_cent)
        case "is":
            return Is(_scalar(operand))
        case "one_of" if isinstance(operand, (list, tuple)) and operand:
            return OneOf(tuple(map(_scalar, operand)))
        case "matches" if isinstance(operand, str):
            try:
                return Matches(re.compile(operand))
            except re.error as error:
                raise ToleranceError(f"found {show(operand)}, which is no regular expression: {error}") from None
        case _:
            raise ToleranceError(f"found {key} with {show(operand)}, which is no tolerance")


def of_baseline(written: Mapping[str, Any], baseline: float | None) -> Tolerance:
    """The tolerance as a ratio of ``baseline`` (None: there is none). Raises ``ToleranceError``."""
    share = tolerance(written, per_cent=True)
    if not isinstance(share, (AtLeast, AtMost, Between)):
        raise ToleranceError(f"found {share} of the baseline; give at_least, at_most or between")
    return OfBaseline(share, baseline)


def show(value: object) -> str:
    """A value in one short line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if value.bit_length() < 200 else f"a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        text = repr(value[: _LONGEST_SHOWN + 1])
        return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
    return "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _compare(value: object, tolerance: Tolerance, holds: Any, per_cent: bool) -> Outcome:
    if not _is_number(value):
        return Outcome(False, f"{show(value)} is no number, which {tolerance} needs")
    if not _is_finite(value):
        return Outcome(False, f"{show(value)} is not finite, which {tolerance} needs")
    ok = bool(holds(value))
    return Outcome(ok, f"{_number(value, per_cent)} is {'' if ok else 'not '}{tolerance}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # isfinite cannot take every int


def _same(value: object, wanted: object) -> bool:
    if _is_number(value) and _is_number(wanted):
        return value == wanted
    return type(value) is type(wanted) and value == wanted


def _number(value: Any, per_cent: bool) -> str:
    if per_cent and 0 <= value < 1e4:
        return quantities.format("ratio", float(f"{value:.6g}"))
    return show(value)


def _bound(operand: object) -> float:
    if not _is_number(operand) or not _is_finite(operand):
        raise ToleranceError(f"found {show(operand)}; give a finite number")
    assert isinstance(operand, (int, float))
    return operand


def _between(operand: object, per_cent: bool) -> Between:
    if not isinstance(operand, (list, tuple)) or len(operand) != 2:
        raise ToleranceError(f"found {show(operand)}; give two numbers, [low, high]")
    low, high = map(_bound, operand)
    if low > high:
        raise ToleranceError(f"found a range from {show(low)} down to {show(high)}; give [{show(high)}, {show(low)}]")
    return Between(low, high, per_cent)


def _scalar(operand: object) -> bool | int | float | str | None:
    if operand is None or isinstance(operand, (bool, int, str)):
        return operand
    if isinstance(operand, float) and math.isfinite(operand):
        return operand
    raise ToleranceError(f"found {show(operand)}; give a finite number, a text, true, false or null")
