"""How soon after a signal is a fault undone? From the signal to the stamped end on the node, in whole runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import show

DOCUMENT = """
experiment: stopping
cluster: lab
lab: {{nodes: 1, gpus: 2, spare_nodes: 0}}
workload: {{reference: llama-bytes, recovery: checkpoint, step: 20ms}}
steady_state: {{baseline: 2s}}
faults:
  - {{inject: fabric.blackhole, on: {{node: 0}}, with: {{from: gpu0, to: gpu1}}, after: 500ms, for: 60s}}
{guards}
score: {{hold: 1s}}
settle: 0s
"""
HUNG_PROBE = "guards: {stop_if: {probe: command, argv: [sleep, '60'], value: exit_code, is: 0, timeout: 60s, for: 1s}}"


def events(runs: Path, what: str) -> list[dict[str, Any]]:
    """The fault events of one kind in the journal of the only run there."""
    found = []
    for journal in runs.glob("*/journal.jsonl"):
        for line in journal.read_text(encoding="utf-8").splitlines():
            event = json.loads(line) if line.endswith("}") else {}
            if event.get("what") == what:
                found.append(event)
    return found


def once(guards: str) -> tuple[float, float, float]:
    """Milliseconds from SIGTERM to the end of the fault, to the proof of it, and to the end of the process."""
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder, "stopping.yaml")
        document.write_text(DOCUMENT.format(guards=guards), encoding="utf-8")
        runs = Path(folder, "runs")
        command = [sys.executable, "-m", "chaos", "run", str(document), "--runs", str(runs), "--quiet"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not any(event["phase"] == "during" for event in events(runs, "witness")):
            if process.poll() is not None:
                raise SystemExit(f"the run ended with {process.returncode} before its fault was in effect")
            time.sleep(0.02)
        signalled = time.monotonic_ns()
        process.send_signal(signal.SIGTERM)
        process.wait()
        gone = time.monotonic_ns()
        (ended,), (undone,) = events(runs, "ended"), events(runs, "undone")
    return (ended["ended_ns"] - signalled) / 1e6, (undone["t"] - signalled) / 1e6, (gone - signalled) / 1e6


def main(rounds: int = 10) -> None:
    """Measure."""
    for name, guards in (("", ""), (", a guard's probe hangs", HUNG_PROBE)):
        times: Sequence[tuple[float, float, float]] = [once(guards) for _ in range(rounds)]
        ended, proven, gone = zip(*times, strict=True)
        show(f"SIGTERM to the fault's end{name}", ended, must="must be < 100")
        show(f"SIGTERM to the proof that nothing is left{name}", proven)
        show(f"SIGTERM to the end of chaos run{name}", gone)


if __name__ == "__main__":
    main()
