"""The tolerances of a document: which key may stand for which probe, and its operand in SI.

What a number's operand looks like is decided by what is compared: a share of the baseline, and a probe that measures
a ratio, take per cent; any other number stands alone. A probe whose type only its parameters decide (``any``) takes
a bare number, or a quantity, which becomes seconds, bytes, bit/s or a plain ratio.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from chaos import quantities
from chaos.documents.errors import Finding, choice, describe
from chaos.experiment.catalogue import ProbeInfo

KEYS: Final = ("at_least", "at_most", "between", "is", "one_of", "matches")
COMPARISONS: Final = ("at_least", "at_most", "between")
ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "number": (*COMPARISONS, "is", "one_of"),
    "ratio": (*COMPARISONS, "is"),
    "boolean": ("is",),
    "text": ("is", "one_of", "matches"),
    "any": KEYS,
}
FINITE: Final = "finite"


def read_tolerance(written: Mapping[str, Any], probe: ProbeInfo, of: object) -> tuple[dict[str, Any], list[Finding]]:
    """The one tolerance of a condition with its operand in SI, and what is wrong with it.

    ``written`` holds those keys of the condition that are tolerances. Paths of findings start at the condition.
    """
    allowed = ALLOWED[probe.value]
    if len(written) != 1:
        found = f"{' and '.join(sorted(written))}" if written else "no tolerance"
        path: tuple[str | int, ...] = (sorted(written)[-1],) if written else ()
        return {}, [Finding(path, f"found {found}; write {choice(allowed)}", at_key=True)]
    ((key, operand),) = written.items()
    if key not in allowed:
        words = f"{probe.name} measures {_MEASURES[probe.value]}"
        return {}, [Finding((key,), f"found '{key}', but {words}; write {choice(allowed)}", at_key=True)]
    try:
        return {key: _operand(key, operand, probe, of)}, []
    except ValueError as error:
        return {}, [Finding((key,), str(error))]


_MEASURES: Final = {
    "number": "a number",
    "ratio": "a ratio",
    "boolean": "true or false",
    "text": "text",
    "any": "what its parameters say",
}


def _operand(key: str, operand: object, probe: ProbeInfo, of: object) -> Any:
    if of is not None and (key not in COMPARISONS or probe.value in ("boolean", "text")):
        raise ValueError(f"found '{key}' with 'of: baseline'; write {', '.join(COMPARISONS)} with a ratio such as 95%")
    match key:
        case "at_least" | "at_most":
            return _number(operand, probe, of)
        case "between":
            return _range(operand, probe, of)
        case "matches":
            return _expression(operand)
        case "one_of":
            if not isinstance(operand, list) or not operand:
                raise ValueError(f"found {describe(operand)}; write a list of values")
            return [_literal(item, probe) for item in operand]
        case _:
            return _literal(operand, probe)


def _range(operand: object, probe: ProbeInfo, of: object) -> list[float]:
    if not isinstance(operand, list) or len(operand) != 2:
        raise ValueError(f"found {describe(operand)}; write a list of two, [LOW, HIGH]")
    low, high = (_number(end, probe, of) for end in operand)
    if low > high:
        raise ValueError(f"found a range from {operand[0]} down to {operand[1]}; write [{operand[1]}, {operand[0]}]")
    return [low, high]


def _number(operand: object, probe: ProbeInfo, of: object) -> float:
    if of is not None or probe.value == "ratio":
        return quantities.parse("ratio", operand)
    if isinstance(operand, str) and probe.value == "any":
        return quantities.parse_any(operand)[1]
    if isinstance(operand, str) and operand.endswith("%"):
        raise ValueError(f"found {operand!r}, but per cent of what? write a number, or add 'of: baseline'")
    if isinstance(operand, bool) or not isinstance(operand, (int, float)):
        raise ValueError(f"found {describe(operand)}; write a number")
    if not math.isfinite(operand):
        raise ValueError(f"found {operand}, with which nothing compares; write a finite number")
    return operand


def _literal(operand: object, probe: ProbeInfo) -> Any:
    """An operand that is compared for equality, typed: 1 is not true, and '1' is neither."""
    if isinstance(operand, (list, dict)):
        raise ValueError(f"found {describe(operand)}; write a single value")
    match probe.value:
        case "number" | "ratio":
            return FINITE if operand == FINITE else _number(operand, probe, None)
        case "boolean" if not isinstance(operand, bool):
            raise ValueError(f"found {describe(operand)}; write true or false")
        case "text" if not isinstance(operand, str):
            raise ValueError(f"found {describe(operand)}; write text, in quotes")
        case _ if isinstance(operand, float) and not math.isfinite(operand):
            raise ValueError(f"found {operand}, which equals nothing; write a finite number")
        case _:
            return operand


def _expression(operand: object) -> str:
    if not isinstance(operand, str):
        raise ValueError(f"found {describe(operand)}; write a regular expression, in quotes")
    try:
        re.compile(operand)
    except re.error as error:
        raise ValueError(f"found {operand!r}, which is no regular expression: {error}") from None
    return operand
