"""A document as a tree in which each key and value still knows where it stood in the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]


@dataclass(frozen=True)
class Mark:
    """A place in the text; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Scalar:
    """A single value, already typed by the rules of YAML 1.2."""

    mark: Mark
    value: bool | int | float | str | None


@dataclass(frozen=True)
class Items:
    """A list."""

    mark: Mark
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Table:
    """A mapping. ``keys`` holds the place of each key."""

    mark: Mark
    values: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Mark] = field(default_factory=dict)


Node = Scalar | Items | Table


def plain(node: Node) -> Value:
    """The tree as plain Python values, each list and mapping a fresh one even where an alias repeats it."""
    match node:
        case Scalar():
            return node.value
        case Items():
            return [plain(item) for item in node.items]
        case Table():
            return {key: plain(value) for key, value in node.values.items()}


def locate(root: Node, path: Sequence[str | int], *, at_key: bool = False) -> Mark:
    """Where the value at ``path`` stands, or its key; the nearest enclosing place if there is no such value.

    An index into what is no list is passed over: a single item may stand where a list is expected.
    """
    node, mark = root, root.mark
    for depth, part in enumerate(path):
        if isinstance(node, Table) and isinstance(part, str) and part in node.values:
            last = depth == len(path) - 1
            mark = node.keys[part] if at_key and last else node.values[part].mark
            node = node.values[part]
        elif isinstance(node, Items) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            mark = node.mark
        elif isinstance(part, str):
            break
    return mark
