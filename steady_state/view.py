"""What a probe may see of the workload: its recent steps and its current members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

StepEvent = Mapping[str, Any]


@dataclass(frozen=True)
class Member:
    """A rank process that belongs to the job now. ``last`` is its latest step event, however old, None before any."""

    rank: int
    inc: str
    last: StepEvent | None


class WorkloadView(Protocol):
    """The workload at one instant, over the window before it. Times are nanoseconds of CLOCK_MONOTONIC."""

    @property
    def now_ns(self) -> int:
        """The instant of the view."""

    @property
    def window_ns(self) -> int:
        """The length of its window."""

    @property
    def world(self) -> int:
        """How many ranks the job began with; 0 before any has joined."""

    @property
    def baseline(self) -> Mapping[str, float]:
        """What ``Hypothesis.baseline`` measured while the job was undisturbed; empty before."""

    def steps(self) -> Sequence[StepEvent]:
        """The step events with ``now_ns - window_ns < t <= now_ns``, in the order of t, each with its "inc"."""

    def members(self) -> Sequence[Member]:
        """The current members, by rank."""
