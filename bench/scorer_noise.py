"""How often is an undisturbed job called "not recovered"? Null faults at random instants; must be fewer than 1 of 100.

A fault that does nothing is put at a random instant of an undisturbed job's steps, and the run is judged as it would
be after a real one: baseline of 5 s until 2 s before, recovery within 800 ms, hold period of 2 s. Without arguments
the jobs are made up after real machines: steps of 20 ms with jitter, and now and then a hiccup of 10-200 ms after which
nothing is caught up. With `steps.jsonl` files of undisturbed runs, their own noise is judged:

    python -m bench.scorer_noise runs/*-undisturbed-*/steps.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chaos.scoring import baseline as baselines
from chaos.scoring import recovery, rto, timeline
from chaos.scoring.fields import NS
from chaos.scoring.record import Marks
from chaos.scoring.recovery import Group
from chaos.scoring.rto import Terms
from chaos.scoring.statistics import proportion_lower_bound
from chaos.scoring.windows import Step

PACE = 20_000_000  # ns
JITTER = 0.015  # standard deviation of a step, a share of the pace
HICCUP_MS = (10.0, 200.0)
GAP = 2 * NS  # from the baseline's end to the fault
OBSERVED = 5 * NS  # after the fault
MARKS = Marks(rto_s=0.8, consistency=0.9999, required="", terms=Terms())
# Seconds between hiccups on a machine that is fit to judge on. With one every 5 s (2 % of the time lost) a baseline of
# 5 s is too short to show them, and some 1.0 to 1.3 % of null faults are called "not recovered": told, not counted.
ORDINARY = 8.0
NEVER = float("inf")
CASES = (
    (NEVER, 5),
    (300, 5),
    (60, 5),
    (20, 5),
    (10, 5),
    (8, 5),
    (5, 5),
    (5, 20),
    (2.5, 20),
)  # hiccup every, baseline (s)


class Trial(NamedTuple):
    """What one null fault was worth: the verdict, and whether the strict reading would have failed."""

    verdict: str
    strict_fails: bool


def made_up(chance: random.Random, seconds: float, every_s: float) -> list[Step]:
    """An undisturbed job's steps with a hiccup every so many seconds on average (`NEVER` for none)."""
    found: list[Step] = []
    t = 0
    while t < seconds * NS:
        length = PACE * (1 + chance.gauss(0, JITTER))
        if chance.random() < PACE / NS / every_s:
            length += chance.uniform(*HICCUP_MS) * 1e6
        t += max(1_000_000, round(length))
        found.append(Step(t, 1, len(found) + 1, 4, 1.0))
    return found


def judge(steps: Sequence[Step], effect: int, baseline_ns: int) -> Trial:
    """Judge a fault that did nothing at `effect` (ns)."""
    base = baselines.measure(steps, effect - GAP - baseline_ns, effect - GAP)
    until = effect + OBSERVED
    found = rto.Recovery(effect, until, None, False, (), None)
    if base is not None:
        found = rto.find(steps, base, effect, until, MARKS.terms)
    told = recovery.judge(Group((), effect, effect, until), found, base, MARKS)
    usable = baselines.unusable(base, MARKS.terms.recovered_at) is None
    late = found.strict_at is None or found.strict_at - effect >= MARKS.rto_s * NS
    return Trial(told.verdict, usable and late)


def null_faults(chance: random.Random, every_s: float, baseline_s: float, trials: int) -> Iterator[Trial]:
    """So many null faults, each in a job of its own."""
    for _ in range(trials):
        steps = made_up(chance, baseline_s + 10, every_s)
        yield judge(steps, round((baseline_s + 3 + chance.random()) * NS), round(baseline_s * NS))


def recorded(chance: random.Random, path: Path, trials: int) -> Iterator[Trial]:
    """Null faults at random instants of a recorded undisturbed run."""
    with path.open(encoding="utf-8") as lines:
        steps = timeline.build([json.loads(line) for line in lines]).steps
    baseline_ns = 5 * NS
    first, last = steps[0].t + baseline_ns + GAP + NS, steps[-1].t - OBSERVED
    if last <= first:
        raise SystemExit(f"{path}: {(steps[-1].t - steps[0].t) / NS:.0f} s of steps; at least 14 s are needed")
    for _ in range(trials):
        effect = chance.randrange(first, last)
        around = steps[
            bisect_left(steps, effect - GAP - baseline_ns - NS, key=_end) : bisect_left(
                steps, effect + OBSERVED + NS, key=_end
            )
        ]
        yield judge(around, effect, baseline_ns)


def _end(step: Step) -> int:
    return step.t


def report(name: str, trials: Sequence[Trial], *, independent: bool) -> float:
    """Print a line and return the share of trials that were called "not recovered".

    The bound is stated for independent trials only: slices of one recording overlap, and one bad stretch of the machine
    fails them all. A trial with an unusable baseline cannot fail, so the share of the judged ones is told too.
    """
    failed = sum(trial.verdict == "fail" for trial in trials)
    passed = sum(trial.verdict == "pass" for trial in trials)
    strict = sum(trial.strict_fails for trial in trials) / len(trials)
    share = failed / len(trials)
    bound = 1 - proportion_lower_bound(len(trials) - failed, len(trials))
    sure = f"< {bound:.2%} at 95 %" if independent else "slices overlap: no bound"
    judged = f"{failed / (failed + passed):.2%}" if failed + passed else "none"
    print(
        f"{name:<50} n {len(trials):<5} not recovered {failed:>4} = {share:6.2%} ({sure}; of those judged {judged})  "
        f"inconclusive {1 - share - passed / len(trials):6.2%}  read strictly {strict:6.2%}",
        flush=True,
    )
    return share


def main(files: Sequence[Path] = (), trials: int = 1000, seed: int = 1) -> int:
    """Run it. Returns 1 if an undisturbed job on an ordinary machine is called "not recovered" too often, else 0."""
    chance = random.Random(seed)
    worst = 0.0
    for path in files:
        worst = max(
            worst, report(str(path.parent.name or path), list(recorded(chance, path, trials)), independent=False)
        )
    if not files:
        for every_s, baseline_s in CASES:
            how = "no hiccups" if every_s == NEVER else f"a hiccup of 10-200 ms every {every_s:g} s"
            told = list(null_faults(chance, every_s, baseline_s, trials))
            found = report(f"{how}, baseline {baseline_s} s", told, independent=True)
            if every_s >= ORDINARY:
                worst = max(worst, found)
    print(f"undisturbed jobs called not recovered: at most {worst:.2%} (must be < 1 %)")
    return 0 if worst < 0.01 else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="steps.jsonl of undisturbed runs")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(main(arguments.files, arguments.trials, arguments.seed))
