"""A workload for the tests: steps of several ranks at chosen instants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steady_state import Member

MS = 1_000_000
SECOND = 1_000 * MS


@dataclass(frozen=True)
class View:
    """A view over recorded events."""

    events: Sequence[Mapping[str, Any]] = ()
    now_ns: int = 10 * SECOND
    window_ns: int = 2 * SECOND
    world: int = 4
    baseline: Mapping[str, float] = field(default_factory=dict)
    ranks: Iterable[int] = range(4)

    def steps(self) -> Sequence[Mapping[str, Any]]:
        return [event for event in self.events if self.now_ns - self.window_ns < event["t"] <= self.now_ns]

    def members(self) -> Sequence[Member]:
        last = {event["rank"]: event for event in self.events if event["t"] <= self.now_ns}
        return [Member(rank, f"inc-{rank}", last.get(rank)) for rank in self.ranks]


def step(rank: int, number: int, t: int, **more: Any) -> dict[str, Any]:
    """One step event of a world of four."""
    return {
        "e": "step",
        "t": t,
        "inc": f"inc-{rank}",
        "rank": rank,
        "gen": 1,
        "world": 4,
        "step": number,
        "tokens": 512,
        "loss": 2.0,
        "gnorm": 1.0,
        "work_ns": 5 * MS,
    } | more


def steady(count: int, every: int = 20 * MS, until: int = 10 * SECOND, **more: Any) -> list[dict[str, Any]]:
    """``count`` steps of four ranks, evenly spaced, the last at ``until``; ranks report 1 ms after each other."""
    return [
        step(rank, number + 1, until - (count - 1 - number) * every - (3 - rank) * MS, **more)
        for number in range(count)
        for rank in range(4)
    ]
