"""The way to a node: what an inventory says of it, completed by the user's ssh configuration (ssh_config(5))."""

from __future__ import annotations

import getpass
import glob
import io
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paramiko

from chaos.inventory.access import Access
from chaos.transport.known_hosts import SSH_PORT, name_of
from chaos.transport.pipe import AgentError

_MOST_JUMPS = 8
_DEEPEST_INCLUDE = 16  # as OpenSSH
_SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Route:
    """One hop.

    Attributes:
        access: what it was made from.
        host, port, user: where, and as whom.
        known_as: its name in known_hosts.
        known_hosts: files, the user's first.
        keys: private keys to try, in this order.
        only_these: try no other key of the ssh-agent.
        agent: the ssh-agent's socket, or ``None``.
        jump: the hop before it, or ``None``.
    """

    access: Access
    host: str
    port: int
    user: str
    known_as: str
    known_hosts: tuple[Path, ...]
    keys: tuple[Path, ...]
    only_these: bool
    agent: str | None
    jump: Access | None

    def __str__(self) -> str:
        return f"{self.user}@{name_of(self.host, self.port)}"


def routes(access: Access) -> list[Route]:
    """All hops to a node, the outermost jump host first, the node itself last.

    Raises:
        AgentError: the ssh configuration cannot be followed; says where.
    """
    found: list[Route] = []
    following: Access | None = access
    while following is not None:
        hop = _route(following)
        if any(_same(hop, other) for other in found):
            if found[-1].access.jump is None and _same(hop, found[-1]):
                # "Host *" with a ProxyJump holds for the jump host as well, which is reached directly.
                found[-1] = replace(found[-1], jump=None)
                break
            raise AgentError(f"the jump hosts of {access.host} go round in a circle: {hop} again")
        found.append(hop)
        if len(found) > _MOST_JUMPS + 1:
            raise AgentError(f"{access.host} is reached over more than {_MOST_JUMPS} jump hosts")
        following = hop.jump
    return found[::-1]


def _same(one: Route, other: Route) -> bool:
    return (one.host, one.port, one.user) == (other.host, other.port, other.user)


def _route(access: Access) -> Route:
    config = _config(access)
    options: dict[str, Any] = config.lookup(access.host)
    host = options["hostname"]
    port = access.port or _port(options.get("port", str(SSH_PORT)), access)
    alias = options.get("hostkeyalias")
    home = Path.home() / ".ssh"
    if access.key is not None:
        keys = [access.key.expanduser()]
    else:
        keys = [Path(each) for each in options.get("identityfile", [])] or [home / each for each in _USUAL_KEYS]
    known = [*_files(options.get("userknownhostsfile", f"{home}/known_hosts {home}/known_hosts2")), *access.known_hosts]
    return Route(
        access,
        host,
        port,
        access.user or options.get("user") or getpass.getuser(),
        alias or name_of(host, port),
        (*known, *_files(options.get("globalknownhostsfile", _SYSTEM_KNOWN_HOSTS))),
        tuple(keys),
        access.key is not None or options.get("identitiesonly", "no").lower() == "yes",
        _agent(options.get("identityagent", "SSH_AUTH_SOCK")),
        access.jump or _jump(access, options),
    )


def _port(text: str, access: Access) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise AgentError(f"{text!r} is no port ({access.host})")
    return int(text)


def _files(words: str) -> list[Path]:
    whole = Path(words).expanduser()
    if whole.exists():  # one name with blanks in it, of which the quotes are lost
        return [whole]
    return [Path(word).expanduser() for word in shlex.split(words) if word != "none"]


def _agent(named: str) -> str | None:
    if named == "SSH_AUTH_SOCK" or named.startswith("$"):
        return os.environ.get(named.lstrip("$"))
    return None if named == "none" else str(Path(named).expanduser())


def _jump(access: Access, options: dict[str, Any]) -> Access | None:
    """The last host of ``ProxyJump``, with the others as its own jump hosts."""
    words = options.get("proxyjump", "none")
    if words.lower() == "none":
        if options.get("proxycommand") is not None:
            raise AgentError(
                f"{access.host} has a ProxyCommand in its ssh configuration, which is not supported: "
                "name the hosts in between with ProxyJump, or `jump` in the inventory"
            )
        return None
    jump: Access | None = None
    for word in words.split(","):
        found = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(\[[^]]+\]|[^:\[\]/]+)(?::(\d+))?/?", word.strip())
        if found is None:
            raise AgentError(f"{access.host} has a ProxyJump that cannot be read: {word!r}; write user@host:port")
        user, host, port = found.groups()
        jump = Access(
            host.strip("[]"),
            None if port is None else _port(port, access),
            user,
            jump=jump,
            known_hosts=access.known_hosts,
            config=access.config,
        )
    return jump


def _config(access: Access) -> paramiko.SSHConfig:
    """The user's configuration and then the system's, or the one that was named."""
    if access.config is not None and not access.config.is_file():
        raise AgentError(f"{access.config} is no file (the ssh configuration for {access.host})")
    files = [Path.home() / ".ssh" / "config", _SYSTEM_CONFIG] if access.config is None else [access.config]
    home = Path.home() / ".ssh"
    lines: list[str] = []
    for file in files:
        lines += ["Host *", *_lines(file, file.parent if file == _SYSTEM_CONFIG else home, 0)]
    try:
        return paramiko.SSHConfig.from_file(io.StringIO("\n".join(lines)))
    except Exception as error:  # of many kinds, as it reads what a user has written
        raise AgentError(f"the ssh configuration {files[0]} cannot be read: {error}") from error


def _lines(file: Path, base: Path, depth: int) -> Iterator[str]:
    """A configuration with what it includes, which paramiko leaves out."""
    if depth > _DEEPEST_INCLUDE:
        raise AgentError(f"{file} is included too deeply: does it include itself?")
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError as error:
        raise AgentError(f"{file}: {error.strerror}") from error
    block = "Host *"
    for line in text.splitlines():
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if word.lower() == "include":
            for pattern in shlex.split(rest):
                for included in sorted(glob.glob(str(base / Path(pattern).expanduser()))):  # noqa: PTH207 - often absolute
                    yield from _lines(Path(included), base, depth + 1)
            yield block  # what follows belongs again to the block around the line
        else:
            if word.lower() in ("host", "match"):
                block = line
            yield line
