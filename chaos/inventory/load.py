"""Reads an inventory strictly: every error names its place in the text, what was found and what would be right."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from chaos.documents.errors import DocumentErrors, Finding, Problem, suggestion
from chaos.documents.model import Model
from chaos.documents.nodes import locate, plain
from chaos.documents.reader import Form, compose, read
from chaos.documents.translate import findings
from chaos.inventory.access import Access, Secret
from chaos.inventory.document import BmcSettings, Document, Group, Jump, Nic, NodeEntry, Reach, Settings
from chaos.inventory.fields import IN_THE_OPEN, NONE, PLACEHOLDER, label, node_name
from chaos.inventory.model import Bmc, Inventory, Node, is_device_name
from chaos.inventory.ranges import MOST, RangeError, expand, fold

__all__ = ["DocumentErrors", "load", "loads"]

FORM = Form("one inventory", "inventory: NAME", longest=1 << 24, most=1_000_000)

Path = tuple[str | int, ...]
Layer = tuple[Path, Settings]  # where it stands, and what it says
Part = TypeVar("Part", bound=Model)

_SECRET_LINE = re.compile(r"pass(word|phrase)|secret", re.IGNORECASE)


def load(path: str | pathlib.Path, environ: Mapping[str, str]) -> Inventory:
    """The inventory in a file; paths in it start at the file's folder. Raises ``DocumentErrors``."""
    return loads(read(path), environ, file=str(path))


def loads(text: str, environ: Mapping[str, str], *, file: str = "<text>") -> Inventory:
    """The inventory in a text; ``file`` is what problems call it. Raises ``DocumentErrors``."""
    try:
        document = compose(text, file, environ, FORM)
    except DocumentErrors as errors:
        raise DocumentErrors(_without_secrets(problem, text) for problem in errors.problems) from None
    data = plain(document.root)
    assert isinstance(data, dict)
    folder = pathlib.Path(file).absolute().parent if file != "<text>" else pathlib.Path.cwd()
    reader = _Reader(folder)
    inventory = reader.inventory(data, file)
    told = [_without_secrets(Problem(file, mark.line, mark.column, words), text) for mark, words in document.problems]
    for finding in reader.found:
        mark = locate(document.root, finding.path, at_key=finding.at_key)
        if mark not in document.unread:
            told.append(Problem(file, mark.line, mark.column, document.variables.redact(finding.message)))
    if told or inventory is None:
        raise DocumentErrors(told)
    return inventory


def _without_secrets(problem: Problem, text: str) -> Problem:
    """A problem of the YAML itself, whose message may repeat what stands in a line that may hold a secret."""
    lines = text.splitlines()
    line = lines[problem.line - 1] if problem.line <= len(lines) else ""
    if not _SECRET_LINE.search(line) or problem.message.startswith("the "):  # a repeated key, an unset variable
        return problem
    return Problem(problem.file, problem.line, problem.column, IN_THE_OPEN)


