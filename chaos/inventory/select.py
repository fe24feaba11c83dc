"""Which nodes, and which of their devices, are meant: by name, range, label and group. Pure functions.

A selection is a list: ``node[001-008]``, ``all``, a group's name, ``rack=r7``, or several of these with commas between
them. A device is written behind a colon: ``node[1-2]:gpu[0-3]``, ``h100:rail0``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from chaos.documents.errors import suggestion
from chaos.inventory.model import Device, Inventory, Node
from chaos.inventory.ranges import RangeError, expand, fold, natural, terms

ALL = "all"
_DIGITS = re.compile(r"[0-9]+")
_MOST_SHOWN = 5  # names in a message


class SelectionError(ValueError):
    """Nothing, or not everything, is meant by a selection; the message names what there is."""


def select(inventory: Inventory, text: str) -> tuple[Node, ...]:
    """The nodes that a selection means, each once, in the order of the inventory.

    Raises:
        SelectionError: a part of it means nothing.
    """
    wanted: set[str] = set()
    for term in _terms(text):
        if ":" in term:
            raise SelectionError(f"found '{term}' where nodes are selected; leave out what stands behind the colon")
        wanted.update(node.name for node in _nodes(inventory, term))
    return tuple(node for node in inventory.nodes if node.name in wanted)


def select_devices(inventory: Inventory, text: str) -> tuple[tuple[Node, Device], ...]:
    """The devices that a selection means, each once, in the order of the inventory and as written within a node.

    Raises:
        SelectionError: a part of it means nothing, or a NIC that carries what reaches the node.
    """
    wanted: dict[str, dict[str, Device]] = {}
    for term in _terms(text):
        nodes, colon, devices = term.rpartition(":")
        if not colon:
            raise SelectionError(f"found '{term}', which names no device; write one behind a colon: {term}:gpu0")
        for node in _nodes(inventory, nodes):
            for name in _expanded(devices):
                wanted.setdefault(node.name, {})[name] = device(node, name)
    return tuple((node, found) for node in inventory.nodes for found in wanted.get(node.name, {}).values())


def device(node: Node, name: str) -> Device:
    """A device of a node on which a fault may be made.

    Raises:
        SelectionError: there is none of that name, or it is a control NIC.
    """
    devices = node.devices()
    found = devices.get(name)
    if found is None:
        there = f"it has {_shown(list(devices))}" if devices else "the inventory tells of none; write its gpus and nics"
        raise SelectionError(f"{node.name} has no device '{name}': {there}")
    if found.is_control:
        others = [each.name for each in devices.values() if each.nic is not None and not each.is_control]
        instead = f"its data NICs are {_shown(others)}" if others else "it has no NIC with role data"
        raise SelectionError(f"{name} of {node.name} is a control NIC, and never a target: {instead}")
    return found


def _terms(text: str) -> list[str]:
    if not text.strip():
        raise SelectionError("the selection is empty; write names, a group, KEY=VALUE or 'all'")
    try:
        return terms(text)
    except RangeError as error:
        raise SelectionError(str(error)) from None


def _expanded(text: str) -> list[str]:
    try:
        return expand(text)
    except RangeError as error:
        raise SelectionError(str(error)) from None


def _nodes(inventory: Inventory, term: str) -> Sequence[Node]:
    if term == ALL:
        return inventory.nodes
    if "=" in term:
        return _labelled(inventory, term)
    if term in inventory.groups:
        if not inventory.groups[term]:
            raise SelectionError(f"no node is in the group '{term}'; write it under the 'groups' of nodes")
        return inventory.groups[term]
    by_name = {node.name: node for node in inventory.nodes}
    names = _expanded(term)
    unknown = [name for name in names if name not in by_name]
    if not unknown:
        return [by_name[name] for name in names]
    if len(names) == 1:
        near = _near(term, [*by_name, *inventory.groups])
        raise SelectionError(f"'{term}' is no node and no group of {inventory.name}; {near or _there(inventory)}")
    there = "none of them is" if len(unknown) == len(names) else f"{fold(unknown)} is not"
    near = _near(unknown[0], by_name)
    raise SelectionError(f"found '{term}', but {there} in {inventory.name}; {near or _there(inventory)}")


def _labelled(inventory: Inventory, term: str) -> list[Node]:
    key, _, value = term.partition("=")
    values = [node.labels[key] for node in inventory.nodes if key in node.labels]
    if not values:
        keys = {key for node in inventory.nodes for key in node.labels}
        there = suggestion(key, keys) if keys else "no node has labels"
        raise SelectionError(f"no node has a label '{key}'; {there}")
    found = [node for node in inventory.nodes if node.labels.get(key) == value]
    if not found:
        near = _near(value, values) or f"its values are {_shown(sorted(set(values)))}"
        raise SelectionError(f"no node has {key}={value}; {near}")
    return found


def _near(found: str, known: Sequence[str] | dict[str, Node]) -> str | None:
    """What was meant; none where only the number is wrong, and any of many could be."""
    if padded := next((name for name in known if natural(name) == natural(found)), None):
        return f"did you mean '{padded}'?"
    stems: dict[str, list[str]] = {}
    for name in known:
        stems.setdefault(_DIGITS.sub("", name), []).append(name)
    stem = _DIGITS.sub("", found)
    near = difflib.get_close_matches(stem, stems, n=1, cutoff=0.6)
    if not near or (near[0] == stem and len(stems[stem]) > 1):
        return None
    meant = _shown(stems[near[0]])
    return f"did you mean '{meant}'?"


def _there(inventory: Inventory) -> str:
    groups = f", groups {', '.join(inventory.groups)}" if inventory.groups else ""
    return f"there are {_shortened(fold(node.name for node in inventory.nodes))}{groups}"


def _shown(names: Sequence[str]) -> str:
    return _shortened(fold(names))


def _shortened(folded: str) -> str:
    parts = terms(folded)
    more = f" and {len(parts) - _MOST_SHOWN} more" if len(parts) > _MOST_SHOWN else ""
    return ", ".join(parts[:_MOST_SHOWN]) + more
