"""What do the injectors of network faults cost? Each call of the contract, without an agent around it."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.figures import show
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from injectors import kernel
from injectors.contract import Injector, Order, Target
from injectors.fabric import Blackhole, BlackholeParams
from injectors.pcie import Throttle, ThrottleParams


def measure(make: Callable[[], Injector], params: Any, target: Target, count: int) -> None:
    """So many faults, one after the other, each made, undone and checked."""
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        started = time.monotonic_ns()
        result = call()
        times.setdefault(name, []).append((time.monotonic_ns() - started) / 1e6)
        return result

    for number in range(count):
        injector = make()
        started = time.monotonic_ns()
        record = timed("plan", lambda i=injector, n=number: i.plan(Order(f"bench-{n}", params, target, 10.0)))
        record.boot = kernel.boot_id()
        timed("prepare", lambda i=injector, r=record: i.prepare(r))
        timed("inject", lambda i=injector, r=record: i.inject(r))
        asked = time.monotonic_ns()
        ended = timed("undo, all of it", lambda i=injector, r=record: i.undo(r))
        times.setdefault("undo, to the end of the effect", []).append((ended - asked) / 1e6)
        times.setdefault("plan, prepare, inject and undo", []).append((time.monotonic_ns() - started) / 1e6)
        left = timed("residue", lambda i=injector, r=record: i.residue(r))
        assert left == [], left
    for name, values in times.items():
        must = "must be < 20 (p99)" if name.startswith("plan,") else ""
        show(f"{make().kind}: {name}", values, must=must)


def main(count: int = 300) -> None:
    """A drop in a switch, and a slow PCIe link."""
    with tempfile.TemporaryDirectory() as folder, Lab.up(LabSpec(1, 2, 0), Path(folder) / "lab") as lab:
        fds = lab.namespaces(0)
        paths = {name: f"/proc/{os.getpid()}/fd/{fd}" for name, fd in fds.items() if name.startswith(("gpu", "nv"))}
        with kernel.inside(fds["net"]):
            measure(Blackhole, BlackholeParams("gpu0", "gpu1"), Target(node=0, namespaces=paths), count)
            measure(Throttle, ThrottleParams(20e6), Target(node=0, gpu=0, namespaces=paths), count)
        for fd in fds.values():
            os.close(fd)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    main(parser.parse_args().count)
