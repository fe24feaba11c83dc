"""What is wrong with a document: every problem with its place, and the words in which problems are told."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_LONGEST_VALUE = 60


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with the value at ``path`` of a document (``at_key``: with the key itself)."""

    path: tuple[str | int, ...]
    message: str
    at_key: bool = False


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong. ``line`` and ``column`` count from 1; the message is one line."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class DocumentErrors(ValueError):
    """A document that cannot be used. ``problems`` holds all that is wrong with it, in the order of the text."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


def describe(value: object) -> str:
    """A value as a message names it: ``5``, ``'abc'``, ``true``, ``nothing``, ``a list``."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."
    return repr(text) if isinstance(value, str) else text


def suggestion(found: str, known: Iterable[str]) -> str:
    """What would be right in place of an unknown name: the nearest one, or all of them where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(found, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"write {choice(names)}" if names else "nothing can stand here"


def choice(names: Sequence[str]) -> str:
    """The names as a message offers them: ``'is'``, ``one of at_least, at_most``."""
    return f"'{names[0]}'" if len(names) == 1 else f"one of {', '.join(names)}"
