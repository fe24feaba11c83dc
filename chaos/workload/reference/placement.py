"""Where a rank runs, and which address its data flows over: in a lab's namespaces, or simply on this host."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from chaos.lab import namespace, topology
from chaos.workload.reference.beacons import NVLINK, PCIE, End
from chaos.workload.reference.config import JobConfig, Place


class PlaceUnavailable(RuntimeError):
    """Nothing can be started there now; the message says why. It may be possible later."""


class Placement(Protocol):
    """Gives places their namespaces."""

    def namespaces(self, place: Place) -> dict[str, int]:
        """Descriptors of the namespaces of a place as it is now, by kind (pid, mnt, uts, net); the caller closes them.

        A node that was powered off has others after its boot, so they are asked for at each start. Raises
        PlaceUnavailable.
        """


class HostPlacement:
    """Every rank on this host."""

    def namespaces(self, place: Place) -> dict[str, int]:  # noqa: ARG002 - the protocol's
        """None: the host's own."""
        return {}


class LabPlacement:
    """Each rank in the namespaces of its node and the network namespace of its GPU.

    Args:
        lab: the lab's folder, or the keeper's socket in it.
    """

    def __init__(self, lab: Path) -> None:
        from chaos.lab.client import LabClient  # noqa: PLC0415 - not needed by ranks, which import this module too

        self._client = LabClient(lab.parent if lab.is_socket() else lab)

    def namespaces(self, place: Place) -> dict[str, int]:
        """The node's PID, mount and host-name namespaces and the GPU's network namespace."""
        from chaos.lab.errors import LabError  # noqa: PLC0415

        try:
            fds = self._client.namespaces(place.node)
        except LabError as error:
            raise PlaceUnavailable(str(error)) from error
        wanted = {"pid": "pid", "mnt": "mnt", "uts": "uts", f"gpu{place.gpu}": "net"}
        missing = sorted(set(wanted) - set(fds))
        for name, fd in fds.items():
            if missing or name not in wanted:
                os.close(fd)
        if missing:
            raise PlaceUnavailable(f"the lab has no {place} ({', '.join(missing)} missing)")
        return {kind: fds[name] for name, kind in wanted.items()}


def placement_for(config: JobConfig) -> Placement:
    """The placement that a job asks for."""
    return HostPlacement() if config.lab_socket is None else LabPlacement(config.lab_socket)


def ends(config: JobConfig, place: Place) -> dict[str, End]:
    """A rank's end of each path that its data can flow over, the preferred one first.

    In a lab its GPU's NVLink and PCIe devices; on this host a loopback address of its own, 127.0.0.10 and up by the
    order of places.
    """
    if config.lab_socket is None:
        index = (*config.world, *config.spares).index(place)
        return {"loopback": End("lo", f"127.0.0.{10 + index}")}
    return {
        NVLINK: End("nvl0", topology.nvlink_address(place.node, place.gpu)),
        PCIE: End("pcie0", topology.pcie_address(place.node, place.gpu)),
    }


def enter(namespaces: Mapping[str, int]) -> None:
    """Move the calling process, which must have one thread, into namespaces by kind; a PID namespace is for its forks.

    Raises:
        OSError: one of them cannot be entered.
    """
    for kind, flag in (("mnt", namespace.NEWNS), ("uts", namespace.NEWUTS), ("net", namespace.NEWNET)):
        if kind in namespaces:
            namespace.setns(namespaces[kind], flag)


def name_process(name: str) -> None:
    """What ps and top show for this process; 15 bytes of it."""
    pr_set_name = 15
    ctypes.CDLL(None).prctl(pr_set_name, name.encode()[:15], 0, 0, 0)
