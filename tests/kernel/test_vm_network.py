"""The injectors of the network on a stock kernel, and what such a kernel has beyond: netem, Soft-RoCE."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lab_help import eventually
from pyroute2 import IPRoute
from wire import INTERFACE, PEER, Wire, round_trip, run, wire

from injectors import kernel
from injectors._tbf import LinkEnd, Shape
from injectors.contract import Order, Target
from injectors.network import LinkDown, LinkDownParams, Partition, PartitionParams

pytestmark = pytest.mark.kernel

DELAY = 0.02  # seconds; a round trip without it takes about 1 ms in emulation
ROUNDS = 50  # of a ping-pong


@pytest.fixture(scope="module")
def two() -> Iterator[Wire]:
    with wire() as it:
        eventually(lambda: answered(it), "the peer")
        yield it


@pytest.fixture
def here(two: Wire) -> Iterator[Wire]:
    """This thread is at one end of the wire."""
    with two.inside():
        yield two


def answered(two: Wire) -> bool:
    with two.inside():
        return round_trip() > 0


@pytest.mark.parametrize(
    ("injector", "params"), [(LinkDown(), LinkDownParams(INTERFACE)), (Partition(), PartitionParams([PEER]))]
)
def test_a_peer_is_lost_and_comes_back(
    here: Wire, injector: LinkDown | Partition, params: LinkDownParams | PartitionParams
) -> None:
    record = injector.plan(Order("f1", params, Target(node=0), 60.0))
    record.boot = kernel.boot_id()
    injector.prepare(record)
    assert injector.witness(record, "before", 0.5).effective is False
    assert round_trip() > 0
    injector.inject(record)
    assert injector.witness(record, "during", 0.5).effective is True
    assert round_trip() == 0
    injector.undo(record)
    assert injector.residue(record) == []
    assert injector.strays(Target(node=0)) == []
    eventually(lambda: round_trip() > 0, "the peer again")


def test_a_slowed_end_of_a_link_holds_back_what_is_sent(here: Wire) -> None:
    end = LinkEnd()
    try:
        assert end.choose(INTERFACE) is not None
        shape = Shape.of("f1", 4e6)
        end.create(shape)
        before = transfer(here, 500_000)
        end.start()
        slow = transfer(here, 500_000)  # a second at the least, but for the burst
        assert end.open(shape)
        after = transfer(here, 500_000)
        end.remove(shape)
        assert end.root() is None
        assert slow > 2 * max(before, after)
    finally:
        end.close()


def transfer(here: Wire, size: int) -> float:
    """Seconds to bring so many bytes to the peer, as the peer's answer tells."""
    fd = kernel.open_network("/run/netns/b")
    server = kernel.made_inside(fd, lambda: socket.create_server((PEER, 0)))
    server.settimeout(60)

    def receive() -> None:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(60)
            left = size
            while left > 0:
                left -= len(connection.recv(65536))
            connection.sendall(b"!")

    thread = threading.Thread(target=receive)
    thread.start()
    with server, socket.create_connection(server.getsockname(), timeout=60) as client:
        started = time.monotonic()
        client.sendall(bytes(size))
        assert client.recv(1) == b"!"
        taken = time.monotonic() - started
        thread.join()
    return taken


@contextmanager
def delayed() -> Iterator[None]:
    """What is sent here leaves later."""
    with IPRoute() as net:
        [index] = net.link_lookup(ifname=INTERFACE)
        net.tc("add", "netem", index, "1:", delay=round(DELAY * 1e6))
        try:
            yield
        finally:
            net.tc("delete", "netem", index, "1:")


def test_netem_delays_a_round_trip(here: Wire) -> None:
    before = round_trip()
    with delayed():
        during = round_trip()
    after = round_trip()
    assert during - max(before, after) > DELAY / 2


@pytest.fixture
def verbs(two: Wire) -> Iterator[Wire]:
    """A Soft-RoCE device at either end of the wire."""
    try:
        for end in ("a", "b"):
            two.run(end, "rdma", "link", "add", f"rxe_{end}", "type", "rxe", "netdev", INTERFACE)
            run("rdma", "dev", "set", f"rxe_{end}", "netns", end)
        yield two
    finally:
        for end in ("a", "b"):
            subprocess.run(["ip", "netns", "exec", end, "rdma", "link", "delete", f"rxe_{end}"], check=False)


def test_netem_delays_verbs_on_soft_roce(verbs: Wire) -> None:
    before = ping_pong(verbs)
    with verbs.inside(), delayed():
        during = ping_pong(verbs)
    after = ping_pong(verbs)
    assert during - max(before, after) > DELAY / 2


def ping_pong(verbs: Wire) -> float:
    """Seconds to the peer and back by reliable connected queue pairs, on average."""
    # GID 1 is that of the IPv4 address.
    words = ["-g", "1", "-n", str(ROUNDS), "-s", "64", "-r", "8"]
    server = verbs.start("b", "ibv_rc_pingpong", "-d", "rxe_b", *words)
    try:
        eventually(lambda: ":4853 " in verbs.run("b", "cat", "/proc/net/tcp", "/proc/net/tcp6"), "it listens on 18515")
        said = verbs.run("a", "ibv_rc_pingpong", "-d", "rxe_a", *words, PEER)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
    found = re.search(r"= ([0-9.]+) usec/iter", said)
    assert found, said
    return float(found[1]) / 1e6
