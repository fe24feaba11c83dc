"""Reading fields of events that may be torn, older or foreign: a value of the right type, or None.

A journal is evidence even when its last line is cut or its writer was older. Nothing here raises; whoever asks decides
what a missing piece means for the verdict.
"""

import math
from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]

NS = 1_000_000_000  # nanoseconds a second
NS_PER_MS = 1_000_000

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_LARGEST_INTEGER = 2**63  # instants, steps and ranks are 64-bit; anything larger is damage


def integer(event: Event, key: str) -> int | None:
    """The integer at `key`; None if absent, of another type (a boolean is not an integer) or beyond 64 bits."""
    value = event.get(key)
    return value if type(value) is int and -_LARGEST_INTEGER < value < _LARGEST_INTEGER else None


def number(event: Event, key: str) -> float | None:
    """The finite number at `key`, or None."""
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
        return None
    return float(value) if math.isfinite(value) else None


def loose_number(event: Event, key: str) -> float | None:
    """Like `number`, but non-finite values are given too; journals spell them "nan", "inf", "-inf"."""
    value = event.get(key)
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    if isinstance(value, float):
        return value
    return number(event, key)


def text(event: Event, key: str) -> str | None:
    """The string at `key`, or None."""
    value = event.get(key)
    return value if isinstance(value, str) else None


def flag(event: Event, key: str) -> bool | None:
    """The boolean at `key`, or None."""
    value = event.get(key)
    return value if isinstance(value, bool) else None


def mapping(event: Event, key: str) -> Event:
    """The object at `key`; an empty one if absent or of another type."""
    value = event.get(key)
    return value if isinstance(value, Mapping) else {}


def objects(event: Event, key: str) -> list[Event]:
    """The objects of the list at `key`; what is no object is left out."""
    value = event.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def texts(event: Event, key: str) -> list[str]:
    """The items of the list at `key` as strings."""
    value = event.get(key)
    return [str(item) for item in value] if isinstance(value, list | tuple) else []
