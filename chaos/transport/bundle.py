"""The agent as an archive that any node's Python can run: ours, the injectors and pyroute2, addressed by its hash."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from chaos.transport import boot
from chaos.transport.pipe import AgentError

PACKAGES = ("chaos.agent", "injectors", "pyroute2")
_LONGEST_LINE = 65536  # bytes


@dataclass(frozen=True)
class Bundle:
    """The archive.

    Attributes:
        digest: its SHA-256 in hex.
        archive: a gzipped tar, the same bytes for the same code.
    """

    digest: str
    archive: bytes

    def command(self, python: str, options: Sequence[str] = ()) -> list[str]:
        """What starts the agent on a node, given a pipe on which ``deliver`` then speaks with it.

        Args:
            python: the node's Python.
            options: for the agent.
        """
        source = Path(boot.__file__).read_text(encoding="utf-8")
        return [python, "-c", source, self.digest, str(len(self.archive)), *options]

    def deliver(self, name: str, stdin: int, stdout: int) -> bool:
        """Speak with what ``command`` has started until the agent itself is at the other end.

        Both descriptors stay open; bound the wait by whatever ends the pipe.

        Returns:
            Whether the node lacked it, so that it was sent.

        Raises:
            AgentError: the node cannot run it; says why.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                part = os.read(stdout, 1)  # not a byte of what the agent says afterwards
            except OSError as error:
                raise AgentError(f"no agent starts on {name}: {error.strerror}") from error
            if not part or len(line) > _LONGEST_LINE:
                said = line.decode(errors="replace").strip()
                raise AgentError(f"no agent starts on {name}: " + (f"found {said!r}" if said else "nothing was said"))
            line += part
        answer = _boot_line(bytes(line), name)
        if "error" in answer:
            raise AgentError(f"no agent starts on {name}: {answer['error']}")
        if not answer["have"]:
            data = memoryview(self.archive)
            try:
                while data:
                    data = data[os.write(stdin, data) :]
            except OSError as error:
                raise AgentError(f"no agent starts on {name}: its bundle broke off: {error.strerror}") from error
        return not answer["have"]


def _boot_line(line: bytes, name: str) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("event") != "boot":
        said = line.decode(errors="replace").strip()
        raise AgentError(f"no agent starts on {name}: found {said!r} where the agent's answer should be")
    return answer


@cache
def bundle(extra: tuple[str, ...] = ()) -> Bundle:
    """The bundle of this installation.

    Args:
        extra: further packages or modules, such as those of a site's own injectors.

    Raises:
        AgentError: one of them is not to be found.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, path in sorted(dict(_files((*PACKAGES, *extra))).items()):
            data = path.read_bytes()
            info = tarfile.TarInfo(name)  # owner, mode and time are the same for everybody
            info.size, info.mode = len(data), 0o600
            archive.addfile(info, io.BytesIO(data))
    data = gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)
    return Bundle(hashlib.sha256(data).hexdigest(), data)


def _files(packages: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Names in the archive, and where the files are; with the ``__init__`` of every package above."""
    for package in packages:
        parts = package.split(".")
        for depth in range(1, len(parts)):
            above = importlib.util.find_spec(".".join(parts[:depth]))
            if above is not None and above.origin is not None:
                yield "/".join([*parts[:depth], "__init__.py"]), Path(above.origin)
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            spec = None
        if spec is None or spec.origin is None:
            raise AgentError(f"the agent's bundle lacks {package}: it is not installed here")
        path = Path(spec.origin)
        if spec.submodule_search_locations is None:
            yield "/".join(parts) + ".py", path
        else:
            for each in path.parent.rglob("*.py"):
                yield "/".join([*parts, *each.relative_to(path.parent).parts]), each
