"""Has the job recovered by now? Asked while a run goes on, so that it need not wait longer than it must."""

from collections.abc import Sequence

from chaos.scoring import baseline as baselines
from chaos.scoring import rto, timeline
from chaos.scoring.fields import Event
from chaos.scoring.rto import Terms


def recovered(steps: Sequence[Event], baseline: tuple[int, int], since: Sequence[int], terms: Terms) -> bool:
    """Whether throughput is back after each of these instants, and has stayed there for its hold period.

    Args:
        steps: all step events so far.
        baseline: the span of the undisturbed job (ns).
        since: the faults' instants of effect (ns).
    """
    line = timeline.build(steps)
    measured = baselines.measure(line.steps, *baseline)
    if measured is None or not line.steps:
        return False
    until = line.steps[-1].t
    return all(rto.find(line.steps, measured, instant, until, terms).held for instant in since)
