"""How exactly does a black-hole start and stop? By the injector's own stamps against the schedule, and by a stream of
datagrams at 4 kHz over the path, whose gap nobody told to; on an idle machine and with every core busy."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import random
import socket
import tempfile
import threading
import time
from pathlib import Path

from bench.figures import show
from chaos.engine.faults import LEAD
from chaos.lab import namespace
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec, nvlink_address
from chaos.transport import lab as transport

DURATION = 0.1
INTERVAL = 0.00025
LEAD_NS = int(LEAD * 1e9)  # from the order to arm to the instant, as in a run


def burn() -> None:
    """Keep one core busy."""
    while True:
        pass


class Stream:
    """Datagrams from GPU 0 to GPU 1 of node 0, with the instants at which they arrive."""

    def __init__(self, lab: Lab) -> None:
        fds = lab.namespaces(0)
        with namespace.inside_network(fds["gpu1"]):
            self._receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._receiver.bind((nvlink_address(0, 1), 9))
        with namespace.inside_network(fds["gpu0"]):
            self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for fd in fds.values():
            os.close(fd)
        self.sent: list[tuple[int, int]] = []
        self.arrived: dict[int, int] = {}
        self._ended = threading.Event()
        for target in (self._send, self._receive):
            threading.Thread(target=target, daemon=True).start()

    def _send(self) -> None:
        number = 0
        while not self._ended.is_set():
            self.sent.append((number, time.monotonic_ns()))
            self._sender.sendto(b"%d" % number, (nvlink_address(0, 1), 9))
            number += 1
            time.sleep(INTERVAL)

    def _receive(self) -> None:
        self._receiver.settimeout(0.5)
        while not self._ended.is_set():
            try:
                self.arrived[int(self._receiver.recv(64))] = time.monotonic_ns()
            except TimeoutError:
                continue

    def gap(self, first_ns: int, last_ns: int) -> tuple[int, int] | None:
        """When the first datagram that was lost between two instants was sent, and when the last one was."""
        lost = [t for number, t in list(self.sent) if first_ns <= t <= last_ns and number not in self.arrived]
        return (lost[0], lost[-1]) if lost else None

    def close(self) -> None:
        """Stop."""
        self._ended.set()


def measure(count: int, name: str) -> None:
    """Fire so many times."""
    events: queue.SimpleQueue[dict] = queue.SimpleQueue()
    starts, stops, seen_starts, seen_stops = [], [], [], []
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder, Lab.up(LabSpec(1, 2, 0), Path(folder)) as lab:
        agent = transport.start(lab, 0, Path(folder) / "agent.log", events.put)
        stream = Stream(lab)
        for number in range(count):
            at = agent.clock.theirs(time.monotonic_ns() + LEAD_NS + chance.randrange(20_000_000))
            agent.request(
                "arm",
                fault=f"bench-{number}",
                implementation="injectors.fabric:Blackhole",
                params={"source": "gpu0", "to": "gpu1", "direction": "both"},
                target={"node": 0},
                duration=DURATION,
                at=at,
                owner="bench",
            )
            agent.request("fire", fault=f"bench-{number}", at=at)
            while (event := events.get(timeout=10))["event"] != "undone":
                if event["event"] == "fired":
                    starts.append((event["effect_ns"] - event["scheduled_ns"]) / 1e6)
                    effect = event["effect_ns"]
                elif event["event"] == "ended":
                    stops.append((event["ended_ns"] - event["scheduled_ns"]) / 1e6)
                    ended = event["scheduled_ns"]
            gap = stream.gap(at - 5_000_000, ended + 20_000_000)
            if gap is not None:
                seen_starts.append((gap[0] - effect) / 1e6)
                seen_stops.append((gap[1] - ended) / 1e6)
        stream.close()
        agent.close()
    show(f"start after schedule, {name}", starts, must="must be < 2 (p99)")
    show(f"stop after schedule, {name}", stops, must="must be < 2 (p99)")
    show(f"first lost datagram after the stamp, {name}", seen_starts)
    show(f"last lost datagram after the end, {name}", seen_stops)


def main(count: int = 200) -> None:
    """Idle, then with every core busy."""
    measure(count, "idle")
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(os.cpu_count() or 1)]
    for burner in burners:
        burner.start()
    try:
        measure(count, "all cores busy")
    finally:
        for burner in burners:
            burner.terminate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    main(parser.parse_args().count)
