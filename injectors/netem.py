"""Faults of a link's quality: what is sent comes late, twice, damaged, or not at all."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, Iterator, List, Literal, Mapping, Optional, Tuple, Type

from injectors import _control, _netem, kernel, namespaces
from injectors._netem import KIND, MISSING, NetemEnd, Shape
from injectors._ping import Ping
from injectors._qdisc import Mark
from injectors.contract import (
    BitsPerSecond,
    Evidence,
    Ground,
    InjectorError,
    Order,
    Phase,
    Ratio,
    Reality,
    Seconds,
    Stray,
    Support,
    Target,
    TargetKey,
    UndoRecord,
)

_OWN = "/proc/thread-self/ns/net"  # the node's: the agent is in it
_LEAST_RISE = 0.5  # of the delay, by which a round trip must be longer
_LEAST_DRAIN, _MOST_DRAIN = 0.05, 2.0  # seconds in which what is queued may leave
_LOOK = 0.005  # seconds between two looks at the counters

Distribution = Literal["uniform", "normal"]


@dataclass(frozen=True)
class JitterParams:
    """Parameters of ``net.rdma_jitter``."""

    interface: str = field(metadata={"help": "the kernel's name of the interface, such as rdma0; never a control one"})
    delay: Seconds = field(default=0.0, metadata={"help": "how much later every packet leaves"})
    jitter: Seconds = field(
        default=0.0, metadata={"help": "how much more or less that is; packets may overtake others"}
    )
    distribution: Distribution = field(
        default="normal",
        metadata={"help": "of the jitter: it is the standard deviation (normal) or the most (uniform)"},
    )
    peer: Optional[str] = field(
        default=None, metadata={"help": "an address behind the interface: the round trip to it is the witness"}
    )

    def __post_init__(self) -> None:
        if self.delay < 0 or self.jitter < 0:
            raise ValueError("delay and jitter: write times of zero or more")
        if self.jitter > self.delay:
            raise ValueError(f"found a jitter of {self.jitter:g} s; write a delay of at least that: time has one way")
        if self.peer is not None:
            try:
                ipaddress.ip_address(self.peer)
            except ValueError:
                raise ValueError(f"peer: found {self.peer!r}; write an address, such as 10.0.0.7") from None
        if not self.has_effect():
            raise ValueError(f"found nothing that would change anything; write {self.effects}")

    effects: ClassVar[str] = "a delay"

    def has_effect(self) -> bool:
        """Whether anything is asked for."""
        return self.delay > 0


@dataclass(frozen=True)
class NetemParams(JitterParams):
    """Parameters of ``net.netem``."""

    loss: Ratio = field(default=0.0, metadata={"help": "the share of packets that are lost"})
    burst: float = field(
        default=0.0, metadata={"help": "how many are lost one after the other, on average; 0: each by chance"}
    )
    duplicate: Ratio = field(default=0.0, metadata={"help": "the share that comes twice"})
    corrupt: Ratio = field(default=0.0, metadata={"help": "the share in which a bit is turned over"})
    reorder: Ratio = field(default=0.0, metadata={"help": "the share that leaves at once, before what is delayed"})
    rate: BitsPerSecond = field(default=0.0, metadata={"help": "what the link carries; 0: as much as it does"})

    effects: ClassVar[str] = "a delay, loss, duplicate, corrupt or rate"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("loss", "duplicate", "corrupt", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: write a share from 0% to 100%")
        if self.burst and (self.burst < 1 or not 0 < self.loss < 1):
            raise ValueError("burst: write 1 or more, beside a loss above 0% and below 100%")
        if self.reorder and not self.delay:
            raise ValueError("reorder: write a delay too: packets overtake those that are delayed")
        if self.rate < 0:
            raise ValueError("rate: write a rate above zero")

    def has_effect(self) -> bool:
        """Whether anything is asked for."""
        return any((self.delay, self.loss, self.duplicate, self.corrupt, self.rate))


class Netem:
    """``net.netem``: what an interface sends is delayed, lost, doubled, damaged, reordered or held back."""

    kind: ClassVar[str] = "net.netem"
    about: ClassVar[str] = (
        "What a network interface of a node sends is delayed, lost, doubled, damaged, reordered or held back."
    )
    mechanism: ClassVar[str] = (
        "The kernel's netem as the interface's root qdisc, put in place beforehand without effect; one netlink message "
        "gives it what was asked for. Only what is sent is changed, of all peers alike. Its limit follows from delay "
        "and speed, so that it loses nothing else. RDMA that bypasses the kernel passes it by."
    )
    undoing: ClassVar[str] = (
        "One message takes the effect back, what is queued leaves, and the qdisc is removed if its handle and limit "
        "are those in the record; the interface has the kernel's default again. A root qdisc that somebody has set is "
        "refused from the start."
    )
    proof: ClassVar[str] = "A list of the qdiscs shows that the interface's root qdisc is none of ours."
    witnessed: ClassVar[str] = (
        "The kernel's own list shows the parameters, and packets that have passed since; where a peer is named, its "
        "answers take longer by at least half the delay."
    )
    where: ClassVar[Mapping[Ground, Reality]] = {"lab": "real", "node": "real"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]] = {
        "on": "{node: 1}",
        "with": "{interface: rdma0, delay: 5ms, jitter: 1ms, loss: 0.1%}",
        "for": "5s",
    }
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    targets: ClassVar[Tuple[TargetKey, ...]] = ("node",)
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"
    Params: ClassVar[Type[Any]] = NetemParams

    def __init__(self) -> None:
        self._end: Optional[NetemEnd] = None
        self._ping: Optional[Ping] = None
        self._before = 0.0  # seconds of a round trip; 0: not answered
        self._passed = 0  # packets, when it began

    def support(self, params: Any, target: Target) -> Support:
        """Possible for root, on a kernel that has netem."""
        try:
            return Support("real") if _netem.available() else Support("real", (MISSING,))
        except PermissionError:
            return Support("real", ("the right to change interfaces: run the agent as root of the node",))

    def plan(self, order: Order) -> UndoRecord:
        """Refuse a control interface, and one on which somebody has set a qdisc."""
        self.support(order.params, order.target).require(self.kind)
        name = order.params.interface
        with contextlib.closing(NetemEnd()) as end:
            link = end.choose(name)
            if link is None:
                raise InjectorError(f"there is no interface {name}; it has {', '.join(sorted(end.names().values()))}")
            if name == "lo":
                raise InjectorError("lo is never a target: nothing on the node works without it")
            if not link.up:
                raise InjectorError(f"{name} is down: nothing is sent over it")
            _control.refuse_interface(end, link.interface, name)
            end.refuse_others(KIND, name)
        before = {"namespace": namespaces.identity(_OWN), "shape": _shape(order)._asdict()}
        return UndoRecord.of(self, order, before)

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The interface: as for all that is done to it."""
        return (f"link:{os.stat(_OWN).st_ino}:{order.params.interface}",)

    def prepare(self, record: UndoRecord) -> None:
        """Put the qdisc in place, which does nothing yet, and open the witness's socket."""
        name, peer = record.params["interface"], record.params["peer"]
        self._end = NetemEnd()
        if self._end.choose(name) is None:
            raise InjectorError(f"the interface {name} has gone")
        self._end.create(_of(record))
        if peer is not None:
            self._ping = Ping(peer)

    def inject(self, record: UndoRecord) -> int:
        """Change the parameters: one message."""
        assert self._end is not None, "prepare comes first"
        self._end.start()
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Read the kernel's list, and ask the peer where there is one."""
        if self._end is None:
            return Evidence(None, "not measured: the sockets of its witness are not open")
        shape, name = _of(record), record.params["interface"]
        trip = None if self._ping is None else self._ping.ask(min(budget, 1.0)).median
        end = time.monotonic() + budget
        while True:
            qdisc = self._end.ours(shape.mark)
            there = qdisc is not None and shape.is_set(qdisc)
            passed = 0 if qdisc is None else qdisc.packets
            if phase != "during" or not there or passed > self._passed or time.monotonic() > end:
                break
            time.sleep(_LOOK)
        if phase == "before":
            self._before, self._passed = trip or 0.0, passed
        text = f"{qdisc} on {name}" if there else f"{name} sends as ever"
        numbers: Dict[str, Any] = {"set": there, "packets": passed - self._passed}
        if qdisc is not None:
            numbers["dropped"] = qdisc.dropped
            text += f"; {numbers['packets']} packets have passed, {qdisc.dropped} were lost"
        if trip is not None:
            numbers |= {"round_trip_s": trip, "before_s": self._before}
            text += f"; {record.params['peer']} answers " + (f"within {1000 * trip:.2f} ms" if trip else "nothing")
            text += f" (before, {1000 * self._before:.2f} ms)" if phase != "before" else ""
        passing_by = _netem.bypass(name)
        if passing_by is not None:
            text += f"; what RDMA sends by {passing_by} passes it by"
        return Evidence(self._effective(shape, there, phase, numbers), text, numbers)

    def _effective(self, shape: Shape, there: bool, phase: Phase, numbers: Dict[str, Any]) -> Optional[bool]:
        if phase != "during" or not there:
            return there
        trip = numbers.get("round_trip_s", 0.0)
        if shape.delay and trip and self._before:
            return bool(trip - self._before >= _LEAST_RISE * shape.delay / 1e9)
        return True if numbers["packets"] > 0 else None

    def undo(self, record: UndoRecord) -> int:
        """Take the effect back, then remove what is ours once it has sent what it holds."""
        if self._end is not None:
            return _release(self._end, record)
        with _there(record.before["namespace"], record.boot, record.params["interface"]) as end:
            return time.monotonic_ns() if end is None else _release(end, record)

    def residue(self, record: UndoRecord) -> List[str]:
        """Our qdisc; an interface that has gone took it along."""
        name = record.params["interface"]
        try:
            with _there(record.before["namespace"], record.boot, name) as end:
                found = None if end is None else end.ours(_of(record).mark)
        except InjectorError as error:
            return [str(error)]
        return [] if found is None else [f"{found} on {name}"]

    def strays(self, target: Target) -> List[Stray]:
        """Qdiscs of the node that bear our mark, whichever of the two kinds has set them."""
        kept = namespaces.identity(_OWN)
        with contextlib.closing(NetemEnd()) as end:
            names = end.names()
            found = [qdisc for qdisc in end.qdiscs() if qdisc.marked(KIND)]
        return [
            Stray(
                f"link:{kept['inode']}:{names[qdisc.interface]}",
                f"{qdisc} on {names[qdisc.interface]}",
                {
                    "namespace": kept,
                    "interface": names[qdisc.interface],
                    "handle": qdisc.handle,
                    "limit": qdisc.limit,
                    "boot": kernel.boot_id(),
                },
            )
            for qdisc in found
        ]

    def clear(self, stray: Stray) -> None:
        """Remove the qdisc, if it is still the one that was found."""
        where = stray.where
        with _there(where["namespace"], where["boot"], where["interface"]) as end:
            if end is not None:
                end.remove(Mark(where["handle"], where["limit"]), 0.0)


