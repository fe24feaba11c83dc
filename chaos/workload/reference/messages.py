"""What launcher and ranks tell each other over a SOCK_SEQPACKET connection: JSON objects with an ``op``.

To a rank: ``generation`` (leave the present group and form this one), ``successor`` (form this one beside the present
group, and move over when all have it), ``peers`` (whose beacons to expect), ``stop``. To the launcher: ``hello``, first
on each connection (``process``, and what was last heard of former launchers: ``generation``, ``successor``), ``beat``
(a ``Status``, and which beacons stay away; every 20 ms and when the status changes).

A rank tells how things stand, not what happens: a beat that was lost with a launcher is repeated by the next one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chaos.workload.reference.beacons import Report
from chaos.workload.reference.config import Place

MAX_MESSAGE = 64 * 1024

Message = dict[str, Any]

# One for all: json.dumps makes one a call, which costs more than what it encodes here.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


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
        seats: as many as there are ranks now.
        why: what made it necessary.
        symptom_ns: when the first sign of it was there to be seen, in hindsight.
        detected_ns: when it was noticed.
        store_port: of the store over which its members find each other.
    """

    number: int
    seats: tuple[Seat, ...]
    why: str
    symptom_ns: int
    detected_ns: int
    store_port: int

    @property
    def members(self) -> list[int]:
        """The processes in its seats, by slot."""
        return [seat.process for seat in self.seats]

    def slot_of(self, process: int) -> int | None:
        """The slot of a process, or ``None`` if it is no member."""
        return next((slot for slot, seat in enumerate(self.seats) if seat.process == process), None)

    def as_message(self, op: str = "generation") -> Message:
        """To be sent."""
        return {"op": op} | asdict(self)

    @classmethod
    def from_message(cls, message: Message) -> Generation:
        """The inverse of ``as_message``."""
        seats = tuple(Seat(seat["process"], Place(**seat["place"]), seat["bind"]) for seat in message["seats"])
        return cls(
            message["number"],
            seats,
            message["why"],
            message["symptom_ns"],
            message["detected_ns"],
            message["store_port"],
        )


@dataclass
class Status:
    """How things stand with a process.

    Attributes:
        followed: the generation that its main thread follows; the former one until it has left that group.
        standing_by: its main thread waits for a seat, and the process holds nothing that anybody needs.
        entered: how many collectives of that generation its main thread has entered.
        inside: it is still in the last one of them.
        steps: steps that it has completed in that generation.
        completed: optimizer steps behind the state that it holds.
        broken: why the generation failed here; empty while it has not.
        done: it has done the job's last step in that generation.
        no_successor: the generation that could not be formed beside the present one; 0: none.
    """

    followed: int = 0
    standing_by: bool = False
    entered: int = 0
    inside: bool = False
    steps: int = 0
    completed: int = 0
    broken: str = ""
    done: bool = False
    no_successor: int = 0


def peers_message(places: Iterable[tuple[int, Place]]) -> Message:
    """All warm processes with their places."""
    return {"op": "peers", "peers": [[process, place.node, place.gpu] for process, place in places]}


def peers_from(message: Message) -> dict[int, Place]:
    """The inverse of ``peers_message``."""
    return {process: Place(node, gpu) for process, node, gpu in message["peers"]}


def beat_message(status: Status, silent: Sequence[Report], now: float) -> Message:
    """A sign of life, sent at ``now`` (seconds of CLOCK_MONOTONIC), with all that its sender does not hear."""
    return {"op": "beat", "t": now, "status": status.__dict__, "silent": silent}


def silences_from(message: Message) -> dict[tuple[int, str], float]:
    """What the sender of a beat does not hear: since when (seconds), by process and path."""
    return {(process, path): since for process, path, since in message["silent"]}


def send(sock: socket.socket, message: Message) -> bool:
    """Send without waiting; ``False`` if the other side has gone or reads nothing any more."""
    try:
        sock.send(_encode(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
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
