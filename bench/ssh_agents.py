"""Agents over SSH: how soon is one ready, how soon are 64 armed, how close together do they fire, and does a stream of
step events from a node change when its faults start? Real sshds in network namespaces on this machine; needs root."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from bench.figures import quantile, show
from chaos.inventory.access import Access
from chaos.lab import namespace
from chaos.transport import ssh
from chaos.transport.pipe import AgentClient

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / each) for each in (".", "transport", "agent")]

from sshd import Sshd, keygen  # noqa: E402 - found by the line above

EVENTS = 1000  # a second
ALL = 64
LEAD_NS = 150_000_000
PLANTED = {"implementation": "planted_injectors:Planted", "target": {"node": 0}, "owner": "bench", "duration": 0.02}
# Step events as the reference trainer writes them, in bursts of ten.
WRITER = """
import json, sys, time
line = json.dumps({"event": "step", "t": 1 << 50, "rank": 0, "gen": 1, "world": 4, "step": 123456, "tokens": 64,
                   "loss": 2.345678, "gnorm": 0.987654, "work_ns": 7654321, "digest": "0123456789abcdef"}) + "\\n"
due = time.monotonic()
with open(sys.argv[1], "a", buffering=1 << 16) as file:
    while True:
        file.write(line * 10)
        file.flush()
        due += 10 / float(sys.argv[2])
        time.sleep(max(0.0, due - time.monotonic()))
"""


class Node:
    """A server in a network namespace of its own, on a bridge of the bench's."""

    def __init__(self, number: int, folder: Path, key: Path, net: IPRoute, bridge: int) -> None:
        self.number = number
        self.address = f"10.8.{number // 200}.{number % 200 + 10}"
        self.folder = folder / f"n{number}"
        self.folder.mkdir()
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._there = namespace.new_network()
        net.link("add", ifname=f"v{number}", kind="veth", peer={"ifname": "eth0", "net_ns_fd": self._there})
        [index] = net.link_lookup(ifname=f"v{number}")
        net.link("set", index=index, master=bridge, state="up")
        with namespace.inside_network(self._there), IPRoute() as inside:
            for name, address, length in (("lo", "127.0.0.1", 8), ("eth0", self.address, 16)):
                [index] = inside.link_lookup(ifname=name)
                if name != "lo":
                    inside.addr("add", index=index, address=address, prefixlen=length)
                inside.link("set", index=index, state="up")
        self.server = Sshd(
            self.folder / "sshd",
            key.with_suffix(".pub"),
            address=self.address,
            port=22,
            env={"CHAOS_STATE": "/var/lib/chaos"},
            before=["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._there}"],
        )
        self.access = Access(self.address, None, "root", key)

    def start(self, connections: ssh.Connections) -> AgentClient:
        """Its agent."""
        connection = connections.to(self.access, f"node {self.number}")
        return ssh.start(connection, self.folder / "agent.log", self.events.put, extra=("planted_injectors",))

    def arm(self, agent: AgentClient, fault: str, at: int) -> int:
        """Arm a fault that is a file, for an instant on our clock. Returns that instant on the node's clock."""
        params = {"folder": str(self.folder)}
        theirs = agent.clock.theirs(at)
        agent.request("arm", fault=fault, at=theirs, params=params, timeout=60.0, **PLANTED)
        return theirs

    def until(self, what: str) -> dict[str, Any]:
        """The next event of that name."""
        while (event := self.events.get(timeout=60))["event"] != what:
            pass
        return event

    def stop(self) -> None:
        """Everything on it ends."""
        self.server.stop()
        os.close(self._there)


