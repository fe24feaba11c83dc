"""Routing netlink in batches, in a network namespace of the test's own."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from chaos.lab import namespace
from chaos.lab.rtnl import Netlink

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may make a network namespace in the tests' own process"
)


@pytest.fixture(autouse=True)
def network() -> Iterator[None]:
    fd = namespace.new_network()
    with namespace.inside_network(fd):
        yield
    os.close(fd)


def names() -> list[str]:
    with Netlink() as net:
        return [link.get_attr("IFLA_IFNAME") for link in net.links()]


def test_requests_are_done_in_their_order_and_all_of_them() -> None:
    with Netlink() as net:
        for number in range(70):
            net.add_link(f"br{number}", "bridge", index=100 + number)
            net.add_address(100 + number, f"10.0.{number}.1", 24)
    assert names() == ["lo", *(f"br{number}" for number in range(70))]


def test_a_refused_request_is_named_and_the_others_are_done() -> None:
    with pytest.raises(OSError, match=r"^.*link br0: File exists") as refused, Netlink() as net:
        net.add_link("br0", "bridge")
        net.add_link("br0", "bridge")
        net.add_link("br1", "bridge")
    assert refused.value.errno == errno.EEXIST
    assert names() == ["lo", "br0", "br1"]


def test_a_route_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(OSError, match=r"route to 10.1.0.0/16") as refused, Netlink() as net:
        net.add_route("10.1.0.0", 16, [("RTA_GATEWAY", "10.9.9.9")])
    assert refused.value.errno == errno.ENETUNREACH


def test_a_link_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(OSError, match=r"removal of link br0") as refused, Netlink() as net:
        net.delete_link("br0")
    assert refused.value.errno == errno.ENODEV


def test_after_an_error_of_the_caller_nothing_is_sent() -> None:
    with pytest.raises(KeyError), Netlink() as net:
        net.add_link("br0", "bridge")
        raise KeyError
    assert names() == ["lo"]
