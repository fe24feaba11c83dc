"""The inventory as it is used: every node with what holds for it and how it is reached. Secrets stay references."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from chaos.inventory.access import Access, Secret
from chaos.inventory.document import Accelerators, Nic

_DEVICE = re.compile(r"(gpu|npu)(0|[1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Bmc:
    """A node's management controller, outside of the node.

    Attributes:
        port: ``None`` for that of the protocol.
    """

    address: str
    protocol: Literal["ipmi", "redfish"]
    user: str | None = None
    password: Secret | None = None
    port: int | None = None


@dataclass(frozen=True)
class Device:
    """One device of a node.

    Attributes:
        name: ``gpu0``, ``npu3``, or the kernel's name of a NIC.
        pci: its PCI address, where the inventory tells it.
        nic: what the inventory says of a NIC.
    """

    kind: Literal["gpu", "npu", "nic"]
    name: str
    pci: str | None = None
    nic: Nic | None = None

    @property
    def is_control(self) -> bool:
        """Whether it carries what reaches the node, so that no fault may be made on it."""
        return self.nic is not None and self.nic.role == "control"


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    Attributes:
        labels: by which it is selected, values by name.
        nics: one entry an interface; ranges are expanded.
    """

    name: str
    access: Access
    groups: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: Accelerators | None = None
    npus: Accelerators | None = None
    nics: tuple[Nic, ...] = ()
    bmc: Bmc | None = None

    def devices(self) -> dict[str, Device]:
        """All devices by name: GPUs, NPUs, NICs."""
        found: dict[str, Device] = {}
        kinds: tuple[tuple[Literal["gpu", "npu"], Accelerators | None], ...] = (("gpu", self.gpus), ("npu", self.npus))
        for kind, accelerators in kinds:
            if accelerators is not None:
                addresses: Sequence[str | None] = accelerators.pci or [None] * accelerators.number
                for index, pci in enumerate(addresses):
                    found[f"{kind}{index}"] = Device(kind, f"{kind}{index}", pci)
        return found | {nic.name: Device("nic", nic.name, nic.pci, nic) for nic in self.nics}

    def secrets(self) -> dict[str, Secret]:
        """Every secret that is needed for this node, by what it is for (``jump bastion: password``)."""
        return _secrets(self.access) | ({"bmc.password": self.bmc.password} if self.bmc and self.bmc.password else {})

    def as_dict(self) -> dict[str, Any]:
        """For machines; of a secret, where it is to be had."""
        return {
            "name": self.name,
            "groups": list(self.groups),
            "labels": dict(self.labels),
            "access": access_as_dict(self.access),
            "gpus": _accelerators(self.gpus),
            "npus": _accelerators(self.npus),
            "nics": [nic.model_dump(exclude_none=True) for nic in self.nics],
            "bmc": None
            if self.bmc is None
            else {
                "address": self.bmc.address,
                "port": self.bmc.port,
                "protocol": self.bmc.protocol,
                "user": self.bmc.user,
                "password": _reference(self.bmc.password),
            },
        }


@dataclass(frozen=True)
class Inventory:
    """The machines of a cluster.

    Attributes:
        file: where it was read.
        nodes: in the order of the document.
        groups: the names of all groups, each with its nodes in that order; a group may be empty.
    """

    name: str
    file: str
    nodes: tuple[Node, ...]
    groups: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)
    about: str | None = None


def access_as_dict(access: Access) -> dict[str, Any]:
    """How a node is reached, for machines; of a secret, where it is to be had."""
    return {
        "host": access.host,
        "port": access.port,
        "user": access.user,
        "key": None if access.key is None else str(access.key),
        "passphrase": _reference(access.passphrase),
        "password": _reference(access.password),
        "jump": None if access.jump is None else access_as_dict(access.jump),
        "python": access.python,
        "become": access.become,
        "become_password": _reference(access.become_password),
        "known_hosts": [str(path) for path in access.known_hosts],
        "ssh_config": None if access.config is None else str(access.config),
    }


def is_device_name(name: str) -> bool:
    """Whether a name is that of a GPU or NPU, so that no NIC can have it."""
    return _DEVICE.fullmatch(name) is not None


def _accelerators(found: Accelerators | None) -> dict[str, Any] | None:
    return None if found is None else found.model_dump(exclude_none=True) | {"count": found.number}


def _reference(secret: Secret | None) -> str | None:
    return None if secret is None else str(secret)


def _secrets(access: Access) -> dict[str, Secret]:
    own = (
        ("passphrase", access.passphrase),
        ("password", access.password),
        ("become_password", access.become_password),
    )
    found = {what: secret for what, secret in own if secret is not None}
    if access.jump is not None:
        for what, secret in _secrets(access.jump).items():
            found[what if what.startswith("jump ") else f"jump {access.jump.host}: {what}"] = secret
    return found
