"""Taking an interface down and bringing it back with all that the kernel forgets meanwhile.

When an interface goes down the kernel removes its routes, and of IPv6 its addresses as well. What was there is kept as
the kernel itself lists it, and given back message by message, as ``ip address restore`` and ``ip route restore`` do.

Ours is known by its alias, ``chaos:`` and the fault's id, which it bears from before the fault to its end.
"""

from __future__ import annotations

import binascii
import contextlib
import socket
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from injectors._links import ADDRESS, GET_ADDRESS, GET_ROUTE, IFALIAS, LINK, NEW_LINK, OUT, ROUTE, UP, Link, Links
from injectors._netlink import ACK, CREATE, DUMP, EXCLUSIVE, HEADER_BYTES, attribute, attributes, request
from injectors.contract import InjectorError

MARK = "chaos:"
_NEW_ADDRESS, _NEW_ROUTE = 20, 24
_MULTIPATH, _CACHEINFO = 9, 12  # RTA_*
_ADDRESS_CACHEINFO, _ADDRESS_FLAGS = 6, 8  # IFA_*
_BY_KERNEL = 2  # RTPROT_KERNEL: it comes back by itself
_UNICAST = 1  # RTN_UNICAST
_LINK_LOCAL = 253  # RT_SCOPE_LINK, as an address's scope
_NOT_OURS = 0x01 | 0x100  # IFA_F_TEMPORARY, IFA_F_MANAGETEMPADDR: the kernel makes them itself
_DYNAMIC_FLAGS = 0x1F  # RTNH_F_DEAD and the like, in a route's flags
_PASSES = 4  # a route may need another one to be there first


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


class Interface(Links):
    """An interface of the namespace in which this is made: its socket stays there.

    Raises:
        InjectorError: there is none of this name.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        try:
            self.index = self._now().interface
        except BaseException:
            self.close()
            raise
        self._down = self._flags(0)

    def _now(self) -> Link:
        link = self.find(self.name)
        if link is None:
            raise InjectorError(f"there is no interface {self.name}")
        return link

    @property
    def up(self) -> bool:
        """Whether it is up, as an administrator says."""
        return self._now().up

    @property
    def alias(self) -> str:
        """Its alias."""
        return self._now().alias

    def state(self) -> State:
        """All that must come back."""
        now = self._now()
        return State(now.up, now.alias, list(self._addresses()), list(self._routes()))

    def _addresses(self) -> Iterator[bytes]:
        """Of IPv6 alone: those of IPv4 stay."""
        for data in self._netlink.dump(request(GET_ADDRESS, DUMP, ADDRESS.pack(0, 0, 0, 0, 0))):
            family, _, flags, scope, index = ADDRESS.unpack_from(data, HEADER_BYTES)
            if index == self.index and family == socket.AF_INET6 and scope != _LINK_LOCAL and not flags & _NOT_OURS:
                yield data[HEADER_BYTES:]

    def _all_routes(self) -> List[bytes]:
        return self._netlink.dump(request(GET_ROUTE, DUMP, ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)))

    def _routes(self) -> Iterator[bytes]:
        for data in self._all_routes():
            _, _, _, _, _, protocol, _, kind, _ = ROUTE.unpack_from(data, HEADER_BYTES)
            found = attributes(data[HEADER_BYTES + ROUTE.size :])
            if protocol == _BY_KERNEL or kind != _UNICAST:
                continue
            if OUT in found and struct.unpack("=I", found[OUT])[0] == self.index:
                yield data[HEADER_BYTES:]

    def shares_routes(self) -> bool:
        """Whether a route has several ways, of which this interface is one: such a route is not given back exactly."""
        for data in self._all_routes():
            ways = attributes(data[HEADER_BYTES + ROUTE.size :]).get(_MULTIPATH, b"")
            while len(ways) >= 8:
                length, _, _, index = struct.unpack_from("=HBBi", ways)
                if index == self.index:
                    return True
                ways = ways[(length + 3) & ~3 :]
        return False

    def mark(self, alias: str) -> None:
        """Give it an alias; an empty one takes it away."""
        body = LINK.pack(0, 0, self.index, 0, 0) + attribute(IFALIAS, alias.encode() + (b"\0" if alias else b""))
        self._netlink.change(request(NEW_LINK, ACK, body))

    def _flags(self, up: int) -> bytes:
        return request(NEW_LINK, ACK, LINK.pack(0, 0, self.index, up, UP))

    def take_down(self) -> None:
        """One message."""
        self._netlink.change(self._down)

    def bring_up(self, state: State) -> None:
        """Up, if it was, and with whatever has been lost; idempotent."""
        if not state.up:
            return
        self._netlink.change(self._flags(UP))
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
            self._netlink.change(request(kind, ACK | CREATE | EXCLUSIVE, message))
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
        here = {_essence(each, ADDRESS) for each in self._addresses()}
        lost = [each for each in state.addresses if _essence(each, ADDRESS) not in here]
        if lost:
            found.append(f"{self.name} lacks {len(lost)} of its addresses")
        here = {_essence(each, ROUTE) for each in self._routes()}
        lost = [each for each in state.routes if _essence(each, ROUTE) not in here]
        if lost:
            found.append(f"{self.name} lacks {len(lost)} of its routes")
        return found


def marked() -> List[Link]:
    """The interfaces of this namespace that bear our mark."""
    with contextlib.closing(Links()) as links:
        return [link for link in links.all() if link.alias.startswith(MARK)]


def _essence(message: bytes, head: struct.Struct) -> Tuple[Any, ...]:
    """An address or a route without what changes by itself: ages, flags of the moment."""
    fields = list(head.unpack_from(message))
    found = attributes(message[head.size :])
    if head is ROUTE:
        fields[-1] &= ~_DYNAMIC_FLAGS
        passing = {_CACHEINFO}
    else:
        fields[2] = 0  # whether an address is still tentative
        passing = {_ADDRESS_CACHEINFO, _ADDRESS_FLAGS}
    return (tuple(fields), tuple(sorted((kind, value) for kind, value in found.items() if kind not in passing)))