class _Reader:
    """Puts a document's parts together, and keeps everything that is wrong with it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.found: list[Finding] = []
        self.jumps: dict[str, Jump] = {}
        self.known_jumps: tuple[str, ...] = ()
        self._machines: dict[object, str] = {}  # the node that each way of reaching one leads to
        self._doubled: set[str] = set()  # the entries of which that was told

    def inventory(self, data: Mapping[str, Any], file: str) -> Inventory | None:
        """The inventory; None where something is wrong that leaves none."""
        outline = {key: {} if key in ("defaults", "jumps", "groups", "nodes") else value for key, value in data.items()}
        for key in ("defaults", "jumps", "groups", "nodes"):
            if key in data and not isinstance(data[key], dict):
                outline[key] = data[key]  # the model tells what is wrong with it
        header = self._part(Document, outline, ())
        defaults = self._part(Settings, data.get("defaults", {}), ("defaults",))
        self.jumps = self._parts(Jump, data.get("jumps"), "jumps")
        self.known_jumps = tuple(data["jumps"]) if isinstance(data.get("jumps"), dict) else ()
        groups = self._parts(Group, data.get("groups"), "groups")
        known_groups = tuple(data["groups"]) if isinstance(data.get("groups"), dict) else ()
        entries = self._parts(NodeEntry, data.get("nodes"), "nodes")
        names = self._names(data.get("nodes"))
        self._common_addresses(defaults, groups)
        self._check_jumps()
        self._check_groups(known_groups, names)
        nodes: list[Node] = []
        members: dict[str, list[Node]] = {name: [] for name in known_groups}
        for key, entry in entries.items():
            layers: list[Layer] = [(("defaults",), defaults)] if defaults is not None else []
            for index, group in enumerate(entry.groups):
                if group not in known_groups:
                    near = suggestion(group, known_groups) if known_groups else "write it under 'groups' first"
                    self._find(("nodes", key, "groups", index), f"found '{group}', which is no group; {near}")
                elif group in groups:
                    layers.append((("groups", group), groups[group]))
            layers.append((("nodes", key), entry))
            made = self._nodes(key, names.get(key, []), layers, tuple(dict.fromkeys(entry.groups)))
            nodes += made
            for group in set(entry.groups) & set(members):
                members[group] += made
        if header is None or self.found:
            return None
        return Inventory(
            header.inventory,
            file,
            tuple(nodes),
            {name: tuple(those) for name, those in members.items()},
            header.about,
        )

    def _part(self, model: type[Part], written: object, path: Path) -> Part | None:
        try:
            return model.model_validate(written, by_alias=True, by_name=False)
        except ValidationError as error:
            self.found += findings(error, model, path)
            return None

    def _parts(self, model: type[Part], written: object, key: str) -> dict[str, Part]:
        """The parts of a mapping that can be read; ``node1:`` with nothing behind it says nothing more of the node."""
        if not isinstance(written, dict):
            return {}
        read = {name: self._part(model, {} if value is None else value, (key, name)) for name, value in written.items()}
        return {name: part for name, part in read.items() if part is not None}

    def _names(self, written: object) -> dict[str, list[str]]:
        """The nodes' names by the keys that stand for them."""
        if not isinstance(written, dict):
            return {}
        if not written:
            self._find(("nodes",), "found no node; write at least one, such as node[001-064]")
        names: dict[str, list[str]] = {}
        first: dict[str, str] = {}
        total = 0
        for key in written:
            try:
                expanded = expand(key)
            except RangeError as error:
                self._find(("nodes", key), str(error), at_key=True)
                continue
            total += len(expanded)
            if total > MOST:
                self._find(("nodes", key), f"found more than {MOST} nodes; write another inventory", at_key=True)
                break
            if wrong := next(filter(None, map(node_name, expanded)), None):
                self._find(("nodes", key), wrong, at_key=True)
                continue
            twice = [name for name in expanded if first.setdefault(name, key) != key]
            if twice:
                there = first[twice[0]]
                which = f"'{there}'" if there == twice[0] else f"'{there}', which includes it"
                what = f"found '{fold(twice)}', which stands above as {which}; write each node once"
                self._find(("nodes", key), what, at_key=True)
            elif len(set(expanded)) != len(expanded):
                self._find(("nodes", key), f"found a node twice in '{key}'; write each node once", at_key=True)
            names[key] = expanded
        return names

    def _common_addresses(self, defaults: Settings | None, groups: Mapping[str, Group]) -> None:
        """What holds for many nodes can tell an address only by their names."""
        layers: list[Layer] = [(("groups", name), group) for name, group in groups.items()]
        if defaults is not None:
            layers.append((("defaults",), defaults))
        for path, layer in layers:
            bmc = layer.bmc.address if layer.bmc is not None else None
            for at, address in (((*path, "address"), layer.address), ((*path, "bmc", "address"), bmc)):
                if address is not None and (PLACEHOLDER not in address or "[" in address):
                    self._find(at, f"found '{address}' for several nodes; write one with {PLACEHOLDER} in it")

    def _check_groups(self, groups: tuple[str, ...], names: Mapping[str, list[str]]) -> None:
        nodes = {name for those in names.values() for name in those}
        for group in groups:
            if group in nodes:
                self._find(("groups", group), f"found '{group}', which names a node too; rename one", at_key=True)
            elif group in ("all", NONE):
                self._find(("groups", group), f"found '{group}', a word of its own; write another name", at_key=True)
            elif wrong := label(group):
                self._find(("groups", group), wrong.replace("a label's name", "a group's name"), at_key=True)

    def _check_jumps(self) -> None:
        for name, jump in self.jumps.items():
            if name == NONE:
                self._find(("jumps", name), "found 'none', a word of its own; write another name", at_key=True)
            if jump.address is not None and (PLACEHOLDER in jump.address or "[" in jump.address):
                self._find(("jumps", name, "address"), f"found '{jump.address}'; write the address of one host")
            self._known_jump(jump.jump, ("jumps", name, "jump"))
        told: set[str] = set()
        for name in self.jumps:
            way = [name]
            while (following := self._jump_of(way[-1])) is not None and following not in way:
                way.append(following)
            if following is not None and following not in told:
                loop = way[way.index(following) :]
                told.update(loop)
                chain = " -> ".join([*loop, following])
                self._find(("jumps", loop[-1], "jump"), f"found '{following}', a loop: {chain}; write 'none' at one")

    def _jump_of(self, name: str) -> str | None:
        return self.jumps[name].jump if name in self.jumps else None

    def _known_jump(self, name: str | None, path: Path) -> None:
        if name is not None and name not in self.known_jumps:
            near = suggestion(name, self.known_jumps) if self.known_jumps else "write it under 'jumps' first"
            self._find(path, f"found '{name}', which is no jump host; {near}")

    # What holds for a node

    def _nodes(self, key: str, names: list[str], layers: list[Layer], groups: tuple[str, ...]) -> list[Node]:
        """The nodes of one entry of the document."""
        merged: dict[str, Any] = {}
        for _, layer in layers:
            said = {name: getattr(layer, name) for name in layer.model_fields_set}
            merged |= said | {"labels": merged.get("labels", {}) | said.get("labels", {})}
        at = _where(layers, "jump")
        self._known_jump(merged.get("jump"), at)
        if merged.get("become_password") is not None and merged.get("become", NONE) == NONE:
            self._find(
                _where(layers, "become_password"),
                "found a password for becoming root, and no 'become'; write become: sudo or become: su",
            )
        addresses = self._addresses(merged.get("address"), names, _where(layers, "address"))
        bmcs = self._bmcs(layers, names)
        nics = self._nics(merged.get("nics", []), _where(layers, "nics"))
        nodes = [
            Node(
                name,
                self._access(merged, address, ()),
                groups,
                merged["labels"],
                merged.get("gpus"),
                merged.get("npus"),
                nics,
                bmc,
            )
            for name, address, bmc in zip(names, addresses, bmcs, strict=True)
        ]
        self._single_addresses(key, nodes, layers)
        return nodes

    def _addresses(self, written: str | None, names: list[str], path: Path) -> list[str]:
        """An address a node; the node's name where none is written."""
        if written is None:
            return names
        try:
            each = expand(written.replace(PLACEHOLDER, "\0")) if "[" in written or "," in written else [written]
        except RangeError as error:
            self._find(path, str(error))
            return names
        if len(each) == 1 and (len(names) == 1 or PLACEHOLDER in written):
            each *= len(names)
        if len(each) != len(names):
            right = f"write as many, or {PLACEHOLDER} in it"
            self._find(path, f"found {_many(len(each), 'address')} for {_many(len(names), 'node')}; {right}")
            return names
        return [one.replace("\0", name).replace(PLACEHOLDER, name) for one, name in zip(each, names, strict=True)]

    def _bmcs(self, layers: list[Layer], names: list[str]) -> list[Bmc | None]:
        """A BMC a node: what several layers say of it is put together, unless one says ``none``."""
        said: dict[str, Any] = {}
        path: Path = ()
        for where, layer in layers:
            if "bmc" not in layer.model_fields_set:
                continue
            if layer.bmc is None:
                said, path = {}, ()
                continue
            said |= {name: getattr(layer.bmc, name) for name in layer.bmc.model_fields_set}
            path = (*where, "bmc")
        if not path:
            return [None] * len(names)
        bmc = BmcSettings.model_construct(**said)
        if bmc.address is None:
            self._find(path, f"found no 'address'; write it, with {PLACEHOLDER} in it for several nodes, or bmc: none")
            return [None] * len(names)
        if bmc.protocol == "redfish" and bmc.user is None and bmc.password is not None:
            self._find(path, "found a password and no 'user'; write the user that it is for")
        at = next(
            (*where, "bmc", "address")
            for where, layer in reversed(layers)
            if layer.bmc is not None and "address" in layer.bmc.model_fields_set
        )
        addresses = self._addresses(bmc.address, names, at)
        password = self._secret(bmc.password)
        return [Bmc(address, bmc.protocol, bmc.user, password, bmc.port) for address in addresses]

    def _nics(self, written: list[Nic], path: Path) -> tuple[Nic, ...]:
        """An entry an interface."""
        found: list[Nic] = []
        for index, nic in enumerate(written):
            try:
                names = expand(nic.name)
                rdma: list[str | None] = [*expand(nic.rdma)] if nic.rdma is not None else [None] * len(names)
            except RangeError as error:
                self._find((*path, index), str(error))
                continue
            if len(rdma) != len(names):
                what = f"found {_many(len(rdma), 'RDMA device')} for {_many(len(names), 'interface')}; write as many"
                self._find((*path, index, "rdma"), what)
                continue
            if nic.pci is not None and len(names) != 1:
                self._find((*path, index, "pci"), "found one PCI address for a range; write each interface by itself")
            for name, device in zip(names, rdma, strict=True):
                if any(name == other.name for other in found):
                    self._find((*path, index, "name"), f"found '{name}' twice; write each interface once")
                if is_device_name(name):
                    what = f"found '{name}', which is how a GPU or NPU is called; write the kernel's name"
                    self._find((*path, index, "name"), what)
                found.append(nic.model_copy(update={"name": name, "rdma": device}))
        return tuple(found)

    def _single_addresses(self, key: str, nodes: list[Node], layers: list[Layer]) -> None:
        """No two nodes are one machine: two that are reached alike, or powered by one BMC."""
        for node in nodes:
            way = (node.access.host.lower(), node.access.port or 22, node.access.jump)
            self._single(way, node, key, _where(layers, "address"), f"address '{node.access.host}'")
            if node.bmc is not None:
                what = (node.bmc.address.lower(), node.bmc.port, node.bmc.protocol)
                self._single(what, node, key, ("nodes", key, "bmc"), f"BMC '{node.bmc.address}'")

    def _single(self, way: object, node: Node, key: str, path: Path, words: str) -> None:
        other = self._machines.setdefault(way, node.name)
        if other == node.name or key in self._doubled:
            return
        self._doubled.add(key)
        own = path[:1] == ("nodes",) and path != ("nodes", key)
        what = f"found the {words} for '{node.name}', which is that of '{other}'; write each machine once"
        self._find(path if own else ("nodes", key), what, at_key=not own)

    def _access(self, said: Mapping[str, Any], address: str, behind: tuple[str, ...]) -> Access:
        """How a node is reached: by what is said of it, through its jump hosts."""
        jump: Access | None = None
        name = said.get("jump")
        if name in self.jumps and name not in behind:
            through = self.jumps[name]
            written = {each: getattr(through, each) for each in Reach.model_fields}
            jump = self._access(written, through.address or name, (*behind, name))
        return Access(
            host=address,
            port=said.get("port"),
            user=said.get("user"),
            key=self._path(said.get("key")),
            passphrase=self._secret(said.get("passphrase")),
            password=self._secret(said.get("password")),
            jump=jump,
            python=said.get("python", "python3"),
            become=said.get("become", NONE),
            become_password=self._secret(said.get("become_password")),
            known_hosts=tuple(path for each in said.get("known_hosts", ()) if (path := self._path(each))),
            config=self._path(said.get("ssh_config")),
        )

    def _path(self, written: str | pathlib.Path | None) -> pathlib.Path | None:
        """As the shell would take it, from the document's folder."""
        if written is None:
            return None
        path = pathlib.Path(written)
        try:
            path = path.expanduser()
        except RuntimeError:  # a user whom nobody knows: it stays, and is told where it is needed
            return path
        return self.folder / path

    def _secret(self, secret: Secret | None) -> Secret | None:
        if secret is None or secret.file is None:
            return secret
        return Secret(file=self._path(secret.file))

    def _find(self, path: Path, message: str, *, at_key: bool = False) -> None:
        self.found.append(Finding(path, message, at_key))


def _where(layers: list[Layer], name: str) -> Path:
    """Where the value that counts stands; the node's entry where nobody says anything."""
    for path, layer in reversed(layers):
        if name in layer.model_fields_set:
            return (*path, name)
    return layers[-1][0]


def _many(count: int, what: str) -> str:
    plural = "es" if what.endswith("ss") else "s"
    return f"{count} {what}{'' if count == 1 else plural}"
