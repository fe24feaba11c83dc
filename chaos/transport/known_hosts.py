"""Is a host the one that it says it is? By the files that OpenSSH keeps: known_hosts (sshd(8), SSH_KNOWN_HOSTS)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.transport.pipe import AgentError

SSH_PORT = 22
_MARKERS = ("@revoked", "@cert-authority")


@dataclass(frozen=True)
class Entry:
    """A line about one host.

    Attributes:
        file, line: where it stands.
        marker: ``@revoked``, ``@cert-authority`` or empty.
        kind: the key's type, such as ``ssh-ed25519``.
        key: the public key's bytes.
    """

    file: Path
    line: int
    marker: str
    kind: str
    key: bytes


def name_of(host: str, port: int) -> str:
    """The name under which a host is known: ``[host]:port`` where the port is not SSH's own."""
    return host if port == SSH_PORT else f"[{host}]:{port}"


def entries(name: str, files: Iterable[Path]) -> list[Entry]:
    """What the files say about a host; a file that is not there says nothing.

    Raises:
        AgentError: a file cannot be read.
    """
    return [entry for file in files for entry in _about(name.lower(), file)]


def _about(name: str, file: Path) -> Iterator[Entry]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise AgentError(f"{file}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0] in _MARKERS else ""
        if len(fields) < 3 or fields[0].startswith("#") or not _names(fields[0], name):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except binascii.Error:  # as OpenSSH does: such a line says nothing
            continue
        yield Entry(file, number, marker, fields[1], key)


def _names(patterns: str, name: str) -> bool:
    """Whether a line's first field names a host: names, patterns, negations, or a salted hash of the name."""
    if patterns.startswith("|1|"):
        try:
            salt, hashed = (base64.b64decode(part, validate=True) for part in patterns[3:].split("|"))
        except ValueError:
            return False
        return hmac.compare_digest(hmac.digest(salt, name.encode(), hashlib.sha1), hashed)
    found = False
    for pattern in patterns.lower().split(","):
        if _fits(pattern.removeprefix("!"), name):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _fits(pattern: str, name: str) -> bool:
    # Not fnmatch: the brackets of "[host]:port" stand for themselves.
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None


def fingerprint(key: bytes) -> str:
    """As ``ssh-keygen -l`` shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def check(where: str, name: str, key: tuple[str, bytes], known: Sequence[Entry], files: Sequence[Path]) -> None:
    """See that a host presents the key by which it is known.

    Args:
        where: the host, for messages.
        name: the name under which it is known.
        key: what it presents: type and bytes.
        known: what the files say about it.
        files: the files.

    Raises:
        AgentError: the key is not known, has changed or was revoked; says how to go on.
    """
    kind, data = key
    shown = f"{kind} {fingerprint(data)}"
    for entry in known:
        if entry.marker == "@revoked" and entry.key == data:
            raise AgentError(f"{where} presents a host key that {entry.file}, line {entry.line}, revokes ({shown})")
    plain = [entry for entry in known if not entry.marker]
    if any(entry.key == data for entry in plain):
        return
    if plain:
        entry = next((each for each in plain if each.kind == kind), plain[0])
        raise AgentError(
            f"the host key of {where} has changed: it presents {shown}, but {entry.file}, line {entry.line}, has "
            f"{entry.kind} {fingerprint(entry.key)}. Either somebody is in between, or the host was set up anew; if "
            f"you know that it was: ssh-keygen -R '{name}' -f {entry.file}, then add its new key"
        )
    host, port = _parts(name)
    added = next((str(file) for file in files), "a file named in `known_hosts`")
    note = ""
    if any(entry.marker == "@cert-authority" for entry in known):
        note = " (a @cert-authority line names it, but certificates of hosts are not supported: add the key itself)"
    raise AgentError(
        f"the host key of {where} is not known ({shown}){note}. Compare this with what "
        f"`ssh-keygen -lf /etc/ssh/ssh_host_{_short(kind)}_key.pub` shows on the host itself; if it is the same: "
        f"ssh-keyscan -p {port} {host} >> {added}"
    )


def _parts(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"\[(.*)\]:(\d+)", name)
    return (found[1], int(found[2])) if found else (name, SSH_PORT)


def _short(kind: str) -> str:
    return "rsa" if kind == "ssh-rsa" else "ecdsa" if kind.startswith("ecdsa") else kind.removeprefix("ssh-")
