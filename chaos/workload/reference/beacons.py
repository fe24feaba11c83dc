"""The rank's side of path monitoring: one-way beacons between partners, as in BFD's asynchronous mode (RFC 5880).

At each beat of its watcher thread a process sends one small datagram on each path to each partner, and only then reads
what has come since the beat before. No thread waits for the sockets, so an arriving beacon wakes nobody: where ranks
share cores a wake-up costs several times what the datagram does, and echo requests would cost one at either end. And
as nothing is answered, a path that drops one way alone is silent at the side that no longer hears.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from chaos.workload.reference.config import Place

#: Names of the paths, and of the media that a node's ranks can talk to each other over.
NVLINK = "nvlink"
PCIE = "pcie"

#: The watcher's period, in seconds.
BEAT_S = 0.02
#: A path without a beacon for so long, in seconds, is silent.
SILENT_S = 0.1
#: The same for a path from which none has ever come: its other end may be told to send somewhat later.
UNHEARD_S = 1.0
#: After a beat of our own that came so late, in seconds, nobody is accused: we may not have sent or read in time.
LATE_S = 0.05
#: UDP port of the beacons on every path; outside the range of ephemeral ports.
PORT = 17784

_FORMAT = struct.Struct("!4sI")  # magic, the sender's process number
_MAGIC = b"CCb1"
_MOST = 1000  # datagrams read from a socket at one beat; its buffer holds fewer, so only a flood meets this bound
# Datagrams wait here while the kernel resolves a neighbour that has gone, and must leave room for those to the others.
_SEND_BUFFER = 1 << 20


def partners(processes: Mapping[int, Place]) -> dict[int, dict[int, tuple[str, ...]]]:
    """Who exchanges beacons with whom, and on which paths: for each process, one a place, its partners with the paths.

    All on a node, on both paths; between two nodes only GPUs of the same index (where they share none, the first of
    either), on PCIe. So the number of beacons grows with GPUs a node plus nodes, not with their product, and all
    processes are connected.
    """
    nodes: dict[int, dict[int, int]] = {}
    for process, place in sorted(processes.items(), key=lambda item: item[1]):
        nodes.setdefault(place.node, {})[place.gpu] = process
    found: dict[int, dict[int, tuple[str, ...]]] = {process: {} for process in processes}
    pairs: list[tuple[tuple[int, int], tuple[str, ...]]] = [
        (pair, (NVLINK, PCIE)) for gpus in nodes.values() for pair in combinations(gpus.values(), 2)
    ]
    for here, there in combinations(nodes.values(), 2):
        shared = [(here[gpu], there[gpu]) for gpu in here.keys() & there.keys()]
        pairs += [(pair, (PCIE,)) for pair in shared or [(next(iter(here.values())), next(iter(there.values())))]]
    for (one, other), paths in pairs:
        found[one][other] = found[other][one] = paths
    return found


class End(NamedTuple):
    """One end of a path at a process: the device, and its IPv4 address there."""

    device: str
    address: str


@dataclass(frozen=True)
class Partner:
    """A process to exchange beacons with.

    Attributes:
        process: its number, never used again in a job.
        addresses: its IPv4 address by path, for the paths that lead to it.
    """

    process: int
    addresses: Mapping[str, str]


class Report(NamedTuple):
    """A change: a partner is silent on a path, or is heard on it again.

    Attributes:
        process: the partner that is heard or not.
        path: on which path.
        since: when its last beacon was read before the silence, in seconds of CLOCK_MONOTONIC (when none has ever
            come: since when one was expected); ``None``: it is heard again.
    """

    process: int
    path: str
    since: float | None


@dataclass
class _Ear:
    """What is known of one partner on one path; ``last`` in seconds."""

    sock: socket.socket
    to: tuple[str, int]
    last: float
    patience: float = UNHEARD_S
    silent: bool = False


class Beacons:
    """Sends, hears and misses beacons. Made inside the process's network namespace; then used by one thread.

    A socket is bound to its path's device, which an ordinary user may do since Linux 5.7.

    Args:
        process: our number.
        ends: our end of each path, by the path's name.
        clock: seconds of CLOCK_MONOTONIC.

    Raises:
        OSError: a device or address is not there, or the port is taken.
    """

    def __init__(self, process: int, ends: Mapping[str, End], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beacon = _FORMAT.pack(_MAGIC, process)
        self._ears: dict[tuple[int, str], _Ear] = {}
        self._beaten = clock()
        self._sockets: dict[str, socket.socket] = {}
        try:
            for path, end in ends.items():
                self._sockets[path] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                _bind(self._sockets[path], end)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets.values():
            sock.close()

    def watch(self, partners: Sequence[Partner]) -> None:
        """Replace the partners; what is known of those that stay is kept."""
        now = self._clock()
        known, self._ears = self._ears, {}
        for partner in partners:
            for path, address in partner.addresses.items():
                key = partner.process, path
                self._ears[key] = known.get(key) or _Ear(self._sockets[path], (address, PORT), now)

    def beat(self) -> list[Report]:
        """Read, send and judge; to be called every ``BEAT_S``. Returns what has changed since the last beat."""
        # Taken before anything is read: if we are stopped from here on, the next beat is the late one.
        now = self._clock()
        if now - self._beaten > BEAT_S + LATE_S:
            self._start_anew(now)
        self._beaten = now
        heard = self._drain()
        self._send()
        return [*self._hear(heard, now), *self._miss(now)]

    def silent(self) -> list[Report]:
        """All that are silent now."""
        return [Report(process, path, ear.last) for (process, path), ear in self._ears.items() if ear.silent]

    def _start_anew(self, now: float) -> None:
        for ear in self._ears.values():
            if not ear.silent:
                ear.last = now

    def _drain(self) -> set[tuple[int, str]]:
        """Who was heard on which path; may hold others than our partners."""
        heard = set()
        for path, sock in self._sockets.items():
            # An error is the end of what there is to read, or of the path: then its silence tells.
            with contextlib.suppress(OSError):
                for _ in range(_MOST):
                    datagram = sock.recv(_FORMAT.size + 1)
                    if len(datagram) == _FORMAT.size:
                        magic, process = _FORMAT.unpack(datagram)
                        if magic == _MAGIC:
                            heard.add((process, path))
        return heard

    def _send(self) -> None:
        for ear in self._ears.values():
            # No route, no room, no permission, no neighbour: the other side will not hear us, and says so.
            with contextlib.suppress(OSError):
                ear.sock.sendto(self._beacon, ear.to)

    def _hear(self, heard: set[tuple[int, str]], now: float) -> list[Report]:
        again = []
        for (process, path), ear in self._ears.items():
            if (process, path) in heard:
                if ear.silent:
                    again.append(Report(process, path, None))
                ear.last, ear.patience, ear.silent = now, SILENT_S, False
        return again

    def _miss(self, now: float) -> list[Report]:
        missed = []
        for (process, path), ear in self._ears.items():
            if not ear.silent and now - ear.last > ear.patience:
                ear.silent = True
                missed.append(Report(process, path, ear.last))
        return missed


def _bind(sock: socket.socket, end: End) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, end.device.encode())
    sock.bind((end.address, PORT))
