"""A raw netlink socket: changes that were encoded beforehand cost one system call, and the kernel has made them when it
returns; pyroute2's own sockets run an event loop and cost about a millisecond more. Also finds who has such a socket.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from typing import Dict, Iterator, List, Set, Tuple

from injectors import kernel

ROUTE, NETFILTER = 0, 12  # NETLINK_ROUTE, NETLINK_NETFILTER
REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
_ERROR, _DONE = 2, 3
_INTERRUPTED = 0x10  # NLM_F_DUMP_INTR: something changed while the list was made
HEADER_BYTES = 16
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_BUFFER = 1 << 16
_ATTEMPTS = 20
_SIOCGSKNS = 0x894C


class Netlink:
    """A socket in the network namespace in which the calling thread is now; it stays there.

    Args:
        protocol: ``ROUTE`` or ``NETFILTER``.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.bind((0, 0))
        self._protocol = protocol

    @property
    def port(self) -> int:
        """By which the kernel knows this socket among those of its namespace and protocol."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        """Close it; what the kernel ties to it goes."""
        self._socket.close()

    def change(self, messages: bytes) -> None:
        """Send messages of which the last is to be acknowledged (``ACK``), and see that the kernel accepted all.

        Raises:
            OSError: it refused one; the number of the first error.
        """
        self._socket.send(messages)  # the kernel has done it when this returns, and all its answers are there
        failed = 0
        for kind, message in self._answers():
            if kind == _ERROR:
                failed = failed or _code(message)
        if failed:
            raise OSError(-failed, os.strerror(-failed))

    def _answers(self) -> Iterator[Tuple[int, bytes]]:
        flags = 0
        while True:
            try:
                data = self._socket.recv(_BUFFER, flags)
            except BlockingIOError:
                return
            for kind, _, message in _split(data):
                yield kind, message
            flags = socket.MSG_DONTWAIT

    def get(self, request: bytes) -> bytes:
        """The one message, header included, that answers a request without ``DUMP`` and ``ACK``.

        Raises:
            OSError: there is no such thing.
        """
        self._socket.send(request)
        kind, _, message = next(_split(self._socket.recv(_BUFFER)))
        if kind == _ERROR:
            failed = _code(message)
            raise OSError(-failed, os.strerror(-failed))
        return message

    def dump(self, request: bytes) -> List[bytes]:
        """The messages of a list that the kernel makes (``DUMP``), header included.

        Raises:
            OSError: the kernel has no such list, or it never stands still.
        """
        for _ in range(_ATTEMPTS):
            self._socket.send(request)
            found, whole = self._list()
            if whole:
                return found
        raise OSError(errno.EAGAIN, "the kernel's list changes all the time")

    def _list(self) -> Tuple[List[bytes], bool]:
        found: List[bytes] = []
        whole = True
        while True:
            for kind, flags, message in _split(self._socket.recv(_BUFFER)):
                whole = whole and not flags & _INTERRUPTED
                if kind in (_DONE, _ERROR):
                    failed = _code(message) if kind == _ERROR or len(message) >= _HEADER.size + 4 else 0
                    if failed:
                        raise OSError(-failed, os.strerror(-failed))
                    return found, whole
                found.append(message)

    def processes_at(self, port: int) -> List[int]:
        """Process ids, as this process sees them, of those that have the socket with this port open.

        Empty where none can be seen: it may be in another PID namespace, or another user's.
        """
        network = fcntl.ioctl(self._socket, _SIOCGSKNS, 0)
        try:
            with kernel.inside(network), open("/proc/thread-self/net/netlink", encoding="utf-8") as file:
                rows = [line.split() for line in file.readlines()[1:]]  # sk, protocol, port, ..., inode
        finally:
            os.close(network)
        names = {f"socket:[{row[9]}]" for row in rows if int(row[1]) == self._protocol and int(row[2]) == port}
        return [pid for pid in kernel.processes() if _has_one_of(pid, names)]


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> Dict[int, bytes]:
    """Attributes by type."""
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        found[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]  # the upper two bits are flags
        data = data[(length + 3) & ~3 :]
    return found


def _has_one_of(pid: int, names: Set[str]) -> bool:
    try:
        return not names.isdisjoint(kernel.descriptors(pid).values())
    except PermissionError:
        return False


def request(kind: int, flags: int, body: bytes, sequence: int = 1) -> bytes:
    """A message from its type, flags and body."""
    return _HEADER.pack(_HEADER.size + len(body), kind, REQUEST | flags, sequence, 0) + body


def _split(data: bytes) -> Iterator[Tuple[int, int, bytes]]:
    """Type, flags and whole bytes of each message of one packet."""
    while data:
        length, kind, flags, _, _ = _HEADER.unpack_from(data)
        yield kind, flags, data[:length]
        data = data[(length + 3) & ~3 :]


def _code(message: bytes) -> int:
    return int(struct.unpack_from("=i", message, _HEADER.size)[0])
