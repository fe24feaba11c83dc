"""Does a lab leave anything behind? Up, train, SIGKILL of the keeper, many times; then every namespace, process,
nftables table and link that was not there before is counted."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from bench.figures import show
from chaos.engine.live import Live
from chaos.lab.cluster import Lab
from chaos.lab.namespace import all_namespaces
from chaos.lab.topology import LabSpec
from chaos.workload import launch

SETTINGS = {"seed": 1, "step_s": None, "checkpoint_every": 50, "hash_every": 1}


def processes() -> set[str]:
    """Process ids of this machine whose command line names the project."""
    found = set()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                if b"chaos." in (each / "cmdline").read_bytes():
                    found.add(each.name)
            except OSError:
                continue
    return found


def main(cycles: int = 200) -> None:
    """Run the cycles."""
    before, alive = all_namespaces(), processes()
    trained, killed = [], []
    spec = LabSpec(2, 2, 1)
    for number in range(cycles):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "logs").mkdir()
            (root / "work").mkdir()
            began = time.perf_counter()
            lab = Lab.up(spec, root / "lab")
            launch.start(lab, spec, recovery="checkpoint", settings=SETTINGS, work=root / "work", logs=root / "logs")
            live = Live(root / "work" / "events", time.monotonic_ns)
            live.start()
            if not live.wait_for(lambda seen: seen.stepping(spec.world), 60):
                raise SystemExit(f"cycle {number}: the job does not train")
            trained.append((time.perf_counter() - began) * 1e3)
            live.close()
            began = time.perf_counter()
            lab.kill()
            while processes() - alive:
                time.sleep(0.002)
            killed.append((time.perf_counter() - began) * 1e3)
    end = time.monotonic() + 5
    while (left := all_namespaces() - before) and time.monotonic() < end:
        time.sleep(0.05)
    show("from nothing to a training job", trained)
    show("SIGKILL of the keeper to the last process", killed)
    print(f"after {cycles} cycles: {len(left)} namespaces left, {len(processes() - alive)} processes left")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    main(parser.parse_args().cycles)
