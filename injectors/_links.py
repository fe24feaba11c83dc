"""Network interfaces by routing netlink: found by name, their counters and addresses, and the way to an address."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from typing import Dict, List, NamedTuple, Optional, Union

from injectors import _netlink
from injectors._netlink import DUMP, HEADER_BYTES, attribute, attributes, request
from injectors.contract import InjectorError

IPAddress = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

NEW_LINK, _GET_LINK, GET_ADDRESS, GET_ROUTE = 16, 18, 22, 26
LINK = struct.Struct("=BxHiII")  # family, type, interface, flags, change
ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
# Family, lengths of destination and source, type of service, table, protocol, scope, type, flags.
ROUTE = struct.Struct("=BBBBBBBBI")
UP = 0x1  # IFF_UP
IFALIAS = 20  # IFLA_IFALIAS
OUT = 4  # RTA_OIF
_ALL = LINK.pack(0, 0, 0, 0, 0)
_IFNAME, _PEER, _STATISTICS64 = 3, 5, 23  # IFLA_*
_LOCAL = 2  # IFA_LOCAL
_DESTINATION = 1  # RTA_DST
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL)


class Link(NamedTuple):
    """An interface.

    Attributes:
        interface, peer: its number, and that of its other end (in the other end's namespace).
        sent: bytes so far.
        up: as an administrator says.
        alias: what somebody has written on it.
    """

    interface: int
    name: str
    peer: int
    sent: int
    up: bool
    alias: str


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
        return _link(self._netlink.get(request(_GET_LINK, 0, LINK.pack(0, 0, interface, 0, 0)))).sent

    def names(self) -> Dict[int, str]:
        """The names of all interfaces by their number."""
        return {link.interface: link.name for link in self.all()}

    def all(self) -> List[Link]:
        """All interfaces."""
        return [_link(data) for data in self._netlink.dump(request(_GET_LINK, DUMP, _ALL))]

    def way_to(self, address: IPAddress) -> Optional[int]:
        """The interface over which an address is reached, by the routing table; ``None`` where there is no way."""
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        body = ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
        try:
            answer = self._netlink.get(request(GET_ROUTE, 0, body + attribute(_DESTINATION, address.packed)))
        except OSError as error:
            if error.errno in _NO_WAY:
                return None
            raise
        out = attributes(answer[HEADER_BYTES + ROUTE.size :]).get(OUT)
        return None if out is None else int(struct.unpack("=I", out)[0])

    def address(self, name: str) -> str:
        """The first IPv4 address of an interface.

        Raises:
            InjectorError: there is no such interface, or it has none.
        """
        link = self.find(name)
        if link is None:
            raise InjectorError(f"there is no interface {name}")
        wanted = ADDRESS.pack(socket.AF_INET, 0, 0, 0, link.interface)
        for data in self._netlink.dump(request(GET_ADDRESS, DUMP, wanted)):
            if ADDRESS.unpack_from(data, HEADER_BYTES)[4] == link.interface:  # the kernel lists those of all
                return socket.inet_ntoa(attributes(data[HEADER_BYTES + ADDRESS.size :])[_LOCAL])
        raise InjectorError(f"the interface {name} has no address")


def _link(data: bytes) -> Link:
    _, _, interface, flags, _ = LINK.unpack_from(data, HEADER_BYTES)
    found = attributes(data[HEADER_BYTES + LINK.size :])
    peer = struct.unpack("=I", found[_PEER])[0] if _PEER in found else 0
    sent = struct.unpack_from("=4Q", found[_STATISTICS64])[3]  # received and sent packets, received and sent bytes
    name, alias = (found.get(key, b"").rstrip(b"\0").decode(errors="replace") for key in (_IFNAME, IFALIAS))
    return Link(interface, name, peer, sent, bool(flags & UP), alias)