class RdmaJitter(Netem):
    """``net.rdma_jitter``: what RDMA sends over an interface comes late, and not evenly so."""

    kind: ClassVar[str] = "net.rdma_jitter"
    about: ClassVar[str] = "What a node sends over its RDMA rail comes late, and not evenly so."
    mechanism: ClassVar[str] = (
        "As net.netem, where RDMA passes through the kernel (Soft-RoCE, soft iWARP, sockets). A NIC whose RDMA "
        "bypasses it is refused: no qdisc ever sees its packets."
    )
    example: ClassVar[Mapping[str, str]] = {
        "on": "{node: 1}",
        "with": "{interface: rdma0, delay: 2ms, jitter: 1ms}",
        "for": "5s",
    }
    Params: ClassVar[Type[Any]] = JitterParams

    def plan(self, order: Order) -> UndoRecord:
        """Refuse an interface whose RDMA no qdisc sees."""
        name = order.params.interface
        passing_by = _netem.bypass(name)
        if passing_by is not None:
            raise InjectorError(
                f"RDMA over {name} goes by {passing_by}, in hardware that bypasses the kernel: no qdisc ever sees it, "
                "and netem would delay sockets alone. What works there: a limit of its rate by the NIC's own tools "
                "(mlnx_qos), its port down; or a Soft-RoCE device instead"
            )
        return super().plan(order)

    def strays(self, target: Target) -> List[Stray]:
        """None of its own: net.netem finds what bears the mark of either."""
        return []


