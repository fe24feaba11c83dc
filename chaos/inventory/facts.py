"""What a node says of itself: the facts, and how they are asked for over whatever reaches the node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from importlib import resources
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from chaos.inventory.access import Access
from chaos.inventory.node_facts import MARK

PATIENCE = 30.0  # seconds for one node
_MOST = 1 << 20  # bytes of an answer that are looked at
_MOST_SHOWN = 200  # characters of what a node says instead of an answer


class Unreached(Exception):
    """A node did not tell what it has; the message says why, without secrets."""


class _Told(BaseModel):
    """Something that a node says: frozen; what a later version may add is passed over."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class FoundAccelerator(_Told):
    """A GPU or NPU on the PCI bus.

    Attributes:
        pci: its address, such as ``0000:1a:00.0``.
        device: its PCI device number, four hexadecimal digits.
        model: as its driver calls it, where that can be read without a program.
    """

    kind: Literal["gpu", "npu"]
    pci: str
    vendor: str
    device: str
    model: str | None = None


class FoundNic(_Told):
    """A network interface that is hardware, or a bond.

    Attributes:
        role: control where it carries what reaches the node, or where that could not be told.
        mbit: its speed in Mbit/s, where there is a link.
    """

    name: str
    role: Literal["control", "data"]
    pci: str | None = None
    driver: str | None = None
    rdma: str | None = None
    state: str | None = None
    mbit: int | None = None


class Facts(_Told):
    """What a node has.

    Attributes:
        python: its version.
        uid: of the user who was asked; 0 is root.
        control: how it is known which interfaces reach the node.
    """

    hostname: str
    kernel: str
    machine: str
    python: str
    uid: int
    accelerators: tuple[FoundAccelerator, ...]
    nics: tuple[FoundNic, ...]
    control: str


class Run(Protocol):
    """Runs a program on a node, with nothing on its input."""

    def __call__(self, access: Access, argv: Sequence[str], timeout: float, /) -> bytes:
        """What it wrote to its standard output.

        Args:
            argv: the program and its arguments, as they are: whoever sends them through a shell quotes them.
            timeout: seconds for all of it, from the connection to the end.

        Raises:
            Unreached: the node cannot be reached, or the program failed.
        """


class Ask(Protocol):
    """Asks a node what it has."""

    def __call__(self, access: Access) -> Facts:
        """The facts. Raises ``Unreached``."""


def script() -> str:
    """The program that a node's Python runs to tell the facts."""
    return resources.files("chaos.inventory").joinpath("node_facts.py").read_text(encoding="utf-8")


def asking(run: Run, root: str = "/") -> Ask:
    """How to ask nodes what they have, over whatever ``run`` reaches them by; ``root``: of the files to read there."""
    program = script()

    def ask(access: Access) -> Facts:
        try:
            return parse(run(access, [access.python, "-c", program, root], PATIENCE))
        except Unreached as error:
            raise Unreached(_shortened(str(error))) from None

    return ask


def _shortened(message: str) -> str:
    """Without its middle where it is long: a transport may repeat the whole program that it could not run."""
    if len(message) <= 2 * _MOST_SHOWN:
        return message
    return f"{message[: _MOST_SHOWN // 2]} ... {message[-_MOST_SHOWN:]}"


def parse(output: bytes) -> Facts:
    """The facts in what a node wrote, behind whatever its login shell wrote before.

    Raises:
        Unreached: there are none.
    """
    for line in reversed(output[-_MOST:].decode("utf-8", "replace").splitlines()):
        if not line.startswith("{"):
            continue
        try:
            told = json.loads(line)
        except ValueError:
            break
        if isinstance(told, dict) and told.get("schema") == MARK:
            try:
                return Facts.model_validate_json(line)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                where = ".".join(map(str, first["loc"]))
                raise Unreached(f"its answer cannot be read: {where}: {first['msg']}") from None
    said = " ".join(output[:_MOST].decode("utf-8", "replace").split())
    said = "".join(character for character in said if character.isprintable())[:_MOST_SHOWN]
    raise Unreached(f"it gave no answer{f', but said: {said}' if said else ''}")


def run_here(_access: Access, argv: Sequence[str], timeout: float) -> bytes:
    """Runs a program on this machine; how a node would be reached does not matter."""
    try:
        done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise Unreached(f"it did not answer within {timeout:g} s") from None
    except OSError as error:
        raise Unreached(f"{argv[0]}: {error.strerror}") from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Unreached(f"{argv[0]} ended with {done.returncode}{f': {lines[-1][:_MOST_SHOWN]}' if lines else ''}")
    return done.stdout
