"""Faults of the fabric between GPUs of a node: NVLink and NVSwitch.

No public interface black-holes one NVSwitch path of an HGX board while a job runs; in the lab the NVSwitch is a bridge,
and the path between two of its ports can be dropped exactly.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, Iterable, List, Literal, Mapping, Optional, Sequence, Set, Tuple, Type

from injectors import kernel, namespaces
from injectors._links import Links
from injectors._nftables import MARK, TimedDrop
from injectors.contract import (
    GPU,
    Evidence,
    Ground,
    InjectorError,
    Order,
    Phase,
    Reality,
    Stray,
    Support,
    Target,
    TargetKey,
    UndoRecord,
)

# The kernel ends the fault by itself so much after its end, if the agent has not ended it to the millisecond: nftables
# counts time-outs in timer ticks (4 ms at HZ=250), so the kernel alone would be up to a tick early or late.
_KERNEL_MARGIN = 0.02
_PROBE_GAP = 0.004
_PROBE_PATIENCE = 0.02


class _PathProbe:
    """Sends numbered datagrams from one GPU to another over the NVSwitch and counts what arrives."""

    def __init__(self, sender: int, receiver: int) -> None:
        with kernel.inside(receiver):
            self._to = _bound_socket()
        with kernel.inside(sender):
            self._from = _bound_socket()
        self._address = self._to.getsockname()
        self._next = 0

    def close(self) -> None:
        self._to.close()
        self._from.close()

    def count(self, packets: int) -> int:
        """How many of so many datagrams arrive."""
        first = self._next
        for _ in range(packets):
            with contextlib.suppress(OSError):  # no neighbour known: it does not arrive
                self._from.sendto(b"chaos %d" % self._next, self._address)
            self._next += 1
            time.sleep(_PROBE_GAP)
        arrived: Set[int] = set()
        poll = select.poll()
        poll.register(self._to, select.POLLIN)
        while len(arrived) < packets and poll.poll(int(_PROBE_PATIENCE * 1000)):
            number = int(self._to.recv(64).split()[1])
            if number >= first:
                arrived.add(number)
        return len(arrived)


def _bound_socket() -> socket.socket:
    """A datagram socket on the NVLink port of the GPU whose namespace this thread is in."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"nvl0")
    with contextlib.closing(Links()) as links:
        sock.bind((links.address("nvl0"), 0))
    sock.setblocking(False)
    return sock


@dataclass
class _Held:
    drop: TimedDrop
    probes: Dict[str, _PathProbe]


@dataclass(frozen=True)
class BlackholeParams:
    """Parameters of ``fabric.blackhole``."""

    source: GPU = field(metadata={"name": "from", "help": "the GPU at one end: gpu0, gpu1, ..."})
    to: GPU = field(metadata={"help": "the GPU at the other end"})
    direction: Literal["both", "forward"] = field(
        default="both", metadata={"help": "drop both ways, or only from `from` to `to`"}
    )

    def __post_init__(self) -> None:
        if self.source == self.to:
            raise ValueError(f"from and to are both {self.to}: a path has two different ends")


