"""One end of a link on which what is sent is delayed, lost or damaged at an instant: netem as its root qdisc.

The qdisc is put in place beforehand without any effect, since putting one in place drops what passes at that moment.
The fault is then one message that changes its parameters, and so is its end; only when what is queued has left is the
qdisc removed. The encoding is that of the kernel's include/uapi/linux/pkt_sched.h.
"""

from __future__ import annotations

import functools
import os
import statistics
import struct
import threading
from typing import List, NamedTuple, Optional

from injectors import kernel
from injectors._netlink import CREATE, EXCLUSIVE, attribute, attributes
from injectors._qdisc import Mark, Qdisc, QdiscEnd
from injectors.contract import InjectorError

KIND = "netem"
CLASSES = "/sys/class"
MISSING = "netem: modprobe sch_netem, or a kernel with CONFIG_NET_SCH_NETEM"
_CORRUPT, _DISTRIBUTION, _REORDER, _LOSS, _RATE, _RATE64, _LATENCY64, _JITTER64 = (
    4,
    2,
    3,
    5,
    6,
    8,
    10,
    11,
)  # TCA_NETEM_*
_GILBERT_ELLIOTT = 2  # NETEM_LOSS_GE
_OPTIONS = struct.Struct("=6I")  # latency and jitter (ticks), in between limit, loss, gap, duplicate
_PAIR = struct.Struct("=II")  # probability, correlation
_GE = struct.Struct("=4I")  # to the bad state, back, share that passes there, share lost in the good one
_RATES = struct.Struct("=IiIi")  # bytes a second, overhead of a packet, size of a cell, its overhead
_TICK = 64  # ns
_CERTAIN = 0xFFFFFFFF
_SCALE, _STEPS, _MOST = 8192, 4096, 0x7FFF  # of a distribution: NETEM_DIST_SCALE; a table's size and largest value
_SMALL = 512  # bytes of a packet, by which a queue is reckoned: a full link carries no more packets for long
_LEAST_QUEUE = 1000  # packets
_MOST_QUEUE = 1 << 22
_QUEUE_TIME = 0.1  # seconds at the rate: a link that is slow holds back, and does not drop at once
_UNKNOWN_SPEED = 100e9  # bits a second


