"""`net.link_down` and `net.flap` on a lab's node: what the kernel forgets comes back, message by message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from lab_help import eventually
from net_pair import INTERFACE, PEER, PEER6, Pair, pair

from injectors import kernel
from injectors._interfaces import Interface
from injectors._ping import Ping
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.network import Flap, FlapParams, LinkDown, LinkDownParams

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: to change a node's interfaces takes root"),
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("links")) as it:
        # What a going down loses: a static route through a gateway, of both families, one in another table.
        it.ip(0, "route", "add", "192.0.2.0/24", "via", PEER, "metric", "7")
        it.ip(0, "route", "add", "198.51.100.0/24", "via", PEER, "table", "100")
        it.ip(0, "-6", "route", "add", "2001:db8::/64", "via", PEER6)
        it.ip(0, "link", "set", INTERFACE, "alias", "the rail")
        yield it


@pytest.fixture
def node(two: Pair) -> Iterator[Pair]:
    """This thread is on the first node's network; everything is as before afterwards."""
    before = everything(two)
    with two.inside():
        yield two
        assert LinkDown().strays(Target(node=0)) == []
    eventually(lambda: everything(two) == before, "all as before")


def everything(two: Pair) -> dict[str, Any]:
    """Addresses, routes of all tables, flags and alias, as `ip` tells them."""
    return {
        "addresses": sorted(two.ip(0, "-o", "address", "show", "dev", INTERFACE, "scope", "global").splitlines()),
        "4": sorted(two.ip(0, "route", "show", "table", "all", "dev", INTERFACE).splitlines()),
        "6": sorted(
            line
            for line in two.ip(0, "-6", "route", "show", "table", "all", "dev", INTERFACE).splitlines()
            if "2001:db8" in line or "fd88" in line
        ),
        "alias": "the rail" in two.ip(0, "link", "show", INTERFACE),
    }


def ordered(interface: str = INTERFACE, fault: str = "f1") -> Order:
    return Order(fault, LinkDownParams(interface), Target(node=0), 60.0)


def prepared(injector: LinkDown, order: Order) -> UndoRecord:
    record = injector.plan(order)
    record.boot = kernel.boot_id()
    injector.prepare(record)
    return record


def answers(peer: str) -> int:
    ping = Ping(peer)
    try:
        return len(ping.ask(0.2).trips)
    finally:
        ping.close()


def test_it_is_down_until_the_undo_and_then_everything_is_as_it_was(node: Pair) -> None:
    injector = LinkDown()
    record = prepared(injector, ordered())
    assert injector.witness(record, "before", 0.2).effective is False
    assert answers(PEER) > 0
    injector.inject(record)
    during = injector.witness(record, "during", 0.2)
    assert during.effective is True
    assert during.numbers["lost"] >= 3, "it is down, and lacks an address and routes"
    assert answers(PEER) == 0
    assert injector.residue(record) == [
        f"{INTERFACE} bears the mark chaos:f1: {INTERFACE} is down; {INTERFACE} lacks 1 of its addresses; "
        f"{INTERFACE} lacks 5 of its routes"
    ]
    injector.undo(record)
    assert injector.witness(record, "after", 0.2).effective is False
    assert injector.residue(record) == []
    eventually(lambda: answers(PEER) > 0 and answers(PEER6) > 0, "both families")


def test_another_process_undoes_it_from_the_record_alone_and_twice(node: Pair) -> None:
    record = prepared(LinkDown(), ordered())
    injector = LinkDown()
    Interface(INTERFACE).take_down()
    again = UndoRecord.from_dict(record.as_dict())
    injector.undo(again)
    injector.undo(again)
    assert injector.residue(again) == []


