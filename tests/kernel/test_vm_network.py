"""The injectors of the network on a stock kernel, and what such a kernel has beyond: netem, Soft-RoCE."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lab_help import eventually
from pyroute2 import IPRoute
from wire import INTERFACE, PEER, Wire, ping_pong, round_trip, soft_roce

from injectors import kernel
from injectors._tbf import DRAIN, LinkEnd, Shape
from injectors.contract import Order, Target
from injectors.network import LinkDown, LinkDownParams, Partition, PartitionParams

pytestmark = pytest.mark.kernel

DELAY = 0.02  # seconds; a round trip without it takes about 1 ms in emulation


@pytest.fixture
def here(two: Wire) -> Iterator[Wire]:
    """This thread is at one end of the wire."""
    with two.inside():
        yield two


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
        end.remove(shape.mark, DRAIN)
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


def test_netem_delays_verbs_on_soft_roce(two: Wire) -> None:
    with soft_roce(two):
        before = ping_pong(two)
        with two.inside(), delayed():
            during = ping_pong(two)
        after = ping_pong(two)
    assert during - max(before, after) > DELAY / 2
