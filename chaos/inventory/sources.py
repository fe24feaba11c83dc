"""Where a first inventory comes from: Slurm, an ssh configuration, or a list of hosts."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.inventory.fields import label, node_name
from chaos.inventory.ranges import RangeError, expand

_PATIENCE = 60.0  # seconds for scontrol, which waits for a controller that is busy
_DEEPEST = 16  # ssh's own limit of files that include each other


class SourceError(ValueError):
    """No nodes can be had from there; the message says why, and what would be right."""


@dataclass(frozen=True)
class Candidate:
    """A node of which somebody knows.

    Attributes:
        address: where it is not the name.
        accelerators: how many there are, and which model, by ``gpu`` and ``npu``; None: nobody says.
        note: a line for people.
    """

    name: str
    address: str | None = None
    groups: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    accelerators: Mapping[str, tuple[int, str | None]] | None = None
    note: str | None = None


def from_hosts(text: str) -> list[Candidate]:
    """The nodes of a list such as ``a,b,node[1-4]``. Raises ``SourceError``."""
    try:
        names = list(dict.fromkeys(expand(text)))
    except RangeError as error:
        raise SourceError(str(error)) from None
    return [_checked(Candidate(name)) for name in names]


# Slurm


def from_slurm() -> list[Candidate]:
    """The nodes that ``scontrol`` shows. Raises ``SourceError``."""
    return slurm_nodes(_scontrol)


def slurm_nodes(show: Callable[[list[str]], subprocess.CompletedProcess[str]]) -> list[Candidate]:
    """The nodes that ``scontrol show nodes`` tells, as JSON where this Slurm can (23.02 and newer), else as text.

    Args:
        show: runs ``scontrol`` with arguments.

    Raises:
        SourceError: it fails, or shows none.
    """
    done = show(["show", "nodes", "--json"])
    if done.returncode == 0:
        found = slurm_json(done.stdout)
    else:  # unknown option before 23.02; a Slurm without its JSON plug-in ends alike
        done = show(["show", "nodes"])
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
            raise SourceError(f"scontrol show nodes ended with {done.returncode}: {last}")
        found = slurm_text(done.stdout)
    if not found:
        raise SourceError("scontrol shows no nodes; is this the cluster's Slurm (SLURM_CONF)?")
    return found


def _scontrol(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["scontrol", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except FileNotFoundError:
        raise SourceError("there is no scontrol here; run this where Slurm's client is, or use --hosts") from None
    except subprocess.TimeoutExpired:
        raise SourceError(f"scontrol gave no answer within {_PATIENCE:g} s; is slurmctld alive?") from None


def slurm_json(text: str) -> list[Candidate]:
    """The nodes in Slurm's JSON.

    Source: the ``nodes`` of Slurm's REST API. Up to v0.0.38 (22.05) ``state`` is a word with ``state_flags`` beside
    it and ``features`` one text; from v0.0.39 (23.02) on both are lists (recorded from 22.05.8; 24.11 by its schema).

    Raises:
        SourceError: it is none.
    """
    try:
        told = json.loads(text)
    except ValueError as error:
        raise SourceError(f"Slurm's JSON cannot be read: {error}") from None
    nodes = told.get("nodes") if isinstance(told, dict) else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) and node.get("name") for node in nodes):
        raise SourceError("Slurm's JSON cannot be read: found no list of 'nodes' with a 'name' each")
    return [_slurm_node(node) for node in nodes]


def _slurm_node(node: Mapping[str, Any]) -> Candidate:
    def listed(key: str) -> list[str]:
        value = node.get(key) or []
        return value.split(",") if isinstance(value, str) else [str(each) for each in value]

    return _slurm_candidate(
        str(node["name"]),
        address=str(node.get("address") or ""),
        partitions=listed("partitions"),
        features=listed("active_features") or listed("features"),
        gres=str(node.get("gres") or ""),
        state="+".join([*listed("state"), *listed("state_flags")]),
        reason=str(node.get("reason") or ""),
    )


# One `Key=value` of the text; Reason stands last but for what an administrator writes (Comment, Extra), so the first
# of a key counts and nobody's remark can pass for one.
_PAIR = re.compile(r"(?:^|\s)([A-Za-z_]+)=(\S*)")
_REASON = re.compile(r"(?:^|\s)Reason=(.*?)(?:\s\[[^\[\]]*@[^\[\]]*\])?\s*(?:$|\n)")


def slurm_text(text: str) -> list[Candidate]:
    """The nodes in the output of ``scontrol show nodes``, with or without ``--oneliner`` (recorded from 22.05.8)."""
    found = []
    for record in re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE):
        values: dict[str, str] = {}
        for key, value in _PAIR.findall(record):
            values.setdefault(key, "" if value == "(null)" else value)
        if not record.startswith("NodeName=") or not values["NodeName"]:
            continue
        reason = _REASON.search(record)
        features = values.get("ActiveFeatures") or values.get("AvailableFeatures") or ""
        found.append(
            _slurm_candidate(
                values["NodeName"],
                address=values.get("NodeAddr", ""),
                partitions=list(filter(None, values.get("Partitions", "").split(","))),
                features=list(filter(None, features.split(","))),
                gres=values.get("Gres", ""),
                state=values.get("State", ""),
                reason=reason[1] if reason else "",
            )
        )
    return found


def _slurm_candidate(
    name: str, *, address: str, partitions: list[str], features: list[str], gres: str, state: str, reason: str
) -> Candidate:
    labels = {f"feature-{feature}": "yes" for feature in features if label(f"feature-{feature}") is None}
    groups = tuple(partition for partition in partitions if label(partition) is None)
    note = f"Slurm: {state.upper() or 'no state'}{f', {reason}' if reason else ''}"
    return _checked(Candidate(name, address if address not in ("", name) else None, groups, labels, _gres(gres), note))


def _gres(text: str) -> Mapping[str, tuple[int, str | None]] | None:
    """The GPUs and NPUs in ``gpu:h100:8(S:0-1),npu:4,nvme:2``: how many, and of which model where all are of one."""
    found: dict[str, tuple[int, str | None]] = {}
    for part in re.sub(r"\([^()]*\)", "", text).split(","):
        kind, *rest = part.strip().split(":")
        count = rest[-1] if rest else "1"
        if kind not in ("gpu", "npu") or not count.isdigit():
            continue
        model = rest[0] if len(rest) == 2 else None
        before = found.get(kind)
        found[kind] = (int(count), model) if before is None else (before[0] + int(count), None)
    return found or None


# The ssh configuration


def from_ssh_config(path: Path) -> list[Candidate]:
    """The hosts of an ssh configuration: ``Host`` entries without wildcards, but for those that others jump through.

    Raises:
        SourceError: it cannot be read, or has no such entry.
    """
    from paramiko import SSHConfig  # noqa: PLC0415 - `chaos --help` does without
    from paramiko.ssh_exception import ConfigParseError  # noqa: PLC0415

    try:
        config = SSHConfig.from_text("\n".join(_included(path.expanduser(), 0)))
        names = [name for name in config.get_hostnames() if not re.search(r"[*?!]", name)]
        looked_up = {name: config.lookup(name) for name in sorted(names)}
    except ConfigParseError as error:
        raise SourceError(f"{path}: {error}") from None
    through = {_jump_name(jump) for host in looked_up.values() for jump in host.get("proxyjump", "").split(",")}
    found = []
    for name, host in looked_up.items():
        if name in through:
            continue
        ways = (("HostName", host.get("hostname")), ("ProxyJump", host.get("proxyjump")))
        told = ", ".join(f"{key} {value}" for key, value in ways if value and value != name)
        found.append(_checked(Candidate(name, note=told or None)))
    if not found:
        raise SourceError(f"{path} has no Host entry without wildcards; name the hosts with --hosts")
    return found


def _jump_name(jump: str) -> str:
    return re.sub(r":[0-9]+$", "", jump.strip().rpartition("@")[2])


def _included(path: Path, depth: int) -> Iterable[str]:
    """The lines of a configuration with its Include lines replaced by what they include, which paramiko does not."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    block = None
    for line in text.splitlines():
        key, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if key.lower() in ("host", "match"):
            block = line
        if key.lower() != "include":
            yield line
            continue
        if depth == _DEEPEST:
            raise SourceError(f"{path}: files include each other more than {_DEEPEST} deep")
        for pattern in value.split():
            given = Path(pattern.strip('"')).expanduser()
            base = given.parent if given.is_absolute() else Path("~/.ssh").expanduser() / given.parent
            for file in sorted(base.glob(given.name)):
                yield from _included(file, depth + 1)
                if block is not None:
                    yield block  # what follows belongs to it again


def _checked(candidate: Candidate) -> Candidate:
    if wrong := node_name(candidate.name):
        raise SourceError(wrong)
    return candidate
