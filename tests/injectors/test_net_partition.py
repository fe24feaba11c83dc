"""`net.partition` between two nodes of a lab: real packets, a real kernel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from lab_help import eventually
from net_pair import PEER, PEER6, Pair, pair

from injectors import kernel
from injectors._nftables import PeerDrop
from injectors._ping import Ping
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.network import Partition, PartitionParams

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: to enter a node's network takes root"),
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("partition")) as it:
        yield it


@pytest.fixture
def node(two: Pair) -> Iterator[Pair]:
    """This thread is on the first node's network; nothing of ours is left there afterwards."""
    with two.inside():
        yield two
        assert Partition().strays(Target(node=0)) == []


def ordered(*peers: str, fault: str = "f1", duration: float = 60.0, direction: Any = "both") -> Order:
    return Order(fault, PartitionParams(list(peers), direction), Target(node=0), duration)


def prepared(order: Order) -> tuple[Partition, UndoRecord]:
    injector = Partition()
    record = injector.plan(order)
    record.boot = kernel.boot_id()
    injector.prepare(record)
    return injector, record


def answers(peer: str) -> int:
    ping = Ping(peer)
    try:
        return len(ping.ask(0.15).trips)
    finally:
        ping.close()


@pytest.mark.parametrize(("peer", "other"), [(PEER, PEER6), (PEER6, PEER)])
@pytest.mark.parametrize("direction", ["both", "from", "to"])
def test_a_peer_is_cut_off_and_nobody_else(node: Pair, peer: str, other: str, direction: str) -> None:
    """CASES 26: a filter by address hits that address alone. CASES 34: IPv6 as well as IPv4."""
    injector, record = prepared(ordered(peer, direction=direction))
    assert injector.witness(record, "before", 0.3).effective is False
    assert answers(peer) > 0, "prepared, it drops nothing"
    injector.inject(record)
    during = injector.witness(record, "during", 0.3)
    assert during.effective is True
    assert during.numbers["dropped"] > 0
    assert answers(other) > 0
    injector.undo(record)
    assert injector.witness(record, "after", 0.3).effective is False
    assert injector.residue(record) == []
    assert answers(peer) > 0


def test_a_prefix_is_cut_off_and_what_is_passed_on_for_others_too(node: Pair) -> None:
    """The GPUs of the other node are behind it."""
    gpu = "10.78.1.10"
    assert answers(gpu) > 0
    injector, record = prepared(ordered("10.78.1.0/24"))
    injector.witness(record, "before", 0.2)
    injector.inject(record)
    assert injector.witness(record, "during", 0.2).effective is None, "nobody was asked, and nothing was dropped yet"
    assert answers(gpu) == 0
    assert injector.witness(record, "during", 0.2).effective is True
    assert answers(PEER) > 0
    injector.undo(record)
    assert answers(gpu) > 0


@pytest.mark.control
def test_a_partition_that_was_never_started_is_not_witnessed(node: Pair) -> None:
    """CASES 31."""
    injector, record = prepared(ordered(PEER))
    injector.witness(record, "before", 0.3)
    assert injector.witness(record, "during", 0.3).effective is False
    injector.undo(record)


@pytest.mark.control
def test_an_undo_that_does_nothing_is_found_out(node: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    injector, record = prepared(ordered(PEER))
    injector.inject(record)
    with monkeypatch.context() as patch:
        patch.setattr(PeerDrop, "delete", lambda self: None)
        injector.undo(record)
        assert injector.residue(record) == ["nftables table inet chaos_f1"]
    injector.undo(record)
    assert injector.residue(record) == []


def test_the_kernel_ends_it_by_itself(node: Pair) -> None:
    injector, record = prepared(ordered(PEER, duration=0.2))
    injector.inject(record)
    assert answers(PEER) == 0
    eventually(lambda: answers(PEER) > 0, "the end")
    injector.undo(record)


def test_another_process_undoes_it_from_the_record_alone(node: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerDrop, "owned", False)  # its owner is this process, which lives
    _, record = prepared(ordered(PEER))
    stranger = Partition()
    assert stranger.residue(record) == ["nftables table inet chaos_f1"]
    [stray] = stranger.strays(Target(node=0))
    assert stray.text == "nftables table inet chaos_f1 (fault f1)"
    stranger.undo(UndoRecord.from_dict(record.as_dict()))
    stranger.undo(record)
    assert stranger.residue(record) == []
    stranger.clear(stray)


def test_tables_of_others_are_neither_seen_nor_changed(node: Pair) -> None:
    """CASES 33."""
    if shutil.which("nft") is None:
        pytest.skip("NOT RUN: needs the package nftables (make system)")
    theirs = "table inet filter {\nchain output { type filter hook output priority 0; counter\n}\n}\n"
    subprocess.run(["nft", "-f", "-"], input=theirs, text=True, check=True)
    try:
        before = re.sub(r"\d+", "", subprocess.check_output(["nft", "list", "ruleset"], text=True))
        injector, record = prepared(ordered(PEER))
        injector.inject(record)
        shown = subprocess.check_output(["nft", "list", "ruleset"], text=True)
        assert "table inet chaos_f1" in shown
        assert "0xa580002" in shown, "10.88.0.2"
        injector.undo(record)
        assert re.sub(r"\d+", "", subprocess.check_output(["nft", "list", "ruleset"], text=True)) == before
    finally:
        subprocess.run(["nft", "delete", "table", "inet", "filter"], check=True)


def test_two_partitions_compose_and_the_end_of_one_is_not_that_of_the_other(node: Pair) -> None:
    """CASES 17, 27 and 28."""
    first, one = prepared(ordered(PEER, fault="f1"))
    second, two = prepared(ordered(PEER6, fault="f2"))
    assert not set(one.devices) & set(two.devices)
    first.inject(one)
    second.inject(two)
    first.undo(one)
    assert (answers(PEER) > 0, answers(PEER6)) == (True, 0)
    second.undo(two)
    assert answers(PEER6) > 0
    again, three = prepared(ordered(f"{PEER}/32", fault="f3"))
    assert three.devices == one.devices, "the same peer is one fault's at a time"
    again.undo(three)


def test_the_controller_is_never_cut_off(node: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_CONTROL", "192.0.2.1,10.88.0.2")
    with pytest.raises(InjectorError, match=r"10\.88\.0\.0/24 has 10\.88\.0\.2 in it, from where"):
        Partition().plan(ordered("10.88.0.7/24"))
    monkeypatch.delenv("CHAOS_CONTROL")
    monkeypatch.setenv("SSH_CONNECTION", "fd88::2 5000 fd88::1 22")
    with pytest.raises(InjectorError, match="never a target"):
        Partition().plan(ordered(PEER6))


@pytest.mark.parametrize(
    ("peers", "said"),
    [
        ([], "found an empty list"),
        (["node7"], "found 'node7'; write an address or a prefix"),
        (["0.0.0.0/0"], "which is everybody"),
        (["::/0"], "which is everybody"),
    ],
)
def test_what_is_no_peer_is_refused(peers: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PartitionParams(peers)


def test_a_start_is_one_message(node: Pair) -> None:
    injector, record = prepared(ordered(PEER))
    began = time.monotonic_ns()
    stamped = injector.inject(record)
    assert began <= stamped <= time.monotonic_ns()
    injector.undo(record)
