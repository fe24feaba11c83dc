"""What launcher and ranks tell each other over a SOCK_SEQPACKET pair: JSON objects with an ``op``.

To a rank: ``generation`` (below), ``stop``. To the launcher: ``ready`` (warm, may be given a seat), ``beat`` (the
watcher thread lives; ``gen``: generation that the main thread follows; ``steps``: completed in it), ``broken`` (a
generation failed: ``gen``, ``why``), ``done`` (all steps done in ``gen``).
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from typing import Any

from chaos.workload.reference.config import Place

MAX_MESSAGE = 64 * 1024

Message = dict[str, Any]


@dataclass(frozen=True)
class Seat:
    """Who fills a slot, and the address that its data flows over in this generation."""

    process: int
    place: Place
    bind: str


@dataclass(frozen=True)
class Generation:
    """A process group to form: seat ``i`` is rank ``i``.

    Attributes:
        number: 1 at the start, one more at each regroup.
        why: what made it necessary.
        detected_ns: when that was noticed.
    """

    number: int
    seats: tuple[Seat, ...]
    why: str
    detected_ns: int

    def slot_of(self, process: int) -> int | None:
        """The slot of a process, or ``None`` if it is no member."""
        return next((slot for slot, seat in enumerate(self.seats) if seat.process == process), None)

    def as_message(self) -> Message:
        """To be sent."""
        return {"op": "generation"} | asdict(self)

    @classmethod
    def from_message(cls, message: Message) -> Generation:
        """The inverse of ``as_message``."""
        seats = tuple(Seat(seat["process"], Place(**seat["place"]), seat["bind"]) for seat in message["seats"])
        return cls(message["number"], seats, message["why"], message["detected_ns"])


def send(sock: socket.socket, message: Message) -> bool:
    """Send without waiting; ``False`` if the other side has gone or reads nothing any more."""
    try:
        sock.send(json.dumps(message, separators=(",", ":")).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def receive(sock: socket.socket) -> Message | None:
    """The next message; ``None`` when the other side has gone. Raises BlockingIOError where there is none yet."""
    try:
        data = sock.recv(MAX_MESSAGE, socket.MSG_DONTWAIT)
    except ConnectionError:
        return None
    if not data:
        return None
    message: Message = json.loads(data)
    return message
