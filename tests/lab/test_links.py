"""Traffic takes the links that it would take in a cluster: the interfaces' counters prove it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import pytest

from chaos.lab.cluster import Lab
from chaos.lab.topology import HEAD_ADDRESS, LabSpec, management_address, nvlink_address, pcie_address

pytestmark = pytest.mark.lab

# Asks for an echo of 200 datagrams, one after the other; more than any ARP or IPv6 chatter of an idle link.
COUNT = 200
SERVER = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((sys.argv[1], 7))
print("ready", flush=True)
while True:
    data, peer = sock.recvfrom(2000)
    sock.sendto(data, peer)
"""
CLIENT = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(20)
sock.connect((sys.argv[1], 7))
for number in range(int(sys.argv[2])):
    sock.send(b"%06d" % number + b"." * 1000)
    while not sock.recv(2000).startswith(b"%06d" % number):
        pass
print(sock.getsockname()[0])
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up(LabSpec(nodes=2, gpus=2), tmp_path_factory.mktemp("links") / "lab") as it:
        yield it


class Counters:
    """Packets that every link of the lab has received, by place and name."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._before = self._read()

    def _read(self) -> dict[str, int]:
        shown = self._lab.show(links=True)
        found = {f"spine {link['name']}": link["rx_packets"] for link in shown["spine"]}
        for node in shown["nodes"]:
            for place, links in (("", node["links"]), ("nvswitch ", node["nvswitch"])):
                found |= {f"node{node['node']} {place}{link['name']}": link["rx_packets"] for link in links}
            for gpu, links in enumerate(node["gpus"]):
                found |= {f"node{node['node']} gpu{gpu} {link['name']}": link["rx_packets"] for link in links}
        return found

    def carried(self) -> set[str]:
        """Links that have received the datagrams or their echoes since."""
        return {name for name, packets in self._read().items() if packets - self._before[name] >= COUNT}


class Echo:
    """An echo server in the lab."""

    def __init__(self, lab: Lab, address: str, **where: int | None) -> None:
        reader, writer = os.pipe()
        self._process = lab.spawn([sys.executable, "-c", SERVER, address], stdout=writer, **where)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            assert pipe.readline() == b"ready\n"

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.signal(9)
        assert self._process.wait() == -9


def talk(lab: Lab, address: str, **where: int | None) -> str:
    """Exchange the datagrams; returns the address that they came from."""
    done = lab.run([sys.executable, "-c", CLIENT, address, str(COUNT)], **where)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode().strip()


def test_gpus_of_a_node_meet_on_its_nvswitch_and_not_over_pcie(lab: Lab) -> None:
    with Echo(lab, nvlink_address(0, 1), node=0, gpu=1):
        counters = Counters(lab)
        assert talk(lab, nvlink_address(0, 1), node=0, gpu=0) == nvlink_address(0, 0)
        carried = counters.carried()
    # A port of the switch is the far end of a GPU's nvl0. The bridge itself counts only what is for it.
    assert carried == {
        "node0 gpu0 nvl0",
        "node0 gpu1 nvl0",
        "node0 nvswitch nvl0",
        "node0 nvswitch nvl1",
    }


def test_gpus_of_two_nodes_meet_over_pcie_rail_and_spine(lab: Lab) -> None:
    with Echo(lab, nvlink_address(1, 1), node=1, gpu=1):
        counters = Counters(lab)
        assert talk(lab, nvlink_address(1, 1), node=0, gpu=0) == nvlink_address(0, 0)
        carried = counters.carried()
    assert carried == {
        "node0 gpu0 pcie0",
        "node0 pcie0",
        "node0 rdma0",
        "spine rail0",
        "spine rail1",
        "node1 rdma0",
        "node1 pcie1",
        "node1 gpu1 pcie0",
    }


def test_pcie_addresses_are_the_way_round_the_nvswitch(lab: Lab) -> None:
    with Echo(lab, pcie_address(0, 1), node=0, gpu=1):
        counters = Counters(lab)
        assert talk(lab, pcie_address(0, 1), node=0, gpu=0) == pcie_address(0, 0)
        carried = counters.carried()
    assert carried == {"node0 gpu0 pcie0", "node0 pcie0", "node0 pcie1", "node0 gpu1 pcie0"}


def test_head_and_nodes_meet_on_the_management_network(lab: Lab) -> None:
    with Echo(lab, HEAD_ADDRESS):
        counters = Counters(lab)
        assert talk(lab, HEAD_ADDRESS, node=1) == management_address(1)
        assert counters.carried() == {"node1 mgmt0"}


def test_loopback_is_up_everywhere(lab: Lab) -> None:
    for where in ({}, {"node": 0}, {"node": 0, "gpu": 0}):
        with Echo(lab, "127.0.0.1", **where):
            assert talk(lab, "127.0.0.1", **where) == "127.0.0.1"


def test_a_lab_cannot_reach_the_machine_below_it(lab: Lab) -> None:
    for where in ({}, {"node": 0}, {"node": 0, "gpu": 0}):
        devices = lab.run(["/bin/cat", "/proc/net/dev"], **where).stdout.decode()
        assert set(re.findall(r"^\s*(\w+):", devices, re.MULTILINE)) <= {
            *("lo", "mgmt0", "mgmt1", "mgmt2", "rdma0", "pcie0", "pcie1", "nvl0")
        }
