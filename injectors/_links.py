"""Network interfaces by routing netlink: found by name, their counters, their addresses."""

from __future__ import annotations

import errno
import socket
import struct
from typing import Dict, NamedTuple, Optional

from injectors import _netlink
from injectors._netlink import DUMP, HEADER_BYTES, attribute, attributes, request
from injectors.contract import InjectorError

_GET_LINK, _GET_ADDRESS = 18, 22
_LINK = struct.Struct("=BxHiII")  # family, type, interface, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ALL = _LINK.pack(0, 0, 0, 0, 0)
_IFNAME, _PEER, _STATISTICS64 = 3, 5, 23  # IFLA_*
_LOCAL = 2  # IFA_LOCAL


class Link(NamedTuple):
    """An interface: its number, name, that of its other end (in the other end's namespace), and bytes sent so far."""

    interface: int
    name: str
    peer: int
    sent: int


class Links:
    """The interfaces of the namespace in which this is made.

    Everything raises OSError with the kernel's error number where the kernel refuses.
    """

    def __init__(self) -> None:
        self._netlink = _netlink.Netlink(_netlink.ROUTE)

    def close(self) -> None:
        """Close the socket."""
        self._netlink.close()

    def find(self, name: str) -> Optional[Link]:
        """The interface of this name; ``None`` if there is none."""
        try:
            return _link(self._netlink.get(request(_GET_LINK, 0, _ALL + attribute(_IFNAME, name.encode() + b"\0"))))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise

    def sent(self, interface: int) -> int:
        """Bytes that an interface has sent so far."""
        return _link(self._netlink.get(request(_GET_LINK, 0, _LINK.pack(0, 0, interface, 0, 0)))).sent

    def names(self) -> Dict[int, str]:
        """The names of all interfaces by their number."""
        links = (_link(data) for data in self._netlink.dump(request(_GET_LINK, DUMP, _ALL)))
        return {link.interface: link.name for link in links}

    def address(self, name: str) -> str:
        """The first IPv4 address of an interface.

        Raises:
            InjectorError: there is no such interface, or it has none.
        """
        link = self.find(name)
        if link is None:
            raise InjectorError(f"there is no interface {name}")
        wanted = _ADDRESS.pack(socket.AF_INET, 0, 0, 0, link.interface)
        for data in self._netlink.dump(request(_GET_ADDRESS, DUMP, wanted)):
            if _ADDRESS.unpack_from(data, HEADER_BYTES)[4] == link.interface:  # the kernel lists those of all
                return socket.inet_ntoa(attributes(data[HEADER_BYTES + _ADDRESS.size :])[_LOCAL])
        raise InjectorError(f"the interface {name} has no address")


def _link(data: bytes) -> Link:
    _, _, interface, _, _ = _LINK.unpack_from(data, HEADER_BYTES)
    found = attributes(data[HEADER_BYTES + _LINK.size :])
    peer = struct.unpack("=I", found[_PEER])[0] if _PEER in found else 0
    sent = struct.unpack_from("=4Q", found[_STATISTICS64])[3]  # received and sent packets, received and sent bytes
    return Link(interface, found[_IFNAME].rstrip(b"\0").decode(), peer, sent)