class Shape(NamedTuple):
    """What is done to packets.

    Attributes:
        delay, jitter: ns.
        normal: whether the jitter is a normal distribution's standard deviation; else it is the most, evenly spread.
        loss, duplicate, corrupt, reorder: shares of all packets.
        burst: packets that are lost one after the other, on average; 0 for losses by pure chance.
        rate: bytes a second; 0 for the link's own.
        limit, handle: of the qdisc, which they mark.
    """

    delay: int
    jitter: int
    normal: bool
    loss: float
    burst: float
    duplicate: float
    corrupt: float
    reorder: float
    rate: int
    limit: int
    handle: int

    @property
    def mark(self) -> Mark:
        """By which its qdisc is known."""
        return Mark(self.handle, self.limit)

    def options(self) -> bytes:
        """As netem takes them; all that it would keep of former ones is said."""
        latency, jitter = (min(value // _TICK, _CERTAIN) for value in (self.delay, self.jitter))
        gap = 1 if self.reorder else 0
        plain = 0.0 if self.burst else self.loss
        parts = [
            _OPTIONS.pack(latency, self.limit, _share(plain), gap, _share(self.duplicate), jitter),
            attribute(_REORDER, _PAIR.pack(_share(self.reorder), 0)) if gap else b"",
            attribute(_CORRUPT, _PAIR.pack(_share(self.corrupt), 0)),
            attribute(_RATE, _RATES.pack(min(self.rate, _CERTAIN), 0, 0, 0)),
            attribute(_RATE64, struct.pack("=Q", self.rate)) if self.rate > _CERTAIN else b"",
            attribute(_LATENCY64, struct.pack("=q", self.delay)),
            attribute(_JITTER64, struct.pack("=q", self.jitter)),
        ]
        if self.normal:
            parts.append(attribute(_DISTRIBUTION, _normal()))
        if self.burst:
            parts.append(attribute(_LOSS, attribute(_GILBERT_ELLIOTT, self._gilbert())))
        return b"".join(parts)

    def _gilbert(self) -> bytes:
        """Two states, in one of which everything is lost: left after ``burst`` packets on average (Gilbert, 1960)."""
        back = 1 / self.burst
        there = min(1.0, back * self.loss / (1 - self.loss)) if self.loss < 1 else 1.0
        return _GE.pack(_share(there), _share(back), 0, 0)

    def neutral(self) -> Shape:
        """The same qdisc without any effect."""
        return Shape(0, 0, False, 0.0, 0.0, 0.0, 0.0, 0.0, 0, self.limit, self.handle)

    def is_set(self, qdisc: Qdisc) -> bool:
        """Whether the kernel's own words are these: what is told exactly is compared."""
        _, limit, loss, _, duplicate, _ = _OPTIONS.unpack_from(qdisc.options)
        told = attributes(qdisc.options[_OPTIONS.size :])
        delay, jitter = (struct.unpack("=q", told.get(key, bytes(8)))[0] for key in (_LATENCY64, _JITTER64))
        rate = _RATES.unpack(told[_RATE])[0] if _RATE in told else 0
        corrupt, reorder = (_PAIR.unpack(told[key])[0] if key in told else 0 for key in (_CORRUPT, _REORDER))
        burst = _LOSS in told
        found = (limit, delay, jitter, burst, burst or loss, duplicate, corrupt, reorder, rate)
        return found == (
            self.limit,
            self.delay,
            self.jitter,
            bool(self.burst),
            bool(self.burst) or _share(self.loss),
            _share(self.duplicate),
            _share(self.corrupt),
            _share(self.reorder),
            min(self.rate, _CERTAIN),
        )


def limit(delay: float, jitter: float, rate: float, speed: Optional[float]) -> float:
    """Packets that netem must hold so that it drops none but those it is to (its default of 1000 does, under load).

    Args:
        delay, jitter: seconds.
        rate: bits a second that it lets pass; 0 for all.
        speed: bits a second of the link, where it is known.
    """
    if rate:
        seconds, through = delay + 4 * jitter + _QUEUE_TIME, rate
    else:
        seconds, through = delay + 4 * jitter, speed or _UNKNOWN_SPEED
    return min(max(seconds * through / 8 / _SMALL, _LEAST_QUEUE), _MOST_QUEUE)


def speed(interface: str) -> Optional[float]:
    """Bits a second of an interface, as its driver tells; ``None`` where it does not."""
    try:
        with open(os.path.join(CLASSES, "net", interface, "speed"), encoding="ascii") as file:
            told = int(file.read())
    except (OSError, ValueError):  # some drivers refuse to tell while the link is down
        return None
    return told * 1e6 if told > 0 else None


class NetemEnd(QdiscEnd):
    """An end of a link. Make it inside the namespace in which the end is: its netlink socket stays there."""

    def __init__(self) -> None:
        super().__init__()
        self._start = b""

    def create(self, shape: Shape) -> None:
        """Put the qdisc in place, without any effect.

        Raises:
            InjectorError: this kernel has no netem.
        """
        self._start = self._new(KIND, shape.handle, shape.options(), 0)
        neutral = shape.neutral().options()
        try:
            self._netlink.change(self._new(KIND, shape.handle, neutral, CREATE | EXCLUSIVE))
        except FileNotFoundError:
            raise InjectorError(f"this kernel has no {MISSING}") from None

    def start(self) -> None:
        """Begin."""
        self._netlink.change(self._start)

    def open(self, shape: Shape) -> bool:
        """End the effect of a qdisc that is ours, on all that is sent from now on. Returns whether there is one."""
        if self.ours(shape.mark) is None:
            return False
        self._netlink.change(self._new(KIND, shape.handle, shape.neutral().options(), 0))
        return True


def available() -> bool:
    """Whether this kernel has netem: tried in a network namespace of its own, which goes at once.

    Raises:
        PermissionError: this user may make none.
    """
    told: List[object] = []

    def look() -> None:
        try:
            kernel.unshare_network()
            end = NetemEnd()
            try:
                end.choose("lo")
                end.create(Shape(0, 0, False, 0.0, 0.0, 0.0, 0.0, 0.0, 0, _LEAST_QUEUE, 1 << 16))
                told.append(True)
            finally:
                end.close()
        except (OSError, InjectorError) as error:
            told.append(error)

    thread = threading.Thread(target=look, name="netem")
    thread.start()
    thread.join()
    if isinstance(told[0], PermissionError):
        raise told[0]
    return told[0] is True


def bypass(interface: str) -> Optional[str]:
    """The RDMA device of this interface's hardware, with its driver, where RDMA does not pass through the kernel.

    Soft-RoCE (rxe) and soft iWARP (siw) have no hardware; what they send is the kernel's.
    """
    base = os.path.join(CLASSES, "infiniband")
    hardware = os.path.join(CLASSES, "net", interface, "device")
    for name in sorted(os.listdir(base)) if os.path.isdir(base) and os.path.exists(hardware) else []:
        if os.path.realpath(os.path.join(base, name, "device")) == os.path.realpath(hardware):
            driver = os.path.realpath(os.path.join(base, name, "device", "driver"))
            return f"{name} ({os.path.basename(driver)})"
    return None


def _share(value: float) -> int:
    return round(value * _CERTAIN)


@functools.cache
def _normal() -> bytes:
    """Quantiles of the normal distribution, in netem's units of a standard deviation."""
    quantile = statistics.NormalDist().inv_cdf
    values = (round(quantile((step + 0.5) / _STEPS) * _SCALE) for step in range(_STEPS))
    return struct.pack(f"={_STEPS}h", *(max(-_MOST, min(_MOST, value)) for value in values))
