"""Faults of the network that a node itself can make: peers that are cut off, interfaces that go down."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type

from injectors import _control, _nftables, kernel, namespaces
from injectors._control import Network
from injectors._interfaces import MARK, Interface, State, marked
from injectors._nftables import PeerDrop
from injectors._ping import Answers, Ping
from injectors.contract import (
    Evidence,
    Ground,
    InjectorError,
    Order,
    Phase,
    Reality,
    Seconds,
    Stray,
    Support,
    Target,
    TargetKey,
    UndoRecord,
)

_OWN = "/proc/thread-self/ns/net"  # the node's: the agent is in it
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
        self.support(order.params, order.target).require(self.kind)
        _control.refuse_network(_networks(order.params.peers))
        before = {"table": f"{_nftables.MARK}{order.fault}", "namespace": namespaces.identity(_OWN)}
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
                names = tables.marked()
        except OSError:  # no nftables here, so no table of ours either
            return []
        boot = kernel.boot_id()
        return [
            Stray(
                f"table:{kept['inode']}:{name}",
                f"nftables table inet {name} (fault {name[len(_nftables.MARK) :]})",
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
    return None if network is None else kernel.made_inside(network, lambda: PeerDrop(name, ()))


def _told(peer: str, answers: Answers) -> str:
    trip = f" within {1000 * answers.median:.2f} ms" if answers.trips else ""
    return f"{peer} answered {len(answers.trips)} of {answers.sent}{trip}"


# -- interfaces ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinkDownParams:
    """Parameters of ``net.link_down``."""

    interface: str = field(metadata={"help": "the kernel's name of the interface, such as rdma0; never a control one"})


@dataclass(frozen=True)
class FlapParams(LinkDownParams):
    """Parameters of ``net.flap``."""

    down: Seconds = field(default=0.2, metadata={"help": "how long it is down each time"})
    up: Seconds = field(default=0.5, metadata={"help": "how long it is up in between"})

    def __post_init__(self) -> None:
        if self.down <= 0 or self.up <= 0:
            raise ValueError("down and up: write times above zero")


class LinkDown:
    """``net.link_down``: an interface goes down, and comes back with its addresses and routes."""

    kind: ClassVar[str] = "net.link_down"
    about: ClassVar[str] = "A network interface of a node goes down, as if its cable were pulled at the other end."
    mechanism: ClassVar[str] = (
        "The interface is set down through netlink (`ip link set down`); its alias bears the fault's id from before to "
        "after. A NIC whose RDMA bypasses the kernel may keep its port up: that is a fault of its own."
    )
    undoing: ClassVar[str] = (
        "The interface is set up, and the addresses and routes that the kernel has forgotten are given back as the "
        "kernel listed them before; then its former alias."
    )
    proof: ClassVar[str] = "The interface is up, has every address and route that it had, and its former alias."
    witnessed: ClassVar[str] = "The interface is down, as an administrator sees it; before, it was up."
    where: ClassVar[Mapping[Ground, Reality]] = {"lab": "real", "node": "real"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 1}", "with": "{interface: rdma0}", "for": "2s"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    targets: ClassVar[Tuple[TargetKey, ...]] = ("node",)
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"

    Params: ClassVar[Type[Any]] = LinkDownParams

    def __init__(self) -> None:
        self._interface: Optional[Interface] = None

    def support(self, params: Any, target: Target) -> Support:
        """Possible for root, on an interface that there is."""
        if os.geteuid() != 0:
            return Support("real", ("the right to change interfaces: run the agent as root of the node",))
        return Support("real")

    def plan(self, order: Order) -> UndoRecord:
        """Keep all that must come back; refuse a control interface, and one that is down or marked already."""
        self.support(order.params, order.target).require(self.kind)
        with contextlib.closing(Interface(order.params.interface)) as there:
            _control.refuse_interface(there, there.index, there.name)
            if there.name == "lo":
                raise InjectorError("lo is never a target: nothing on the node works without it")
            state = there.state()
            if state.alias.startswith(MARK):
                raise InjectorError(f"{there.name} bears the mark of a former fault ({state.alias}): chaos sweep")
            if not state.up:
                raise InjectorError(f"{there.name} is down already: there is nothing to take away")
            if there.shares_routes():
                raise InjectorError(
                    f"{there.name} is one of several ways of a route, which could not be given back exactly: "
                    "aim at another interface"
                )
        before = {"namespace": namespaces.identity(_OWN), "state": state.as_json()}
        return UndoRecord.of(self, order, before)

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The interface: as for all that is done to it."""
        return (f"link:{os.stat(_OWN).st_ino}:{order.params.interface}",)

    def prepare(self, record: UndoRecord) -> None:
        """Mark the interface."""
        self._interface = Interface(record.params["interface"])
        self._interface.mark(f"{MARK}{record.fault}")

    def inject(self, record: UndoRecord) -> int:
        """Down: one message."""
        assert self._interface is not None, "prepare comes first"
        self._interface.take_down()
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Look at the interface."""
        there = _interface(record)
        if there is None:
            return Evidence(None, f"{record.params['interface']} has gone", {})
        with contextlib.closing(there):
            lost = there.missing(State.from_json(record.before["state"]))
            up = there.up
        text = "; ".join(lost) or f"{there.name} is up"
        return Evidence(not up, text, {"up": up, "lost": len(lost)})

    def undo(self, record: UndoRecord) -> int:
        """Up, with everything; the alias last, so that a process that dies in between leaves the mark."""
        there = _interface(record)
        if there is None:
            return time.monotonic_ns()
        state = State.from_json(record.before["state"])
        with contextlib.closing(there):
            if there.alias == f"{MARK}{record.fault}":  # else it is somebody else's by now, or was never ours
                there.bring_up(state)
                ended = time.monotonic_ns()
                if not there.missing(state):  # else it keeps the mark, and is tried again
                    there.mark(state.alias)
                return ended
        return time.monotonic_ns()

    def residue(self, record: UndoRecord) -> List[str]:
        """An interface that still bears our mark, with all that it lacks."""
        try:
            there = _interface(record)
        except InjectorError as error:
            return [str(error)]
        if there is None:
            return []
        with contextlib.closing(there):
            if there.alias != f"{MARK}{record.fault}":
                return []
            lost = there.missing(State.from_json(record.before["state"]))
            return [f"{there.name} bears the mark {there.alias}{': ' if lost else ''}{'; '.join(lost)}"]

    def strays(self, target: Target) -> List[Stray]:
        """Interfaces that bear our mark, whichever of the two kinds has set it."""
        kept = namespaces.identity(_OWN)
        return [
            Stray(
                f"link:{kept['inode']}:{link.name}",
                f"interface {link.name} with the alias {link.alias} (fault {link.alias[len(MARK) :]})",
                {"namespace": kept, "interface": link.name, "alias": link.alias, "boot": kernel.boot_id()},
            )
            for link in marked()
        ]

    def clear(self, stray: Stray) -> None:
        """Up, and without the mark; routes that were not the kernel's own are known to nobody without the record."""
        network = namespaces.find(stray.where["namespace"], stray.where["boot"])
        there = None if network is None else _at(network, stray.where["interface"])
        if there is None:
            return
        with contextlib.closing(there):
            if there.alias == stray.where["alias"]:
                there.bring_up(State(True, "", [], []))
                there.mark("")


