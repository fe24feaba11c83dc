"""Draws a storm: which faults are made, who is killed when, and what else goes wrong. Pure: the seed says it all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Party = Literal["controller", "agent", "guardian"]
Blow = Literal["kill", "freeze", "cut", "fill"]

PARTIES: tuple[Party, ...] = ("controller", "agent", "guardian")
LEAD = 0.7  # seconds from a trial's promise to its first fault
SPAN = 1.9  # seconds after the promise in which everything happens: arming, waiting, the effect, the undo


@dataclass(frozen=True)
class Fault:
    """One fault of a trial: ``kind``, the GPU of the trial's node that it is on, and its length in seconds."""

    kind: Literal["fabric.blackhole", "pcie.throttle", "process.signal"]
    gpu: int
    length: float


@dataclass(frozen=True)
class Strike:
    """One blow, so many seconds after the trial's promise. ``party`` is who is hit: nobody by ``cut`` and ``fill``."""

    at: float
    blow: Blow
    party: Party | None = None


@dataclass(frozen=True)
class Trial:
    """One trial on one node.

    Attributes:
        flaky: the first undo of each fault in each process fails.
    """

    number: int
    faults: tuple[Fault, ...]
    strikes: tuple[Strike, ...]
    flaky: bool

    @property
    def kills(self) -> int:
        """How many processes are to be killed."""
        return sum(strike.blow == "kill" for strike in self.strikes)


def draw(seed: int, number: int) -> Trial:
    """One trial of a storm."""
    chance = random.Random(f"{seed} {number}")
    faults = _faults(chance)
    strikes = list(_deaths(chance))
    if chance.random() < 0.15:
        strikes.append(Strike(chance.uniform(0, SPAN), "fill"))
    if chance.random() < 0.1:
        strikes.append(Strike(chance.uniform(0, SPAN), "cut"))
    if chance.random() < 0.05:
        strikes.append(Strike(chance.uniform(0, SPAN), "freeze", chance.choice(("controller", "agent"))))
    return Trial(number, faults, tuple(sorted(strikes, key=lambda strike: strike.at)), chance.random() < 0.15)


def _faults(chance: random.Random) -> tuple[Fault, ...]:
    kinds: Sequence[Literal["fabric.blackhole", "pcie.throttle", "process.signal"]]
    kinds = chance.sample(("fabric.blackhole", "pcie.throttle", "process.signal"), chance.choice((1, 1, 2, 3)))
    return tuple(Fault(kind, chance.randrange(2), round(chance.uniform(0.1, 0.8), 3)) for kind in kinds)


def _deaths(chance: random.Random) -> Sequence[Strike]:
    """One party, two, or all three die: at instants of their own, or as good as together."""
    dying = chance.sample(PARTIES, chance.choices((1, 2, 3), (5, 4, 4))[0])
    if chance.random() < 0.5:
        together = chance.uniform(0, SPAN)
        return [Strike(together + chance.uniform(0, 0.005), "kill", party) for party in dying]
    return [Strike(chance.uniform(0, SPAN), "kill", party) for party in dying]
