"""Reading a scorecard that may be older, cut or of a run that never began."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from chaos.scoring.fields import mapping, objects, text

Card = Mapping[str, Any]

VERDICTS = ("pass", "fail", "inconclusive", "aborted", "error")


def verdict(part: Mapping[str, Any]) -> str:
    """The verdict of a card or figure; ``inconclusive`` where there is none: nothing was proven."""
    found = text(part, "verdict")
    return found if found in VERDICTS else "inconclusive"


def name(card: Card) -> str:
    """The experiment's name."""
    return text(card, "experiment") or "unnamed experiment"


def reason(card: Card) -> str:
    """Why the verdict is what it is."""
    return text(card, "reason") or "the scorecard gives no reason"


def cleanup(card: Card) -> tuple[str, str]:
    """The verdict of the clean-up and its sentence; empty where an older version told none."""
    part = mapping(card, "cleanup")
    return text(part, "verdict") or "", text(part, "text") or ""


def measured(card: Card) -> str:
    """What the run would be worth without regard to its clean-up, where that differs from the verdict."""
    part = mapping(card, "measured")
    return f"{verdict(part)}: {reason(part)}" if part else ""


def recoveries(card: Card) -> list[Mapping[str, Any]]:
    """The recovery of each fault, or of each group of overlapping ones."""
    rto = mapping(card, "rto")
    return objects(rto, "faults") or ([rto] if rto else [])


def lasted(card: Card) -> float | None:
    """How long the run took, in seconds of the wall clock; None where it did not come to its end."""
    try:
        began = datetime.fromisoformat(text(card, "started") or "")
        ended = datetime.fromisoformat(text(card, "ended") or "")
        return max(0.0, (ended - began).total_seconds())
    except (ValueError, TypeError):  # absent, or one of the two without its zone
        return None
