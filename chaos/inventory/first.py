"""Writes a first inventory: what somebody knows of the nodes, and what the nodes say that they have."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from chaos.documents.scalars import typed
from chaos.inventory.access import Access
from chaos.inventory.facts import Ask, Facts, FoundAccelerator, FoundNic, Unreached
from chaos.inventory.ranges import RangeError, expand, fold, natural
from chaos.inventory.sources import Candidate

_AT_ONCE = 32  # nodes that are asked at the same time
_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./~@+-]*")
_RANGE = re.compile(r"[A-Za-z0-9_.-]+(\[[0-9,-]+\][A-Za-z0-9_.-]*)*(,[A-Za-z0-9_.-]+(\[[0-9,-]+\][A-Za-z0-9_.-]*)*)*")
_WORDS_OF_1_1 = {"yes", "no", "on", "off", "y", "n"}  # what editors that know YAML 1.1 alone take for something else

Lines = list[str]


@dataclass(frozen=True)
class Common:
    """What is written as defaults, and used to ask.

    Attributes:
        ssh_config: where it is not ``~/.ssh/config``.
    """

    user: str | None = None
    port: int | None = None
    key: Path | None = None
    ssh_config: Path | None = None

    def access(self, candidate: Candidate) -> Access:
        """How a node is asked."""
        return Access(
            candidate.address or candidate.name, port=self.port, user=self.user, key=self.key, config=self.ssh_config
        )


@dataclass(frozen=True)
class Asked:
    """What came of asking a node: its facts, or why there are none."""

    candidate: Candidate
    facts: Facts | None = None
    problem: str | None = None


def ask_all(
    candidates: Sequence[Candidate],
    common: Common,
    ask: Ask,
    tell: Callable[[Asked], None] = lambda _: None,
) -> list[Asked]:
    """Ask nodes what they have, many at a time; ``tell`` hears of each answer as it comes."""
    lock = threading.Lock()

    def one(candidate: Candidate) -> Asked:
        try:
            asked = Asked(candidate, ask(common.access(candidate)))
        except Unreached as error:
            asked = Asked(candidate, problem=str(error))
        with lock:
            tell(asked)
        return asked

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ask") as pool:
        return list(pool.map(one, candidates))


@dataclass
class _Entry:
    """Nodes of which the same is to be written."""

    body: Lines
    nodes: list[Asked] = field(default_factory=list)


def write(name: str, asked: Sequence[Asked], common: Common, source: str) -> str:
    """The text of an inventory; nodes that have the same share an entry.

    Args:
        name: of the cluster.
        source: where the nodes are from, for people.
    """
    ordered = sorted(asked, key=lambda each: natural(each.candidate.name))
    reached = sum(each.facts is not None for each in ordered)
    text = [
        f"# Written by chaos init from {_remark(source)}; {reached} of {len(ordered)} nodes told what they have.",
        "# Look through it: a NIC with role control is never a target. chaos inventory check tells what is wrong.",
        f"inventory: {_scalar(name)}",
    ]
    text += _defaults(common)
    names = {each.candidate.name for each in ordered}
    groups = {group: _group(group, names) for each in ordered for group in each.candidate.groups}
    if groups:
        text += ["groups:", *(f"  {_scalar(each)}: {{}}" for each in sorted(set(groups.values())))]
    text.append("nodes:")
    for entry in _entries(ordered, groups):
        text += _written(entry)
    return "\n".join(text) + "\n"


def _defaults(common: Common) -> Lines:
    given = (("user", common.user), ("port", common.port), ("key", common.key), ("ssh_config", common.ssh_config))
    lines = [f"  {key}: {value if isinstance(value, int) else _scalar(str(value))}" for key, value in given if value]
    return ["defaults:", *lines] if lines else []


def _group(group: str, nodes: set[str]) -> str:
    """A group's name in the inventory, where no node may have it too."""
    return f"{group}-nodes" if group in nodes or group in ("all", "none") else group


def _entries(ordered: Sequence[Asked], groups: Mapping[str, str]) -> list[_Entry]:
    found: dict[tuple[str | None, ...], _Entry] = {}
    for each in ordered:
        body = _body(each, groups)
        # Addresses are written for all nodes of an entry at once, which takes names that differ in their numbers alone.
        stem = re.sub(r"[0-9]+", "", each.candidate.name) if each.candidate.address else None
        entry = found.setdefault((each.problem, stem, *body), _Entry(body))
        entry.nodes.append(each)
    return list(found.values())


