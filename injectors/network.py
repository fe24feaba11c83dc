"""Faults of the network that a node itself can make: peers that are cut off."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type

from injectors import _control, kernel, namespaces
from injectors._control import Network
from injectors._nftables import PeerDrop
from injectors._ping import Answers, Ping
from injectors.contract import (
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

_OWN = "/proc/thread-self/ns/net"  # the node's: the agent is in it
_MARK = "chaos_"
_KERNEL_MARGIN = 0.02  # seconds by which the kernel's time-out outlasts the agent's own end: it counts in ticks
_MOST_ASKED = 3  # peers whose answers are a witness


@dataclass(frozen=True)
class PartitionParams:
    """Parameters of ``net.partition``."""

    peers: List[str] = field(
        metadata={"help": "addresses or prefixes that are cut off, IPv4 or IPv6, such as '10.0.0.7' or '10.1.0.0/16'"}
    )
    direction: Literal["both", "from", "to"] = field(
        default="both", metadata={"help": "what is lost: all, what comes from the peers, or what goes to them"}
    )

    def __post_init__(self) -> None:
        if not self.peers:
            raise ValueError("peers: found an empty list; write at least one address")
        _networks(self.peers)


def _networks(peers: Sequence[str]) -> List[Network]:
    found = []
    for text in peers:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ValueError(f"peers: found {text!r}; write an address or a prefix, such as 10.0.0.7") from None
        if network.prefixlen == 0:
            raise ValueError(f"peers: found {text!r}, which is everybody; write whom")
        found.append(network)
    return found


class Partition:
    """``net.partition``: the node and some peers do not hear each other."""

    kind: ClassVar[str] = "net.partition"
    about: ClassVar[str] = "A node and some of its peers do not hear each other: everything between them is dropped."
    mechanism: ClassVar[str] = (
        "An nftables table of ours drops what comes from the peers' addresses and goes to them, also what the node "
        "only passes on; its set elements carry a time-out, and the table goes with the process that made it: the "
        "kernel ends it by itself. What bypasses the kernel (RDMA on a hardware NIC) is not dropped."
    )
    undoing: ClassVar[str] = "The set's elements are removed, then the table that bears the fault's id is deleted."
    proof: ClassVar[str] = "The node has no nftables table with the fault's id."
    witnessed: ClassVar[str] = (
        "Peers that are single addresses are asked by ICMP echo: before, they answer; during, none does. The packets "
        "that were dropped are counted; where no peer answers before, they alone are the witness."
    )
    where: ClassVar[Mapping[Ground, Reality]] = {"lab": "real", "node": "real"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 0}", "with": '{peers: ["10.88.0.2"]}', "for": "2s"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    targets: ClassVar[Tuple[TargetKey, ...]] = ("node",)
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"

    Params: ClassVar[Type[Any]] = PartitionParams

    def __init__(self) -> None:
        self._drop: Optional[PeerDrop] = None
        self._pings: Dict[str, Ping] = {}
        self._answered: List[str] = []

    def support(self, params: PartitionParams, target: Target) -> Support:
        """Possible where the kernel has nftables, and this user may change them."""
        try:
            with contextlib.closing(PeerDrop("", ())) as tables:
                tables.tables()
        except PermissionError:
            return Support("real", ("the right to change nftables: run the agent as root of the node",))
        except OSError as error:
            return Support("real", (f"nftables: {error.strerror}; modprobe nf_tables, or a kernel that has it",))
        return Support("real")

    def plan(self, order: Order) -> UndoRecord:
        """Refuse to cut off the controller; keep where the node's interfaces are."""
        support = self.support(order.params, order.target)
        if not support.possible:
            raise InjectorError("net.partition is not possible here; missing: " + "; ".join(support.missing))
        _control.refuse_network(_networks(order.params.peers))
        before = {"table": f"{_MARK}{order.fault}", "namespace": namespaces.identity(_OWN)}
        return UndoRecord.of(self, order, before)

    def devices(self, order: Order) -> Tuple[str, ...]:
        """Each peer: a second partition from it would be witnessed by the first."""
        inode = os.stat(_OWN).st_ino
        return tuple(sorted({f"peer:{inode}:{network}" for network in _networks(order.params.peers)}))

    def prepare(self, record: UndoRecord) -> None:
        """Make the table, which drops nothing yet, and the sockets that ask the peers."""
        networks = _networks(record.params["peers"])
        direction = record.params["direction"]
        assert record.duration is not None, "the document requires `for`"
        drop = PeerDrop(record.before["table"], networks, incoming=direction != "to", outgoing=direction != "from")
        drop.create()
        drop.ready(int((record.duration + _KERNEL_MARGIN) * 1000))
        self._drop = drop
        single = [str(network.network_address) for network in networks if network.num_addresses == 1]
        for peer in single[:_MOST_ASKED]:
            with contextlib.suppress(OSError):  # this user may not ask: what is dropped is counted all the same
                self._pings[peer] = Ping(peer)

    def inject(self, record: UndoRecord) -> int:
        """Put the protocols into the set: one transaction."""
        assert self._drop is not None, "prepare comes first"
        self._drop.start()
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Ask the peers, and count what was dropped."""
        if self._drop is None:
            return Evidence(None, "the peers were not asked: the sockets are not open")
        answers = {peer: ping.ask(budget / len(self._pings)) for peer, ping in self._pings.items()}
        dropped = self._drop.dropped() if phase != "after" else None
        if phase == "before":
            self._answered = [peer for peer, told in answers.items() if told.trips]
        text = ", ".join(_told(peer, told) for peer, told in answers.items())
        if dropped is not None:
            text += f"{'; ' if text else ''}{dropped} packets dropped so far"
        numbers = {"answers": {peer: len(told.trips) for peer, told in answers.items()}, "dropped": dropped}
        return Evidence(self._effective(answers, dropped, phase), text or "nobody could be asked", numbers)

    def _effective(self, answers: Dict[str, Answers], dropped: Optional[int], phase: Phase) -> Optional[bool]:
        if phase == "before":
            return False
        if self._answered:
            return all(not answers[peer].trips for peer in self._answered)
        if phase == "after":
            return False  # that the table has gone is proven apart
        return True if dropped else None

    def undo(self, record: UndoRecord) -> int:
        """Delete our table; where it is at hand the set's elements first, so that the end is as exact as the start."""
        if self._drop is not None:
            self._drop.stop()
            ended = time.monotonic_ns()
            self._drop.delete()
            return ended
        drop = _table(record.before["namespace"], record.boot, record.before["table"])
        if drop is not None:
            with contextlib.closing(drop):
                drop.delete()
        return time.monotonic_ns()

    def residue(self, record: UndoRecord) -> List[str]:
        """Our table, if it is still there; a namespace that has gone took it along."""
        try:
            drop = _table(record.before["namespace"], record.boot, record.before["table"])
        except InjectorError as error:
            return [str(error)]
        if drop is None:
            return []
        with contextlib.closing(drop):
            return [f"nftables table inet {record.before['table']}"] if drop.exists() else []

    def strays(self, target: Target) -> List[Stray]:
        """Tables that bear our mark: the name tells the fault."""
        kept = namespaces.identity(_OWN)
        try:
            with contextlib.closing(PeerDrop("", ())) as tables:
                names = [table.name for table in tables.tables() if table.name.startswith(_MARK)]
        except OSError:  # no nftables here, so no table of ours either
            return []
        boot = kernel.boot_id()
        return [
            Stray(
                f"table:{kept['inode']}:{name}",
                f"nftables table inet {name} (fault {name[len(_MARK) :]})",
                {"namespace": kept, "table": name, "boot": boot},
            )
            for name in names
        ]

    def clear(self, stray: Stray) -> None:
        """Delete the table."""
        drop = _table(stray.where["namespace"], stray.where["boot"], stray.where["table"])
        if drop is not None:
            with contextlib.closing(drop):
                drop.delete()


def _table(kept: Dict[str, Any], boot: str, name: str) -> Optional[PeerDrop]:
    """A table in a namespace that a record keeps, there or not; ``None`` where the namespace has gone."""
    network = namespaces.find(kept, boot)
    if network is None:
        return None
    try:
        with kernel.inside(network):
            return PeerDrop(name, ())
    finally:
        os.close(network)


def _told(peer: str, answers: Answers) -> str:
    trip = f" within {1000 * answers.median:.2f} ms" if answers.trips else ""
    return f"{peer} answered {len(answers.trips)} of {answers.sent}{trip}"
