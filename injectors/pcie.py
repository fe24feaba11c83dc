"""Faults of PCIe.

In the lab a GPU's PCIe link is a veth between the GPU's network namespace and its node's, which carries all that the
GPU exchanges with other nodes; a token bucket at both of its ends slows it, each for the direction that it sends.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, Iterator, List, Literal, Mapping, Optional, Tuple, Type

from injectors import kernel, namespaces
from injectors._flood import End, Flood
from injectors._qdisc import Mark
from injectors._tbf import DRAIN, KIND, LinkEnd, Shape
from injectors.contract import (
    BitsPerSecond,
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

_LEAST, _MOST = 1e6, 20e9  # bits a second: a frame takes 12 ms at the least; no lab's link reaches the most
_OWN = "/proc/thread-self/ns/net"  # the node's: the agent is in it
_AT_GPU = "pcie0"
_NEAR = 0.25  # a link is as slow as was asked within so much of the rate
_FRAME_BITS, _FRAMES = 1514 * 8, 40  # a frame, and how many of them tell a rate
_LOOK, _LOOKS = 0.05, 3  # seconds of a look, and how many of them


@dataclass
class _Held:
    ends: List[LinkEnd]
    flood: Flood
    before: Tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class ThrottleParams:
    """Parameters of ``pcie.throttle``."""

    rate: BitsPerSecond = field(
        metadata={"help": "what each direction of the link carries, frames and all: 1Mbit/s up"}
    )

    def __post_init__(self) -> None:
        if not _LEAST <= self.rate <= _MOST:
            raise ValueError(f"a rate of {_bits(self.rate)}: 1 Mbit/s to 20 Gbit/s are possible")


class Throttle:
    """``pcie.throttle``: the PCIe link of a GPU carries less for a while, in both directions."""

    kind: ClassVar[str] = "pcie.throttle"
    about: ClassVar[str] = "The PCIe link of a GPU carries only so many bits a second, in both directions."
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    targets: ClassVar[Tuple[TargetKey, ...]] = ("gpu",)
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"
    mechanism: ClassVar[str] = (
        "A token bucket (tbf) at both ends of the GPU's emulated PCIe link, put in place beforehand with an open rate, "
        "gets the rate that was asked for: one netlink message for each end."
    )
    undoing: ClassVar[str] = (
        "The rate is opened, what is queued leaves, and the two qdiscs are removed, each only if its handle and limit "
        "are those in the record; the interfaces have their default again."
    )
    proof: ClassVar[str] = (
        "Datagrams fill the link both ways while the interfaces' counters are read; a list of the qdiscs in both "
        "namespaces shows that none of ours is left."
    )

    witnessed: ClassVar[str] = (
        "The link is filled with frames both ways, and their rate is measured: before, much more than asked passes; "
        "during, what was asked."
    )
    where: ClassVar[Mapping[Ground, Reality]] = {"lab": "emulated"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 0, gpu: 1}", "with": "{rate: 20Mbit/s}", "for": "500ms"}
    Params: ClassVar[Type[Any]] = ThrottleParams

    def __init__(self) -> None:
        self._held: Optional[_Held] = None

    def support(self, params: ThrottleParams, target: Target) -> Support:
        """Possible for the GPUs of a lab's node."""
        gpus = [name for name in sorted(target.namespaces) if name.startswith("gpu")]
        missing: Tuple[str, ...] = ()
        if not gpus:
            missing = (
                "an emulated PCIe link: that of a real GPU is not throttled in this version (by contention of pinned "
                "copies, or by the link's speed); use the lab",
            )
        elif _name(target) not in gpus:
            missing = (f"a GPU {_name(target)!r} on this node (it has {', '.join(gpus)})",)
        return Support("emulated", missing)

    def plan(self, order: Order) -> UndoRecord:
        """Keep where both ends are; refuse a link whose former state could not be brought back."""
        self.support(order.params, order.target).require(self.kind)
        ends = _ends(order.target)
        for end in ends:
            with _at(kernel.open_network(end["namespace"]["path"]), end["name"]) as there:
                if there is not None:
                    there.refuse_others(KIND, end["name"], f" ({end['where']})")
        shape = Shape.of(order.fault, order.params.rate)
        return UndoRecord.of(self, order, {"ends": list(ends), "shape": shape._asdict()})

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The link, by the end at the node: two rates on one link do not compose."""
        return (_link_name(_ends(order.target)[0]),)

    def prepare(self, record: UndoRecord) -> None:
        """Put the qdiscs in place, which slow nothing yet, and open the sockets of the witness."""
        shape = Shape(**record.before["shape"])
        ends, points = [], []
        with contextlib.ExitStack() as stack:
            for end in record.before["ends"]:
                network = kernel.open_network(end["namespace"]["path"])
                stack.callback(os.close, network)
                with kernel.inside(network):
                    there = LinkEnd()
                    if there.choose(end["name"]) is None:
                        raise InjectorError(f"the PCIe link {end['name']} at {end['where']} has gone")
                    points.append(End(network, end["name"], there.address(end["name"]), there.passed))
                there.create(shape)
                ends.append(there)
            flood = Flood((points[0], points[1]), shape.rate)
        self._held = _Held(ends, flood)

    def inject(self, record: UndoRecord) -> int:
        """Change the rate at both ends."""
        assert self._held is not None, "prepare comes first"
        for end in self._held.ends:
            end.start()
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Fill the link: it is slow if both directions carry about what was asked for, and carried much more before."""
        if self._held is None:
            return Evidence(None, "the link was not measured: the sockets of its witness are not open")
        shape = Shape(**record.before["shape"])
        asked = record.params["rate"]
        if phase == "during":
            rates, near = self._slow(shape, asked, budget)
            effective = near and all(rate >= 2 * asked for rate in self._held.before)
        else:
            rates = self._bits_of(self._held.flood.unshaped(shape.burst, 2 * shape.rate, budget))
            effective = any(rate < 2 * asked for rate in rates)
            if phase == "before":
                self._held.before = rates
        gpu = _name(Target(**record.target))
        text = f"{_bits(rates[1])} from {gpu} and {_bits(rates[0])} to it over PCIe"
        if phase != "during":
            text = "at least " + text
        else:
            text += f" ({_bits(asked)} asked; before {_bits(self._held.before[1])} and {_bits(self._held.before[0])})"
        numbers = {"from_gpu_bps": rates[1], "to_gpu_bps": rates[0], "asked_bps": asked}
        numbers["link_bytes"] = [end.passed() for end in self._held.ends]
        return Evidence(effective, text, numbers)

    def _slow(self, shape: Shape, asked: float, budget: float) -> Tuple[Tuple[float, float], bool]:
        """The rates of a link that should be slow, and whether they are near the one that was asked for.

        A machine that lets us wait fills the buckets meanwhile: look again, a few times.
        """
        assert self._held is not None
        end = time.monotonic() + budget
        seconds = min(max(_LOOK, _FRAMES * _FRAME_BITS / asked), budget / 2)
        for _ in range(_LOOKS):
            rates = self._bits_of(self._held.flood.shaped(shape.burst, seconds, seconds))
            near = all(abs(rate - asked) <= _NEAR * asked for rate in rates)
            if near or time.monotonic() + seconds > end:
                break
        return rates, near

    @staticmethod
    def _bits_of(rates: Tuple[float, float]) -> Tuple[float, float]:
        return 8 * rates[0], 8 * rates[1]

    def undo(self, record: UndoRecord) -> int:
        """Open the rate at both ends, which ends the effect, then remove what is ours."""
        if self._held is not None:
            return _release(self._held.ends, record)
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(_found(end, record.boot)) for end in record.before["ends"]]
            return _release([end for end in found if end is not None], record)

    def residue(self, record: UndoRecord) -> List[str]:
        """Our qdiscs at both ends; an end that has gone took its qdisc along."""
        shape = Shape(**record.before["shape"])
        left = []
        for each in record.before["ends"]:
            try:
                with _found(each, record.boot) as end:
                    qdisc = end.ours(shape.mark) if end else None
            except InjectorError as error:
                left.append(str(error))
                continue
            if qdisc is not None:
                left.append(f"{qdisc} on {each['name']} ({each['where']})")
        return left

    def strays(self, target: Target) -> List[Stray]:
        """Qdiscs that bear our mark in any of the node's namespaces."""
        found = []
        node = namespaces.identity(_OWN)
        for where, path in {"the node": _OWN, **target.namespaces}.items():
            kept = namespaces.identity(path)
            with _at(kernel.open_network(path)) as end:
                assert end is not None
                names, qdiscs = end.names(), end.qdiscs()
            for qdisc in qdiscs:
                if not qdisc.marked(KIND):
                    continue
                there = {"namespace": kept, "name": names[qdisc.interface]}
                near = there
                if where.startswith("gpu") and there["name"] == _AT_GPU:  # its end at the node names a link
                    near = {"namespace": node, "name": where.replace("gpu", "pcie", 1)}
                details = {**there, "handle": qdisc.handle, "limit": qdisc.limit, "boot": kernel.boot_id()}
                found.append(Stray(_link_name(near), f"{qdisc} on {there['name']} ({where})", details))
        return found

    def clear(self, stray: Stray) -> None:
        """Remove the qdisc, if it is still the one that was found."""
        with _found(stray.where, stray.where["boot"]) as end:
            if end is not None:
                end.remove(Mark(stray.where["handle"], stray.where["limit"]), DRAIN)


