"""Whether what an inventory refers to is there: secrets, key files. Of a secret nothing but its reference is told."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos.inventory.access import Access, Secret, SecretError
from chaos.inventory.model import Inventory, Node
from chaos.inventory.ranges import fold


@dataclass(frozen=True)
class Gap:
    """Something that is referred to and is not as it should be.

    Attributes:
        what: what it is for, such as ``bmc.password``.
        nodes: for which nodes, folded.
        problem: what is wrong with it.
        fatal: nobody gets in without it; else it is a weakness.
    """

    what: str
    nodes: str
    problem: str
    fatal: bool = True


def gaps(inventory: Inventory, look: Callable[[Secret], str] = Secret.value) -> list[Gap]:
    """Everything that is missing or weak, each once. Every secret is looked up once, and forgotten at once.

    Args:
        look: how a secret is looked up. Raises ``SecretError``.
    """
    wanted: dict[tuple[str, Secret | Path], list[str]] = {}
    for node in inventory.nodes:
        for what, thing in _wanted(node):
            wanted.setdefault((what, thing), []).append(node.name)
    problems: dict[Secret | Path, list[tuple[str, bool]]] = {}
    for _, thing in wanted:
        if thing not in problems:
            problems[thing] = list(_problems(thing, look))
    return [
        Gap(what, fold(nodes), problem, fatal)
        for (what, thing), nodes in wanted.items()
        for problem, fatal in problems[thing]
    ]


def _wanted(node: Node) -> Iterator[tuple[str, Secret | Path]]:
    yield from node.secrets().items()
    access: Access | None = node.access
    before = ""
    while access is not None:
        if access.key is not None:
            yield f"{before}key", access.key
        for path in access.known_hosts:
            yield f"{before}known_hosts", path
        if access.config is not None:
            yield f"{before}ssh_config", access.config
        access = access.jump
        before = f"jump {access.host}: " if access is not None else ""


def _problems(thing: Secret | Path, look: Callable[[Secret], str]) -> Iterator[tuple[str, bool]]:
    if isinstance(thing, Path):
        if not thing.is_file():
            yield f"there is no file {thing}", True
        return
    try:
        look(thing)
    except SecretError as error:
        yield str(error), True
        return
    if thing.file is not None and stat.S_IMODE(thing.file.stat().st_mode) & 0o077:
        yield f"file {thing.file} can be read by others: chmod 600 it", False
