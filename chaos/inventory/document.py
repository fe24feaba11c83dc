"""The inventory as it is written: frozen models of the document's parts, before defaults and groups are merged."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from chaos.documents.model import Model
from chaos.inventory.fields import (
    Address,
    Become,
    CountOr,
    Interface,
    Labels,
    OrNone,
    Pci,
    Port,
    Role,
    SecretOrNone,
    Text,
    User,
    Word,
)


class Accelerators(Model):
    """The GPUs or the NPUs of a node."""

    count: Annotated[int, Field(ge=0, le=1024)] | None = None
    """How many there are; may be left out beside 'pci'."""
    vendor: Word | None = None
    """Who makes them, such as nvidia, amd or huawei."""
    model: Text | None = None
    """Which model they are."""
    pci: list[Pci] = Field(default_factory=list)
    """Their PCI addresses, in the order of their numbers."""

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.pci) if self.count is None else self.count

    @model_validator(mode="after")
    def _counted(self) -> Accelerators:
        if self.count is None and not self.pci:
            raise ValueError("found neither 'count' nor 'pci'; write how many there are, such as 'count: 8'")
        if self.pci and self.count not in (None, len(self.pci)):
            raise ValueError(f"found {len(self.pci)} PCI addresses and a count of {self.count}; leave 'count' out")
        if len(set(self.pci)) != len(self.pci):
            raise ValueError("found a PCI address twice; write each once")
        return self


class Nic(Model):
    """A network interface, or a range of them."""

    name: Interface
    """The kernel's name of the interface, or a range such as rail[0-7]."""
    role: Role
    """control: carries SSH or storage, and is never a target; data: faults may be made on it."""
    rdma: Interface | None = None
    """The RDMA device behind it, such as mlx5_0; a range beside a range."""
    pci: Pci | None = None
    """Its PCI address."""


class BmcSettings(Model):
    """The management controller of a node."""

    address: Address | None = None
    """Its host name or IP address; {name} in it is the node's name, a range goes with the nodes' range."""
    port: Port | None = None
    """Its port, where it is not that of the protocol."""
    user: User | None = None
    """The user on it."""
    password: SecretOrNone = None
    """Where that user's password is to be had."""
    protocol: Literal["ipmi", "redfish"] = "redfish"
    """How it is spoken to."""


class Reach(Model):
    """How something is reached by SSH."""

    address: Address | None = None
    """Host name, IP address or alias of the ssh configuration; {name} in it is the node's name."""
    port: Port | None = None
    """The port of its sshd; the ssh configuration's, or 22, where there is none."""
    user: User | None = None
    """The user; the ssh configuration's, or who runs chaos, where there is none."""
    key: Text | None = None
    """A private key's file; ssh-agent and the usual files where there is none."""
    passphrase: SecretOrNone = None
    """Where that key's passphrase is to be had."""
    password: SecretOrNone = None
    """Where the user's password is to be had, for a node that takes no keys."""
    jump: Annotated[Text | None, OrNone()] = None
    """The jump host in between, a name under 'jumps'."""
    known_hosts: list[Text] = Field(default_factory=list)
    """Files of host keys, beside the user's own and the system's."""
    ssh_config: Text | None = None
    """The ssh configuration to read; ~/.ssh/config where there is none."""


class Jump(Reach):
    """A jump host: on the way to nodes, and never a target. It takes nothing from the defaults."""


class Settings(Reach):
    """What can be said of a node: what it says itself counts more than its groups, and they more than the defaults."""

    python: Text = "python3"
    """The node's Python, 3.9 or newer."""
    become: Become = "none"
    """How to become root there; none where the user is root already, or root is not needed."""
    become_password: SecretOrNone = None
    """Where the password for sudo or su is to be had, where they ask for one."""
    labels: Labels = Field(default_factory=dict)
    """Names and values by which nodes are selected."""
    gpus: Annotated[Accelerators | None, CountOr()] = None
    """Its GPUs, or their number."""
    npus: Annotated[Accelerators | None, CountOr()] = None
    """Its NPUs, or their number."""
    nics: list[Nic] = Field(default_factory=list)
    """Its network interfaces. One that is not listed cannot be selected."""
    bmc: Annotated[BmcSettings | None, OrNone()] = None
    """Its management controller."""


class Group(Settings):
    """What the nodes of a group have in common."""

    about: Text | None = None
    """What the group is."""


class NodeEntry(Settings):
    """A node, or a range of them."""

    groups: list[Text] = Field(default_factory=list)
    """The groups that it is in; of two that disagree the later one counts."""


class Document(Model):
    """An inventory: the nodes of a cluster, and how they are reached."""

    inventory: Text
    """The name of the cluster."""
    about: Text | None = None
    """What the cluster is."""
    defaults: Settings = Field(default_factory=Settings)
    """What all nodes have in common."""
    jumps: dict[str, Jump] = Field(default_factory=dict)
    """Jump hosts by name."""
    groups: dict[str, Group] = Field(default_factory=dict)
    """Groups of nodes by name."""
    nodes: dict[str, NodeEntry]
    """The nodes by name; a name may be a range such as node[001-064]."""
