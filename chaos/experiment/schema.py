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
from chaos.documents.schema import VARIABLE_DEFINITION, Schema, readable
from chaos.experiment.catalogue import Catalogue, InjectorInfo, ProbeInfo, params_model
from chaos.experiment.fields import Quantity, Several
from chaos.experiment.model import Experiment
from chaos.experiment.tolerances import ALLOWED, COMPARISONS, FINITE

_RATIO: Schema = Quantity("ratio").json_schema()
_NUMBER: Schema = {"type": "number"}
_ANY_QUANTITY: Schema = {
    "anyOf": [_NUMBER, *({"type": "string", "pattern": quantities.pattern(kind)} for kind in quantities.KINDS)]
}
_SCALAR: Schema = {"type": ["number", "boolean", "string", "null"]}
_TARGETS = {"node": ("node",), "gpu": ("node", "gpu"), "rank": ("rank",), "process": ("process",)}
_NEVER_VARIABLE = ("inject", "probe")
_NAMES: Mapping[str, Schema] = {"process": {"const": "launcher"}}


def json_schema(catalogue: Catalogue) -> Schema:
    """The schema of a document whose injectors and probes are those of ``catalogue``."""
    schema = Experiment.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs")
    fault, hold, stop = (definitions.pop(name) for name in ("Fault", "Hold", "StopIf"))
    definitions.pop("Target")
    fault["dependentRequired"] = {"every": ["times"], "times": ["every"]}
    definitions["Workload"]["oneOf"] = [{"required": [job]} for job in ("reference", "command", "attach")]
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
    schema, definitions = (
        readable(schema, _NEVER_VARIABLE),
        {name: readable(part, _NEVER_VARIABLE) for name, part in definitions.items()},
    )
    definitions["variable"] = VARIABLE_DEFINITION
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
    if info.danger is None:
        del properties["danger"]
    else:
        required.append("danger")
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
