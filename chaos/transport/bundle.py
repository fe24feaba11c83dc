"""The agent as an archive that any node's Python can run: ours, the injectors and pyroute2, addressed by its hash."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import io
import json
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from chaos.transport import boot
from chaos.transport.pipe import AgentError, Sink, Source, sink, source, write_all

PACKAGES = ("chaos.agent", "injectors", "pyroute2")
# No code but the standard library's and ours: neither from the folder where it is started, nor what is installed there.
ISOLATED = ("-I", "-S")
AGENT = "chaos.agent.main"
_MOST_CHATTER = 65536  # bytes before the boot script's answer
_QUOTED = 500  # characters of it in a message


@dataclass(frozen=True)
class Bundle:
    """The archive.

    Attributes:
        digest: its SHA-256 in hex.
        archive: a gzipped tar, the same bytes for the same code.
    """

    digest: str
    archive: bytes

    def command(self, python: str, options: Sequence[str] = (), *, module: str = AGENT) -> list[str]:
        """What starts the agent on a node, given a pipe on which ``deliver`` then speaks with it.

        Args:
            python: the node's Python.
            options: for the agent.
            module: what is started, where it is not the agent itself.
        """
        # With its name at the end, for whoever looks at the node's processes.
        code = f"{one_line(boot)}#{module}"
        return [python, *ISOLATED, "-c", code, self.digest, str(len(self.archive)), module, *options]

    def deliver(self, name: str, stdin: int | Sink, stdout: int | Source) -> bool:
        """Speak with what ``command`` has started until the agent itself is at the other end.

        What a node says before, such as the greeting of a login script, is skipped. Both ends stay open; bound the
        wait by whatever ends the pipe.

        Returns:
            Whether the node lacked it, so that it was sent.

        Raises:
            AgentError: the node cannot run it; says why.
        """
        said = _Answers(name, source(stdout, take_over=False))
        have = bool(said.next()["have"])
        if not have:
            try:
                write_all(sink(stdin, take_over=False), self.archive)
            except OSError as error:
                raise AgentError(f"no agent starts on {name}: its bundle broke off: {error.strerror}") from error
            said.next()
        return not have


class _Answers:
    """What the boot script says, among whatever else comes before it."""

    def __init__(self, name: str, stdout: Source) -> None:
        self._name = name
        self._stdout = stdout
        self._skipped = bytearray()

    def next(self) -> dict[str, Any]:
        while True:
            line = self._line()
            try:
                answer = json.loads(line)
            except ValueError:
                answer = None
            if isinstance(answer, dict) and answer.get("event") == "boot":
                if "error" in answer:
                    raise AgentError(f"no agent starts on {self._name}: {answer['error']}")
                return answer
            self._skipped += line
            if len(self._skipped) > _MOST_CHATTER:
                raise self._nothing()

    def _line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                part = self._stdout.read(1)  # not a byte of what the agent says afterwards
            except OSError as error:
                raise AgentError(f"no agent starts on {self._name}: {error.strerror or error}") from error
            if not part or len(line) > _MOST_CHATTER:
                self._skipped += line
                raise self._nothing()
            line += part
        return bytes(line)

    def _nothing(self) -> AgentError:
        said = self._skipped.decode(errors="replace").strip()
        if len(said) > _QUOTED:
            said = said[:_QUOTED] + "..."
        found = f"found {said!r} where the agent's answer should be" if said else "nothing was said"
        return AgentError(f"no agent starts on {self._name}: {found}")


def one_line(module: ModuleType) -> str:
    """The source of a module of ours as an argument of ``python -c``, without anything that a shell could take amiss:
    some (csh) cannot have a line break even between quotes."""
    packed = base64.b64encode(zlib.compress(Path(str(module.__file__)).read_bytes(), 9)).decode()
    return f"import binascii,zlib;exec(zlib.decompress(binascii.a2b_base64('{packed}')))"


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
