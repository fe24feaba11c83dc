"""How light is the controller? The time of `chaos --help`, the largest memory of a whole run, and what it imports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import show


def high_water(pid: int) -> int:
    """The largest memory of a process so far, in KiB; its children's, which wait4 would add, do not count."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


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
        largest = 0
        while process.poll() is None:
            largest = max(largest, high_water(process.pid))
            time.sleep(0.05)
        took = time.perf_counter() - began
    print(f"chaos run nvswitch: {took:.1f} s (must be < 60), exit code {process.returncode}")
    print(f"controller's largest memory: {largest / 1024:.0f} MiB (must be < 120)")
    code = "import sys, chaos.cli.main, chaos.engine.run; print('torch' in sys.modules, 'fastapi' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    print(f"the controller imports torch: {seen[0]}, FastAPI: {seen[1]}")


if __name__ == "__main__":
    main()