class Flap(LinkDown):
    """``net.flap``: an interface goes down and up again and again."""

    kind: ClassVar[str] = "net.flap"
    about: ClassVar[str] = "A network interface of a node goes down and comes back, again and again."
    mechanism: ClassVar[str] = (
        "As net.link_down, repeated by a thread of the agent; each time it comes up it gets its addresses and routes "
        "back. If the agent dies, its guardian brings the interface up for good."
    )
    witnessed: ClassVar[str] = "The interface has been seen down; how often it went down is told."
    example: ClassVar[Mapping[str, str]] = {
        "on": "{node: 1}",
        "with": "{interface: rdma0, down: 200ms, up: 500ms}",
        "for": "3s",
    }
    Params: ClassVar[Type[Any]] = FlapParams

    def __init__(self) -> None:
        super().__init__()
        self._over = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._downs = 0

    def inject(self, record: UndoRecord) -> int:
        """Down for the first time; a thread goes on."""
        stamped = super().inject(record)
        self._downs = 1
        self._thread = threading.Thread(target=self._flap, args=(record,), name="flap", daemon=True)
        self._thread.start()
        return stamped

    def _flap(self, record: UndoRecord) -> None:
        there, state = self._interface, State.from_json(record.before["state"])
        assert there is not None
        with contextlib.suppress(OSError):  # the interface has gone: there is nothing more to do to it
            while not self._over.wait(record.params["down"]):
                there.bring_up(state)
                if self._over.wait(record.params["up"]):
                    return
                there.take_down()
                self._downs += 1

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """During: wait until it is seen down."""
        end = time.monotonic() + budget
        seen = super().witness(record, phase, budget)
        while phase == "during" and not seen.effective and time.monotonic() < end:
            time.sleep(0.005)
            seen = super().witness(record, phase, budget)
        return Evidence(seen.effective, f"{seen.text}; it went down {self._downs} times so far", seen.numbers)

    def undo(self, record: UndoRecord) -> int:
        """Stop, then as net.link_down."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        return super().undo(record)

    def strays(self, target: Target) -> List[Stray]:
        """None of its own: net.link_down finds what bears the mark of either."""
        return []


def _interface(record: UndoRecord) -> Optional[Interface]:
    """The record's interface; ``None`` if it has gone, or its namespace has."""
    network = namespaces.find(record.before["namespace"], record.boot)
    return None if network is None else _at(network, record.params["interface"])


def _at(network: int, name: str) -> Optional[Interface]:
    """An interface in a namespace, whose descriptor is closed; ``None`` if there is none."""
    try:
        return kernel.made_inside(network, lambda: Interface(name))
    except InjectorError:
        return None
