"""`net.netem` and `net.rdma_jitter` on a kernel that has netem: on round trips, on losses, on Soft-RoCE."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from wire import INTERFACE, PEER, Wire, ping_pong, round_trip, run, soft_roce

from injectors import _netem, kernel
from injectors._netem import NetemEnd
from injectors._ping import Ping
from injectors._qdisc import Mark
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.netem import JitterParams, Netem, NetemParams, RdmaJitter
from injectors.network import LinkDown, LinkDownParams

pytestmark = pytest.mark.kernel

_SNDBUFFORCE = 32  # SO_SNDBUFFORCE, which Python does not name
DELAY = 0.05  # seconds; a round trip without it takes about 1 ms in emulation


@pytest.fixture
def here(two: Wire) -> Iterator[Wire]:
    """This thread is at one end of the wire; afterwards its interface is as before."""
    with two.inside():
        before = run("ip", "link", "show", INTERFACE)
        yield two
        assert Netem().strays(Target(node=0)) == []
        assert run("ip", "link", "show", INTERFACE) == before, "the default qdisc, and the length of its queue"


def ordered(fault: str = "f1", **params: Any) -> Order:
    return Order(fault, NetemParams(INTERFACE, **params), Target(node=0), 60.0)


def prepared(injector: Netem, order: Order) -> UndoRecord:
    record = injector.plan(order)
    record.boot = kernel.boot_id()
    injector.prepare(record)
    return record


def shown() -> str:
    """What `tc` says."""
    return run("tc", "qdisc", "show", "dev", INTERFACE)


def answers(seconds: float) -> tuple[int, int]:
    """How often the peer was asked, and how often it answered."""
    ping = Ping(PEER)
    try:
        told = ping.ask(seconds)
    finally:
        ping.close()
    return told.sent, len(told.trips)


def test_a_round_trip_takes_longer_until_the_undo_and_a_peer_is_the_witness(here: Wire) -> None:
    """CASES 34: the length of the queue is not touched (see the fixture)."""
    injector = Netem()
    record = prepared(injector, ordered(delay=DELAY, peer=PEER))
    before = injector.witness(record, "before", 0.5)
    assert before.effective is False
    injector.inject(record)
    during = injector.witness(record, "during", 1.0)
    assert during.effective is True, during
    assert during.numbers["round_trip_s"] - before.numbers["round_trip_s"] > DELAY / 2
    assert injector.residue(record)
    injector.undo(record)
    assert injector.residue(record) == []
    assert injector.witness(record, "after", 0.5).effective is False
    assert round_trip() < DELAY


def test_the_kernel_has_what_was_asked_for(here: Wire) -> None:
    injector = Netem()
    asked = ordered(delay=0.02, jitter=0.005, loss=0.1, burst=4, duplicate=0.02, corrupt=0.01, reorder=0.25, rate=8e6)
    record = prepared(injector, asked)
    injector.inject(record)
    told = shown()
    for words in (
        "delay 20ms  5ms",
        "duplicate 2%",
        "corrupt 1%",
        "reorder 25%",
        "rate 8Mbit",
        "loss gemodel",
        "r 25%",
    ):
        assert words in told
    assert injector._end is not None
    found = injector._end.root()
    assert found is not None
    assert _netem.Shape(**record.before["shape"]).is_set(found)
    injector.undo(record)
    assert "netem" not in shown()


@pytest.mark.parametrize("asked", [{"corrupt": 0.5}, {"duplicate": 0.5}, {"rate": 1e9}, {"loss": 0.1, "burst": 2}])
def test_each_effect_alone_is_told_from_none(here: Wire, asked: dict[str, Any]) -> None:
    injector = Netem()
    record = prepared(injector, ordered(**asked))
    assert injector.witness(record, "before", 0.1).effective is False
    injector.inject(record)
    answers(0.2)
    assert injector.witness(record, "during", 1.0).effective is True
    injector.undo(record)
    assert injector.witness(record, "after", 0.1).effective is False


def test_what_is_lost_is_counted_and_told(here: Wire) -> None:
    injector = Netem()
    record = prepared(injector, ordered(loss=0.5))
    injector.witness(record, "before", 0.1)
    injector.inject(record)
    sent, came = answers(2.0)
    assert 0.2 < came / sent < 0.8
    during = injector.witness(record, "during", 0.5)
    assert during.effective is True
    assert during.numbers["dropped"] > 0
    injector.undo(record)
    sent, came = answers(0.5)
    assert came == sent


def test_a_link_that_is_as_ever_is_not_witnessed(here: Wire) -> None:
    injector = Netem()
    record = prepared(injector, ordered(delay=DELAY, peer=PEER))
    injector.witness(record, "before", 0.5)
    assert injector.witness(record, "during", 0.5).effective is False, "it never began"
    injector.inject(record)
    assert injector._end is not None
    assert injector._end.open(_netem.Shape(**record.before["shape"]))
    assert injector.witness(record, "during", 0.5).effective is False, "somebody took it back"
    injector.undo(record)


def test_nothing_that_was_sent_is_no_evidence(here: Wire) -> None:
    run("ip", "link", "add", "quiet0", "type", "veth", "peer", "name", "quiet1")
    try:
        run("ip", "link", "set", "quiet0", "up", "addrgenmode", "none")
        run("ip", "link", "set", "quiet1", "up", "addrgenmode", "none")
        injector = Netem()
        record = prepared(injector, Order("f1", NetemParams("quiet0", loss=0.5), Target(node=0), 60.0))
        injector.witness(record, "before", 0.1)
        injector.inject(record)
        assert injector.witness(record, "during", 0.1).effective is None
        injector.undo(record)
    finally:
        run("ip", "link", "delete", "quiet0")


def test_another_process_undoes_it_from_the_record_alone_and_twice(here: Wire) -> None:
    """CASES 30: nothing remains that would be in the way of the next one."""
    for fault in ("f1", "f2"):
        first = Netem()
        record = prepared(first, ordered(fault, delay=DELAY))
        first.inject(record)
        again = UndoRecord.from_dict(record.as_dict())
        Netem().undo(again)
        Netem().undo(again)
        assert Netem().residue(again) == []


def test_without_a_record_the_mark_tells(here: Wire) -> None:
    injector = Netem()
    record = prepared(injector, ordered(delay=DELAY))
    injector.inject(record)
    [stray] = Netem().strays(Target(node=0))
    assert (stray.device,) == injector.devices(ordered(delay=DELAY))
    with pytest.raises(InjectorError, match="former fault's: `chaos sweep` removes it"):
        Netem().plan(ordered("f2", delay=DELAY))
    Netem().clear(stray)
    assert injector.residue(record) == []


def test_a_qdisc_of_others_is_named_and_never_changed(here: Wire) -> None:
    """CASES 24 and 25."""
    run("tc", "qdisc", "add", "dev", INTERFACE, "root", "handle", "7:", "pfifo", "limit", "77")
    try:
        with pytest.raises(InjectorError, match=f"there is a qdisc pfifo 7: on {INTERFACE}, which is not ours"):
            Netem().plan(ordered(delay=DELAY))
        assert "pfifo 7: root refcnt 2 limit 77p" in shown()
        # Somebody removed ours in the middle of the fault, and has put one of their own there.
        run("tc", "qdisc", "delete", "dev", INTERFACE, "root")
        injector = Netem()
        record = prepared(injector, ordered(delay=DELAY))
        injector.inject(record)
        run("tc", "qdisc", "replace", "dev", INTERFACE, "root", "handle", "8:", "pfifo", "limit", "88")
        injector.undo(record)
        assert injector.residue(record) == []
        assert "pfifo 8: root refcnt 2 limit 88p" in shown()
    finally:
        run("tc", "qdisc", "delete", "dev", INTERFACE, "root")


def test_two_faults_on_one_link_want_the_same_device(here: Wire) -> None:
    """CASES 28: delay and loss never override each other; who wants both writes one fault."""
    delay, loss = ordered(delay=DELAY), ordered("f2", loss=0.1)
    assert Netem().devices(delay) == Netem().devices(loss)
    assert Netem().devices(delay) == LinkDown().devices(Order("f3", LinkDownParams(INTERFACE), Target(node=0), 1.0))


def test_under_load_nothing_is_lost_but_what_should_be(here: Wire) -> None:
    """CASES 29: netem's own limit of 1000 packets drops what a busy link sends in the time of the delay."""
    injector = Netem()
    record = prepared(injector, ordered(delay=1.0))
    injector.inject(record)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, 64 << 20)
        for _ in range(3000):  # held for a second, all of them
            sender.sendto(b"x", (PEER, 9))
    told = injector.witness(record, "during", 1.0).numbers
    injector.undo(record)
    assert told["dropped"] == 0
    assert record.before["shape"]["limit"] > 3000


