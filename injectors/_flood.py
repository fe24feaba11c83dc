"""How much a link passes: datagrams fill it in both directions for a moment, and the interfaces' counters tell.

Counters and not the datagrams that arrive: they also tell of a link that other traffic shares.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Callable, List, NamedTuple, Tuple

from injectors import kernel

_UDP, _UDP_SEGMENT = 17, 103  # the kernel cuts one send into datagrams (Linux 4.18)
_PAYLOAD = 1472  # bytes of a datagram that fills a frame
_MOST = 40  # datagrams a send
_SLICE = 0.002  # seconds between two looks at the counters
_SEND_TIME = 0.002  # seconds at the rate that is looked for


class End(NamedTuple):
    """One end: a descriptor of its namespace, its interface and address, and what counts the bytes that it has sent."""

    network: int
    interface: str
    address: str
    sent: Callable[[], int]


class Flood:
    """Sockets at both ends of a link.

    Args:
        rate: bytes a second that are looked for: at most a few milliseconds' worth is left queued.
    """

    def __init__(self, ends: Tuple[End, End], rate: int) -> None:
        self._ends = ends
        datagrams = max(1, min(_MOST, int(rate * _SEND_TIME / _PAYLOAD)))
        self._data = bytes(datagrams * _PAYLOAD)
        self._sockets: List[socket.socket] = []
        for end in ends:
            with kernel.inside(end.network):
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, end.interface.encode())
            sock.bind((end.address, 0))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(self._data))
            sock.setsockopt(_UDP, _UDP_SEGMENT, _PAYLOAD)
            sock.setblocking(False)
        for sock, other in zip(self._sockets, reversed(self._sockets)):
            sock.connect(other.getsockname())

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets:
            sock.close()

    def shaped(self, bucket: int, seconds: float, patience: float) -> Tuple[float, float]:
        """Bytes a second that leave the ends of a link that should be slow.

        Args:
            bucket: bytes that pass at once before the link is slow; they are let pass first.
            seconds: how long to measure.
            patience: seconds after which to measure although less than ``bucket`` has left.
        """
        first = self._counts()
        end = time.monotonic() + patience
        while min(now - then for now, then in zip(self._counts(), first)) < bucket and time.monotonic() < end:
            self._fill(time.monotonic() + _SLICE)
        started, first = time.monotonic(), self._counts()
        self._fill(started + seconds)
        spent, last = time.monotonic() - started, self._counts()
        return (last[0] - first[0]) / spent, (last[1] - first[1]) / spent

    def unshaped(self, bucket: int, enough: float, patience: float) -> Tuple[float, float]:
        """Bytes a second that the ends carry at the least, if they had a full bucket: what a bucket cannot explain.

        A machine that lets us wait makes it less, never more; so fill the link until there is ``enough`` at both ends,
        or until ``patience`` seconds are over.
        """
        started, first = time.monotonic(), self._counts()
        while True:
            self._fill(time.monotonic() + _SLICE)
            last, spent = self._counts(), time.monotonic() - started
            least = [max(0.0, (now - then - bucket) / spent) for now, then in zip(last, first)]
            if min(least) > enough or spent > patience:
                return least[0], least[1]

    def _counts(self) -> Tuple[int, int]:
        return self._ends[0].sent(), self._ends[1].sent()

    def _fill(self, until: float) -> None:
        """Send both ways as fast as the link takes it; what is not read at the other end is dropped there."""
        poll = select.poll()
        for sock in self._sockets:
            poll.register(sock, select.POLLOUT)
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return
            poll.poll(left * 1000)
            for sock in self._sockets:
                with contextlib.suppress(BlockingIOError):
                    sock.send(self._data)
