"""Reads the text of a document: UTF-8, one YAML 1.2 document, no repeated key; keeps the place of everything.

The scanner and parser are ruamel.yaml's; the tree is put together here from their events, so that each key and value
keeps its place, a repeated key is told with both places, and no text can cost more than its size.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    MappingStartEvent,
    ScalarEvent,
    StreamEndEvent,
)
from ruamel.yaml.reader import ReaderError

from chaos.documents.errors import DocumentErrors, Problem
from chaos.documents.nodes import Items, Mark, Node, Scalar, Table
from chaos.documents.scalars import VariableError, Variables, typed

_DEEPEST = 40

_STRING_TAGS = ("!", "tag:yaml.org,2002:str")
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))
_COLLECTION_TAGS = ("!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True)
class Form:
    """What kind of document is read: the words in which it is spoken of, and how much of it there may be.

    Attributes:
        about: one such document, with its article.
        begin: the line with which it begins.
        longest: characters.
        most: values, counted with aliases followed, so that a few lines cannot unfold into gigabytes.
    """

    about: str = "a document"
    begin: str = "KEY: VALUE"
    longest: int = 1 << 20
    most: int = 20_000


@dataclass
class Document:
    """What was read: the tree, and the problems met on the way (the tree is whole all the same).

    ``unread`` are the places of values that could not be had; nothing more is to be said of them.
    """

    root: Table
    variables: Variables
    problems: list[tuple[Mark, str]]
    unread: set[Mark]


def read(path: str | pathlib.Path) -> str:
    """The text of a file, always as UTF-8, whatever the locale. Raises ``DocumentErrors``."""
    name = str(path)
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise _fatal(name, Mark(1, 1), f"cannot be read: {error.strerror or error}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        byte = data[error.start]
        raise _fatal(name, Mark(line, column), f"found the byte 0x{byte:02x}; write the file as UTF-8") from None


def compose(text: str, file: str, environ: Mapping[str, str], form: Form | None = None) -> Document:
    """Read one document whose root is a mapping.

    Raises ``DocumentErrors`` where the text is not YAML at all; what can be read past is in ``Document.problems``.
    """
    form = form or Form()
    if len(text) > form.longest:
        raise _fatal(file, Mark(1, 1), f"found {len(text)} characters; write at most {form.longest}")
    composer = _Composer(Variables(environ), form)
    try:
        root = composer.document(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1)
        raise _told(composer, file, place, _syntax(text, error, place)) from None
    except ReaderError as error:
        before = text[: error.position]
        place = Mark(before.count("\n") + 1, error.position - before.rfind("\n"))
        character = f"U+{ord(text[error.position]):04X}"
        raise _told(composer, file, place, f"found the control character {character}; remove it") from None
    except _Unusable as error:
        raise _told(composer, file, error.mark, str(error)) from None
    except YAMLError as error:
        raise _told(composer, file, Mark(1, 1), f"is not YAML: {' '.join(str(error).split())}") from None
    return Document(root, composer.variables, composer.problems, composer.unread)


class _Unusable(Exception):
    """Reading cannot go on past this."""

    def __init__(self, mark: Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark


class _Composer:
    """Puts the parser's events together into a tree."""

    def __init__(self, variables: Variables, form: Form) -> None:
        self.variables = variables
        self.form = form
        self.problems: list[tuple[Mark, str]] = []
        self.unread: set[Mark] = set()
        self._anchors: dict[str, tuple[Node, int, int]] = {}
        self._nodes = 0

    def document(self, events: Iterator[Any]) -> Table:
        root: Node | None = None
        for event in events:
            if isinstance(event, StreamEndEvent):
                break
            if not isinstance(event, DocumentStartEvent):
                continue
            mark = _mark(event)
            if root is not None:
                raise _Unusable(mark, f"a second document starts here; write {self.form.about} a file")
            if event.version not in (None, (1, 2)):
                raise _Unusable(mark, "found another version of YAML; write %YAML 1.2, or no directive")
            root = self._node(next(events), events, 0)
        if root is None or (isinstance(root, Scalar) and root.value is None):
            raise _Unusable(Mark(1, 1), f"the document is empty; write {self.form.about}")
        if not isinstance(root, Table):
            found = "a list" if isinstance(root, Items) else f"{root.value!r}"
            raise _Unusable(root.mark, f"found {found}; write a mapping that starts with '{self.form.begin}'")
        return root

    def _node(self, event: Any, events: Iterator[Any], depth: int, key_mark: Mark | None = None) -> Node:
        mark = _mark(event)
        if key_mark and isinstance(event, ScalarEvent) and event.value == "" and event.style is None:
            mark = key_mark  # the parser places what is not there at whatever comes next
        if isinstance(event, AliasEvent):
            return self._alias(event, mark, depth)
        self._count(mark, 1)
        self._descend(mark, depth)
        before = self._nodes
        node: Node
        if isinstance(event, ScalarEvent):
            node = self._scalar(event, mark)
        else:
            if event.tag not in (None, *_COLLECTION_TAGS):
                self._foreign_tag(event, mark)
            node = (
                self._table(mark, events, depth)
                if isinstance(event, MappingStartEvent)
                else self._items(mark, events, depth)
            )
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._nodes - before + 1, _height(node))
        return node

    def _items(self, mark: Mark, events: Iterator[Any], depth: int) -> Items:
        items = Items(mark)
        while not isinstance(event := next(events), CollectionEndEvent):
            items.items.append(self._node(event, events, depth + 1))
        return items

    def _table(self, mark: Mark, events: Iterator[Any], depth: int) -> Table:
        table = Table(mark)
        while not isinstance(event := next(events), CollectionEndEvent):
            place, key = _mark(event), self._key(event, events, depth)
            value = self._node(next(events), events, depth + 1, key_mark=place)
            if key is None:
                continue
            if key in table.values:
                first = table.keys[key]
                self.problems.append(
                    (place, f"the key '{key}' stands at {first.line}:{first.column} already; write it once")
                )
                continue
            table.values[key], table.keys[key] = value, place
        return table

    def _key(self, event: Any, events: Iterator[Any], depth: int) -> str | None:
        """A key as text, whatever it looks like: ``on`` and ``yes`` are names here, and no variable is put in."""
        mark = _mark(event)
        if isinstance(event, ScalarEvent):
            if event.value == "<<" and event.style is None:
                self.problems.append((mark, "found a merge key '<<', which YAML 1.2 does not have; write the keys out"))
                return None
            return str(event.value)
        self._node(event, events, depth + 1)
        self.problems.append((mark, "found a key that is no text; write a name"))
        return None

    def _scalar(self, event: Any, mark: Mark) -> Scalar:
        written = str(event.value)
        if event.tag not in (None, *_STRING_TAGS, *_PLAIN_TAGS):
            self._foreign_tag(event, mark)
        try:
            text, is_variable = self.variables.substitute(written)
        except VariableError as error:
            self.problems.append((mark, str(error)))
            self.unread.add(mark)
            return Scalar(mark, None)
        if event.tag is not None:
            is_text = event.tag in _STRING_TAGS
        elif is_variable:
            is_text = False  # in { } and [ ] YAML wants quotes around ${NAME}: they do not make it text, !!str does
        else:
            is_text = event.style is not None or text != written
        return Scalar(mark, text if is_text else typed(text))

    def _alias(self, event: Any, mark: Mark, depth: int) -> Node:
        if event.anchor not in self._anchors:
            raise _Unusable(mark, f"no anchor &{event.anchor} ends before this; write the value out")
        node, size, height = self._anchors[event.anchor]
        self._count(mark, size)
        self._descend(mark, depth + height)
        return node

    def _descend(self, mark: Mark, depth: int) -> None:
        if depth > _DEEPEST:
            raise _Unusable(mark, f"nested more than {_DEEPEST} deep; write the document flat")

    def _count(self, mark: Mark, size: int) -> None:
        self._nodes += size
        if self._nodes > self.form.most:
            raise _Unusable(mark, f"more than {self.form.most} values (aliases count each time); write fewer")

    def _foreign_tag(self, event: Any, mark: Mark) -> None:
        self.problems.append((mark, f"found the tag {event.tag}; remove it (of tags, only those of YAML's core count)"))


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _height(node: Node) -> int:
    match node:
        case Items():
            return 1 + max(map(_height, node.items), default=0)
        case Table():
            return 1 + max(map(_height, node.values.values()), default=0)
        case Scalar():
            return 0


def _syntax(text: str, error: MarkedYAMLError, place: Mark) -> str:
    lines = text.splitlines()
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    if line[place.column - 1 : place.column] == "\t":
        return "found a tab; indent with spaces"
    if "{" in line[: place.column] and line[place.column - 2 : place.column] == "${":
        return 'found ${ inside { } or [ ], where YAML needs quotes; write "${NAME}"'
    parts = [str(error.problem or "cannot be read"), str(error.context or "")]
    return "is not YAML: " + " ".join(" ".join(part for part in parts if part).split())


def _told(composer: _Composer, file: str, mark: Mark, message: str) -> DocumentErrors:
    problems = [Problem(file, place.line, place.column, text) for place, text in composer.problems]
    return DocumentErrors([*problems, Problem(file, mark.line, mark.column, message)])


def _fatal(file: str, mark: Mark, message: str) -> DocumentErrors:
    return DocumentErrors([Problem(file, mark.line, mark.column, message)])
