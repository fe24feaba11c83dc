"""Windows of steps: the throughput over the next ten steps, the unit in which baseline and recovery are measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from chaos.scoring.fields import NS

WINDOW = 10  # steps


@dataclass(frozen=True, slots=True)
class Step:
    """One completed step: its end `t` (ns) and the share of the baseline's global batch that it carried."""

    t: int
    gen: int
    step: int
    world: int
    weight: float


@dataclass(frozen=True, slots=True)
class Window:
    """The ten steps after the one that ended at `start`: they ended at `end` (ns) and carried `work` baseline steps."""

    start: int
    end: int
    work: float

    @property
    def rate(self) -> float:
        """Throughput in baseline steps a second."""
        return self.work * NS / max(1, self.end - self.start)


def windows(steps: Sequence[Step]) -> list[Window]:
    """Every complete window, in order; window k begins at the end of step k. Empty for ten steps or fewer."""
    total = 0.0
    before = [total := total + step.weight for step in steps]
    return [
        Window(first.t, last.t, before[k + WINDOW] - before[k])
        for k, (first, last) in enumerate(zip(steps, steps[WINDOW:], strict=False))
    ]