def test_without_a_record_the_mark_tells_and_the_interface_comes_up(node: Pair) -> None:
    injector = LinkDown()
    record = prepared(injector, ordered())
    injector.inject(record)
    [stray] = LinkDown().strays(Target(node=0))
    assert stray.text == f"interface {INTERFACE} with the alias chaos:f1 (fault f1)"
    assert (stray.device,) == injector.devices(ordered())
    LinkDown().clear(stray)
    eventually(lambda: answers(PEER) > 0, "the peer")
    assert injector.residue(record) == [], "somebody has put it in order"
    Interface(INTERFACE).mark("chaos:f1")  # for the fixture: the record still knows the rest
    injector.undo(record)


@pytest.mark.control
def test_an_undo_that_gives_no_route_back_is_found_out(node: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    injector = LinkDown()
    record = prepared(injector, ordered())
    injector.inject(record)
    with monkeypatch.context() as patch:
        patch.setattr(Interface, "_add", lambda self, kind, message: True)
        injector.undo(record)
        assert "lacks 5 of its routes" in injector.residue(record)[0]
    injector.undo(record)
    assert injector.residue(record) == []


@pytest.mark.control
def test_a_link_that_never_went_down_is_not_witnessed(node: Pair) -> None:
    """CASES 31."""
    injector = LinkDown()
    record = prepared(injector, ordered())
    assert injector.witness(record, "during", 0.1).effective is False
    injector.undo(record)


def test_an_interface_that_vanishes_leaves_nothing(node: Pair) -> None:
    """CASES 15."""
    node.ip(0, "link", "add", "tmp0", "type", "veth", "peer", "name", "tmp1")
    node.ip(0, "link", "set", "tmp0", "up")
    injector = LinkDown()
    record = prepared(injector, ordered("tmp0"))
    injector.inject(record)
    node.ip(0, "link", "delete", "tmp0")
    injector.undo(record)
    assert injector.residue(record) == []
    assert injector.witness(record, "after", 0.1).effective is None


@pytest.mark.parametrize(
    ("interface", "said"),
    [
        ("nope0", "there is no interface nope0"),
        ("lo", "lo is never a target"),
        ("mgmt0", "mgmt0 is the lab's management network, and never a target"),
    ],
)
def test_what_must_not_go_down_is_refused(
    node: Pair, monkeypatch: pytest.MonkeyPatch, interface: str, said: str
) -> None:
    monkeypatch.setenv("CHAOS_LAB_NETNS", "{}")
    with pytest.raises(InjectorError, match=said):
        LinkDown().plan(ordered(interface))


@pytest.mark.parametrize("variable", ["CHAOS_CONTROL", "SSH_CONNECTION"])
@pytest.mark.parametrize("address", [PEER, PEER6, "192.0.2.77"])
def test_the_way_to_the_controller_is_never_cut(
    node: Pair, monkeypatch: pytest.MonkeyPatch, variable: str, address: str
) -> None:
    monkeypatch.setenv(variable, f"{address} 5000 10.88.0.1 22" if variable == "SSH_CONNECTION" else address)
    with pytest.raises(InjectorError, match=f"{INTERFACE} is never a target: it is the way to {address}"):
        LinkDown().plan(ordered())


def test_an_interface_that_is_down_already_is_refused(node: Pair) -> None:
    node.ip(0, "link", "add", "tmp0", "type", "veth", "peer", "name", "tmp1")
    with pytest.raises(InjectorError, match="tmp0 is down already"):
        LinkDown().plan(ordered("tmp0"))
    node.ip(0, "link", "delete", "tmp0")


def test_it_flaps_until_the_undo_and_is_up_for_good_then(node: Pair) -> None:
    injector = Flap()
    record = prepared(injector, Order("f1", FlapParams(INTERFACE, 0.05, 0.05), Target(node=0), 60.0))
    injector.witness(record, "before", 0.1)
    injector.inject(record)
    eventually(lambda: injector._downs >= 3, "some flaps")
    during = injector.witness(record, "during", 0.5)
    assert during.effective is True
    assert "times so far" in during.text
    injector.undo(record)
    assert injector.residue(record) == []
    eventually(lambda: answers(PEER) > 0, "the peer")
