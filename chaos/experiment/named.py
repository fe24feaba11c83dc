"""The nodes of an inventory in a document: by name, range, label or group there, by number from here on.

Nodes are numbered as the cluster lists them, those that the job runs on first. So a document about machines is checked,
drawn and limited as one about a lab is; its size takes the place of ``lab``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.documents.errors import Finding
from chaos.experiment.model import LabSpec

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Nodes:
    """The nodes of a cluster that is no lab.

    Attributes:
        cluster: what names it from anywhere, such as an absolute path.
        names: by number; those that the job runs on come first.
        size: how many there are; its GPUs are ranks a node.
        select: the numbers of the nodes that a selection means. Raises ``ValueError`` that says what would be right.
    """

    cluster: str
    names: tuple[str, ...]
    size: LabSpec
    select: Callable[[str], Sequence[int]]


# Finds the nodes for the `cluster:` and the `workload:` of a document. Raises ``ValueError`` where it cannot.
Resolver = Callable[[str, Mapping[str, Any]], Nodes]


def numbered(data: Mapping[str, Any], nodes: Nodes) -> tuple[dict[str, Any], list[Finding]]:
    """The document with numbers in place of names, and each selection that means no node, where it stands."""
    found: list[Finding] = []
    read = {**data, "cluster": nodes.cluster, "lab": nodes.size.model_dump()}
    if isinstance(faults := data.get("faults"), list):
        read["faults"] = [_fault(("faults", i), fault, nodes, found) for i, fault in enumerate(faults)]
    guards = data.get("guards")
    if isinstance(guards, dict) and isinstance(protect := guards.get("protect"), dict):
        read["guards"] = {**guards, "protect": _protect(("guards", "protect"), protect, nodes, found)}
    return read, found


def unknown(data: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a cluster that is not known: any node will do, so that only the cluster is found wrong."""
    read, _ = numbered(data, Nodes("", (), LabSpec(nodes=1, gpus=1), lambda _: [0]))
    return {**read, "cluster": data["cluster"], "lab": data.get("lab")}


def _fault(path: Path, fault: object, nodes: Nodes, found: list[Finding]) -> object:
    if not isinstance(fault, dict) or not isinstance(on := fault.get("on"), dict):
        return fault
    written = on.get("node")
    if written == "all" or not isinstance(written, (str, list)):
        return fault
    numbers = _numbers((*path, "on", "node"), written, nodes, found)
    return {**fault, "on": {**on, "node": numbers[0] if len(numbers) == 1 else numbers}}


def _protect(path: Path, protect: dict[str, Any], nodes: Nodes, found: list[Finding]) -> dict[str, Any]:
    written, labels = protect.get("nodes", []), protect.get("labels", [])
    numbers = _numbers((*path, "nodes"), written, nodes, found) if isinstance(written, (str, list)) else written
    if isinstance(numbers, list) and isinstance(labels, list):
        numbers = [*numbers, *_numbers((*path, "labels"), labels, nodes, found)]
        return {**protect, "nodes": list(dict.fromkeys(numbers)), "labels": []}
    return protect


def _numbers(path: Path, written: str | list[Any], nodes: Nodes, found: list[Finding]) -> list[Any]:
    """What is no text stays for the model to judge."""
    numbers: list[Any] = []
    items = enumerate(written) if isinstance(written, list) else [(None, written)]
    for index, item in items:
        if not isinstance(item, str):
            numbers.append(item)
            continue
        try:
            numbers += nodes.select(item)
        except ValueError as error:
            found.append(Finding(path if index is None else (*path, index), str(error)))
            numbers.append(0)  # so that nothing else is found wrong with it
    return list(dict.fromkeys(numbers))
