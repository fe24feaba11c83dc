"""The contract of a probe: what it is called with, what it gives back, how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from steady_state.view import WorkloadView

# Annotations of a probe's parameters; the text is what documents read them by.
Seconds = Annotated[float, "duration"]
Ratio = Annotated[float, "ratio"]

ValueType = Literal["number", "ratio", "boolean", "text", "any"]


class ProbeFailed(Exception):
    """The probe could not measure; the message is one line that says why."""


@dataclass(frozen=True)
class Measurement:
    """What a probe measured: the value, one line about it, and figures that back it (JSON)."""

    value: Any
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Probe(Protocol):
    """Measures one thing.

    ``Params`` is a dataclass whose annotations are the schema that documents are read by; ``value`` is the type of
    what is measured (a ratio is a number that documents write in per cent; ``any`` depends on the parameters).
    """

    @property
    def name(self) -> str:
        """How experiments call it."""

    @property
    def about(self) -> str:
        """What it measures, in one line."""

    @property
    def value(self) -> ValueType:
        """The type of what it measures."""

    @property
    def Params(self) -> type:
        """The dataclass of its parameters."""

    def measure(self, params: Any, view: WorkloadView, timeout: float, /) -> Measurement:
        """Measure once, within ``timeout`` seconds. Raises ``ProbeFailed``."""
