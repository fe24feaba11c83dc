"""``pcie.throttle`` on the PCIe links of a real lab: the test sends its own traffic over them."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_help import alive_in, eventually, in_effect, until
from pyroute2 import IPRoute

from chaos.lab.cluster import Lab
from chaos.lab.links import read_links
from chaos.lab.topology import PCIE_GATEWAY, LabSpec, pcie_address
from chaos.transport import lab as transport
from injectors import _tbf, kernel, namespaces, pcie
from injectors.contract import InjectorError, Order, Stray, Target, UndoRecord
from injectors.pcie import Throttle, ThrottleParams

pytestmark = pytest.mark.lab

# The injector runs in the test's own process here, so that a control can take a piece of it away.
root = pytest.mark.skipif(os.geteuid() != 0, reason="the test enters the lab's namespaces itself: that needs root")

RATE = 50e6  # bits a second
FRAME, PAYLOAD = 1514, 1472  # bytes of a full frame, and of what it carries of a datagram
ROOT = 0xFFFFFFFF  # TC_H_ROOT


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up(LabSpec(nodes=1, gpus=2), tmp_path_factory.mktemp("pcie") / "lab") as it:
        yield it


@pytest.fixture
def fds(lab: Lab) -> Iterator[dict[str, int]]:
    """The node's namespaces."""
    found = lab.namespaces(0)
    yield found
    for fd in found.values():
        os.close(fd)


@pytest.fixture
def target(fds: dict[str, int]) -> Iterator[Target]:
    """GPU 0, as the node's own agent sees it: the test is in the node's network namespace meanwhile."""
    paths = {name: f"/proc/{os.getpid()}/fd/{fd}" for name, fd in fds.items() if name.startswith(("gpu", "nv"))}
    node = Target(node=0, gpu=0, namespaces=paths)
    with kernel.inside(fds["net"]):
        yield node
        for stray in Throttle().strays(node):  # of a test that failed half-way
            Throttle().clear(stray)


def ordered(target: Target, fault: str = "f1", duration: float = 60.0, rate: float = RATE) -> Order:
    return Order(fault, ThrottleParams(rate), target, duration)


def prepared(order: Order) -> tuple[Throttle, UndoRecord]:
    injector = Throttle()
    record = injector.plan(order)
    record.boot = kernel.boot_id()
    injector.prepare(record)
    return injector, record


def set_here(network: int, interface: str) -> list[tuple[str, int]]:
    """Kind and handle of the root qdiscs that somebody has set on an interface."""
    with kernel.inside(network), IPRoute() as net:
        [index] = net.link_lookup(ifname=interface)
        found = [q for q in net.get_qdiscs(index=index) if q["parent"] == ROOT and q["handle"]]
        return [(q.get_attr("TCA_KIND"), q["handle"]) for q in found]


@contextmanager
def somebodys(network: int, interface: str, **qdisc: Any) -> Iterator[None]:
    """A root qdisc that is not ours, removed in the end."""
    with kernel.inside(network), IPRoute() as net:
        [index] = net.link_lookup(ifname=interface)
        net.tc("replace", index=index, **qdisc)
    try:
        yield
    finally:
        if set_here(network, interface):
            with kernel.inside(network), IPRoute() as net:
                net.tc("del", index=index, parent=ROOT)


def carried(fds: dict[str, int], gpu: int, *, to_gpu: bool, seconds: float) -> float:
    """Bits a second, frames and all, of datagrams that arrive while one end sends as fast as it can."""
    near, far = (fds["net"], fds[f"gpu{gpu}"]) if to_gpu else (fds[f"gpu{gpu}"], fds["net"])
    address = pcie_address(0, gpu) if to_gpu else PCIE_GATEWAY
    with kernel.inside(far):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        receiver.bind((address, 0))
    with kernel.inside(near):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        if not to_gpu:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"pcie0")
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            sender.sendto(bytes(PAYLOAD), receiver.getsockname())

    thread = threading.Thread(target=send)
    thread.start()
    frames = 0
    for _ in range(8):  # the bucket was full
        receiver.recv(2048)
    started = time.monotonic()
    while time.monotonic() < started + seconds:
        receiver.recv(2048)
        frames += 1
    spent = time.monotonic() - started
    stop.set()
    thread.join()
    sender.close()
    receiver.close()
    return frames * FRAME * 8 / spent


