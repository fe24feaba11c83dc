"""How light is the controller? The time of `chaos --help`, the largest memory of a whole run, and what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from bench.figures import show


def main(rounds: int = 20) -> None:
    """Measure."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "chaos", "--help"], stdout=subprocess.DEVNULL, check=True)
        times.append((time.perf_counter() - began) * 1e3)
    show("chaos --help", times, must="must be < 300")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "chaos", "run", "nvswitch", "--quiet", "--runs", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        # Of this process alone, not of its children: the ranks' memory is not the controller's.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - began
    print(f"chaos run nvswitch: {took:.1f} s (must be < 60), exit code {process.returncode}")
    print(f"controller's largest memory: {usage.ru_maxrss / 1024:.0f} MiB (must be < 120)")
    code = "import sys, chaos.cli.main, chaos.engine.run; print('torch' in sys.modules, 'fastapi' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    print(f"the controller imports torch: {seen[0]}, FastAPI: {seen[1]}")


if __name__ == "__main__":
    main()
