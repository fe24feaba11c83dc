"""The types of an inventory's fields: names, addresses, secrets by reference, and what may be ``none``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from chaos.documents.errors import describe, suggestion
from chaos.inventory.access import Secret

NONE: Final = "none"
PLACEHOLDER: Final = "{name}"

# RFC 1123 for the names of hosts, with the underscore that some sites have.
_NODE = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"[^\s,=\[\]:]{1,253}")
_ADDRESS = re.compile(r"([A-Za-z0-9._:%-]|\[[0-9,-]+\]|,|\{name\})+")
_INTERFACE = re.compile(r"[^\s/\[\],:]{1,15}")  # the kernel's own limit of a name
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

IN_THE_OPEN: Final = (
    "found a plain value, which is not shown here; a secret never stands in the document: "
    "write {env: NAME}, {file: PATH} or {command: [PROGRAM, ARGUMENT]}"
)
_WAYS = ("env", "file", "command")


@dataclass(frozen=True)
class SecretReference:
    """Makes a field a secret by reference, or ``none``. What is refused is never repeated: it may be the secret."""

    def read(self, value: object) -> Secret | None:
        """Where the secret is to be had. Raises ``ValueError`` that says what would be right."""
        if value == NONE:
            return None
        if not isinstance(value, dict):
            raise ValueError(IN_THE_OPEN)
        for key in value:
            if key not in _WAYS:
                raise ValueError(f"found a key that names no place of a secret; {suggestion(key, _WAYS)}")
        if len(value) != 1:
            raise ValueError(f"found {len(value)} of env, file and command; write one of them")
        ((way, where),) = value.items()
        if way == "env":
            if not isinstance(where, str) or not _VARIABLE.fullmatch(where):
                raise ValueError("found no name of an environment variable in 'env'; write one, such as BMC_PASSWORD")
            return Secret(env=where)
        if way == "file":
            if not isinstance(where, str) or not where or "\n" in where:
                raise ValueError("found no path in 'file'; write one, such as ~/.config/bmc-password")
            return Secret(file=Path(where))
        if not isinstance(where, list) or not where or not all(isinstance(part, str) and part for part in where):
            raise ValueError("found no list of texts in 'command'; write one, such as [pass, show, bmc]")
        return Secret(command=tuple(where))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic asks for this: how the field is validated."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Pydantic asks for this: how the field reads in a document."""
        text = {"type": "string", "minLength": 1}
        ways: dict[str, JsonSchemaValue] = {
            "env": text | {"pattern": f"^{_VARIABLE.pattern}$", "description": "the name of an environment variable"},
            "file": text | {"description": "a file whose first line it is"},
            "command": {
                "type": "array",
                "items": text,
                "minItems": 1,
                "description": "a command whose first line of output it is; no shell reads it",
            },
        }
        one: JsonSchemaValue = {"additionalProperties": False, "minProperties": 1, "maxProperties": 1}
        return {"anyOf": [{"type": "object", "properties": ways} | one, {"const": NONE}]}


@dataclass(frozen=True)
class OrNone:
    """Lets ``none`` stand for a field, to take back what the defaults or a group say. It is None inside."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic asks for this: how the field is validated."""
        return core_schema.no_info_before_validator_function(_none, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Pydantic asks for this: how the field reads in a document."""
        written = handler(schema)
        parts = [part for part in written.get("anyOf", [written]) if part != {"type": "null"}]
        return {"anyOf": [*parts, {"const": NONE}]}


def _none(value: object) -> object:
    if value is None:
        raise ValueError("found nothing; write a value, or 'none'")
    return None if value == NONE else value


@dataclass(frozen=True)
class CountOr:
    """Lets a bare number stand for devices of which only the count is told."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic asks for this: how the field is validated."""
        return core_schema.no_info_before_validator_function(_counted, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Pydantic asks for this: how the field reads in a document."""
        return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1024}, handler(schema)]}


def _counted(value: object) -> object:
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _text(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError(f"found {describe(value)}; write text of one line")
    return value


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError(f"found {describe(value)}; write a word of small letters and digits")
    return value


def _address(value: str) -> str:
    if "@" in value:  # what stands before it may be a user with a password
        raise ValueError("found an '@' in an address; write the user as 'user: NAME', and the address alone")
    if not _ADDRESS.fullmatch(value) or value.startswith("-"):
        raise ValueError(
            f"found {describe(value)}; write a host name, an IP address or an alias of the ssh configuration"
        )
    return value


def _user(value: str) -> str:
    if not value or value.startswith("-") or not value.isprintable() or set(value) & set(" :@/"):
        raise ValueError("found no name of a user, or one with ' ', ':', '@' or '/' in it; write the name alone")
    return value


def _interface(value: str) -> str:
    if not _INTERFACE.fullmatch(re.sub(r"\[[0-9,-]+\]", "0", value)):
        raise ValueError(f"found {describe(value)}; write the kernel's name of an interface, or a range: rail[0-7]")
    return value


def _pci(value: str) -> str:
    if not _PCI.fullmatch(value):
        raise ValueError(f"found {describe(value)}; write a PCI address as lspci -D shows it, such as 0000:1a:00.0")
    return value


def label(key: str) -> str | None:
    """What is wrong with the name of a label; None where nothing is."""
    if _LABEL.fullmatch(key):
        return None
    return f"found {describe(key)}; write a label's name of letters, digits, '.', '_', '/' and '-' (63 at most)"


def _labels(value: dict[str, str]) -> dict[str, str]:
    for key, text in value.items():
        if wrong := label(key):
            raise ValueError(wrong)
        if not _LABEL_VALUE.fullmatch(text):
            raise ValueError(
                f"found {describe(text)} for the label '{key}'; write text without spaces, ',', '=', ':' and brackets"
            )
    return value


def node_name(name: str) -> str | None:
    """What is wrong with the name of a node; None where nothing is."""
    if name in ("all", NONE):
        return f"found '{name}', a word of its own in selections; write another name"
    if not _NODE.fullmatch(name):
        return f"found {describe(name)}; write the name of a host, or a range of them such as node[001-064]"
    return None


Text = Annotated[str, AfterValidator(_text)]
Word = Annotated[str, AfterValidator(_word)]
Address = Annotated[str, AfterValidator(_address)]
User = Annotated[str, AfterValidator(_user)]
Interface = Annotated[str, AfterValidator(_interface)]
Pci = Annotated[str, AfterValidator(_pci)]
Port = Annotated[int, Field(ge=1, le=65535)]
Labels = Annotated[dict[str, str], AfterValidator(_labels)]
SecretOrNone = Annotated[Secret | None, SecretReference()]
Become = Literal["none", "sudo", "su"]
Role = Literal["control", "data"]
