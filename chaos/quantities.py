"""Durations, ratios, rates and sizes as people write them: one grammar for every document, option and report.

``parse`` reads text into SI, ``format`` writes SI back, and ``parse(kind, format(kind, x)) == x``, exactly.
Units are decimal as in the SI (1 kB = 1000 B) except KiB, MiB and GiB; a rate in bytes is eight times one in
bits.
A number without its unit is refused, because nobody can tell 5 seconds from 5 milliseconds; zero needs none.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, Literal, overload

Kind = Literal["duration", "ratio", "rate", "size"]

KINDS: Final[tuple[Kind, ...]] = ("duration", "ratio", "rate", "size")

_UNITS: Final[dict[Kind, dict[str, Decimal]]] = {
    "duration": {
        "d": Decimal(86_400),
        "h": Decimal(3_600),
        "m": Decimal(60),
        "s": Decimal(1),
        "ms": Decimal("1e-3"),
        "us": Decimal("1e-6"),
        "ns": Decimal("1e-9"),
    },
    "ratio": {"%": Decimal("0.01")},
    "rate": {
        "Gbit/s": Decimal(10**9),
        "Mbit/s": Decimal(10**6),
        "kbit/s": Decimal(10**3),
        "bit/s": Decimal(1),
        "GB/s": Decimal(8 * 10**9),
        "MB/s": Decimal(8 * 10**6),
        "kB/s": Decimal(8 * 10**3),
        "B/s": Decimal(8),
    },
    "size": {
        "GiB": Decimal(2**30),
        "MiB": Decimal(2**20),
        "KiB": Decimal(2**10),
        "GB": Decimal(10**9),
        "MB": Decimal(10**6),
        "kB": Decimal(10**3),
        "B": Decimal(1),
    },
}
# Spellings of the micro sign: U+00B5 is on keyboards, U+03BC is what editors turn it into.
_SAME: Final[dict[str, str]] = {"µs": "us", "μs": "us"}
_SYNONYMS: Final[dict[str, str]] = {
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("usec", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("nsec", "nanosecond", "nanoseconds"), "ns"),
    **dict.fromkeys(("percent", "pct"), "%"),
    **dict.fromkeys(("gbps", "gb/s", "gbit"), "Gbit/s"),
    **dict.fromkeys(("mbps", "mb/s", "mbit"), "Mbit/s"),
    **dict.fromkeys(("kbps", "kb/s", "kbit"), "kbit/s"),
    **dict.fromkeys(("bps", "bit"), "bit/s"),
    **dict.fromkeys(("gb", "g"), "GB"),
    **dict.fromkeys(("mb",), "MB"),
    **dict.fromkeys(("kb", "k"), "kB"),
    **dict.fromkeys(("byte", "bytes"), "B"),
}
_EXAMPLE: Final[dict[Kind, str]] = {
    "duration": "500ms, 20s or 1h30m",
    "ratio": "95% or 99.99%",
    "rate": "100Mbit/s or 10Gbit/s",
    "size": "64kB or 4MiB",
}
_LIKELY_UNITS: Final[dict[Kind, tuple[str, ...]]] = {
    "duration": ("s", "ms"),
    "ratio": ("%",),
    "rate": ("Mbit/s", "Gbit/s"),
    "size": ("B", "MiB"),
}
# Beyond these a value is a slip of the pen, and 64-bit nanoseconds and byte counts would overflow.
_MOST: Final[dict[Kind, tuple[Decimal, str]]] = {
    "duration": (Decimal(2**63 - 1) / 10**9, "292 years"),
    "ratio": (Decimal(10**6), "100000000%"),
    "rate": (Decimal(10**18), "1000000000Gbit/s"),
    "size": (Decimal(2**63 - 1), "8589934591GiB"),
}
_LONGEST_TEXT: Final = 512  # the smallest float, written out, needs 340
_LONGEST_QUOTE: Final = 64

_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_ANY_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_TERM: Final = re.compile(rf"({_NUMBER})([^0-9.]+)")


class QuantityError(ValueError):
    """The text is not such a quantity; the message says what was found and what would be right."""


@overload
def parse(kind: Literal["size"], value: object) -> int: ...
@overload
def parse(kind: Literal["duration", "ratio", "rate"], value: object) -> float: ...
@overload
def parse(kind: Kind, value: object) -> int | float: ...
def parse(kind: Kind, value: object) -> int | float:
    """Read a quantity into SI: seconds, a plain ratio (1.0 is 100 %), bit/s, or bytes (a whole number).

    ``value`` is the text, or what a document's scalar was read as: the number 0 is accepted, any other number
    lacks its unit. Raises ``QuantityError``.
    """
    text = _text(kind, value)
    if not text or len(text) > _LONGEST_TEXT:
        raise QuantityError(f"found {_quote(text)}; write a {kind} such as {_EXAMPLE[kind]}")
    total = _terms(kind, text)
    most, said = _MOST[kind]
    if total > most:
        raise QuantityError(f"found {_quote(text)}, which is more than can be held; write at most {said}")
    if kind != "size":
        return float(total)
    if total != total.to_integral_value():
        raise QuantityError(f"found {_quote(text)}, which is not a whole number of bytes")
    return int(total)


def parse_any(text: str) -> tuple[Kind, float]:
    """Read a quantity whose kind its unit tells. Raises ``QuantityError``."""
    match = _TERM.search(text)
    unit = _SAME.get(match[2], match[2]) if match else ""
    for kind in KINDS:
        if unit in _UNITS[kind]:
            return kind, parse(kind, text)
    shown = ", ".join(example.split(" or ")[-1] for example in _EXAMPLE.values())
    raise QuantityError(f"found {_quote(text)}; write a number, or a quantity such as {shown}")


def format(kind: Kind, value: float) -> str:
    """Write an SI value as people read it: 0.5 s as ``500ms``, 5400 s as ``1h30m``, 4194304 B as ``4MiB``.

    Exact: ``parse`` gives the same value back. Round a measured value before, to show fewer digits.
    Raises ``QuantityError`` for a value that is negative, not finite or too large.
    """
    exact = Decimal(value) if isinstance(value, int) else Decimal(repr(float(value)))
    if not exact.is_finite() or exact < 0 or exact > _MOST[kind][0]:
        raise QuantityError(f"{value!r} cannot be a {kind}: it is negative, not finite or too large")
    if kind == "ratio":
        return _digits(exact * 100) + "%"
    if exact == 0:
        return {"duration": "0s", "rate": "0bit/s", "size": "0B"}[kind]
    if kind == "duration":
        return _format_duration(exact)
    units = _UNITS[kind]
    if kind == "size":
        unit = next(unit for unit, factor in units.items() if exact % factor == 0)
    else:
        bits = [unit for unit in units if unit.endswith("bit/s")]
        unit = next((unit for unit in bits if exact >= units[unit]), "bit/s")
    return _digits(exact / units[unit]) + unit


def pattern(kind: Kind) -> str:
    """A regular expression (ECMA 262, as JSON Schema wants) for what ``parse`` accepts of this kind."""
    if kind == "duration":
        compound = "".join(f"({_NUMBER}{unit})?" for unit in ("d", "h", "m", "s", "ms", "[uµμ]s", "ns"))
        return f"^(?=.){compound}$"
    units = "|".join(re.escape(unit) for unit in _UNITS[kind])
    return f"^{_NUMBER}({units})$"


def example(kind: Kind) -> str:
    """Two or three values of this kind, for messages: ``500ms, 20s or 1h30m``."""
    return _EXAMPLE[kind]


def _text(kind: Kind, value: object) -> str:
    """The text of a scalar; a bare number other than zero is turned away here."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        found = "nothing" if value is None else str(value).lower()
    elif isinstance(value, (int, float)):
        return "0" if value == 0 else repr(value)
    else:
        found = type(value).__name__
    raise QuantityError(f"found {found}; write a {kind} such as {_EXAMPLE[kind]}")


