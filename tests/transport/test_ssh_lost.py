"""Peers that fall silent: no wait is without an end."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_help import PATIENCE, eventually, until
from pyroute2 import IPRoute
from sshd import Sshd, needs_sshd

from chaos.inventory.access import Access
from chaos.lab import namespace
from chaos.transport import ssh_connection
from chaos.transport.pipe import AgentError
from chaos.transport.ssh import Connection, Connections, run, start, tail

pytestmark = needs_sshd
Events = queue.SimpleQueue[dict[str, Any]]


@pytest.fixture
def events() -> Events:
    return queue.SimpleQueue()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter times, so that a test need not wait for the real ones."""
    for name, seconds in {"KEEP_ALIVE": 0.3, "ANSWER": 0.5, "GREETING": 1.0, "CONNECT": 1.0, "CHANNEL": 2.0}.items():
        monkeypatch.setattr(ssh_connection, name, seconds)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port on which TCP connections are accepted, by the kernel, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_peer_that_accepts_and_says_nothing(connections: Connections, access: Access, silent: int) -> None:
    with pytest.raises(AgentError, match=r"node 0 \(root@\[127\.0\.0\.1\]:\d+\).*(banner|greet)"):
        connections.to(replace(access, port=silent), "node 0")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n" * 200, id="http"),
        pytest.param(b"SSH-2.0-x\r\n", id="stops"),
        pytest.param(b"SSH-1.5-old\r\n", id="old"),
        pytest.param(b"\0" * 64, id="zeros"),
    ],
)
def test_a_peer_that_is_no_ssh_server_or_stops_in_the_middle(
    said: bytes, connections: Connections, access: Access
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            one, _ = server.accept()
            with one:
                one.sendall(said)
                done.wait(PATIENCE)

        done = threading.Event()
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            with pytest.raises(AgentError, match="node 0"):
                connections.to(replace(access, port=server.getsockname()[1]), "node 0")
        finally:
            done.set()
            serving.join()


def test_no_thread_of_a_failed_connection_keeps_python_from_ending(home: Path) -> None:
    """The peer greets and leaves in the middle of the key exchange, which may take longer than this test waits."""
    code = (
        "import sys\nfrom chaos.transport import ssh, ssh_connection\nfrom chaos.transport.pipe import AgentError\n"
        f"from chaos.inventory.access import Access\nssh_connection.GREETING = {2 * PATIENCE}\n"
        "try:\n    ssh.Connections().to(Access('127.0.0.1', int(sys.argv[1])), 'n')\n"
        "except AgentError as error:\n    print(error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            one, _ = server.accept()
            with one:
                one.sendall(b"SSH-2.0-x\r\n")
                one.recv(100)

        serving = threading.Thread(target=serve)
        serving.start()
        command = [sys.executable, "-c", code, str(server.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        serving.join()
    assert done.stdout.startswith("n (")
    assert done.stderr == "", "no traceback, nothing of paramiko's log"


def test_a_server_that_is_stopped_is_given_up(node: Connection, sshd: Sshd, events: Events, tmp_path: Path) -> None:
    """SIGSTOP: its kernel still acknowledges everything, which TCP takes for a sign of life."""
    agent = start(node, None, events.put)
    followed = tail(node, str(tmp_path / "events"), lambda _: None)
    sshd.signal_sessions(signal.SIGSTOP)
    try:
        began = time.monotonic()
        until(events, "gone")
        assert followed.ended.wait(PATIENCE)
        assert not node.alive
        assert time.monotonic() - began > ssh_connection.ANSWER, "it was asked before it was given up"
        with pytest.raises(AgentError, match=r"has gone: it has been silent for 0\.8 s"):
            agent.request("ping")
        with pytest.raises(AgentError, match="node 0"):
            run(node, ["true"], 5)
    finally:
        sshd.signal_sessions(signal.SIGCONT)
    agent.kill()


def test_a_server_behind_a_jump_host_that_is_stopped_is_given_up(
    connections: Connections, access: Access, sshd: Sshd, client_key: Path, tmp_path: Path, known: Path, events: Events
) -> None:
    jump = Sshd(tmp_path / "jump", client_key.with_suffix(".pub"), address="127.0.0.3")
    try:
        jump.known(known)
        through = replace(access, jump=Access(jump.address, jump.port, "root", client_key))
        node = connections.to(through, "node 0")
        start(node, None, events.put)
        sshd.signal_sessions(signal.SIGSTOP)
        try:
            until(events, "gone")
            assert node.fate == "it has been silent for 0.8 s"
            assert connections.to(through.jump or access, "the jump host").alive
        finally:
            sshd.signal_sessions(signal.SIGCONT)
        assert run(connections.to(through, "node 0"), ["true"], 20).code == 0, "it is reached again"
        connections.close()
    finally:
        jump.stop()


def test_a_server_that_is_stopped_while_something_is_sent_is_given_up(
    node: Connection, sshd: Sshd, events: Events
) -> None:
    """More than it takes: whoever writes waits for a window that will not open again."""
    agent = start(node, None, events.put)
    sshd.signal_sessions(signal.SIGSTOP)
    try:
        with pytest.raises(AgentError):
            while True:
                agent.request("ping", filler="x" * 1_000_000, timeout=5)
        until(events, "gone")
    finally:
        sshd.signal_sessions(signal.SIGCONT)
    agent.kill()


def test_a_peer_whose_kernel_takes_nothing_more_is_given_up() -> None:
    """Whoever writes then holds a lock that the asking thread waits for: the writer itself has to give up."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.05)
        wire = ssh_connection._Wire(ours)

        def fill() -> None:
            while True:
                try:
                    wire.send(b"x" * 65536)
                except TimeoutError:
                    continue

        with pytest.raises(ConnectionAbortedError, match=r"silent for 0\.8 s"):
            fill()


def test_an_idle_peer_is_not_given_up(node: Connection) -> None:
    """It answers when it is asked."""
    asked = threading.Event()
    ask = node._transport.ask
    wire = node._transport.sock
    count = iter(range(10))

    def counted() -> None:
        ask()
        if next(count) >= 3:
            asked.set()

    wire.ask = counted
    assert asked.wait(PATIENCE)
    assert node.alive
    assert run(node, ["true"], 20).code == 0


def test_a_server_that_is_stopped_opens_no_channel(node: Connection, sshd: Sshd) -> None:
    sshd.signal_sessions(signal.SIGSTOP)
    try:
        with pytest.raises(AgentError, match="node 0"):
            run(node, ["true"], 600)
    finally:
        sshd.signal_sessions(signal.SIGCONT)


@pytest.fixture
def far(tmp_path: Path, client_key: Path, home: Path) -> Iterator[tuple[Sshd, int, int]]:
    """A server in a network namespace of its own, and the controller's namespace, with a link between the two."""
    here, there = namespace.new_network(), namespace.new_network()
    me = os.getpid()
    try:
        with namespace.inside_network(here), IPRoute() as net:
            net.link("add", ifname="c0", kind="veth", peer={"ifname": "n0", "net_ns_fd": there})
            up(net, "c0", "10.9.0.1")
        with namespace.inside_network(there), IPRoute() as net:
            up(net, "n0", "10.9.0.2")
        before = ["nsenter", f"--net=/proc/{me}/fd/{there}"]
        server = Sshd(tmp_path / "far", client_key.with_suffix(".pub"), address="10.9.0.2", port=22, before=before)
        server.known(home / ".ssh" / "known_hosts")
        yield server, here, there
        server.stop()
    finally:
        os.close(here)
        os.close(there)


def up(net: IPRoute, device: str, address: str) -> None:
    [index] = net.link_lookup(ifname=device)
    net.addr("add", index=index, address=address, prefixlen=24)
    net.link("set", index=index, state="up")


def test_a_route_that_swallows_everything(
    far: tuple[Sshd, int, int], connections: Connections, client_key: Path, events: Events
) -> None:
    """Nothing comes back, not even an error: the node's end of the link loses its address."""
    server, here, there = far
    access = Access(server.address, None, "root", client_key)
    with namespace.inside_network(here):
        node = connections.to(access, "node 0")
    agent = start(node, None, events.put)
    assert run(node, ["sh", "-c", "echo $CHAOS_CONTROL"], 20).stdout == b"10.9.0.1\n"
    with namespace.inside_network(there), IPRoute() as net:
        [index] = net.link_lookup(ifname="n0")
        net.addr("delete", index=index, address="10.9.0.2", prefixlen=24)
        net.route("add", type="blackhole", dst="10.9.0.0/24")
    until(events, "gone")
    with pytest.raises(AgentError, match=r"has gone: it has been silent for 0\.8 s"):
        agent.request("ping")
    with namespace.inside_network(here), pytest.raises(AgentError, match="cannot be reached: "):
        connections.to(access, "node 0")
    eventually(lambda: not server.processes("chaos.agent.main"), "the agent's end by its own lease")
    agent.kill()