def within(share: float, measure: Callable[[], float]) -> bool:
    """Whether the rate is met: never exceeded, and reached in one of a few measurements (on a busy machine the test's
    own sender waits, and what does not come cannot be carried)."""
    for _ in range(8):
        rate = measure()
        assert rate <= (1 + share) * RATE
        if rate >= (1 - share) * RATE:
            return True
    return False


@root
def test_the_link_is_slow_both_ways_from_the_injection_to_the_undo(fds: dict[str, int], target: Target) -> None:
    injector, record = prepared(ordered(target))
    before = injector.witness(record, "before", 0.1)
    assert before.effective is False, before
    assert carried(fds, 0, to_gpu=True, seconds=0.05) > 2 * RATE, "an open qdisc slows nothing"
    assert len(set_here(fds["net"], "pcie0") + set_here(fds["gpu0"], "pcie0")) == 2
    started = time.monotonic_ns()
    assert started <= injector.inject(record) <= time.monotonic_ns()
    during = injector.witness(record, "during", 1.0)
    assert during.effective is True, during
    for to_gpu in (True, False):
        assert within(0.05, lambda way=to_gpu: carried(fds, 0, to_gpu=way, seconds=1.0))
    assert carried(fds, 1, to_gpu=True, seconds=0.05) > 2 * RATE, "the other GPU's link is as it was"
    ended = injector.undo(record)
    assert started < ended <= time.monotonic_ns()
    after = injector.witness(record, "after", 0.1)
    assert after.effective is False, after
    assert carried(fds, 0, to_gpu=False, seconds=0.05) > 2 * RATE
    assert injector.residue(record) == []
    assert set_here(fds["net"], "pcie0") + set_here(fds["gpu0"], "pcie0") == [], "the default again"
    injector.undo(record)  # once more: nothing happens
    Throttle().undo(record)
    assert injector.residue(record) == []


@root
@pytest.mark.parametrize("rate", [2e6, 1e9])
def test_a_very_slow_and_a_fast_link_are_witnessed(target: Target, rate: float) -> None:
    injector, record = prepared(ordered(target, rate=rate))
    assert injector.witness(record, "before", 0.1).effective is False
    injector.inject(record)
    during = injector.witness(record, "during", 2.0)
    injector.undo(record)
    assert during.effective is True, during
    assert during.numbers["to_gpu_bps"] == pytest.approx(rate, rel=0.25)


@root
def test_the_counters_tell_which_link_was_slow(fds: dict[str, int], target: Target) -> None:
    def sent(network: int) -> dict[str, int]:
        return {link["name"]: link["tx_bytes"] for link in read_links(network)}

    first = sent(fds["net"])
    injector, record = prepared(ordered(target))
    injector.inject(record)
    during = injector.witness(record, "during", 1.0)
    injector.undo(record)
    more = {name: count - first[name] for name, count in sent(fds["net"]).items()}
    assert more["pcie0"] >= record.before["shape"]["burst"]
    assert more["pcie1"] < 1000, "nothing but what hosts say to each other"
    assert during.numbers["link_bytes"][0] >= first["pcie0"] + record.before["shape"]["burst"]


