"""What must never be cut: the way on which the controller speaks to this node."""

from __future__ import annotations

import ipaddress
import os
from typing import List, Union

from injectors._links import IPAddress, Links
from injectors.contract import InjectorError

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

_OF_THE_LAB = "mgmt"  # the lab's management network, by the names of its interfaces


def addresses() -> List[IPAddress]:
    """From where the controller speaks to this node, as far as the agent's environment tells."""
    told = os.environ.get("CHAOS_CONTROL", "").split(",") + os.environ.get("SSH_CONNECTION", "").split()[:1]
    found = []
    for text in told:
        try:
            found.append(ipaddress.ip_address(text.strip().partition("%")[0]))
        except ValueError:
            continue
    return found


def refuse_interface(links: Links, interface: int, name: str) -> None:
    """Raise InjectorError if a fault on this interface would cut the control channel."""
    if "CHAOS_LAB_NETNS" in os.environ and name.startswith(_OF_THE_LAB):
        raise InjectorError(f"{name} is the lab's management network, and never a target: aim at rdma0")
    for address in addresses():
        if links.way_to(address) == interface:
            raise InjectorError(
                f"{name} is never a target: it is the way to {address}, from where this node is controlled; "
                "aim at a data interface"
            )


def refuse_network(peers: List[Network]) -> None:
    """Raise InjectorError if one of these networks has the controller in it."""
    for address in addresses():
        for peer in peers:
            if address in peer:
                raise InjectorError(f"{peer} has {address} in it, from where this node is controlled: never a target")
