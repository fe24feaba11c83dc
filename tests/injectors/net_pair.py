"""Two nodes of a lab, as two machines with a cable between them: for faults of a node's own network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from injectors import kernel

PEER, PEER6 = "10.88.0.2", "fd88::2"
INTERFACE = "rdma0"


class Pair:
    """The first node is the one with the fault."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ip(0, "address", "add", "fd88::1/64", "dev", INTERFACE, "nodad")
        self.ip(1, "address", "add", f"{PEER6}/64", "dev", INTERFACE, "nodad")

    def ip(self, node: int, *words: str) -> str:
        return self.run(node, "ip", *words)

    def run(self, node: int, *command: str) -> str:
        """A program on a node; what it says."""
        reader, writer = os.pipe()
        process = self.lab.spawn(list(command), node=node, stdout=writer, stderr=writer)
        os.close(writer)
        with open(reader, encoding="utf-8") as output:
            said = output.read()
        if process.wait(20) != 0:
            raise subprocess.CalledProcessError(1, command, said)
        return said

    @contextmanager
    def inside(self, node: int = 0) -> Iterator[None]:
        """This thread on a node's network."""
        fds = self.lab.namespaces(node)
        try:
            with kernel.inside(fds["net"]):
                yield
        finally:
            for fd in fds.values():
                os.close(fd)


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    with Lab.up(LabSpec(nodes=2, gpus=1), folder / "lab") as lab:
        yield Pair(lab)