@root
def test_what_waits_in_the_queue_arrives_when_the_link_is_mended(fds: dict[str, int], target: Target) -> None:
    """A slow link holds back; it does not lose at its mending what it held."""
    injector, record = prepared(ordered(target, rate=1e6))
    with kernel.inside(fds["gpu0"]):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((pcie_address(0, 0), 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.sendto(b"first", receiver.getsockname())
    assert receiver.recv(64) == b"first"
    injector.inject(record)
    for number in range(40):  # half a second's worth
        sender.sendto(number.to_bytes(2, "big") + bytes(PAYLOAD - 2), receiver.getsockname())
    injector.undo(record)
    receiver.settimeout(10)
    assert [int.from_bytes(receiver.recv(2048)[:2], "big") for _ in range(40)] == list(range(40))
    sender.close()
    receiver.close()


# -- records ----------------------------------------------------------------------------------------------------------


@root
def test_another_process_undoes_it_from_the_record_alone(fds: dict[str, int], target: Target) -> None:
    injector, record = prepared(ordered(target))
    injector.inject(record)
    again = UndoRecord.from_dict(json.loads(json.dumps(record.as_dict())))
    stranger = Throttle()
    assert stranger.witness(again, "during", 0.1).effective is None, "what was not measured is not known"
    major = f"{record.before['shape']['handle'] >> 16:x}"
    left = [f"qdisc tbf {major}: on pcie0 (the node's end)", f"qdisc tbf {major}: on pcie0 (gpu0's end)"]
    assert stranger.residue(again) == left
    stranger.undo(again)
    stranger.undo(again)
    assert stranger.residue(again) == []
    assert set_here(fds["net"], "pcie0") + set_here(fds["gpu0"], "pcie0") == []
    injector.undo(record)


@root
def test_half_a_fault_is_undone(fds: dict[str, int], target: Target) -> None:
    injector, record = prepared(ordered(target))
    with kernel.inside(fds["gpu0"]), IPRoute() as net:
        [index] = net.link_lookup(ifname="pcie0")
        net.tc("del", index=index, parent=ROOT)
    assert len(injector.residue(record)) == 1
    injector.undo(record)
    assert injector.residue(record) == []
    assert set_here(fds["net"], "pcie0") == []


@root
@pytest.mark.parametrize("how", ["another boot", "gone", "cannot be told", "renamed"])
def test_a_link_that_has_gone_took_the_fault_along_if_that_is_sure(
    fds: dict[str, int], target: Target, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def find(kept: object, boot: object) -> None:
        if how == "cannot be told":
            raise InjectorError(how)

    injector, record = prepared(ordered(target))
    again = UndoRecord.from_dict(record.as_dict())
    with monkeypatch.context() as patch:
        if how == "another boot":
            again.boot = how
        elif how == "renamed":
            again.before["ends"] = [dict(end, name="pcie7") for end in again.before["ends"]]
        else:
            patch.setattr(namespaces, "find", find)
        if how == "cannot be told":
            assert Throttle().residue(again) == [how, how]
            with pytest.raises(InjectorError, match=how):
                Throttle().undo(again)
        else:
            assert Throttle().residue(again) == []
            Throttle().undo(again)
    assert len(set_here(fds["net"], "pcie0")) == 1
    injector.undo(record)


@root
def test_it_is_found_and_cleared_although_its_record_is_lost(fds: dict[str, int], target: Target) -> None:
    assert Throttle().strays(target) == []
    injector, record = prepared(ordered(target, "lost"))
    strays = [Stray(**json.loads(json.dumps(dataclasses.asdict(each)))) for each in Throttle().strays(target)]
    assert [stray.device for stray in strays] == 2 * record.devices, "both ends are one link"
    assert [stray.text.split(" on ")[1] for stray in strays] == ["pcie0 (the node)", "pcie0 (gpu0)"]
    with somebodys(fds["gpu1"], "pcie0", kind="pfifo_fast", handle=0xC1230000):
        for stray in strays:
            Throttle().clear(stray)
            Throttle().clear(stray)
        assert Throttle().strays(target) == []
        assert set_here(fds["gpu1"], "pcie0") == [("pfifo_fast", 0xC1230000)]
    assert injector.residue(record) == []


# -- what is not ours -------------------------------------------------------------------------------------------------


@root
@pytest.mark.parametrize("where", ["net", "gpu0"])
def test_a_foreign_qdisc_is_refused_by_name_and_stays(fds: dict[str, int], target: Target, where: str) -> None:
    with somebodys(fds[where], "pcie0", kind="tbf", handle=0x10000, rate="20mbit", burst=32768, latency="50ms"):
        told = r"there is a qdisc tbf 1: on pcie0 \(.*\), which is not ours, .*: tc qdisc del dev pcie0 root"
        with pytest.raises(InjectorError, match=told):
            Throttle().plan(ordered(target))
        assert set_here(fds[where], "pcie0") == [("tbf", 0x10000)]


@root
def test_one_of_ours_in_the_way_is_said_to_be_ours(target: Target) -> None:
    injector, record = prepared(ordered(target))
    with pytest.raises(InjectorError, match="which is a former fault's: `chaos sweep` removes it"):
        Throttle().plan(ordered(target, "f2"))
    injector.undo(record)


@root
@pytest.mark.control
def test_a_foreign_qdisc_with_our_handle_is_neither_taken_for_ours_nor_deleted(
    fds: dict[str, int], target: Target
) -> None:
    injector, record = prepared(ordered(target))
    handle = record.before["shape"]["handle"]
    injector.undo(record)
    with somebodys(fds["net"], "pcie0", kind="tbf", handle=handle, rate="20mbit", burst=32768, limit=0x40000):
        assert Throttle().residue(record) == []
        assert Throttle().strays(target) == []
        Throttle().undo(record)
        assert set_here(fds["net"], "pcie0") == [("tbf", handle)]


@root
def test_what_another_has_put_in_place_of_ours_stays(fds: dict[str, int], target: Target) -> None:
    injector, record = prepared(ordered(target))
    injector.inject(record)
    with somebodys(fds["net"], "pcie0", kind="pfifo_fast", handle=0x20000):
        injector.undo(record)
        assert set_here(fds["net"], "pcie0") == [("pfifo_fast", 0x20000)]
    assert injector.residue(record) == []
    assert set_here(fds["gpu0"], "pcie0") == []


# -- where it is possible ---------------------------------------------------------------------------------------------


@root
def test_one_link_is_one_device_and_two_are_two(fds: dict[str, int], target: Target) -> None:
    there = Throttle().devices(ordered(target))
    assert there == (f"link:{os.fstat(fds['net']).st_ino}:pcie0",)
    assert Throttle().devices(ordered(dataclasses.replace(target, gpu=1))) != there


def test_on_a_real_node_it_says_what_is_missing() -> None:
    support = Throttle().support(ThrottleParams(RATE), Target(node=0, gpu=0))
    assert support.reality == "emulated"
    [missing] = support.missing
    assert missing.startswith("an emulated PCIe link: that of a real GPU is not throttled in this version")


@root
def test_a_gpu_that_is_none_is_refused(target: Target) -> None:
    with pytest.raises(InjectorError, match=r"missing: a GPU 'gpu7' on this node \(it has gpu0, gpu1\)"):
        Throttle().plan(ordered(dataclasses.replace(target, gpu=7)))


@root
def test_an_interface_that_leads_elsewhere_is_no_link_of_the_gpu(target: Target) -> None:
    crossed = target.namespaces | {"gpu0": target.namespaces["gpu1"]}
    with pytest.raises(InjectorError, match="pcie0 of the node is not the other end of gpu0's pcie0"):
        Throttle().plan(ordered(dataclasses.replace(target, namespaces=crossed)))


@pytest.mark.parametrize("rate", [0, 9e5, 2.1e10, float("nan")])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"a rate of .*: 1 Mbit/s to 20 Gbit/s are possible"):
        ThrottleParams(rate)


def test_its_mark_is_in_the_handle_and_in_the_limit() -> None:
    for fault in ("f1", "f2", "20261201-120000-storm-ab12-3"):
        shape = _tbf.Shape.of(fault, RATE)
        assert 0xC000 <= shape.handle >> 16 <= 0xCFFF
        assert shape.handle >> 16 & 0xFFF == shape.limit & 0xFFF
        assert shape.limit > shape.burst


# -- negative controls: what does not happen must not be witnessed ----------------------------------------------------


@root
@pytest.mark.control
def test_a_link_that_was_never_slowed_is_not_witnessed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tbf.LinkEnd, "start", lambda self: None)
    injector, record = prepared(ordered(target))
    injector.witness(record, "before", 0.1)
    injector.inject(record)
    during = injector.witness(record, "during", 0.2)
    injector.undo(record)
    assert during.effective is False, during


@root
@pytest.mark.control
@pytest.mark.parametrize("end", [0, 1])
def test_one_direction_alone_is_not_witnessed(target: Target, end: int) -> None:
    injector, record = prepared(ordered(target))
    injector.witness(record, "before", 0.1)
    assert injector._held is not None
    injector._held.ends[end].start()
    during = injector.witness(record, "during", 0.2)
    injector.undo(record)
    assert during.effective is False, during


@root
@pytest.mark.control
def test_a_link_that_was_slow_before_is_not_witnessed(target: Target) -> None:
    injector, record = prepared(ordered(target))
    injector.inject(record)
    before = injector.witness(record, "before", 0.1)
    during = injector.witness(record, "during", 0.2)
    injector.undo(record)
    assert before.effective is True, before
    assert during.effective is False, during


@root
@pytest.mark.control
def test_an_undo_that_does_nothing_is_found_out(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    injector, record = prepared(ordered(target))
    injector.inject(record)
    with monkeypatch.context() as patch:
        patch.setattr(pcie, "_release", lambda *_: time.monotonic_ns())
        injector.undo(record)
        assert len(injector.residue(record)) == 2
        assert injector.witness(record, "after", 0.1).effective is True
    injector.undo(record)
    assert injector.residue(record) == []


# -- by the node's own agent ------------------------------------------------------------------------------------------


def armed(agent: transport.AgentClient, fault: str, duration: float) -> None:
    in_effect(agent, fault, "injectors.pcie:Throttle", {"rate": RATE}, {"node": 0, "gpu": 1}, duration)


def test_the_nodes_agent_makes_it_and_proves_that_it_is_gone(lab: Lab, tmp_path: Path) -> None:
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    agent = transport.start(lab, 0, tmp_path / "log", events.put)
    armed(agent, "by-agent", 0.4)
    assert until(events, "witness", phase="during")["effective"] is True
    ended = until(events, "ended")
    assert ended["ended_ns"] >= ended["scheduled_ns"]
    assert until(events, "witness", phase="after")["effective"] is False
    assert until(events, "undone")["residue"] == []
    agent.close()


@root
def test_what_a_killed_agent_leaves_is_cleared_by_the_next_one(lab: Lab, fds: dict[str, int], tmp_path: Path) -> None:
    """The kernel does not end it by itself."""
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    agent = transport.start(lab, 0, tmp_path / "log", events.put)
    armed(agent, "orphan", 60.0)
    assert until(events, "witness", phase="during")["effective"] is True
    pidns = lab.show()["nodes"][0]["pidns"]
    for pid in alive_in(pidns):
        if b"chaos.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    agent.kill()
    assert len(set_here(fds["gpu1"], "pcie0")) == 1
    following = transport.start(lab, 0, tmp_path / "log", events.put)
    assert following.hello["left"] == []
    assert eventually(lambda: set_here(fds["gpu1"], "pcie0") + set_here(fds["net"], "pcie1") == [], "the default")
    following.close()
