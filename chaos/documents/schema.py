"""What the JSON Schemas of all documents have in common (draft 2020-12)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from chaos import quantities

Schema = dict[str, Any]

VARIABLE: Schema = {"$ref": "#/$defs/variable"}
VARIABLE_DEFINITION: Schema = {
    "type": "string",
    "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
    "description": "a variable of the environment, ${NAME} or ${NAME:-default}",
}


def readable(schema: Any, fixed: Collection[str] = ()) -> Any:
    """The schema as documents need it: a variable may stand for any single value, defaults are written as text.

    ``fixed`` are the keys whose values are never a variable. The document's definitions need one named ``variable``.
    """
    if not isinstance(schema, dict):
        return schema
    result: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _value(name, inner, fixed) for name, inner in value.items()}
        elif key == "items":
            result[key] = _value("", value, fixed)
        elif key in ("anyOf", "allOf", "oneOf"):
            result[key] = [readable(inner, fixed) for inner in value]
        elif key in ("then", "else"):
            result[key] = readable(value, fixed)
        else:
            result[key] = value
    return result


def _value(name: str, schema: Any, fixed: Collection[str]) -> Any:
    if not isinstance(schema, dict) or name in fixed:
        return schema
    schema = readable(schema, fixed)
    notes = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    notes.pop("title", None)  # pydantic's own, from the attribute's name
    if "description" in notes:
        notes["description"] = notes["description"].replace("``", "`")
    kind = _kind(schema)
    if kind and notes.get("default") is not None:
        notes["default"] = quantities.format(kind, notes["default"])
    if isinstance(notes.get("default"), (dict, list, type(None))):
        notes.pop("default", None)
    free_text = schema.get("type") == "string" and not {"pattern", "enum", "const"} & set(schema)
    alternatives = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
    structured = all("$ref" in part or part.get("type") in ("object", "array", "null") for part in alternatives)
    if structured or free_text or not schema:
        return notes | schema
    return notes | {"anyOf": [*alternatives, VARIABLE]}


def _kind(schema: Schema) -> quantities.Kind | None:
    """The kind of a quantity's schema, None for any other."""
    patterns = [part.get("pattern") for part in (schema, *schema.get("anyOf", ()))]
    return next((kind for kind in quantities.KINDS if quantities.pattern(kind) in patterns), None)
