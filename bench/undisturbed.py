"""How steady is the undisturbed baseline? Ten runs of the shipped control; the medians' spread, each run's variation,
and how often the verdict was not a pass."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def main(runs: int = 10) -> None:
    """Run the control so many times."""
    medians, cvs, verdicts = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs):
            command = [sys.executable, "-m", "chaos", "run", "undisturbed", "--quiet", "--runs", folder]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            newest = max(Path(folder).iterdir())
            card = json.loads((newest / "scorecard.json").read_text())
            figures = card["baseline"]["steps_per_s"]
            medians.append(figures["median"])
            cvs.append(figures["cv"])
            verdicts.append(card["verdict"])
            print(f"  {figures['median']:.3f} steps/s, variation {figures['cv']:.2%}, {card['verdict']}", flush=True)
    spread = statistics.stdev(medians) / statistics.mean(medians)
    print(f"{runs} undisturbed runs: medians vary by {spread:.3%} (must be < 2 %), {verdicts.count('pass')} pass")
    print(f"variation of windows of ten steps within a run: median {statistics.median(cvs):.2%}, most {max(cvs):.2%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    main(parser.parse_args().runs)
