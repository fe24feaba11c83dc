"""Says in words of the document what pydantic found wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from chaos.documents.errors import Finding, describe, suggestion

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "too_short": "at least one entry",
    "string_too_short": "some text",
}


def findings(error: ValidationError, model: type[BaseModel], prefix: Sequence[str | int] = ()) -> list[Finding]:
    """All that ``error`` holds against a document's part at ``prefix``, which was to be a ``model``."""
    return [_finding(detail, model, tuple(prefix)) for detail in error.errors(include_url=False)]


def _finding(detail: ErrorDetails, model: type[BaseModel], prefix: tuple[str | int, ...]) -> Finding:
    loc, kind, found = detail["loc"], detail["type"], describe(detail["input"])
    context: dict[str, Any] = detail.get("ctx", {})
    path = (*prefix, *loc)
    match kind:
        case "extra_forbidden":
            wrong = str(loc[-1])
            return Finding(path, f"unknown key '{wrong}'; {suggestion(wrong, _fields(model, loc[:-1]))}", at_key=True)
        case "missing":
            return Finding(path[:-1], _missing(model, loc))
        case "value_error":
            message = str(context["error"])
        case "literal_error":
            message = f"found {found}; write {context['expected'].replace(chr(39), '')}"
        case "greater_than_equal":
            message = f"found {found}; write {context['ge']} or more"
        case "less_than_equal":
            message = f"found {found}; write {context['le']} or less"
        case "less_than":
            message = f"found {found}; write less than {context['lt']}"
        case "string_type":
            quoted = isinstance(detail["input"], (bool, int, float))
            message = f"found {found}; write text{f', in quotes: {found!r}' if quoted else ''}"
        case _ if kind in _EXPECTED:
            message = f"found {found}; write {_EXPECTED[kind]}"
        case _:
            message = f"found {found}; {detail['msg'][0].lower()}{detail['msg'][1:]}"
    return Finding(path, message)


def _missing(model: type[BaseModel], loc: Sequence[str | int]) -> str:
    item = _fields(model, loc[:-1]).get(str(loc[-1]))
    about = (item.description if item else None) or "it is needed"
    return f"found no '{loc[-1]}'; write it: {about[0].lower()}{about[1:].rstrip('.')}"


def _fields(model: type[BaseModel], loc: Sequence[str | int]) -> dict[str, FieldInfo]:
    """The fields that may stand in the mapping at ``loc``, by the names that a document uses."""
    for part in loc:
        if isinstance(part, str):
            item = _by_document_name(model).get(part)
            inner = _model_within(item.annotation) if item else None
            if inner is None:
                return {}
            model = inner
    return _by_document_name(model)


def _by_document_name(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {item.alias or name: item for name, item in model.model_fields.items() if not item.exclude}


def _model_within(annotation: Any) -> type[BaseModel] | None:
    """The model in ``list[Model]``, ``Model | None`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := _model_within(part))), None)
