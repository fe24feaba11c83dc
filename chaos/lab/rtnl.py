"""Routing netlink (man 7 rtnetlink) for wiring a lab: requests in batches, in pyroute2's encoding.

Of pyroute2 only what encodes messages is loaded. ``import pyroute2`` loads all of its 370 modules, and its ``IPRoute``
asyncio with TLS and unittest: 50 ms more of a lab's start, and each request costs half a millisecond in an event loop.
While the few are imported a bare package stands in for pyroute2's own ``__init__``; a later, ordinary import of
pyroute2 in the same process finds the real one.
"""

from __future__ import annotations

import importlib.machinery
import os
import socket
import struct
import sys
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg
else:
    _whole = "pyroute2" in sys.modules
    if not _whole:
        _spec = importlib.machinery.PathFinder.find_spec("pyroute2")
        if _spec is None or _spec.submodule_search_locations is None:
            raise ImportError("pyroute2 is not installed", name="pyroute2")
        _bare = types.ModuleType("pyroute2")
        _bare.__path__ = list(_spec.submodule_search_locations)
        _bare.__spec__ = _spec
        sys.modules["pyroute2"] = _bare
    try:
        from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
        from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
        from pyroute2.netlink.rtnl.rtmsg import rtmsg
    finally:
        if not _whole:
            del sys.modules["pyroute2"]

Attributes = Sequence[tuple[str, Any]]

UP = 1  # IFF_UP
SCOPE_UNIVERSE, SCOPE_LINK = 0, 253

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_NEW = _ACK | 0x200 | 0x400  # EXCL, CREATE
_MAIN_TABLE, _STATIC, _UNICAST = 254, 4, 1
_BATCH = 64  # the acknowledgements of so many requests fit into any receive buffer
_BUFFER = 1 << 16


class _Kind(NamedTuple):
    """Of a request: pyroute2's form of it, its type, its flags."""

    form: Any
    type: int
    flags: int


_NEW_LINK = _Kind(ifinfmsg, 16, _NEW)
_DELETE_LINK = _Kind(ifinfmsg, 17, _ACK)
_GET_LINKS = _Kind(ifinfmsg, 18, _DUMP)
_SET_LINK = _Kind(ifinfmsg, 19, _ACK)
_NEW_ADDRESS = _Kind(ifaddrmsg, 20, _NEW)
_NEW_ROUTE = _Kind(rtmsg, 24, _NEW)


class Netlink:
    """A socket in the network namespace of the calling thread; use it as a context manager.

    Requests are gathered, and done in their order when there are many of them, or at ``flush`` and at the end.
    Everything raises OSError with the kernel's error number and what it was that failed.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._requests: list[tuple[str, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._socket:
            if kind is None:
                self.flush()

    def add_link(
        self, name: str, kind: str, data: Attributes = (), *, index: int = 0, master: int | None = None
    ) -> None:
        """Make a link that is up.

        Args:
            kind: the kernel's word for it, such as ``bridge``.
            data: what that kind needs to know.
            index: its number; 0: the next one.
            master: number of the bridge that it is plugged into.
        """
        info: list[tuple[str, Any]] = [("IFLA_INFO_KIND", kind)]
        if data:
            info.append(("IFLA_INFO_DATA", {"attrs": list(data)}))
        attributes: list[tuple[str, Any]] = [("IFLA_IFNAME", name), ("IFLA_LINKINFO", {"attrs": info})]
        if master is not None:
            attributes.append(("IFLA_MASTER", master))
        self._ask(f"link {name}", _NEW_LINK, {"index": index, "flags": UP, "change": UP}, attributes)

    def link_up(self, index: int) -> None:
        """Raise a link."""
        self._ask(f"link {index} up", _SET_LINK, {"index": index, "flags": UP, "change": UP}, [])

    def delete_link(self, name: str) -> None:
        """Remove a link by its name."""
        self._ask(f"removal of link {name}", _DELETE_LINK, {}, [("IFLA_IFNAME", name)])

    def add_address(self, index: int, address: str, prefix: int, peer: str | None = None) -> None:
        """Give a link an IPv4 address; with a ``peer``, ``prefix`` is of the network at the other end."""
        fields = {"family": socket.AF_INET, "prefixlen": prefix, "index": index}
        attributes = [("IFA_LOCAL", address), ("IFA_ADDRESS", peer or address)]
        self._ask(f"address {address}", _NEW_ADDRESS, fields, attributes)

    def add_route(self, to: str, prefix: int, attributes: Attributes, scope: int = SCOPE_UNIVERSE) -> None:
        """Add an IPv4 route to the main table."""
        fields = {
            "family": socket.AF_INET,
            "dst_len": prefix,
            "table": _MAIN_TABLE,
            "proto": _STATIC,
            "scope": scope,
            "type": _UNICAST,
        }
        destination = [("RTA_DST", to)] if prefix else []
        self._ask(f"route to {to}/{prefix}", _NEW_ROUTE, fields, [*destination, *attributes])

    def links(self) -> Iterator[ifinfmsg]:
        """All links of the namespace, in pyroute2's form."""
        self.flush()
        self._socket.send(_encoded(_GET_LINKS, 0, {}, []))
        while True:
            for kind, _, message in self._receive():
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    _check(message, "list of links")
                link = ifinfmsg(message)
                link.decode()
                yield link

    def flush(self) -> None:
        """Do what has been asked for."""
        asked, self._requests = self._requests, []
        if not asked:
            return
        self._socket.send(b"".join(request for _, request in asked))
        answered = 0
        while answered < len(asked):
            for kind, sequence, message in self._receive():
                if kind == _ERROR:
                    _check(message, asked[sequence][0])
                    answered += 1

    def _ask(self, what: str, kind: _Kind, fields: dict[str, int], attributes: Attributes) -> None:
        self._requests.append((what, _encoded(kind, len(self._requests), fields, attributes)))
        if len(self._requests) == _BATCH:
            self.flush()

    def _receive(self) -> Iterator[tuple[int, int, bytes]]:
        """Type, sequence number and whole bytes of each message of one packet."""
        data = self._socket.recv(_BUFFER)
        while data:
            length, kind, _, sequence, _ = _HEADER.unpack_from(data)
            yield kind, sequence, data[:length]
            data = data[(length + 3) & ~3 :]


def _encoded(kind: _Kind, sequence: int, fields: dict[str, int], attributes: Attributes) -> bytes:
    message = kind.form()
    message.update(fields)
    message["attrs"] = list(attributes)
    message["header"].update({"type": kind.type, "flags": _REQUEST | kind.flags, "sequence_number": sequence, "pid": 0})
    message.encode()
    return bytes(message.data)


def _check(message: bytes, what: str) -> None:
    (number,) = struct.unpack_from("=i", message, _HEADER.size)
    if number:
        raise OSError(-number, f"{what}: {os.strerror(-number)}")
