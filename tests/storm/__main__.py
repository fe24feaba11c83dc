"""``python -m tests.storm --kills N``: a storm until so many processes were killed, and what was left after it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.storm.station import Outcome, Storm
from tests.storm.weather import draw


def report(outcomes: list[Outcome], seconds: float) -> None:
    """Print what happened."""
    kills = Counter(party for outcome in outcomes for party in outcome.killed)
    dead = [outcome for outcome in outcomes if not outcome.survived]
    print(f"{len(outcomes)} trials in {seconds:.0f} s, {sum(kills.values())} kills: {dict(kills)}")
    blows = Counter(strike.blow for outcome in outcomes for strike in outcome.trial.strikes)
    print(
        f"blows drawn: {dict(blows)}; {sum(outcome.trial.flaky for outcome in outcomes)} trials whose undo fails first"
    )
    print(f"nobody left alive after the last blow: {len(dead)} trials, residue in {sum(bool(o.residue) for o in dead)}")
    told, cleared = sum(o.reported is True for o in dead), sum(o.swept is True for o in dead)
    print(f"of these told by the next command: {told}, cleared by a sweep: {cleared}")
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    print(f"wrong: {len(wrong)}")
    for outcome in wrong:
        print(f"  trial {outcome.trial.number}: {outcome.trial}")
        for what in outcome.wrong:
            print(f"    {what}")


def main() -> int:
    """Run a storm. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", type=int, action="append", help="only this trial of the seed, again")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="keep what the trials write in this folder")
    parser.add_argument("--bug", help="plant one of tests/storm/bugs.py in the agent")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("a storm mounts small disks and looks into others' namespaces: it needs root", file=sys.stderr)
        return 2
    agent = f"from tests.storm import bugs; bugs.{arguments.bug}()" if arguments.bug else None
    outcomes: list[Outcome] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        with Storm.gather(folder, nodes=arguments.nodes, seed=arguments.seed, agent=agent) as storm:
            number = 0
            if arguments.trial:
                outcomes += storm.blow([draw(arguments.seed, trial) for trial in arguments.trial])
                arguments.kills = 0
            while sum(len(outcome.killed) for outcome in outcomes) < arguments.kills:
                batch = [draw(arguments.seed, number + k) for k in range(arguments.nodes * 4)]
                number += len(batch)
                outcomes += storm.blow(batch)
            swept = storm.sweep_all()
    report(outcomes, time.monotonic() - began)
    print(f"chaos sweep --all afterwards: exit {swept.returncode}\n{swept.stdout.decode()}")
    return 1 if swept.returncode or any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