def test_the_way_to_the_controller_is_never_a_target(here: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_CONTROL", PEER)
    with pytest.raises(InjectorError, match=f"{INTERFACE} is never a target: it is the way to {PEER}"):
        Netem().plan(ordered(delay=DELAY))


def test_verbs_on_soft_roce_come_late(two: Wire) -> None:
    with soft_roce(two):
        before = ping_pong(two)
        with two.inside():
            assert _netem.bypass(INTERFACE) is None, "it has no hardware"
            injector = RdmaJitter()
            record = injector.plan(Order("f1", JitterParams(INTERFACE, 0.02, 0.002), Target(node=0), 60.0))
            record.boot = kernel.boot_id()
            injector.prepare(record)
            injector.inject(record)
        during = ping_pong(two)
        with two.inside():
            injector.undo(record)
            assert injector.residue(record) == []
        after = ping_pong(two)
    assert during - max(before, after) > 0.01


def test_a_qdisc_that_only_looks_like_ours_is_not_taken_for_it(here: Wire) -> None:
    run("tc", "qdisc", "add", "dev", INTERFACE, "root", "handle", "c123:", "netem", "delay", "1ms")
    try:
        assert Netem().strays(Target(node=0)) == []
        end = NetemEnd()
        try:
            end.choose(INTERFACE)
            end.remove(Mark(0xC1230000, 5000), 0.0)
        finally:
            end.close()
        assert "netem c123:" in shown()
    finally:
        run("tc", "qdisc", "delete", "dev", INTERFACE, "root")
