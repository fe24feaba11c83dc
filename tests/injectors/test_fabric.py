"""``fabric.blackhole`` on the NVSwitch of a real lab: the test sends its own datagrams over the path."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_help import alive_in, eventually, in_effect, path, until
from pyroute2 import IPRoute

from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.transport import lab as transport
from injectors import _nftables, fabric, kernel, namespaces
from injectors._nftables import TimedDrop
from injectors.contract import InjectorError, Order, StillHeld, Stray, Target, UndoRecord
from injectors.fabric import Blackhole, BlackholeParams

pytestmark = pytest.mark.lab

# The injector runs in the test's own process here, so that a control can take a piece of it away.
root = pytest.mark.skipif(os.geteuid() != 0, reason="the test enters the lab's namespaces itself: that needs root")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up(LabSpec(nodes=1, gpus=3), tmp_path_factory.mktemp("fabric") / "lab") as it:
        yield it


@pytest.fixture
def target(lab: Lab) -> Iterator[Target]:
    fds = lab.namespaces(0)
    paths = {name: f"/proc/{os.getpid()}/fd/{fd}" for name, fd in fds.items()}
    yield Target(node=0, namespaces={name: path for name, path in paths.items() if name.startswith(("gpu", "nv"))})
    for fd in fds.values():
        os.close(fd)


def ordered(target: Target, fault: str = "f1", duration: float = 60.0, **params: Any) -> Order:
    return Order(fault, BlackholeParams(**({"source": "gpu0", "to": "gpu1"} | params)), target, duration)


@contextmanager
def table(target: Target, name: str, ports: tuple[str, ...] = ()) -> Iterator[TimedDrop]:
    """A table in the switch."""
    switch = kernel.open_network(target.namespaces["nvswitch"])
    try:
        with kernel.inside(switch):
            drop = TimedDrop(name, ports)
    finally:
        os.close(switch)
    with closing(drop):
        yield drop


def tables(target: Target) -> set[str]:
    """Names of all nftables tables in the switch."""
    with table(target, "unused") as drop:
        return {found.name for found in drop.tables()}


def prepared(order: Order) -> tuple[Blackhole, UndoRecord]:
    injector = Blackhole()
    record = injector.plan(order)
    record.boot = kernel.boot_id()
    injector.prepare(record)
    return injector, record


@root
def test_both_ways_are_dead_from_the_injection_to_the_undo(lab: Lab, target: Target) -> None:
    with path(lab, 0, 1) as there, path(lab, 1, 0) as back, path(lab, 0, 2) as beside, path(lab, 2, 1) as other:
        injector, record = prepared(ordered(target))
        assert eventually(there.open, "the path") and eventually(back.open, "the way back")
        before = injector.witness(record, "before", 0.1)
        assert before.effective is False, before
        assert tables(target) == {"chaos_f1"}, "it bears the fault's id"
        started = time.monotonic_ns()
        assert started <= injector.inject(record) <= time.monotonic_ns()
        assert not there.open()
        assert not back.open()
        assert eventually(beside.open, "gpu0 to gpu2") and eventually(other.open, "gpu2 to gpu1")
        during = injector.witness(record, "during", 0.1)
        assert during.effective is True, during
        assert during.numbers["arrived"] == {"forward": 0, "back": 0}
        assert during.numbers["dropped"] >= 2 * during.numbers["sent"]
        injector.undo(record)
        assert eventually(there.open, "the path") and eventually(back.open, "the way back")
        after = injector.witness(record, "after", 0.1)
        assert after.effective is False, after
        assert injector.residue(record) == []
        assert tables(target) == set()
        injector.undo(record)  # once more: nothing happens
        assert injector.residue(record) == []


@root
def test_forward_leaves_the_way_back(lab: Lab, target: Target) -> None:
    with path(lab, 0, 1) as there, path(lab, 1, 0) as back:
        injector, record = prepared(ordered(target, direction="forward"))
        injector.inject(record)
        assert not there.open()
        assert eventually(back.open, "the way back")
        during = injector.witness(record, "during", 0.1)
        assert during.effective is True, during
        assert during.numbers["arrived"]["back"] == during.numbers["sent"]
        injector.undo(record)
        assert eventually(there.open, "the path")


@root
def test_addresses_are_resolved_through_a_dead_path(lab: Lab, target: Target) -> None:
    """NVLink knows no ARP: a drop one way must leave the other way, although that needs answers over the dead one."""
    with path(lab, 0, 1) as there, path(lab, 1, 0) as back:
        injector, record = prepared(ordered(target, direction="forward"))
        injector.inject(record)
        for gpu in ("gpu0", "gpu1"):
            fd = kernel.open_network(target.namespaces[gpu])
            with kernel.inside(fd), IPRoute() as net:
                for known in net.get_neighbours(family=socket.AF_INET):
                    net.neigh("del", dst=known.get("dst"), ifindex=known["ifindex"])
            os.close(fd)
        assert eventually(back.open, "the way back, resolved anew")
        assert not there.open()
        injector.undo(record)


# What an agent does, up to the fault; then it waits for its end.
MAKES_IT = """
import json, sys, time
from injectors import kernel
from injectors.contract import Order, Target
from injectors.fabric import Blackhole, BlackholeParams
injector = Blackhole()
order = json.loads(sys.argv[1])
record = injector.plan(Order("theirs", BlackholeParams("gpu0", "gpu1"), Target(**order["target"]), order["duration"]))
record.boot = kernel.boot_id()
injector.prepare(record)
injector.inject(record)
print(json.dumps(record.as_dict()), flush=True)
time.sleep(1000)
"""


@contextmanager
def made_elsewhere(target: Target, duration: float) -> Iterator[tuple[subprocess.Popen[bytes], UndoRecord]]:
    """A blackhole in effect that another process has made, and holds until it is killed."""
    order = json.dumps({"target": dataclasses.asdict(target), "duration": duration})
    command = [sys.executable, "-c", MAKES_IT, order]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, UndoRecord.from_dict(json.loads(process.stdout.readline()))
        finally:
            process.kill()


@root
def test_it_dies_with_the_process_that_made_it(lab: Lab, target: Target) -> None:
    with path(lab, 0, 1) as there, made_elsewhere(target, 60.0) as (process, record):
        assert tables(target) == {"chaos_theirs"}
        assert not there.open()
        process.kill()
        process.wait()
        assert tables(target) == set(), "the kernel has removed it"
        assert eventually(there.open, "the path")
        assert Blackhole().residue(record) == []
        Blackhole().undo(record)


@root
def test_a_hung_process_is_named_and_the_time_out_ends_the_effect_all_the_same(lab: Lab, target: Target) -> None:
    with path(lab, 0, 1) as there, made_elsewhere(target, 0.3) as (process, record):
        process.send_signal(signal.SIGSTOP)
        assert eventually(there.open, "the path again, by the kernel alone")
        stranger = Blackhole()
        with pytest.raises(StillHeld, match=f"table bridge chaos_theirs is owned by process {process.pid}: ") as held:
            stranger.undo(record)
        assert held.value.holders == (process.pid,)
        assert stranger.residue(record) == ["nftables table bridge chaos_theirs"]
        with pytest.raises(StillHeld):
            stranger.clear(stranger.strays(target)[0])
        process.kill()
        process.wait()
        stranger.undo(record)
        assert stranger.residue(record) == []


@root
def test_nft_shows_the_owner(lab: Lab, target: Target) -> None:
    nft = shutil.which("nft")
    if nft is None:
        pytest.skip("the nft program is not installed")
    with made_elsewhere(target, 60.0):
        fd = kernel.open_network(target.namespaces["nvswitch"])
        with kernel.inside(fd):
            shown = subprocess.run([nft, "list", "ruleset"], capture_output=True, text=True, check=True).stdout
        os.close(fd)
    assert "table bridge chaos_theirs { # progname python" in shown
    assert "flags owner" in shown
    assert re.search(r'elements = { "nvl0" timeout 1m\S+ expires \S+,\s+"nvl1" timeout', shown), shown


@root
@pytest.mark.parametrize("version", [1, 2])
def test_another_process_undoes_it_from_the_record_alone_where_the_kernel_knows_no_owners(
    lab: Lab, target: Target, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(TimedDrop, "owned", False)
    _, record = prepared(ordered(target))
    other, others = prepared(ordered(target, "f2", source="gpu1", to="gpu2"))
    assert tables(target) == {"chaos_f1", "chaos_f2"}
    written = record.as_dict() | {"version": version}
    if version == 1:  # which had the path alone
        del written["devices"], written["agent"], written["before"]["switch"], written["target"]["gpu"]
    again = UndoRecord.from_dict(written)
    stranger = Blackhole()
    assert stranger.residue(again) == ["nftables table bridge chaos_f1"]
    assert stranger.witness(again, "during", 0.1).effective is None, "what was not measured is not known"
    stranger.undo(again)
    stranger.undo(again)
    assert stranger.residue(again) == []
    assert tables(target) == {"chaos_f2"}, "another fault's is not touched"
    other.undo(others)


@root
def test_a_table_is_found_and_cleared_although_its_record_is_lost(
    lab: Lab, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedDrop, "owned", False)
    assert Blackhole().strays(target) == []
    _, record = prepared(ordered(target, "lost", source="gpu2", to="gpu1", direction="forward"))
    with table(target, "somebody_elses", ("nvl0", "nvl1")) as foreign:
        foreign.create()
        [stray] = Blackhole().strays(target)
        assert [stray.device] == record.devices
        assert stray.device.endswith(":nvl1-nvl2"), "both directions are one path"
        assert stray.text == "nftables table bridge chaos_lost in the NVSwitch (fault lost)"
        found = Stray(**json.loads(json.dumps(dataclasses.asdict(stray))))
        Blackhole().clear(found)
        Blackhole().clear(found)
        assert Blackhole().strays(target) == []
        assert tables(target) == {"somebody_elses"}
        foreign.delete()
    assert Blackhole().residue(record) == []


@root
def test_one_path_is_one_device_and_two_paths_are_two(target: Target) -> None:
    there = Blackhole().devices(ordered(target))
    assert there == Blackhole().devices(ordered(target, source="gpu1", to="gpu0"))
    assert there != Blackhole().devices(ordered(target, source="gpu1", to="gpu2"))
    inode = Path(target.namespaces["nvswitch"]).stat().st_ino
    assert there == (f"nvswitch:{inode}:nvl0-nvl1",)


@root
def test_tables_of_others_are_not_touched(lab: Lab, target: Target) -> None:
    with table(target, "somebody_elses", ("nvl0", "nvl1")) as foreign:
        foreign.create()
        foreign.ready(["nvl2"], 60_000)
        foreign.start()
        injector, record = prepared(ordered(target))
        injector.inject(record)
        injector.undo(record)
        assert injector.residue(record) == []
        assert tables(target) == {"somebody_elses"}
        with path(lab, 0, 2) as theirs:
            assert not theirs.open(), "what another has dropped stays dropped"
        foreign.delete()


@root
def test_the_kernel_ends_it_when_nobody_undoes(lab: Lab, target: Target) -> None:
    with path(lab, 0, 1) as there:
        injector, record = prepared(ordered(target, duration=0.3))
        injector.inject(record)
        assert injector.witness(record, "during", 0.1).effective is True
        assert eventually(there.open, "the path again, by the kernel alone")
        assert tables(target) == {"chaos_f1"}, "nobody has undone it"
        injector.undo(record)
        assert tables(target) == set()


@root
def test_a_path_is_not_planned_in_a_switch_that_has_gone(target: Target) -> None:
    gone = dataclasses.replace(target, namespaces=target.namespaces | {"nvswitch": "/proc/1/fd/999"})
    with pytest.raises(InjectorError, match="no network namespace at /proc/1/fd/999"):
        Blackhole().plan(ordered(gone))


@root
def test_a_switch_that_is_now_at_another_path_is_found(target: Target) -> None:
    injector, record = prepared(ordered(target))
    injector.inject(record)
    record.before["switch"]["path"] = target.namespaces["gpu0"]  # there is a namespace, but another
    assert Blackhole().residue(record) == ["nftables table bridge chaos_f1"]
    injector.undo(record)
    assert Blackhole().residue(record) == []


@root
def test_a_switch_of_another_boot_took_the_fault_along(target: Target) -> None:
    injector, record = prepared(ordered(target))
    record.boot = "another boot"
    assert Blackhole().residue(record) == []
    Blackhole().undo(record)
    assert tables(target) == {"chaos_f1"}, "a namespace of this boot is not the record's"
    injector.undo(record)


@root
@pytest.mark.parametrize("found", [None, "cannot be told"])
def test_a_switch_that_was_searched_for_in_vain_is_gone_only_if_the_search_was_whole(
    target: Target, monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    def find(kept: object, boot: object) -> None:
        if found is not None:
            raise InjectorError(found)

    injector, record = prepared(ordered(target))
    with monkeypatch.context() as patch:
        patch.setattr(namespaces, "find", find)
        if found is None:
            assert Blackhole().residue(record) == []
            Blackhole().undo(record)
        else:
            assert Blackhole().residue(record) == [found]
            with pytest.raises(InjectorError, match=found):
                Blackhole().undo(record)
    injector.undo(record)


@root
@pytest.mark.parametrize(
    ("params", "missing"),
    [
        ({"to": "gpu9"}, r"a GPU 'gpu9' on this node \(it has gpu0, gpu1, gpu2\)"),
        ({"source": "eth0"}, "a GPU 'eth0' on this node"),
    ],
)
def test_a_path_that_is_none_is_refused(target: Target, params: dict[str, str], missing: str) -> None:
    with pytest.raises(InjectorError, match="fabric.blackhole is not possible here; missing: .*" + missing):
        Blackhole().plan(ordered(target, **params))


def test_a_path_to_itself_is_none() -> None:
    with pytest.raises(ValueError, match="from and to are both gpu0: a path has two different ends"):
        BlackholeParams("gpu0", "gpu0")


def test_without_an_emulated_switch_it_says_what_to_do() -> None:
    support = Blackhole().support(BlackholeParams("gpu0", "gpu1"), Target(node=0))
    assert support.reality == "emulated"
    [missing] = support.missing
    assert missing.startswith("an emulated NVSwitch: ")
    assert "use the lab" in missing


# -- negative controls: what does not happen must not be witnessed ----------------------------------------------------


@root
@pytest.mark.control
def test_a_drop_that_was_never_started_is_not_witnessed(
    lab: Lab, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nftables.TimedDrop, "start", lambda self: None)
    injector, record = prepared(ordered(target))
    injector.inject(record)
    during = injector.witness(record, "during", 0.1)
    injector.undo(record)
    assert during.effective is False, during


@root
@pytest.mark.control
def test_a_drop_of_one_way_alone_is_not_witnessed_as_both(
    lab: Lab, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    injector, record = prepared(ordered(target))
    assert injector._held is not None
    injector._held.drop.ready(["nvl1"], 60_000)
    injector.inject(record)
    during = injector.witness(record, "during", 0.1)
    injector.undo(record)
    assert during.effective is not True, during


@root
@pytest.mark.control
def test_an_undo_that_does_nothing_is_found_out(lab: Lab, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    injector, record = prepared(ordered(target))
    injector.inject(record)
    with monkeypatch.context() as patch:
        patch.setattr(fabric.TimedDrop, "stop", lambda self: None)
        patch.setattr(fabric.TimedDrop, "delete", lambda self: None)
        injector.undo(record)
        assert injector.residue(record) == ["nftables table bridge chaos_f1"]
        assert injector.witness(record, "after", 0.1).effective is True
    injector.undo(record)
    assert injector.residue(record) == []


# -- by the node's own agent ------------------------------------------------------------------------------------------


def armed(agent: transport.AgentClient, fault: str, duration: float) -> None:
    in_effect(agent, fault, "injectors.fabric:Blackhole", {"source": "gpu0", "to": "gpu1"}, {"node": 0}, duration)


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
def test_the_path_is_back_as_soon_as_the_agent_is_killed(lab: Lab, target: Target, tmp_path: Path) -> None:
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    agent = transport.start(lab, 0, tmp_path / "log", events.put)
    armed(agent, "orphan", 60.0)
    assert until(events, "witness", phase="during")["effective"] is True
    pidns = lab.show()["nodes"][0]["pidns"]
    [pid] = [pid for pid in alive_in(pidns) if b"chaos.agent.main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(pid, signal.SIGKILL)
    agent.kill()
    with path(lab, 0, 1) as there:
        assert eventually(there.open, "the path again, by the kernel alone")
    assert tables(target) == set()
    following = transport.start(lab, 0, tmp_path / "log", events.put)
    assert following.hello["left"] == []
    assert tables(target) == set()
    following.close()


@root
def test_the_machines_own_network_has_no_table_of_ours(lab: Lab, target: Target) -> None:
    injector, record = prepared(ordered(target))
    with closing(TimedDrop(record.before["table"], ())) as here:
        assert not here.exists()
    injector.undo(record)