def _ends(target: Target) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The end at the node and the end at the GPU: namespace (its identity), name of the interface, and where it is.

    Raises:
        InjectorError: there is no such link, or it leads elsewhere.
    """
    gpu = _name(target)
    at_gpu = namespaces.identity(target.namespaces[gpu])
    ends: Tuple[Dict[str, Any], Dict[str, Any]] = (
        {"namespace": namespaces.identity(_OWN), "name": f"pcie{target.gpu}", "where": "the node's end"},
        {"namespace": at_gpu, "name": _AT_GPU, "where": f"{gpu}'s end"},
    )
    links = []
    for end in ends:
        with _at(kernel.open_network(end["namespace"]["path"])) as there:
            assert there is not None
            link = there.choose(end["name"])
        if link is None:
            raise InjectorError(f"{gpu} has no PCIe link: there is no {end['name']} at {end['where']}")
        links.append(link)
    if [links[0].peer, links[1].peer] != [links[1].interface, links[0].interface]:
        raise InjectorError(f"{links[0].name} of the node is not the other end of {gpu}'s {_AT_GPU}")
    return ends


@contextlib.contextmanager
def _at(network: int, name: Optional[str] = None) -> Iterator[Optional[LinkEnd]]:
    """The end of this name in a namespace, whose descriptor is closed; ``None`` if there is none.

    Without a name it is none in particular yet.
    """
    with contextlib.closing(kernel.made_inside(network, LinkEnd)) as end:
        yield end if name is None or end.choose(name) is not None else None


@contextlib.contextmanager
def _found(kept: Dict[str, Any], boot: str) -> Iterator[Optional[LinkEnd]]:
    """An end as a record keeps it; ``None`` if it has gone."""
    network = namespaces.find(kept["namespace"], boot)
    if network is None:
        yield None
        return
    with _at(network, kept["name"]) as end:
        yield end


def _release(ends: List[LinkEnd], record: UndoRecord) -> int:
    """Undo at these ends. Returns CLOCK_MONOTONIC in ns at which the effect had ended."""
    shape = Shape(**record.before["shape"])
    ours = [end for end in ends if end.open(shape)]
    ended = time.monotonic_ns()
    for end in ours:
        end.remove(shape.mark, DRAIN)
    return ended


def _name(target: Target) -> str:
    return f"gpu{target.gpu}"


def _link_name(end: Dict[str, Any]) -> str:
    return f"link:{end['namespace']['inode']}:{end['name']}"


def _bits(rate: float) -> str:
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if rate >= unit:
            return f"{rate / unit:.3g} {name}"
    return f"{rate / 1e3:.3g} kbit/s"