def _terms(kind: Kind, text: str) -> Decimal:
    """The sum of the terms of ``1h30m``; each unit is smaller than the one before it."""
    _refuse_what_is_no_quantity(kind, text)
    units = _UNITS[kind]
    total, position, before = Decimal(0), 0, Decimal("inf")
    for match in _TERM.finditer(text):
        number, unit = match[1], _SAME.get(match[2], match[2])
        if match.start() != position:
            break
        if unit not in units:
            raise QuantityError(_wrong_unit(kind, text, number, match[2]))
        if units[unit] >= before or (position and kind != "duration"):
            raise QuantityError(
                f"found {_quote(text)}; write each unit once, the largest first, as in {_EXAMPLE[kind]}"
            )
        total += Decimal(number) * units[unit]
        position, before = match.end(), units[unit]
    if text == "0":
        return total
    if position != len(text):
        raise QuantityError(f"found {_quote(text)}; write a {kind} such as {_EXAMPLE[kind]}")
    return total


def _refuse_what_is_no_quantity(kind: Kind, text: str) -> None:
    number = _ANY_NUMBER.fullmatch(text)
    if text.lstrip("+-.").lower() in {"nan", "inf", "infinity"}:
        raise QuantityError(f"found {_quote(text)}, which is not a finite number; write {_EXAMPLE[kind]}")
    if text.startswith("-"):
        raise QuantityError(f"found {_quote(text)}, which is negative; write a {kind} of 0 or more")
    if number and text != "0":
        value = Decimal(text)
        written = _digits(value) if -20 < value.adjusted() < 20 else "..."
        choices = " or ".join(written + unit for unit in _LIKELY_UNITS[kind])
        raise QuantityError(f"found {_quote(text)} without a unit; write {choices}")
    if any(character.isspace() for character in text):
        joined = "".join(text.split())
        raise QuantityError(f"found {_quote(text)} with a space in it; write {joined}")


def _wrong_unit(kind: Kind, text: str, number: str, unit: str) -> str:
    for other in KINDS:
        if other != kind and unit in _UNITS[other]:
            return f"found {_quote(text)}, a {other}; write a {kind} such as {_EXAMPLE[kind]}"
    lowered = unit.lower()
    near = next((known for known in _UNITS[kind] if known.lower() == lowered), _SYNONYMS.get(lowered))
    if near in _UNITS[kind]:
        return f"found {_quote(text)}, where {_quote(unit)} is no unit; write {number}{near}"
    units = ", ".join(reversed(_UNITS[kind]))
    return f"found {_quote(text)}, where {_quote(unit)} is no unit of a {kind}; use one of {units}"


def _format_duration(exact: Decimal) -> str:
    units = _UNITS["duration"]
    if exact < 60:
        unit = next((unit for unit in ("s", "ms", "us") if exact >= units[unit]), "ns")
        return _digits(exact / units[unit]) + unit
    parts, rest = [], exact
    for unit in ("d", "h", "m"):
        whole, rest = divmod(rest, units[unit])
        if whole:
            parts.append(f"{whole:f}{unit}")
    if rest:
        parts.append(f"{_digits(rest)}s")
    return "".join(parts)


def _digits(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _quote(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "...")  # escapes line breaks
