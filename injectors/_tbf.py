"""One end of a link whose sending can be slowed at an instant: a token bucket (tbf) as its root qdisc.

The qdisc is put in place beforehand, with a rate that slows nothing: putting one in place (or removing it) drops what
passes at that moment, and takes the kernel several milliseconds. To slow the link is then to change its rate: one
message. In the end the rate is opened first, so that what has queued up leaves as on a link that is mended, and only
then the qdisc is removed.

Ours is known by its handle and its limit together: the major number is 0xC000 and 12 bits of a hash of the fault's id,
and the lowest 12 bits of the limit are the same. A qdisc of others may have such a handle, but not such a limit too.
"""

from __future__ import annotations

import hashlib
import struct
import time
from typing import Dict, List, NamedTuple, Optional

from injectors._links import Link, Links
from injectors._netlink import ACK, CREATE, DUMP, EXCLUSIVE, HEADER_BYTES, attribute, attributes, request
from injectors.contract import InjectorError

_NEW_QDISC, _DELETE_QDISC, _GET_QDISC = 36, 37, 38
_TC = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, info
_KIND, _OPTIONS, _STATISTICS = 1, 2, 7  # TCA_*
_PARAMETERS, _RATE64, _BURST = 1, 4, 6  # TCA_TBF_*
_QUEUE = 3  # TCA_STATS_QUEUE
_RATE = struct.Struct("=BBHhHI")  # tc_ratespec: cell log, link layer, overhead, cell alignment, mpu, rate
_REST = struct.Struct("=III")  # limit, buffer, mtu
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: no rate table is needed
_ROOT = 0xFFFFFFFF  # TC_H_ROOT
_MARK_BITS = 0xFFF
_OURS = 0xC000
_FRAME = 1514  # bytes, the longest frame of a link with the usual MTU
_OPEN_RATE, _OPEN_BURST = 125_000_000_000, 1 << 20  # bytes a second, bytes: what no link of a lab exceeds
_BURST_TIME, _QUEUE_TIME = 0.01, 0.1  # seconds at the rate
_LEAST_QUEUE = 256 * 1024
_DRAIN = 0.05  # seconds


class Qdisc(NamedTuple):
    """A root qdisc that somebody has set; ``limit`` and ``backlog`` (bytes) of a tbf."""

    interface: int
    kind: str
    handle: int
    limit: int
    backlog: int
    dropped: int

    def marked(self) -> bool:
        """Whether it is one of ours, whatever fault it belongs to."""
        major, minor = self.handle >> 16, self.handle & 0xFFFF
        same = self.limit & _MARK_BITS == major & _MARK_BITS
        return self.kind == "tbf" and major & ~_MARK_BITS == _OURS and minor == 0 and same

    def __str__(self) -> str:
        """As `tc` shows it."""
        return f"qdisc {self.kind} {self.handle >> 16:x}:"


class Shape(NamedTuple):
    """How a link is slowed: rate (bytes a second), burst and limit (bytes), and the handle that marks it."""

    rate: int
    burst: int
    limit: int
    handle: int

    @classmethod
    def of(cls, fault: str, bits_per_second: float) -> Shape:
        """For a fault: a burst of 10 ms, and a queue of 100 ms, since a real link holds back and does not drop."""
        mark = int.from_bytes(hashlib.sha256(fault.encode()).digest()[:2], "big") & _MARK_BITS
        rate = int(bits_per_second / 8)
        queue = max(_LEAST_QUEUE, int(rate * _QUEUE_TIME))
        burst = max(4 * _FRAME, int(rate * _BURST_TIME))
        return cls(rate, burst, (queue & ~_MARK_BITS) + _MARK_BITS + 1 | mark, (_OURS | mark) << 16)


class LinkEnd(Links):
    """An end of a link. Make it inside the namespace in which the end is: its netlink socket stays there."""

    def __init__(self) -> None:
        super().__init__()
        self._interface = 0
        self._start = b""

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

    def ours(self, shape: Shape) -> Optional[Qdisc]:
        """The root qdisc here, if handle and limit say that it is this one."""
        qdisc = self.root()
        return qdisc if qdisc is not None and (qdisc.handle, qdisc.limit) == (shape.handle, shape.limit) else None

    def create(self, shape: Shape) -> None:
        """Put the qdisc in place, with an open rate.

        Raises:
            InjectorError: this kernel has no tbf.
        """
        self._start = self._message(shape, shape.rate, shape.burst, 0)
        try:
            self._netlink.change(self._message(shape, _OPEN_RATE, _OPEN_BURST, CREATE | EXCLUSIVE))
        except FileNotFoundError:
            raise InjectorError("this kernel has no tbf: load sch_tbf, or build with CONFIG_NET_SCH_TBF") from None

    def start(self) -> None:
        """Slow the link."""
        self._netlink.change(self._start)

    def open(self, shape: Shape) -> bool:
        """End the effect of a qdisc that is ours. Returns whether there is one."""
        if self.ours(shape) is None:
            return False
        self._netlink.change(self._message(shape, _OPEN_RATE, _OPEN_BURST, 0))
        return True

    def remove(self, shape: Shape) -> None:
        """Let what is queued in ours leave, and remove it; nothing where there is none of ours."""
        end = time.monotonic() + _DRAIN
        while True:
            qdisc = self.ours(shape)
            if qdisc is None:
                return
            if not qdisc.backlog or time.monotonic() > end:
                break
            time.sleep(0.0005)
        # The kernel compares the handle again.
        self._netlink.change(request(_DELETE_QDISC, ACK, _TC.pack(0, self._interface, shape.handle, _ROOT, 0)))

    def _message(self, shape: Shape, rate: int, burst: int, flags: int) -> bytes:
        spec = _RATE.pack(0, _ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF))
        parameters = spec + bytes(_RATE.size) + _REST.pack(shape.limit, 0, 0)  # no peak rate
        options = (
            attribute(_PARAMETERS, parameters)
            + attribute(_RATE64, struct.pack("=Q", rate))
            + attribute(_BURST, struct.pack("=I", burst))
        )
        body = _TC.pack(0, self._interface, shape.handle, _ROOT, 0)
        return request(_NEW_QDISC, ACK | flags, body + attribute(_KIND, b"tbf\0") + attribute(_OPTIONS, options))


def _qdisc(index: int, handle: int, found: Dict[int, bytes]) -> Qdisc:
    kind = found[_KIND].rstrip(b"\0").decode()
    limit = 0
    if kind == "tbf":
        limit = _REST.unpack_from(attributes(found[_OPTIONS])[_PARAMETERS], 2 * _RATE.size)[0]
    # Queue length, backlog in bytes, packets dropped.
    _, backlog, dropped = struct.unpack_from("=III", attributes(found[_STATISTICS])[_QUEUE])
    return Qdisc(index, kind, handle, limit, backlog, dropped)