class Blackhole:
    """``fabric.blackhole``: the NVSwitch silently drops everything on one path between two GPUs of a node."""

    kind: ClassVar[str] = "fabric.blackhole"
    about: ClassVar[str] = "An NVSwitch silently drops everything on one path between two GPUs of a node."
    mechanism: ClassVar[str] = (
        "An nftables table of ours on the NVSwitch's bridge drops all frames between the two GPUs' ports; its set "
        "elements carry a time-out, and the table goes with the process that made it: the kernel ends it by itself."
    )
    undoing: ClassVar[str] = "The set's elements are removed, then the table that bears the fault's id is deleted."
    proof: ClassVar[str] = (
        "Datagrams pass the path again in both directions, and the NVSwitch has no table with the fault's id."
    )
    witnessed: ClassVar[str] = (
        "Datagrams are sent over the path, both ways: before, all arrive; during, none where it is dropped. The drop's "
        "packet counter is told."
    )
    where: ClassVar[Mapping[Ground, Reality]] = {"lab": "emulated"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 0}", "with": "{from: gpu0, to: gpu1}", "for": "500ms"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    targets: ClassVar[Tuple[TargetKey, ...]] = ("node",)
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"

    Params: ClassVar[Type[Any]] = BlackholeParams

    def __init__(self) -> None:
        self._held: Optional[_Held] = None

    def support(self, params: BlackholeParams, target: Target) -> Support:
        """Possible where the NVSwitch is the lab's and the kernel filters bridged frames."""
        missing = []
        if "nvswitch" not in target.namespaces:
            missing.append(
                "an emulated NVSwitch: no public interface drops one path of a real one while a job runs; use the lab, "
                "or between runs lower the bandwidth mode or block links"
            )
        else:
            problem = kernel.made_inside(kernel.open_network(target.namespaces["nvswitch"]), _nftables_problem)
            if problem:
                missing.append(problem)
        for gpu in (params.source, params.to):
            if "nvswitch" in target.namespaces and gpu not in target.namespaces:
                known = ", ".join(sorted(name for name in target.namespaces if name.startswith("gpu")))
                missing.append(f"a GPU {gpu!r} on this node (it has {known})")
        return Support("emulated", tuple(missing))

    def plan(self, order: Order) -> UndoRecord:
        """Keep where the switch and the GPUs are; refuse a path that is not there."""
        self.support(order.params, order.target).require(self.kind)
        ports = [_port_of(order.params.source), _port_of(order.params.to)]
        switch = kernel.open_network(order.target.namespaces["nvswitch"])
        with contextlib.closing(kernel.made_inside(switch, Links)) as links:
            for port in ports:
                if links.find(port) is None:
                    raise InjectorError(f"the NVSwitch has no port {port}")
        dead = ports[1:] if order.params.direction == "forward" else ports
        switch_before = namespaces.identity(order.target.namespaces["nvswitch"])
        before = {"table": f"{MARK}{order.fault}", "ports": ports, "dead": dead, "switch": switch_before}
        return UndoRecord.of(self, order, before)

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The path between the two ports, in either direction: two paths of one switch do not meet."""
        switch = namespaces.identity(order.target.namespaces["nvswitch"])["inode"]
        return (_path_name(switch, (_port_of(order.params.source), _port_of(order.params.to))),)

    def prepare(self, record: UndoRecord) -> None:
        """Make the empty table and open the probes' sockets."""
        drop = self._open(record)
        if drop is None:
            raise InjectorError("the NVSwitch has gone")
        assert record.duration is not None, "the document requires `for`"
        drop.create()
        drop.ready(record.before["dead"], int((record.duration + _KERNEL_MARGIN) * 1000))
        names = record.target["namespaces"]
        ends = [kernel.open_network(names[record.params[key]]) for key in ("source", "to")]
        try:
            probes = {"forward": _PathProbe(ends[0], ends[1]), "back": _PathProbe(ends[1], ends[0])}
        finally:
            for fd in ends:
                os.close(fd)
        self._held = _Held(drop, probes)

    def inject(self, record: UndoRecord) -> int:
        """Name the dead ports: one transaction."""
        assert self._held is not None, "prepare comes first"
        self._held.drop.start()
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Send datagrams over the path, both ways: in effect when none arrives where it should be dropped."""
        if self._held is None:
            return Evidence(None, "the path was not measured: its probes are not open")
        packets = max(1, min(8, int((budget - 2 * _PROBE_PATIENCE) / (2 * _PROBE_GAP))))
        arrived = {way: probe.count(packets) for way, probe in self._held.probes.items()}
        ways = ("forward",) if record.params["direction"] == "forward" else ("forward", "back")
        effective = all(arrived[way] == 0 for way in ways)
        if not effective and any(arrived[way] < packets for way in ways):
            effective_or_unknown: Optional[bool] = None  # some arrived, some did not: neither whole nor gone
        else:
            effective_or_unknown = effective
        dropped = self._held.drop.dropped()
        text = (
            f"{arrived['forward']} of {packets} datagrams arrived from {record.params['source']} to "
            f"{record.params['to']}, {arrived['back']} of {packets} back; {dropped} packets dropped so far"
        )
        numbers = {"sent": packets, "arrived": arrived, "dropped": dropped}
        return Evidence(effective_or_unknown, text, numbers)

    def undo(self, record: UndoRecord) -> int:
        """Delete our table; where it is at hand the dead ports first, so that the end is as exact as the start."""
        if self._held:
            self._held.drop.stop()
            ended = time.monotonic_ns()
            self._held.drop.delete()
            return ended
        drop = self._open(record)
        if drop is not None:  # else the switch has gone with its node, and our table with it
            try:
                drop.delete()
            finally:
                drop.close()
        return time.monotonic_ns()

    def residue(self, record: UndoRecord) -> List[str]:
        """Our table, if it is still there; a namespace that has gone took it along."""
        try:
            drop = self._open(record)
        except InjectorError as error:
            return [str(error)]
        if drop is None:
            return []
        try:
            return [f"nftables table bridge {record.before['table']}"] if drop.exists() else []
        finally:
            drop.close()

    @staticmethod
    def _open(record: UndoRecord) -> Optional[TimedDrop]:
        """The fault's table, there or not; ``None`` where its switch has gone."""
        by_path = {"path": record.target["namespaces"]["nvswitch"]}  # all that a record of version 1 has
        switch = namespaces.find(record.before.get("switch", by_path), record.boot)
        return None if switch is None else _in_switch(switch, record.before["table"], record.before["ports"])

    def strays(self, target: Target) -> List[Stray]:
        """Tables of ours in the node's NVSwitch: the name tells the fault, the rules tell the path."""
        if "nvswitch" not in target.namespaces:
            return []
        kept = namespaces.identity(target.namespaces["nvswitch"])
        found = []
        with contextlib.closing(_in_switch(kernel.open_network(kept["path"]), "", ())) as switch:
            names = switch.marked()
        for name in names:
            with contextlib.closing(_in_switch(kernel.open_network(kept["path"]), name, ())) as table:
                ports = table.ports()
            text = f"nftables table bridge {name} in the NVSwitch (fault {name[len(MARK) :]})"
            device = _path_name(kept["inode"], ports or (name,))
            found.append(Stray(device, text, {"switch": kept, "table": name, "boot": kernel.boot_id()}))
        return found

    def clear(self, stray: Stray) -> None:
        """Delete the table."""
        switch = namespaces.find(stray.where["switch"], stray.where["boot"])
        if switch is not None:
            with contextlib.closing(_in_switch(switch, stray.where["table"], ())) as drop:
                drop.delete()


def _in_switch(switch: int, table: str, ports: Sequence[str]) -> TimedDrop:
    """A table in a switch, there or not; closes the descriptor of the switch's namespace."""
    return kernel.made_inside(switch, lambda: TimedDrop(table, ports))


def _path_name(switch: int, ports: Iterable[str]) -> str:
    """The same name whatever the direction."""
    return f"nvswitch:{switch}:{'-'.join(sorted(ports))}"


def _port_of(gpu: str) -> str:
    return gpu.replace("gpu", "nvl", 1)


def _nftables_problem() -> Optional[str]:
    """Why this kernel cannot filter bridged frames, with the remedy; ``None`` where it can. Reads only."""
    try:
        with contextlib.closing(TimedDrop("", ())) as drop:
            drop.tables()
    except OSError as error:
        return f"nftables in this kernel ({error}): load nf_tables, or build with CONFIG_NF_TABLES_BRIDGE"
    return None
