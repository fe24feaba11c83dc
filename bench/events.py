"""What observing the reference trainer costs it: ``python bench/events.py [--steps N]``.

Prints median and 99th percentile of the CPU time of one step event and of one content hash of the whole replica, with
their share of a 20 ms step: in a tight loop, and paced as in training, where each finds its caches cold.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from chaos.workload.events import StepWriter
from chaos.workload.fingerprint import XXH3, Mix64
from chaos.workload.reference.config import ModelShape
from chaos.workload.reference.training.pace import Pace
from chaos.workload.reference.training.replica import Replica

STEP_S = 0.02


def cost(act: Callable[[], object], between: Callable[[], object], steps: int) -> list[float]:
    """CPU microseconds of each ``act``, with ``between`` before it."""
    spent = []
    for _ in range(steps):
        between()
        began = time.thread_time_ns()
        act()
        spent.append((time.thread_time_ns() - began) / 1e3)
    return sorted(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="paced steps to measure")
    parser.add_argument("--directory", type=Path, help="where events are written (default: a temporary folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    replica = Replica(ModelShape(), seed=1)
    replica.warm_up()
    state = [replica.arena.state]
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        writer = StepWriter(folder)
        writer.hello(0, 0, replica.hash_algorithm)

        def event() -> None:
            now = time.monotonic_ns()
            writer.step(
                t=now, rank=0, gen=1, world=4, step=123, tokens=64, loss=2.345678, gnorm=0.987654, work_ns=7_654_321,
                digest="0123456789abcdef",
            )  # fmt: skip

        def train() -> None:
            pace.wait()
            replica.compute(0)
            replica.apply(1)

        size = state[0].numel() * state[0].element_size()
        print(f"replica: {replica.arena.size} parameters, {size / 1e6:.2f} MB hashed; CPU microseconds, share of 20 ms")
        print(f"{'':24}{'tight loop':>20}{'paced, between steps':>44}")
        print(f"{'':24}{'median':>10}{'p99':>10}{'median':>14}{'p99':>10}{'share':>10}{'p99':>10}")
        xxh3, mix64 = XXH3(), Mix64()
        for name, act in (
            ("step event", event),
            ("hash, xxh3_64", lambda: xxh3(state)),
            ("hash, mix64", lambda: mix64(state)),
        ):
            tight = cost(act, lambda: None, 2000)
            pace = Pace(STEP_S)
            paced = cost(act, train, options.steps)
            middle, rare = statistics.median(paced), paced[int(len(paced) * 0.99)]
            print(
                f"{name:24}{statistics.median(tight):10.1f}{tight[int(len(tight) * 0.99)]:10.1f}"
                f"{middle:14.1f}{rare:10.1f}{middle / STEP_S / 1e6:10.2%}{rare / STEP_S / 1e6:10.2%}"
            )


if __name__ == "__main__":
    main()
