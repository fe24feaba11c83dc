"""The JSON Schema of an experiment (draft 2020-12), for editors: what ``load`` accepts, one alternative a kind.

An injector's and a probe's alternative is chosen by ``if``/``then`` on its name, so that an editor shows the parameters
of the kind that is written, and its message speaks of that kind alone. What only several places together tell (a
target outside the lab, a name given twice) is for ``load``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from chaos import quantities
from chaos.experiment.catalogue import Catalogue, InjectorInfo, ProbeInfo, params_model
from chaos.experiment.fields import Quantity, Several
from chaos.experiment.model import Experiment
from chaos.experiment.tolerances import ALLOWED, COMPARISONS, FINITE

Schema = dict[str, Any]

VARIABLE: Schema = {"$ref": "#/$defs/variable"}
_RATIO: Schema = Quantity("ratio").json_schema()
_NUMBER: Schema = {"type": "number"}
_ANY_QUANTITY: Schema = {
    "anyOf": [_NUMBER, *({"type": "string", "pattern": quantities.pattern(kind)} for kind in quantities.KINDS)]
}
_SCALAR: Schema = {"type": ["number", "boolean", "string", "null"]}
_TARGETS = {"node": ("node",), "gpu": ("node", "gpu"), "rank": ("rank",), "process": ("process",)}
_NAMES: Mapping[str, Schema] = {"process": {"const": "launcher"}}


def json_schema(catalogue: Catalogue) -> Schema:
    """The schema of a document whose injectors and probes are those of ``catalogue``."""
    schema = Experiment.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs")
    fault, hold, stop = (definitions.pop(name) for name in ("Fault", "Hold", "StopIf"))
    definitions.pop("Target")
    fault["dependentRequired"] = {"every": ["times"], "times": ["every"]}
    definitions["Workload"]["properties"].pop("attach", None)
    definitions["Workload"]["oneOf"] = [{"required": ["reference"]}, {"required": ["command"]}]
    guards = definitions["Guards"]["properties"]
    for key, family in (("stop_if", "StopIf"), ("allowed", "Window")):
        guards[key] = {**guards[key], "anyOf": [{"$ref": f"#/$defs/{family}"}, _list_of(family)]}
        del guards[key]["type"], guards[key]["items"]
    for name, info in sorted(catalogue.injectors.items()):
        definitions[f"Fault.{name}"] = _fault(fault, info)
    for name, probe in sorted(catalogue.probes.items()):
        definitions[f"Hold.{name}"] = _condition(hold, probe)
        definitions[f"StopIf.{name}"] = _condition(stop, probe)
    definitions["Fault"] = _choice("inject", "Fault", catalogue.injectors)
    definitions["Hold"] = _choice("probe", "Hold", catalogue.probes)
    definitions["StopIf"] = _choice("probe", "StopIf", catalogue.probes)
    schema |= {"if": {"properties": {"cluster": {"const": "lab"}}}, "then": {"required": ["lab"]}}
    schema, definitions = _readable(schema), {name: _readable(part) for name, part in definitions.items()}
    definitions["variable"] = {
        "type": "string",
        "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
        "description": "a variable of the environment, ${NAME} or ${NAME:-default}",
    }
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "$defs": definitions}


def _list_of(name: str) -> Schema:
    return {"type": "array", "items": {"$ref": f"#/$defs/{name}"}}


def _choice(key: str, family: str, names: Any) -> Schema:
    alternatives = [
        {
            "if": {"properties": {key: {"const": name}}, "required": [key]},
            "then": {"$ref": f"#/$defs/{family}.{name}"},
        }
        for name in sorted(names)
    ]
    return {
        "type": "object",
        "required": [key],
        "properties": {key: {"enum": sorted(names)}},
        "allOf": alternatives,
    }


def _fault(fault: Schema, info: InjectorInfo) -> Schema:
    properties = {key: value for key, value in fault["properties"].items() if key != "on"}
    parameters = _parameters(info.params)
    properties["inject"] = {"const": info.kind, "description": info.about}
    properties["with"] = parameters
    required = ["inject", "after"]
    if parameters.get("required"):
        required.append("with")
    if info.target:
        properties["on"] = {"anyOf": [_target(key) for key in info.target]}
        required.append("on")
    if info.duration == "none":
        del properties["for"]
    if info.duration == "required":
        required.append("for")
    return _closed(properties, required, info.about) | {"dependentRequired": fault["dependentRequired"]}


def _target(key: str) -> Schema:
    keys = _TARGETS[key]
    return _closed({name: _NAMES.get(name, Several().json_schema()) for name in keys}, list(keys), f"aimed at a {key}")


def _condition(condition: Schema, probe: ProbeInfo) -> Schema:
    properties = {key: value for key, value in condition["properties"].items() if key not in ("params", "tolerance")}
    parameters = _parameters(probe.params)
    properties["probe"] = {"const": probe.name, "description": probe.about}
    properties |= parameters["properties"]
    required = ["probe", *parameters.get("required", [])]
    plain = {key: _operand(key, probe) for key in ALLOWED[probe.value]}
    schema = _closed(properties | dict.fromkeys(plain, True), required, probe.about)
    schema["oneOf"] = [{"required": [key]} for key in plain]
    compared = {key: _comparison(key, _RATIO) if key in COMPARISONS else False for key in plain}
    if probe.value in ("boolean", "text"):
        del properties["of"]
        return schema | {"properties": properties | plain}
    return schema | {"if": {"required": ["of"]}, "then": {"properties": compared}, "else": {"properties": plain}}


def _operand(key: str, probe: ProbeInfo) -> Schema:
    single = {
        "number": _NUMBER,
        "ratio": _RATIO,
        "boolean": {"type": "boolean"},
        "text": {"type": "string"},
        "any": _SCALAR,
    }[probe.value]
    if key in COMPARISONS:
        return _comparison(key, _ANY_QUANTITY if probe.value == "any" else single)
    if key == "matches":
        return {"type": "string", "format": "regex"}
    if key == "one_of":
        return {"type": "array", "items": single, "minItems": 1}
    return {"anyOf": [single, {"const": FINITE}]} if probe.value in ("number", "ratio") else single


def _comparison(key: str, single: Schema) -> Schema:
    return {"type": "array", "items": single, "minItems": 2, "maxItems": 2} if key == "between" else single


def _parameters(params: type) -> Schema:
    schema = params_model(params).model_json_schema(by_alias=True)
    return _closed(schema.get("properties", {}), schema.get("required", []), (params.__doc__ or "").strip())


def _closed(properties: Schema, required: list[str], about: str) -> Schema:
    schema = {"type": "object", "description": about, "properties": dict(properties), "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _readable(schema: Any) -> Any:
    """The schema as documents need it: a variable may stand for any single value, defaults are written as text."""
    if not isinstance(schema, dict):
        return schema
    result: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _value(name, inner) for name, inner in value.items()}
        elif key == "items":
            result[key] = _value("", value)
        elif key in ("anyOf", "allOf", "oneOf"):
            result[key] = [_readable(inner) for inner in value]
        elif key in ("then", "else"):
            result[key] = _readable(value)
        else:
            result[key] = value
    return result


def _value(name: str, schema: Any) -> Any:
    if not isinstance(schema, dict) or name in ("inject", "probe"):
        return schema
    schema = _readable(schema)
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