@contextmanager
def cluster(count: int) -> Iterator[list[Node]]:
    """So many nodes, and a user who knows them."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        os.environ["HOME"] = name
        os.environ.pop("SSH_AUTH_SOCK", None)
        (folder / ".ssh").mkdir()
        key = keygen(folder / "key")
        with IPRoute() as net:
            net.link("add", ifname="br0", kind="bridge")
            [bridge] = net.link_lookup(ifname="br0")
            net.addr("add", index=bridge, address="10.8.255.1", prefixlen=16)
            net.link("set", index=bridge, state="up")
            nodes = []
            for number in range(count):
                nodes.append(Node(number, folder, key, net, bridge))
                stack.callback(nodes[-1].stop)
                nodes[-1].server.known(folder / ".ssh" / "known_hosts")
        yield nodes


def ready(nodes: list[Node]) -> None:
    """From nothing to an agent that has answered, on one node after the other: without and with its bundle there."""
    cold, warm, again = [], [], []
    for node in nodes:
        for times in (cold, warm):
            connections = ssh.Connections()
            began = time.monotonic()
            agent = node.start(connections)
            times.append((time.monotonic() - began) * 1e3)
            agent.close()
            if times is warm:
                began = time.monotonic()
                agent = node.start(connections)
                again.append((time.monotonic() - began) * 1e3)
                agent.close()
            connections.close()
    show("agent ready, bundle uploaded", cold, must="must be < 1500")
    show("agent ready, bundle there", warm, must="must be < 500")
    show("agent ready, on a kept connection", again)


def together(nodes: list[Node], name: str) -> None:
    """All of them at once."""
    fault = "together-" + name.replace(" ", "-")
    connections = ssh.Connections()
    began = time.monotonic()
    busy = os.times()
    armed: list[float] = []
    at: list[int] = []

    def prepare(node: Node) -> tuple[Node, AgentClient]:
        agent = node.start(connections)
        node.arm(agent, fault, time.monotonic_ns() + 60_000_000_000)
        armed.append(time.monotonic() - began)
        return node, agent

    with concurrent.futures.ThreadPoolExecutor(len(nodes)) as pool:
        agents = list(pool.map(prepare, nodes))
        took = max(armed)
        used = os.times()
        at.append(time.monotonic_ns() + 500_000_000)
        list(pool.map(lambda each: each[1].request("fire", fault=fault, at=each[1].clock.theirs(at[0])), agents))
        effects = [agent.clock.ours(node.until("fired")["effect_ns"]) for node, agent in agents]
        list(pool.map(lambda each: each[0].until("undone"), agents))
        list(pool.map(lambda each: each[1].close(), agents))
    connections.close()
    cpu = used.user - busy.user + used.system - busy.system
    print(
        f"{len(nodes)} nodes, {name}: all armed after {took:.2f} s (must be < 15; {cpu:.1f} s of CPU in the controller)"
    )
    late = [(effect - at[0]) / 1e6 for effect in effects]
    show(f"{len(nodes)} nodes, {name}: effect after the instant", late)
    print(f"{len(nodes)} nodes, {name}: fired within {max(late) - min(late):.2f} ms of each other (must be < 50)")


def fire(node: Node, agent: AgentClient, count: int, name: str) -> tuple[float, float]:
    """Fire so many times at an instant, and so many times at once; the 99th percentiles in ms."""
    late, ordered = [], []
    kind = name.split(maxsplit=1)[0].partition("/")[0]
    for number in range(count):
        at = time.monotonic_ns() + LEAD_NS
        theirs = node.arm(agent, f"{kind}-at-{number}", at)
        agent.request("fire", fault=f"{kind}-at-{number}", at=theirs)
        event = node.until("fired")
        late.append((event["effect_ns"] - event["scheduled_ns"]) / 1e6)
        node.until("undone")
        node.arm(agent, f"{kind}-now-{number}", time.monotonic_ns() + 60_000_000_000)
        asked = time.monotonic_ns()
        agent.request("fire", fault=f"{kind}-now-{number}", at=0)
        ordered.append((agent.clock.ours(node.until("fired")["effect_ns"]) - asked) / 1e6)
        node.until("undone")
    show(f"effect after its instant, {name}", late)
    show(f"effect after the order to fire at once, {name}", ordered)
    return quantile(late, 0.99), quantile(ordered, 0.99)


def beside_events(node: Node, count: int) -> None:
    """With and without a stream of step events over the same connection."""
    connections = ssh.Connections()
    agent = node.start(connections)
    alone = fire(node, agent, count, "no events")
    path = node.folder / "steps.jsonl"
    lines = 0
    lock = threading.Lock()

    def take(line: bytes) -> None:
        nonlocal lines
        with lock:
            lines += 1

    connection = connections.to(node.access, f"node {node.number}")
    followed = ssh.tail(connection, str(path), take)
    began = time.monotonic()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(EVENTS)])
    try:
        loaded = fire(node, agent, count, f"{EVENTS} events/s")
        rate = lines / (time.monotonic() - began)
    finally:
        writer.kill()
        writer.wait()
    followed.stop()
    agent.close()
    connections.close()
    print(f"step events that came meanwhile: {rate:.0f}/s")
    for what, before, after in zip(("at its instant", "at once"), alone, loaded, strict=True):
        print(f"fire {what}, p99: {after - before:+.2f} ms by the events (must be within 1)")


def main(count: int = ALL, fires: int = 100) -> None:
    """All of it, in namespaces that end with it."""
    if os.geteuid() != 0:
        print("NOT RUN: sshds in network namespaces need root")
        return
    command = [sys.executable, "-m", "bench.ssh_agents", "--inside", "--count", str(count), "--fires", str(fires)]
    private = ["unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"]
    subprocess.run([*private, "--kill-child", *command], check=True, cwd=ROOT)


def inside(count: int, fires: int) -> None:
    """The measurements themselves."""
    with cluster(count) as nodes:
        ready(nodes[: min(10, count // 2)])
        beside_events(nodes[0], fires)
        together(nodes, "bundle uploaded to most")
        together(nodes, "bundle there")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=ALL, help="nodes")
    parser.add_argument("--fires", type=int, default=100)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    (inside if arguments.inside else main)(arguments.count, arguments.fires)
