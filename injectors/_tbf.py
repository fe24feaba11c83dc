"""One end of a link whose sending can be slowed at an instant: a token bucket (tbf) as its root qdisc.

The qdisc is put in place beforehand, with a rate that slows nothing: putting one in place (or removing it) drops what
passes at that moment, and takes the kernel several milliseconds. To slow the link is then to change its rate: one
message. In the end the rate is opened first, so that what has queued up leaves as on a link that is mended, and only
then the qdisc is removed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from injectors._netlink import CREATE, EXCLUSIVE, attribute
from injectors._qdisc import Mark, QdiscEnd
from injectors.contract import InjectorError

KIND = "tbf"
DRAIN = 0.05  # seconds in which what has queued up may leave
_PARAMETERS, _RATE64, _BURST = 1, 4, 6  # TCA_TBF_*
_RATE = struct.Struct("=BBHhHI")  # tc_ratespec: cell log, link layer, overhead, cell alignment, mpu, rate
_REST = struct.Struct("=III")  # limit, buffer, mtu
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: no rate table is needed
_FRAME = 1514  # bytes, the longest frame of a link with the usual MTU
_OPEN_RATE, _OPEN_BURST = 125_000_000_000, 1 << 20  # bytes a second, bytes: what no link of a lab exceeds
_BURST_TIME, _QUEUE_TIME = 0.01, 0.1  # seconds at the rate
_LEAST_QUEUE = 256 * 1024


class Shape(NamedTuple):
    """How a link is slowed: rate (bytes a second), burst and limit (bytes), and the handle that marks it."""

    rate: int
    burst: int
    limit: int
    handle: int

    @classmethod
    def of(cls, fault: str, bits_per_second: float) -> Shape:
        """For a fault: a burst of 10 ms, and a queue of 100 ms, since a real link holds back and does not drop."""
        rate = int(bits_per_second / 8)
        burst = max(4 * _FRAME, int(rate * _BURST_TIME))
        mark = Mark.of(fault, max(_LEAST_QUEUE, int(rate * _QUEUE_TIME)))
        return cls(rate, burst, mark.limit, mark.handle)

    @property
    def mark(self) -> Mark:
        """By which its qdisc is known."""
        return Mark(self.handle, self.limit)


class LinkEnd(QdiscEnd):
    """An end of a link. Make it inside the namespace in which the end is: its netlink socket stays there."""

    def __init__(self) -> None:
        super().__init__()
        self._start = b""

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
        if self.ours(shape.mark) is None:
            return False
        self._netlink.change(self._message(shape, _OPEN_RATE, _OPEN_BURST, 0))
        return True

    def _message(self, shape: Shape, rate: int, burst: int, flags: int) -> bytes:
        spec = _RATE.pack(0, _ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF))
        parameters = spec + bytes(_RATE.size) + _REST.pack(shape.limit, 0, 0)  # no peak rate
        options = (
            attribute(_PARAMETERS, parameters)
            + attribute(_RATE64, struct.pack("=Q", rate))
            + attribute(_BURST, struct.pack("=I", burst))
        )
        return self._new(KIND, shape.handle, options, flags)
