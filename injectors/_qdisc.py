"""The root qdisc of an interface: what is there, whose it is, and how ours goes.

Ours is known by its handle and its limit together: the major number is 0xC000 and 12 bits of a hash of the fault's id,
and the lowest 12 bits of the limit are the same. A qdisc of others may have such a handle, but not such a limit too.
"""

from __future__ import annotations

import hashlib
import struct
import time
from typing import Dict, List, NamedTuple, Optional

from injectors._links import Link, Links
from injectors._netlink import ACK, DUMP, HEADER_BYTES, attribute, attributes, request
from injectors.contract import InjectorError

_NEW_QDISC, _DELETE_QDISC, _GET_QDISC = 36, 37, 38
_TC = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, info
_KIND, _OPTIONS, _STATISTICS = 1, 2, 7  # TCA_*
_BASIC, _QUEUE = 1, 3  # TCA_STATS_*
_ROOT = 0xFFFFFFFF  # TC_H_ROOT
_MARK_BITS = 0xFFF
_OURS = 0xC000
_LOOK = 0.0005  # seconds between two looks at a queue


class Mark(NamedTuple):
    """By which a fault's qdisc is known: its handle, and its limit (in the units of its kind)."""

    handle: int
    limit: int

    @classmethod
    def of(cls, fault: str, limit: float) -> Mark:
        """For a fault whose qdisc has at least this limit."""
        mark = int.from_bytes(hashlib.sha256(fault.encode()).digest()[:2], "big") & _MARK_BITS
        return cls((_OURS | mark) << 16, (int(limit) & ~_MARK_BITS) + _MARK_BITS + 1 | mark)


class Qdisc(NamedTuple):
    """A root qdisc that somebody has set.

    Attributes:
        limit: of a tbf (bytes) or a netem (packets); 0 of other kinds.
        backlog: bytes that are queued.
        packets, dropped: how many have passed, and how many have not, so far.
        options: as the kernel encodes them.
    """

    interface: int
    kind: str
    handle: int
    limit: int
    backlog: int
    packets: int
    dropped: int
    options: bytes

    def marked(self, kind: str) -> bool:
        """Whether it is one of ours of this kind, whatever fault it belongs to."""
        major, minor = self.handle >> 16, self.handle & 0xFFFF
        same = self.limit & _MARK_BITS == major & _MARK_BITS
        return self.kind == kind and major & ~_MARK_BITS == _OURS and minor == 0 and same

    def __str__(self) -> str:
        """As `tc` shows it."""
        return f"qdisc {self.kind} {self.handle >> 16:x}:"


class QdiscEnd(Links):
    """An end of a link. Make it inside the namespace in which the end is: its netlink socket stays there."""

    def __init__(self) -> None:
        super().__init__()
        self._interface = 0

    def choose(self, name: str) -> Optional[Link]:
        """Be the end of this name; ``None`` if there is none."""
        link = self.find(name)
        self._interface = 0 if link is None else link.interface
        return link

    def passed(self) -> int:
        """Bytes that have left here so far."""
        return self.sent(self._interface)

    def qdiscs(self) -> List[Qdisc]:
        """All root qdiscs in the namespace that somebody has set; the kernel's own defaults have no handle."""
        found = []
        for data in self._netlink.dump(request(_GET_QDISC, DUMP, _TC.pack(0, 0, 0, 0, 0))):
            _, index, handle, parent, _ = _TC.unpack_from(data, HEADER_BYTES)
            if parent == _ROOT and handle:
                found.append(_qdisc(index, handle, attributes(data[HEADER_BYTES + _TC.size :])))
        return found

    def root(self) -> Optional[Qdisc]:
        """The root qdisc that somebody has set here."""
        return next((qdisc for qdisc in self.qdiscs() if qdisc.interface == self._interface), None)

    def refuse_others(self, kind: str, name: str, where: str = "") -> None:
        """Raise InjectorError if somebody has set a root qdisc here, which we could not bring back."""
        found = self.root()
        if found is None:
            return
        whose = "a former fault's: `chaos sweep` removes it" if found.marked(kind) else "not ours, and is not touched"
        raise InjectorError(
            f"there is a {found} on {name}{where}, which is {whose}; a fault can be made on it when it has its default "
            f"again: tc qdisc del dev {name} root, by whoever set it"
        )

    def ours(self, mark: Mark) -> Optional[Qdisc]:
        """The root qdisc here, if handle and limit say that it is this one."""
        qdisc = self.root()
        return qdisc if qdisc is not None and (qdisc.handle, qdisc.limit) == mark else None

    def remove(self, mark: Mark, drain: float) -> None:
        """Let what is queued in ours leave, for so many seconds at the most, and remove it; nothing where none is."""
        end = time.monotonic() + drain
        while True:
            qdisc = self.ours(mark)
            if qdisc is None:
                return
            if not qdisc.backlog or time.monotonic() > end:
                break
            time.sleep(_LOOK)
        # The kernel compares the handle again.
        self._netlink.change(request(_DELETE_QDISC, ACK, _TC.pack(0, self._interface, mark.handle, _ROOT, 0)))

    def _new(self, kind: str, handle: int, options: bytes, flags: int) -> bytes:
        """The message that makes a root qdisc here, or changes it."""
        body = _TC.pack(0, self._interface, handle, _ROOT, 0) + attribute(_KIND, kind.encode() + b"\0")
        return request(_NEW_QDISC, ACK | flags, body + attribute(_OPTIONS, options))


def _qdisc(index: int, handle: int, found: Dict[int, bytes]) -> Qdisc:
    kind = found[_KIND].rstrip(b"\0").decode()
    options = found.get(_OPTIONS, b"")
    statistics = attributes(found[_STATISTICS])
    _, packets = struct.unpack_from("=QI", statistics[_BASIC])  # bytes, packets
    # Queue length, backlog in bytes, packets dropped.
    _, backlog, dropped = struct.unpack_from("=III", statistics[_QUEUE])
    return Qdisc(index, kind, handle, _limit(kind, options), backlog, packets, dropped, options)


def _limit(kind: str, options: bytes) -> int:
    if kind == "tbf":  # struct tc_tbf_qopt in TCA_TBF_PARMS (1): behind two rates of 12 bytes
        return int(struct.unpack_from("=I", attributes(options)[1], 24)[0])
    if kind == "netem":  # struct tc_netem_qopt: behind the latency
        return int(struct.unpack_from("=I", options, 4)[0])
    return 0
