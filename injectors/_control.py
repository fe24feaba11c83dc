"""What must never be cut: the way on which the controller speaks to this node."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from typing import Dict, List, Optional, Union

from injectors import _netlink
from injectors._netlink import HEADER_BYTES, attribute, attributes, request
from injectors.contract import InjectorError

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

_GET_ROUTE = 26
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, destination length, ..., flags
_DESTINATION, _OUT = 1, 4  # RTA_*
_OF_THE_LAB = "mgmt"  # the lab's management network, by the names of its interfaces


def addresses() -> List[Address]:
    """From where the controller speaks to this node, as far as the agent's environment tells."""
    told = os.environ.get("CHAOS_CONTROL", "").split(",") + os.environ.get("SSH_CONNECTION", "").split()[:1]
    found = []
    for text in told:
        try:
            found.append(ipaddress.ip_address(text.strip().partition("%")[0]))
        except ValueError:
            continue
    return found


def interfaces(netlink: _netlink.Netlink) -> Dict[int, str]:
    """The interfaces over which this node answers the controller, each with why; looked up in the routing table."""
    found = {}
    for address in addresses():
        interface = _way_to(netlink, address)
        if interface is not None:
            found[interface] = f"it is the way to {address}, from where this node is controlled"
    return found


def refuse_interface(netlink: _netlink.Netlink, interface: int, name: str) -> None:
    """Raise InjectorError if a fault on this interface would cut the control channel."""
    if "CHAOS_LAB_NETNS" in os.environ and name.startswith(_OF_THE_LAB):
        raise InjectorError(f"{name} is the lab's management network, and never a target: aim at rdma0")
    why = interfaces(netlink).get(interface)
    if why is not None:
        raise InjectorError(f"{name} is never a target: {why}; aim at a data interface")


def refuse_network(peers: List[Network]) -> None:
    """Raise InjectorError if one of these networks has the controller in it."""
    for address in addresses():
        for peer in peers:
            if address in peer:
                raise InjectorError(f"{peer} has {address} in it, from where this node is controlled: never a target")


def _way_to(netlink: _netlink.Netlink, address: Address) -> Optional[int]:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    try:
        answer = netlink.get(request(_GET_ROUTE, 0, body + attribute(_DESTINATION, address.packed)))
    except OSError as error:
        if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL):
            return None
        raise
    out = attributes(answer[HEADER_BYTES + _ROUTE.size :]).get(_OUT)
    return None if out is None else int(struct.unpack("=I", out)[0])
