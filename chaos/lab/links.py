"""Wires the lab's network with netlink: bridges, veth pairs, addresses and routes, as ``topology`` names them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from chaos.lab import topology
from chaos.lab.namespace import inside_network
from chaos.lab.rtnl import IPRoute, NetlinkError

_UP = 1  # IFF_UP
_SCOPE_LINK = 253

# A new namespace numbers its interfaces from 2 in the order in which they are made, so that none needs to be looked up.
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
            with inside_network(fd), closing(IPRoute()) as net:
                _loopback_up(net)
                _bridge(net, name)
                if fd == self._head:
                    net.addr("add", index=_BRIDGE_INDEX, address=topology.HEAD_ADDRESS, prefixlen=24)

    def plug_node(self, node: int, network: int, gpus: Sequence[int], switch: int) -> None:
        """All links of one node, up to its ports at the spine and on the management network."""
        with inside_network(switch), closing(IPRoute()) as net:
            _bridge(net, topology.SWITCH_BRIDGE)
            for gpu, fd in enumerate(gpus):
                _veth(net, f"nvl{gpu}", _Peer("nvl0", fd), master=_BRIDGE_INDEX)
        for fd, port, peer in (
            (self._spine, f"rail{node}", _Peer("rdma0", network)),
            (self._head, f"mgmt{node + 1}", _Peer("mgmt0", network)),
        ):
            with inside_network(fd), closing(IPRoute()) as net:
                _veth(net, port, peer, master=_BRIDGE_INDEX)
        with inside_network(network), closing(IPRoute()) as net:
            for gpu, fd in enumerate(gpus):
                _veth(net, f"pcie{gpu}", _Peer("pcie0", fd), index=_FIRST_GPU_INDEX + gpu)

    def address_jobs(self, node: int, network: int, gpus: Sequence[int]) -> list[Callable[[], None]]:
        """What gives a node whose links are there its addresses and routes, in pieces that can be done at once."""
        return [
            partial(self._address_node, node, network),
            *(partial(_address_gpu, node, gpu, fd) for gpu, fd in enumerate(gpus)),
        ]

    def _address_node(self, node: int, network: int) -> None:
        with inside_network(network), closing(IPRoute()) as net:
            # /proc/sys/net shows the namespace of whoever opens it.
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            _loopback_up(net)
            for index, address in (
                (_RAIL_INDEX, topology.rail_address(node)),
                (_MANAGEMENT_INDEX, topology.management_address(node)),
            ):
                net.addr("add", index=index, address=address, prefixlen=24)
                net.link("set", index=index, state="up")
            for other in self._spec.all_nodes:
                if other != node:
                    for supernet in (77, 78):
                        net.route("add", dst=f"10.{supernet}.{other}.0/24", gateway=topology.rail_address(other))
            for gpu in range(self._spec.gpus):
                port = _FIRST_GPU_INDEX + gpu
                # An address with a peer is a route to it as well.
                for address in (topology.nvlink_address(node, gpu), topology.pcie_address(node, gpu)):
                    net.addr("add", index=port, local=topology.PCIE_GATEWAY, address=address, prefixlen=32)

    def unplug_node(self, node: int) -> None:
        """Remove a node's ports at the spine and on the management network, so that its names are free at once."""
        for fd, port in ((self._spine, f"rail{node}"), (self._head, f"mgmt{node + 1}")):
            with inside_network(fd), closing(IPRoute()) as net:
                for index in net.link_lookup(ifname=port):
                    try:
                        net.link("del", index=index)
                    except NetlinkError as error:
                        if error.code != errno.ENODEV:  # gone already, with the namespace of its other end
                            raise


def _address_gpu(node: int, gpu: int, fd: int) -> None:
    nvlink, pcie = topology.nvlink_address(node, gpu), topology.pcie_address(node, gpu)
    with inside_network(fd), closing(IPRoute()) as net:
        _loopback_up(net)
        net.addr("add", index=_FAST_INDEX, address=nvlink, prefixlen=24)
        net.addr("add", index=_SLOW_INDEX, address=pcie, prefixlen=32)
        for index in (_FAST_INDEX, _SLOW_INDEX):
            net.link("set", index=index, state="up")
        net.route("add", dst=f"{topology.PCIE_GATEWAY}/32", oif=_SLOW_INDEX, scope=_SCOPE_LINK)
        net.route("add", dst="0.0.0.0/0", gateway=topology.PCIE_GATEWAY, oif=_SLOW_INDEX, prefsrc=nvlink)
        # Between PCIe addresses everything stays on PCIe, within a node too: the way round a sick NVSwitch.
        supernet, length = topology.PCIE_SUPERNET
        net.route("add", dst=f"{supernet}/{length}", gateway=topology.PCIE_GATEWAY, oif=_SLOW_INDEX, prefsrc=pcie)


class _Peer(NamedTuple):
    """The far end of a veth: its name and the descriptor of its network namespace."""

    name: str
    network: int


def _bridge(net: IPRoute, name: str) -> None:
    net.link("add", ifname=name, kind="bridge", index=_BRIDGE_INDEX, flags=_UP, change=_UP)


def _veth(net: IPRoute, name: str, peer: _Peer, *, index: int | None = None, master: int | None = None) -> None:
    """One request makes both ends, raises the near one and plugs it into a bridge."""
    options = {key: value for key, value in (("index", index), ("master", master)) if value is not None}
    far = {"ifname": peer.name, "net_ns_fd": peer.network}
    net.link("add", ifname=name, kind="veth", peer=far, flags=_UP, change=_UP, **options)


def _loopback_up(net: IPRoute) -> None:
    net.link("set", index=1, state="up")


def read_links(network: int) -> list[dict[str, Any]]:
    """The links of one namespace, without loopback: name, state, and bytes and packets each way."""
    with inside_network(network), closing(IPRoute()) as net:
        found = []
        for link in net.get_links():
            name = link.get("ifname")
            if name == "lo":
                continue
            stats = link.get("stats64") or {}
            found.append(
                {
                    "name": name,
                    "state": "up" if link["flags"] & _UP and link.get("operstate") != "DOWN" else "down",
                    "rx_bytes": stats.get("rx_bytes", 0),
                    "tx_bytes": stats.get("tx_bytes", 0),
                    "rx_packets": stats.get("rx_packets", 0),
                    "tx_packets": stats.get("tx_packets", 0),
                    "dropped": stats.get("rx_dropped", 0) + stats.get("tx_dropped", 0),
                }
            )
    return found
