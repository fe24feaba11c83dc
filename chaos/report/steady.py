"""The steady-state hypothesis as rows: each probe with what it found before, during and after the faults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.report import words
from chaos.scoring.fields import flag, mapping, objects, text

PHASES = ("before", "during", "after")


@dataclass(frozen=True)
class Check:
    """A probe in one phase: ``held`` of ``made`` checks held; ``text`` is of the first that did not, or the last."""

    made: int
    held: int
    text: str

    @property
    def ok(self) -> bool:
        """Whether it held every time."""
        return self.held == self.made


@dataclass(frozen=True)
class Hypothesis:
    """A probe with its tolerance, and its checks by phase; a phase in which it was not checked is absent."""

    probe: str
    tolerance: str
    checks: dict[str, Check] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Both, as one name."""
        return f"{self.probe} {self.tolerance}".strip()


def hypotheses(card: Mapping[str, Any]) -> list[Hypothesis]:
    """All of them, in the order in which they were first checked."""
    steady = mapping(card, "steady_state")
    found: dict[tuple[str, str], Hypothesis] = {}
    for phase in PHASES:
        for result in objects(steady, phase):
            key = (text(result, "probe") or "probe", text(result, "tolerance") or "")
            each = found.setdefault(key, Hypothesis(*key))
            before = each.checks.get(phase)
            each.checks[phase] = _and(before, result)
    return list(found.values())


def _and(before: Check | None, result: Mapping[str, Any]) -> Check:
    ok = flag(result, "ok") is True
    told = text(result, "error") or text(result, "text") or words.plain(result.get("value"))
    if before is None:
        return Check(1, int(ok), told)
    return Check(before.made + 1, before.held + ok, told if before.ok else before.text)
