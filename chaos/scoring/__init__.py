"""Events in, figures out: what a run's journal and step events are worth.

Everything here is a pure function of its arguments (no clock, file, network or randomness), so that a score can be
recomputed from the run's folder at any time and gives the same figures. `scorecard.score` is the way in; the
modules beside it hold one measure each: `rto`, `consistency`, `baseline`, `findings`, `verdict`, over the readings of
`record` (the journal) and `timeline` (the step events). Instants are integer nanoseconds of CLOCK_MONOTONIC.
"""

from chaos.scoring.scorecard import SCHEMA, score

__all__ = ["SCHEMA", "score"]
