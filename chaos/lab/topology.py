"""What the emulated cluster consists of, and under which names and addresses: pure, no side effects.

A node's GPUs meet on its NVSwitch (a bridge); each GPU also has a PCIe link to its node; nodes meet over one RDMA
rail each at the spine (a bridge), and over a management network that also reaches the head, where launchers run.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

MAX_NODES = 200
MAX_GPUS = 64

SPINE_BRIDGE = "spine0"
SWITCH_BRIDGE = "nvsw0"
HEAD_BRIDGE = "mgmt0"
HEAD_ADDRESS = "10.99.0.254"

# The PCIe side's gateway: a link-local address that every node answers on, so that a GPU needs no subnet of its own.
PCIE_GATEWAY = "169.254.1.1"
PCIE_SUPERNET = ("10.78.0.0", 16)


@dataclass(frozen=True)
class LabSpec:
    """The size of a lab.

    Args:
        nodes: nodes that the workload starts on, 1 or more.
        gpus: GPUs in each node, 1 or more.
        spare_nodes: further nodes of the same make, idle until something is lost.

    Raises:
        ValueError: a count is out of range.
    """

    nodes: int = 2
    gpus: int = 2
    spare_nodes: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.spare_nodes < 0 or self.nodes + self.spare_nodes > MAX_NODES:
            raise ValueError(
                f"a lab of {self.nodes} nodes and {self.spare_nodes} spare nodes: 1 to {MAX_NODES} nodes are possible"
            )
        if not 1 <= self.gpus <= MAX_GPUS:
            raise ValueError(f"{self.gpus} GPUs a node: 1 to {MAX_GPUS} are possible")

    @property
    def all_nodes(self) -> range:
        """Numbers of all nodes, the spare ones last."""
        return range(self.nodes + self.spare_nodes)

    def is_spare(self, node: int) -> bool:
        """Whether a node is one of the idle ones."""
        return node >= self.nodes

    def place(self, rank: int) -> tuple[int, int]:
        """Node and GPU on which a rank starts: ranks are numbered node by node."""
        return divmod(rank, self.gpus)

    def check(self, node: int, gpu: int | None = None) -> None:
        """Whether there is such a node, and such a GPU on it.

        Raises:
            ValueError: there is not; says which there are.
        """
        if node not in self.all_nodes:
            raise ValueError(f"there is no node {node}: this lab has nodes 0 to {self.all_nodes[-1]}")
        if gpu is not None and gpu not in range(self.gpus):
            raise ValueError(f"there is no GPU {gpu} on node {node}: it has GPUs 0 to {self.gpus - 1}")

    @property
    def world(self) -> int:
        """Number of ranks that the workload starts with: one a GPU."""
        return self.nodes * self.gpus

    def as_dict(self) -> dict[str, Any]:
        """The spec as plain JSON."""
        return asdict(self)


def nvlink_address(node: int, gpu: int) -> str:
    """A GPU's address on its node's NVSwitch (device ``nvl0``)."""
    return f"10.77.{node}.{10 + gpu}"


def pcie_address(node: int, gpu: int) -> str:
    """A GPU's address on its PCIe link (device ``pcie0``)."""
    return f"10.78.{node}.{10 + gpu}"


def rail_address(node: int) -> str:
    """A node's address on the RDMA rail (device ``rdma0``)."""
    return f"10.88.0.{node + 1}"


def management_address(node: int) -> str:
    """A node's address on the management network (device ``mgmt0``)."""
    return f"10.99.0.{node + 1}"


_TARGET = re.compile(r"(?:node)?(\d+)(?::(?:gpu)?(\d+))?")


def parse_target(text: str, spec: LabSpec) -> tuple[int | None, int | None]:
    """Read ``NODE[:GPU]`` as typed on a command line: ``1``, ``node1``, ``1:0``, ``node1:gpu0`` or ``head``.

    Returns:
        Node and GPU number; ``(None, None)`` is the head, a GPU of ``None`` the node itself.

    Raises:
        ValueError: not such a name, or no such node or GPU in this lab.
    """
    if text == "head":
        return None, None
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} names no node: NODE or NODE:GPU is expected, such as 0, node1 or 1:0, or head")
    node = int(match[1])
    gpu = None if match[2] is None else int(match[2])
    spec.check(node, gpu)
    return node, gpu
