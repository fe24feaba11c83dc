"""Wires the lab's network with netlink: bridges, veth pairs, addresses and routes, as ``topology`` names them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chaos.lab import topology
from chaos.lab.namespace import inside_network
from chaos.lab.rtnl import SCOPE_LINK, UP, Netlink

# A new namespace numbers its interfaces from 2 in the order in which they are made, so that none needs to be looked up.
_LOOPBACK_INDEX = 1
_BRIDGE_INDEX = 2  # in a switch's, the spine's and the head's namespace
_FAST_INDEX, _SLOW_INDEX = 2, 3  # nvl0 and pcie0 of a GPU
_RAIL_INDEX, _MANAGEMENT_INDEX, _FIRST_GPU_INDEX = 2, 3, 10  # rdma0, mgmt0 and pcie<k> of a node


class Wiring:
    """All links of one lab. Runs in the keeper, which holds the namespaces.

    Args:
        spec: the lab's size.
        spine: descriptor of the spine's network namespace.
        head: descriptor of the head's (the keeper's own) network namespace.
    """

    def __init__(self, spec: topology.LabSpec, spine: int, head: int) -> None:
        self._spec = spec
        self._spine = spine
        self._head = head

    def build_backbone(self) -> None:
        """The spine's and the management network's bridges."""
        for fd, name in ((self._spine, topology.SPINE_BRIDGE), (self._head, topology.HEAD_BRIDGE)):
            with inside_network(fd), Netlink() as net:
                net.link_up(_LOOPBACK_INDEX)
                _bridge(net, name)
                if fd == self._head:
                    net.add_address(_BRIDGE_INDEX, topology.HEAD_ADDRESS, 24)

    def build_node(self, node: int, network: int, gpus: Sequence[int], switch: int) -> None:
        """All links of one node, up to its ports at the spine and on the management network."""
        with inside_network(switch), Netlink() as net:
            _bridge(net, topology.SWITCH_BRIDGE)
            for gpu, fd in enumerate(gpus):
                _veth(net, f"nvl{gpu}", _Peer("nvl0", fd), master=_BRIDGE_INDEX)
        for fd, port, peer in (
            (self._spine, f"rail{node}", _Peer("rdma0", network)),
            (self._head, f"mgmt{node + 1}", _Peer("mgmt0", network)),
        ):
            with inside_network(fd), Netlink() as net:
                _veth(net, port, peer, master=_BRIDGE_INDEX)
        self._address_node(node, network, gpus)
        for gpu, fd in enumerate(gpus):
            _address_gpu(node, gpu, fd)

    def _address_node(self, node: int, network: int, gpus: Sequence[int]) -> None:
        with inside_network(network), Netlink() as net:
            # /proc/sys/net shows the namespace of whoever opens it.
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            net.link_up(_LOOPBACK_INDEX)
            for index, address in (
                (_RAIL_INDEX, topology.rail_address(node)),
                (_MANAGEMENT_INDEX, topology.management_address(node)),
            ):
                net.add_address(index, address, 24)
                net.link_up(index)
            for other in self._spec.all_nodes:
                if other != node:
                    for supernet in (77, 78):
                        gateway = ("RTA_GATEWAY", topology.rail_address(other))
                        net.add_route(f"10.{supernet}.{other}.0", 24, [gateway])
            for gpu, fd in enumerate(gpus):
                port = _FIRST_GPU_INDEX + gpu
                _veth(net, f"pcie{gpu}", _Peer("pcie0", fd), index=port)
                # An address with a peer is a route to it as well.
                for peer in (topology.nvlink_address(node, gpu), topology.pcie_address(node, gpu)):
                    net.add_address(port, topology.PCIE_GATEWAY, 32, peer)

    def unplug_node(self, node: int) -> None:
        """Remove a node's ports at the spine and on the management network, so that its names are free at once."""
        for fd, port in ((self._spine, f"rail{node}"), (self._head, f"mgmt{node + 1}")):
            try:
                with inside_network(fd), Netlink() as net:
                    net.delete_link(port)
            except OSError as error:
                if error.errno != errno.ENODEV:  # gone already, with the namespace of its other end
                    raise


def _address_gpu(node: int, gpu: int, fd: int) -> None:
    nvlink, pcie = topology.nvlink_address(node, gpu), topology.pcie_address(node, gpu)
    with inside_network(fd), Netlink() as net:
        net.link_up(_LOOPBACK_INDEX)
        net.add_address(_FAST_INDEX, nvlink, 24)
        net.add_address(_SLOW_INDEX, pcie, 32)
        for index in (_FAST_INDEX, _SLOW_INDEX):
            net.link_up(index)
        slow, gateway = ("RTA_OIF", _SLOW_INDEX), ("RTA_GATEWAY", topology.PCIE_GATEWAY)
        net.add_route(topology.PCIE_GATEWAY, 32, [slow], SCOPE_LINK)
        net.add_route("0.0.0.0", 0, [slow, gateway, ("RTA_PREFSRC", nvlink)])
        # Between PCIe addresses everything stays on PCIe, within a node too: the way round a sick NVSwitch.
        net.add_route(*topology.PCIE_SUPERNET, [slow, gateway, ("RTA_PREFSRC", pcie)])


class _Peer(NamedTuple):
    """The far end of a veth: its name and the descriptor of its network namespace."""

    name: str
    network: int


def _bridge(net: Netlink, name: str) -> None:
    net.add_link(name, "bridge", index=_BRIDGE_INDEX)


def _veth(net: Netlink, name: str, peer: _Peer, *, index: int = 0, master: int | None = None) -> None:
    """One request makes both ends, raises the near one and plugs it into a bridge."""
    far = {"attrs": [("IFLA_IFNAME", peer.name), ("IFLA_NET_NS_FD", peer.network)]}
    net.add_link(name, "veth", [("VETH_INFO_PEER", far)], index=index, master=master)


def read_links(network: int) -> list[dict[str, Any]]:
    """The links of one namespace, without loopback: name, state, and bytes and packets each way."""
    with inside_network(network), Netlink() as net:
        found = []
        for link in net.links():
            name = link.get_attr("IFLA_IFNAME")
            if name == "lo":
                continue
            stats = link.get_attr("IFLA_STATS64") or {}
            found.append(
                {
                    "name": name,
                    "state": "up" if link["flags"] & UP and link.get_attr("IFLA_OPERSTATE") != "DOWN" else "down",
                    "rx_bytes": stats.get("rx_bytes", 0),
                    "tx_bytes": stats.get("tx_bytes", 0),
                    "rx_packets": stats.get("rx_packets", 0),
                    "tx_packets": stats.get("tx_packets", 0),
                    "dropped": stats.get("rx_dropped", 0) + stats.get("tx_dropped", 0),
                }
            )
    return found
