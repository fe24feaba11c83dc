"""What the tests of the lab, of injectors and of agents share: waiting for something, and datagrams between GPUs."""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute

from chaos.lab import namespace
from chaos.lab.client import LabClient
from chaos.lab.topology import nvlink_address
from injectors._nftables import TimedDrop

T = TypeVar("T")
PATIENCE = 30.0  # seconds; only a test that fails waits so long


def eventually(look: Callable[[], T], what: str) -> T:
    """Look again and again until there is something to see."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.005)):
        seen = look()
        if seen:
            return seen
        pause.wait(0.005)
    raise AssertionError(f"never seen: {what}")


def alive_in(pidns: int) -> list[int]:
    """Processes of this machine in a PID namespace."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "ns/pid").stat().st_ino == pidns:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def descriptors(lab: LabClient, node: int, kinds: Iterable[str]) -> dict[str, int]:
    """Some of a node's namespaces; the caller closes them."""
    fds = lab.namespaces(node)
    wanted = set(kinds)
    for kind in fds.keys() - wanted:
        os.close(fds[kind])
    return {kind: fds[kind] for kind in wanted}


@contextmanager
def link_down(network: int, device: str) -> Iterator[None]:
    """A port of a node or switch without carrier, by the namespace that it is in."""
    with namespace.inside_network(network), IPRoute() as net:
        [index] = net.link_lookup(ifname=device)
        net.link("set", index=index, state="down")
    try:
        yield
    finally:
        with namespace.inside_network(network), IPRoute() as net:
            net.link("set", index=index, state="up")


@contextmanager
def nvswitch_drops(switch: int, receivers: Iterable[int]) -> Iterator[None]:
    """An NVSwitch, by its namespace, that drops what goes between GPUs 0 and 1 to these of them."""
    with namespace.inside_network(switch):
        drop = TimedDrop("chaos_test", ("nvl0", "nvl1"))
    try:
        drop.create()
        drop.ready([f"nvl{gpu}" for gpu in receivers], 60_000)
        drop.start()
        yield
    finally:
        drop.delete()
        drop.close()


def in_effect(
    agent: Any, fault: str, implementation: str, params: dict[str, Any], target: dict[str, Any], duration: float
) -> None:
    """Arm a fault with an agent's client, and fire it at once."""
    at = agent.clock.theirs(time.monotonic_ns())
    order = {"implementation": implementation, "params": params, "target": target, "duration": duration}
    agent.request("arm", fault=fault, at=at, owner="a-run", **order)
    agent.request("fire", fault=fault, at=0)


def until(events: queue.SimpleQueue[dict[str, Any]], what: str, **fields: Any) -> dict[str, Any]:
    """The next event of that name."""
    while True:
        event = events.get(timeout=PATIENCE)
        if event["event"] == what and fields.items() <= event.items():
            return event


class Datagrams:
    """Datagrams from one GPU of a node to another over the NVSwitch, sent and received by the test itself."""

    def __init__(self, lab: LabClient, node: int, source: int, to: int) -> None:
        fds = descriptors(lab, node, (f"gpu{source}", f"gpu{to}"))
        with namespace.inside_network(fds[f"gpu{to}"]):
            self._to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._to.bind((nvlink_address(node, to), 0))
        with namespace.inside_network(fds[f"gpu{source}"]):
            self._from = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for fd in fds.values():
            os.close(fd)
        self._number = 0

    def open(self) -> bool:
        """Whether a datagram arrives (a bridge passes it on while it is sent; the wait is for a busy machine)."""
        self._number += 1
        self._from.sendto(b"%d" % self._number, self._to.getsockname())
        waiter = select.poll()
        waiter.register(self._to, select.POLLIN)
        while waiter.poll(100):
            if int(self._to.recv(64)) == self._number:
                return True
        return False

    def close(self) -> None:
        self._to.close()
        self._from.close()


@contextmanager
def path(lab: LabClient, source: int, to: int, node: int = 0) -> Iterator[Datagrams]:
    """A path between two GPUs, closed in the end."""
    made = Datagrams(lab, node, source, to)
    try:
        yield made
    finally:
        made.close()