def _shape(order: Order) -> Shape:
    params = order.params
    more = {name: getattr(params, name, 0.0) for name in ("loss", "burst", "duplicate", "corrupt", "reorder", "rate")}
    packets = _netem.limit(params.delay, params.jitter, more["rate"], _netem.speed(params.interface))
    mark = Mark.of(order.fault, packets)
    return Shape(
        delay=round(params.delay * 1e9),
        jitter=round(params.jitter * 1e9),
        normal=params.distribution == "normal" and params.jitter > 0,
        rate=int(more.pop("rate") / 8),
        limit=mark.limit,
        handle=mark.handle,
        **more,
    )


def _of(record: UndoRecord) -> Shape:
    return Shape(**record.before["shape"])


@contextlib.contextmanager
def _there(kept: Dict[str, Any], boot: str, name: str) -> Iterator[Optional[NetemEnd]]:
    """The interface in the namespace that a record keeps; ``None`` if either has gone."""
    network = namespaces.find(kept, boot)
    if network is None:
        yield None
        return
    with contextlib.closing(kernel.made_inside(network, NetemEnd)) as end:
        yield end if end.choose(name) is not None else None


def _release(end: NetemEnd, record: UndoRecord) -> int:
    """Undo here. Returns CLOCK_MONOTONIC in ns at which the effect had ended."""
    shape = _of(record)
    ours = end.open(shape)
    ended = time.monotonic_ns()
    if ours:
        longest = (shape.delay + 4 * shape.jitter) / 1e9
        end.remove(shape.mark, min(max(_LEAST_DRAIN, longest), _MOST_DRAIN))
    return ended