def _written(entry: _Entry) -> Lines:
    names = [each.candidate.name for each in entry.nodes]
    addresses = [each.candidate.address for each in entry.nodes]
    folded = fold(names)
    if not any(addresses):
        return [*_remarks(entry.nodes), *_node(folded, entry.body)]
    wanted = [address or name for address, name in zip(addresses, names, strict=True)]
    together = fold(wanted)
    if _unfolds(together, wanted) and _unfolds(folded, names):
        return [*_remarks(entry.nodes), *_node(folded, [f"address: {_scalar(together)}", *entry.body])]
    lines = []
    for each, address in zip(entry.nodes, wanted, strict=True):
        lines += [*_remarks([each]), *_node(each.candidate.name, [f"address: {_scalar(address)}", *entry.body])]
    return lines


def _unfolds(text: str, names: list[str]) -> bool:
    try:
        return expand(text) == names
    except RangeError:  # an address of another grammar, such as an IPv6 one in brackets
        return False


def _node(name: str, body: Lines) -> Lines:
    key = name if _RANGE.fullmatch(name) else _scalar(name)
    return [f"  {key}:", *(f"    {line}" for line in body)]


def _remarks(nodes: Sequence[Asked]) -> Lines:
    """The comments above an entry, each once, with the nodes that it holds for where it does not hold for all."""
    holds: dict[str, list[str]] = {}
    for each in nodes:
        for text in _comments(each):
            holds.setdefault(text, []).append(each.candidate.name)
    return [f"  # {f'{fold(names)}: ' if len(names) < len(nodes) else ''}{text}" for text, names in holds.items()]


def _comments(asked: Asked) -> Lines:
    lines = []
    candidate, facts = asked.candidate, asked.facts
    if asked.problem is not None:
        lines.append(f"NOT REACHED: {_remark(asked.problem)}")
    if candidate.note:
        lines.append(_remark(candidate.note))
    if facts is not None:
        root = "" if facts.uid == 0 else "; the user is not root: write become: sudo where faults need it"
        lines.append(_remark(f"kernel {facts.kernel} ({facts.machine}), Python {facts.python}{root}"))
        if facts.nics:
            lines.append(_remark(f"control NICs: {facts.control}"))
        if facts.hostname.partition(".")[0] != candidate.name.partition(".")[0]:
            lines.append(_remark(f"it calls itself {facts.hostname}"))
    return lines


def _body(asked: Asked, groups: Mapping[str, str]) -> Lines:
    candidate, facts = asked.candidate, asked.facts
    lines = []
    if candidate.groups:
        lines.append(f"groups: [{', '.join(_scalar(groups[group]) for group in candidate.groups)}]")
    if candidate.labels:
        pairs = (f"{_scalar(key)}: {_scalar(value)}" for key, value in candidate.labels.items())
        lines.append(f"labels: {{{', '.join(pairs)}}}")
    for kind in ("gpu", "npu"):
        if facts is not None:
            lines += _accelerators(kind, [each for each in facts.accelerators if each.kind == kind])
        elif candidate.accelerators and kind in candidate.accelerators:
            count, model = candidate.accelerators[kind]
            lines.append(f"{kind}s: {{count: {count}{f', model: {_scalar(model)}' if model else ''}}}")
    if facts is not None and facts.nics:
        lines += ["nics:", *(f"  - {{{_nic(nic)}}}" for nic in facts.nics)]
    return lines


def _accelerators(kind: str, found: Sequence[FoundAccelerator]) -> Lines:
    if not found:
        return []
    vendors, models = {each.vendor for each in found}, {each.model or f"device {each.device}" for each in found}
    lines = [f"{kind}s:"]
    if len(vendors) == 1:
        lines.append(f"  vendor: {_scalar(vendors.pop())}")
    if len(models) == 1:
        lines.append(f"  model: {_scalar(models.pop())}")
    return [*lines, f"  pci: [{', '.join(_scalar(each.pci) for each in found)}]"]


def _nic(nic: FoundNic) -> str:
    pairs = (("name", nic.name), ("role", nic.role), ("rdma", nic.rdma), ("pci", nic.pci))
    return ", ".join(f"{key}: {_scalar(value)}" for key, value in pairs if value)


def _scalar(text: str) -> str:
    """A text as YAML, in quotes where it would be something else without them."""
    if _PLAIN.fullmatch(text) and isinstance(typed(text), str) and text.lower() not in _WORDS_OF_1_1:
        return text
    escaped = (f"\\{each}" if each in '"\\' else each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
    return f'"{"".join(escaped)}"'


def _remark(text: str) -> str:
    """A text of somebody else's as a part of a comment: one line, of what can be printed."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
