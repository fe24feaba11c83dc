"""Round trips to a peer by ICMP echo (RFC 792, RFC 4443): whether it answers, and how fast."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import socket
import struct
import time
from typing import Dict, List, NamedTuple

_ECHO4, _REPLY4, _ECHO6, _REPLY6 = 8, 0, 128, 129
_HEAD = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number
_GAP = 0.01  # seconds from one to the next
_LAST = 0.05  # seconds in which the last may still be answered, at the least


class Answers(NamedTuple):
    """How many were sent, and how long each answer took, in seconds."""

    sent: int
    trips: List[float]

    @property
    def median(self) -> float:
        """The median of the round trips; 0 without any."""
        return sorted(self.trips)[len(self.trips) // 2] if self.trips else 0.0


class Ping:
    """A socket in the network namespace in which this is made; it stays there.

    Args:
        peer: whom to ask.

    Raises:
        OSError: this user may not.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._is_4 = ipaddress.ip_address(peer).version == 4
        family, protocol = (
            (socket.AF_INET, socket.IPPROTO_ICMP) if self._is_4 else (socket.AF_INET6, socket.IPPROTO_ICMPV6)
        )
        self._socket = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        self._identifier = os.urandom(2)
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def ask(self, budget: float) -> Answers:
        """Ask several times, within so many seconds."""
        end = time.monotonic() + budget
        sending_ends = end - max(_LAST, budget / 2)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        open_: Dict[int, float] = {}
        trips: List[float] = []
        count, due = 0, time.monotonic()
        while time.monotonic() < end:
            now = time.monotonic()
            if now >= due and (now < sending_ends or not count):
                self._sequence = (self._sequence + 1) & 0xFFFF
                open_[self._sequence] = now
                count += 1
                self._send()
                due = now + _GAP
            elif now >= sending_ends and not open_:
                break
            wait = (min(due, end) if now < sending_ends else end) - time.monotonic()
            if poll.poll(max(0.0, wait) * 1000):
                trips += self._receive(open_)
        return Answers(count, trips)

    def _send(self) -> None:
        kind = _ECHO4 if self._is_4 else _ECHO6
        identifier = int.from_bytes(self._identifier, "big")
        message = _HEAD.pack(kind, 0, 0, identifier, self._sequence)
        if self._is_4:  # the kernel itself fills in that of ICMPv6
            message = _HEAD.pack(kind, 0, _checksum(message), identifier, self._sequence)
        with contextlib.suppress(OSError):  # dropped here already, or there is no way: then nothing comes back
            self._socket.sendto(message, (self._peer, 0))

    def _receive(self, open_: Dict[int, float]) -> List[float]:
        found: List[float] = []
        while True:
            try:
                data, _ = self._socket.recvfrom(2048)
            except BlockingIOError:
                return found
            if self._is_4:
                data = data[(data[0] & 0xF) * 4 :]
            if len(data) < _HEAD.size:
                continue
            kind, _, _, identifier, sequence = _HEAD.unpack_from(data)
            ours = identifier.to_bytes(2, "big") == self._identifier
            if ours and kind == (_REPLY4 if self._is_4 else _REPLY6) and sequence in open_:
                found.append(time.monotonic() - open_.pop(sequence))


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
