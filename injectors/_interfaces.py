"""Taking an interface down and bringing it back with all that the kernel forgets meanwhile.

When an interface goes down the kernel removes its routes, and of IPv6 its addresses as well. What was there is kept as
the kernel itself lists it, and given back message by message, as ``ip address restore`` and ``ip route restore`` do.

Ours is known by its alias, ``chaos:`` and the fault's id, which it bears from before the fault to its end.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import socket
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from injectors import _netlink
from injectors._netlink import ACK, CREATE, DUMP, EXCLUSIVE, HEADER_BYTES, attribute, attributes, request
from injectors.contract import InjectorError

MARK = "chaos:"
_NEW_LINK, _GET_LINK, _NEW_ADDRESS, _GET_ADDRESS, _NEW_ROUTE, _GET_ROUTE = 16, 18, 20, 22, 24, 26
_LINK = struct.Struct("=BxHiII")  # family, type, interface, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ROUTE = struct.Struct(
    "=BBBBBBBBI"
)  # family, lengths of destination and source, tos, table, protocol, scope, type, flags
_UP = 0x1  # IFF_UP
_IFNAME, _IFALIAS = 3, 20  # IFLA_*
_OUT, _MULTIPATH, _CACHEINFO = 4, 9, 12  # RTA_*
_ADDRESS_CACHEINFO = 6  # IFA_CACHEINFO
_BY_KERNEL = 2  # RTPROT_KERNEL: it comes back by itself
_UNICAST = 1  # RTN_UNICAST
_LINK_LOCAL = 253  # RT_SCOPE_LINK, as an address's scope
_NOT_OURS = 0x01 | 0x100  # IFA_F_TEMPORARY, IFA_F_MANAGETEMPADDR: the kernel makes them itself
_DYNAMIC_FLAGS = 0x1F  # RTNH_F_DEAD and the like, in a route's flags
_PASSES = 4  # a route may need another one to be there first
_FORGETFUL = (socket.AF_INET6,)


class State(NamedTuple):
    """What was there: whether it was up, its alias, and the addresses and routes that going down loses, as messages."""

    up: bool
    alias: str
    addresses: List[bytes]
    routes: List[bytes]

    def as_json(self) -> Dict[str, Any]:
        """For a record."""
        return {
            "up": self.up,
            "alias": self.alias,
            "addresses": [binascii.hexlify(each).decode() for each in self.addresses],
            "routes": [binascii.hexlify(each).decode() for each in self.routes],
        }

    @classmethod
    def from_json(cls, kept: Dict[str, Any]) -> State:
        """Back from a record."""
        return cls(
            kept["up"],
            kept["alias"],
            [binascii.unhexlify(each) for each in kept["addresses"]],
            [binascii.unhexlify(each) for each in kept["routes"]],
        )


class Interface:
    """An interface of the namespace in which this is made: its socket stays there.

    Raises:
        InjectorError: there is none of this name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.netlink = _netlink.Netlink(_netlink.ROUTE)
        try:
            told = self._get()
        except OSError as error:
            self.netlink.close()
            if error.errno != errno.ENODEV:
                raise
            raise InjectorError(f"there is no interface {name}") from None
        self.index = told[0]
        self._down = self._flags(0)

    def close(self) -> None:
        """Close the socket."""
        self.netlink.close()

    def _get(self) -> Tuple[int, int, str]:
        """Number, flags and alias."""
        body = _LINK.pack(0, 0, 0, 0, 0) + attribute(_IFNAME, self.name.encode() + b"\0")
        data = self.netlink.get(request(_GET_LINK, 0, body))
        _, _, index, flags, _ = _LINK.unpack_from(data, HEADER_BYTES)
        found = attributes(data[HEADER_BYTES + _LINK.size :])
        return index, flags, found.get(_IFALIAS, b"").rstrip(b"\0").decode(errors="replace")

    @property
    def up(self) -> bool:
        """Whether it is up, as an administrator says."""
        return bool(self._get()[1] & _UP)

    @property
    def alias(self) -> str:
        """Its alias."""
        return self._get()[2]

    def state(self) -> State:
        """All that must come back."""
        _, flags, alias = self._get()
        return State(bool(flags & _UP), alias, list(self._addresses()), list(self._routes()))

    def _addresses(self) -> Iterator[bytes]:
        for data in self.netlink.dump(request(_GET_ADDRESS, DUMP, _ADDRESS.pack(0, 0, 0, 0, 0))):
            family, _, flags, scope, index = _ADDRESS.unpack_from(data, HEADER_BYTES)
            if index == self.index and family in _FORGETFUL and scope != _LINK_LOCAL and not flags & _NOT_OURS:
                yield data[HEADER_BYTES:]

    def _routes(self) -> Iterator[bytes]:
        for data in self.netlink.dump(request(_GET_ROUTE, DUMP, _ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0))):
            _, _, _, _, _, protocol, _, kind, _ = _ROUTE.unpack_from(data, HEADER_BYTES)
            found = attributes(data[HEADER_BYTES + _ROUTE.size :])
            if protocol == _BY_KERNEL or kind != _UNICAST:
                continue
            if _OUT in found and struct.unpack("=I", found[_OUT])[0] == self.index:
                yield data[HEADER_BYTES:]

    def shares_routes(self) -> bool:
        """Whether a route has several ways, of which this interface is one: such a route is not given back exactly."""
        for data in self.netlink.dump(request(_GET_ROUTE, DUMP, _ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0))):
            ways = attributes(data[HEADER_BYTES + _ROUTE.size :]).get(_MULTIPATH, b"")
            while len(ways) >= 8:
                length, _, _, index = struct.unpack_from("=HBBi", ways)
                if index == self.index:
                    return True
                ways = ways[(length + 3) & ~3 :]
        return False

    def mark(self, alias: str) -> None:
        """Give it an alias; an empty one takes it away."""
        body = _LINK.pack(0, 0, self.index, 0, 0) + attribute(_IFALIAS, alias.encode() + (b"\0" if alias else b""))
        self.netlink.change(request(_NEW_LINK, ACK, body))

    def _flags(self, up: int) -> bytes:
        return request(_NEW_LINK, ACK, _LINK.pack(0, 0, self.index, up, _UP))

    def take_down(self) -> None:
        """One message."""
        self.netlink.change(self._down)

    def bring_up(self, state: State) -> None:
        """Up, if it was, and with whatever has been lost; idempotent."""
        if not state.up:
            return
        self.netlink.change(self._flags(_UP))
        for message in state.addresses:
            self._add(_NEW_ADDRESS, message)
        left = list(state.routes)
        for _ in range(_PASSES):
            left = [message for message in left if not self._add(_NEW_ROUTE, message)]
            if not left:
                return

    def _add(self, kind: int, message: bytes) -> bool:
        """Give one back; whether it is there now. What needs another one first is tried again, and told if it fails."""
        try:
            self.netlink.change(request(kind, ACK | CREATE | EXCLUSIVE, message))
        except FileExistsError:
            return True
        except OSError:
            return False
        return True

    def missing(self, state: State) -> List[str]:
        """What of a former state is not there, in words."""
        found = []
        if state.up and not self.up:
            found.append(f"{self.name} is down")
        here = {_essence(each, _ADDRESS, _ADDRESS_CACHEINFO) for each in self._addresses()}
        lost = [each for each in state.addresses if _essence(each, _ADDRESS, _ADDRESS_CACHEINFO) not in here]
        if lost:
            found.append(f"{self.name} lacks {len(lost)} of its addresses")
        here = {_essence(each, _ROUTE, _CACHEINFO) for each in self._routes()}
        lost = [each for each in state.routes if _essence(each, _ROUTE, _CACHEINFO) not in here]
        if lost:
            found.append(f"{self.name} lacks {len(lost)} of its routes")
        return found


def marked() -> List[Tuple[str, str]]:
    """The interfaces of this namespace that bear our mark: name and alias."""
    found = []
    with contextlib.closing(_netlink.Netlink(_netlink.ROUTE)) as netlink:
        for data in netlink.dump(request(_GET_LINK, DUMP, _LINK.pack(0, 0, 0, 0, 0))):
            told = attributes(data[HEADER_BYTES + _LINK.size :])
            alias = told.get(_IFALIAS, b"").rstrip(b"\0").decode(errors="replace")
            if alias.startswith(MARK):
                found.append((told[_IFNAME].rstrip(b"\0").decode(), alias))
    return found


def _essence(message: bytes, head: struct.Struct, cacheinfo: int) -> Tuple[Any, ...]:
    """A message without what changes by itself: ages, flags of the moment."""
    fields = list(head.unpack_from(message))
    if head is _ROUTE:
        fields[-1] &= ~_DYNAMIC_FLAGS
    else:
        fields[2] = 0  # whether an address is still tentative
    found: Dict[int, bytes] = attributes(message[head.size :])
    kept = {kind: value for kind, value in found.items() if kind != cacheinfo and not (head is _ADDRESS and kind == 8)}
    return (tuple(fields), tuple(sorted(kept.items())))
