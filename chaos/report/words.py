"""How figures are written: rounded for people, with their units, never rounded to a better verdict."""

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from chaos.quantities import Kind, QuantityError
from chaos.quantities import format as show

NONE = "–"  # where there is no figure
_NBSP = "\u00a0"
_UNIT = re.compile(r"(?<=\d)(?=[a-z](?!\+))")


def ms(value: float | None) -> str:
    """A measured duration in milliseconds, to three or four digits; negative: before what it is counted from."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 60_000:
        text = _spaced(_exact("duration", round(size / 1e3, 1)))
    elif size >= 1_000:
        text = f"{size / 1e3:.{3 if size < 10_000 else 2}f}{_NBSP}s"
    else:
        text = f"{size:.{0 if size >= 100 or size < 0.0005 else 1 if size >= 10 else 2 if size >= 1 else 3}f}{_NBSP}ms"
    return f"−{text}" if value <= -0.0005 else text


def nominal(value: float | None) -> str:
    """A duration in seconds that somebody chose (a pass mark, a setting), as it was chosen: ``800 ms``."""
    if value is None or not 0 <= value < math.inf:
        return NONE
    return _spaced(_exact("duration", round(value, 9)))


def seconds(value: float | None) -> str:
    """A measured duration in seconds."""
    return ms(None if value is None else value * 1e3)


def exact_ms(value: float | None) -> str:
    """A signed deviation to the microsecond: ``+0.041 ms``."""
    return NONE if value is None or not math.isfinite(value) else f"{value:+.3f}{_NBSP}ms".replace("-", "−")


def clock(value: float | None) -> str:
    """An instant, in seconds since the run began."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.3f}{_NBSP}s".replace("-", "−")


def ratio(value: float | None) -> str:
    """A share as a percentage. What falls short of 100 % is shown so, however little it lacks."""
    if value is None or not math.isfinite(value):
        return NONE
    lacks = 1 - value
    if value < 0 or lacks <= 0:
        return _exact("ratio", round(value, 6)) if value >= 0 else f"−{_exact('ratio', round(-value, 6))}"
    # Three significant digits of what is missing, rounded down.
    digits = min(12, max(3, 2 - math.floor(math.log10(lacks))))
    return _exact("ratio", math.floor(value * 10**digits + 1e-6) / 10**digits)


def spread(value: float | None) -> str:
    """A coefficient of variation as a percentage, to a hundredth."""
    return NONE if value is None or not 0 <= value < math.inf else _exact("ratio", round(value, 4))


def rate(value: float | None) -> str:
    """A throughput in steps a second."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.4g}{_NBSP}steps/s"


def count(value: float | None) -> str:
    """A whole number, in groups of three digits."""
    return NONE if value is None else f"{value:,.0f}".replace(",", "\u202f")


def interval(low: float | None, high: float | None) -> str:
    """A range of milliseconds."""
    if low is None or high is None:
        return NONE
    return f"{ms(low)} to {ms(high)}"


def target(value: object) -> str:
    """What a fault was aimed at: ``node 0, GPU 1``, ``the launcher``."""
    if not isinstance(value, Mapping):
        return NONE if value is None else str(value)
    shown = {"gpu": "GPU"}
    if value.get("process") is not None:
        return f"the {value['process']}"
    parts = [f"{shown.get(str(key), key)} {item}" for key, item in value.items() if item is not None]
    return ", ".join(parts) or NONE


def params(value: object) -> str:
    """The parameters of a fault: ``signal STOP, direction both``; quantities are in SI."""
    if not isinstance(value, Mapping):
        return ""
    return ", ".join(f"{key} {item}" for key, item in value.items() if item is not None)


def wall(value: object) -> str:
    """An ISO 8601 instant as people read it, to the second."""
    if not isinstance(value, str):
        return NONE
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        return value
    offset = instant.utcoffset()
    zone = "" if offset is None else " UTC" if not offset else f" {instant:%z}"
    return f"{instant:%Y-%m-%d %H:%M:%S}{zone}"


def plain(value: Any) -> str:
    """A measured value of any type, short."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: NONE}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _exact(kind: Kind, value: float) -> str:
    try:
        return show(kind, value)
    except QuantityError:  # larger than anything sensible: told as it is, the report must not fail for it
        return f"{value:.4g}{'s' if kind == 'duration' else ''}"


def _spaced(text: str) -> str:
    """``1m30s`` as ``1 m 30 s``, with spaces that do not break."""
    parts = re.findall(r"[0-9.e+]+[a-z]+", text)
    return _NBSP.join(_UNIT.sub(_NBSP, part) for part in parts)
