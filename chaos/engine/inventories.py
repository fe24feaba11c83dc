"""Inventories as the engine meets them: the nodes that a document may name, and the machines of a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.engine.errors import InputError
from chaos.engine.machines import SshMachine, ThisMachine
from chaos.engine.site import Machine, Site
from chaos.experiment import Experiment, LabSpec, Nodes
from chaos.inventory.access import Access
from chaos.inventory.facts import Ask, Unreached, asking, run_here
from chaos.inventory.load import DocumentErrors, load
from chaos.inventory.model import Inventory, Node
from chaos.inventory.select import select
from chaos.transport import local, ssh
from chaos.transport.pipe import AgentError

HERE = "local"  # the address of a node that is this machine itself


def resolve(document: Path, cluster: str, workload: Mapping[str, Any]) -> tuple[Nodes, Site]:
    """The nodes that a document may name, and their machines.

    Args:
        document: paths of inventories start at its folder.
        cluster, workload: what it says there.

    Raises:
        ValueError: the inventory cannot be read, or a selection means no node of it.
    """
    inventory = _load(document.parent.absolute() / Path(cluster).expanduser())
    written = workload.get("nodes")
    selection = [written] if isinstance(written, str) else written
    job, others = _ordered(inventory, selection if isinstance(selection, list) else None)
    numbers = {node.name: number for number, node in enumerate([*job, *others])}

    def numbers_of(text: str) -> Sequence[int]:
        return [numbers[node.name] for node in select(inventory, text)]

    size = LabSpec(nodes=len(job), gpus=_ranks(job, workload.get("ranks_per_node")), spare_nodes=len(others))
    return Nodes(inventory.file, tuple(numbers), size, numbers_of), _site(inventory, [*job, *others])


def site_of(experiment: Experiment) -> Site:
    """The machines of a recorded experiment about an inventory, in the order in which its document numbered them.

    Raises:
        InputError: the inventory cannot be read any more, or is another by now.
    """
    try:
        inventory = _load(Path(experiment.cluster))
        job, others = _ordered(inventory, experiment.workload.nodes)
    except ValueError as error:
        raise InputError(f"cluster: {error}") from error
    size = experiment.lab
    if size is None or (len(job), len(others)) != (size.nodes, size.spare_nodes):
        raise InputError(f"cluster: {inventory.file} has other nodes by now")
    return _site(inventory, [*job, *others])


def _site(inventory: Inventory, nodes: Sequence[Node]) -> Site:
    connections = ssh.Connections()
    return Site(tuple(machine(node, inventory.file, connections) for node in nodes))


def machine(node: Node, inventory: str, connections: ssh.Connections) -> Machine:
    """A node of an inventory as a machine, by the transport that reaches it."""
    if node.access.host == HERE:
        return ThisMachine(node.name, local.state_folder())
    return SshMachine(node.name, node.access, inventory, connections)


def machines(inventory: str, selection: Sequence[str] | None) -> list[Machine]:
    """Nodes by the path of their inventory; all of them without a selection.

    Raises:
        ValueError: the inventory cannot be read, or has no such nodes.
    """
    read = _load(Path(inventory))
    chosen, _ = _ordered(read, selection)
    return list(_site(read, chosen).machines)


def find(inventory: str, name: str) -> Machine:
    """A node by its name and the path of its inventory.

    Raises:
        ValueError: the inventory cannot be read, or has no such node.
    """
    (found,) = machines(inventory, [name])
    return found


def _load(path: Path) -> Inventory:
    try:
        return load(path, os.environ)
    except DocumentErrors as errors:
        more = f" (and {len(errors.problems) - 1} more)" if len(errors.problems) > 1 else ""
        raise ValueError(f"{errors.problems[0]}{more}") from errors


def _ordered(inventory: Inventory, selection: Sequence[str] | None) -> tuple[list[Node], list[Node]]:
    """The nodes that the job runs on, and the others.

    Raises:
        ValueError: a selection means no node.
    """
    if selection is None:
        return list(inventory.nodes), []
    chosen = {node.name for text in selection for node in select(inventory, text)}
    job = [node for node in inventory.nodes if node.name in chosen]
    return job, [node for node in inventory.nodes if node.name not in chosen]


def _ranks(job: Sequence[Node], written: object) -> int:
    """Ranks a node: as written, or as many as each has GPUs or NPUs.

    Raises:
        ValueError: the nodes have different numbers of them.
    """
    if isinstance(written, int) and not isinstance(written, bool) and written > 0:
        return written
    counts = {sum(each.number for each in (node.gpus, node.npus) if each is not None) for node in job}
    if len(counts) > 1:
        raise ValueError(
            f"the nodes of the job have {' or '.join(map(str, sorted(counts)))} GPUs; "
            "write workload: {ranks_per_node: N}"
        )
    return max(counts.pop(), 1)


def asking_over_ssh() -> Ask:
    """How nodes are asked what they have; connections end with this process."""
    connections = ssh.Connections()

    def run(access: Access, argv: Sequence[str], timeout: float) -> bytes:
        if access.host == HERE:
            return run_here(access, argv, timeout)
        try:
            told = ssh.run(connections.to(access, access.host), argv, timeout)
        except AgentError as error:
            raise Unreached(str(error)) from None
        if told.code != 0:
            said = told.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {told.code}"]
            raise Unreached(f"{argv[0]}: {said[0]}")
        return told.stdout

    return asking(run)
