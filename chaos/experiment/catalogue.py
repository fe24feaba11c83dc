"""What an experiment may name: the injectors and probes there are, with the schema of their parameters.

The document knows neither injectors nor probes itself: whoever loads it brings the catalogue. Parameters are
dataclasses whose annotations are the schema; a quantity is ``Annotated[float, "duration"]`` (or ``"ratio"``,
``"rate"``, ``"size"``), and ``Annotated[str, "gpu"]`` names a GPU of the fault's node (``gpu0``).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, create_model

from chaos import quantities
from chaos.experiment.fields import Quantity

GPU: Literal["gpu"] = "gpu"
TargetKey = Literal["node", "gpu", "rank", "process"]


@dataclass(frozen=True)
class InjectorInfo:
    """One kind of fault.

    ``target`` are the keys that ``on`` may have; ``duration`` whether ``for`` is needed; ``danger`` what may be lost
    for good, so that a document must accept it.
    """

    kind: str
    params: type
    about: str
    reversal: Literal["exact", "self", "none"]
    target: tuple[TargetKey, ...]
    duration: Literal["required", "optional", "none"]
    danger: str | None = None


@runtime_checkable
class DependsOnDuration(Protocol):
    """Parameters of an injector whose duration is optional, that know when it must be given and when it must not."""

    def problem(self, duration: float | None) -> str | None:
        """What is wrong with these parameters and this ``for`` (seconds, None: not given); None if they fit."""


@runtime_checkable
class DependsOnTarget(Protocol):
    """Parameters that fit to some of the injector's targets only."""

    def target_problem(self, keys: Collection[str]) -> str | None:
        """What is wrong with these parameters and a target with these keys of ``on``; None if they fit."""


@dataclass(frozen=True)
class ProbeInfo:
    """One probe. ``value`` is the type of what it measures; a ratio is a number that is written in per cent."""

    name: str
    params: type
    about: str
    value: Literal["number", "ratio", "boolean", "text", "any"]


@dataclass(frozen=True)
class Catalogue:
    """All injectors and probes, by name."""

    injectors: Mapping[str, InjectorInfo]
    probes: Mapping[str, ProbeInfo]


@cache
def params_model(params: type) -> type[BaseModel]:
    """A model that validates a document's parameters against a ``Params`` dataclass.

    A field's metadata may give its ``help`` and the ``name`` by which documents know it (``from`` is no name in
    Python). Raises ``TypeError`` for an annotation that no document could fill: that is a mistake of the dataclass.
    """
    hints = get_type_hints(params, include_extras=True)
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(params):
        default = item.default if item.default is not dataclasses.MISSING else ...
        settings: dict[str, Any] = {"default": default}
        if item.default_factory is not dataclasses.MISSING:
            settings = {"default_factory": item.default_factory}
        settings["description"] = item.metadata.get("help")
        settings["alias"] = item.metadata.get("name", item.name)
        fields[item.name] = (_field_type(hints[item.name], params), Field(**settings))
    config = ConfigDict(extra="forbid", strict=True, validate_by_name=False, allow_inf_nan=False)
    return create_model(params.__qualname__, __config__=config, **fields)


def gpu_fields(params: type) -> dict[str, str]:
    """The fields that name a GPU of the node, with the names by which documents know them."""
    hints = get_type_hints(params, include_extras=True)
    return {
        item.name: item.metadata.get("name", item.name)
        for item in dataclasses.fields(params)
        if GPU in getattr(hints[item.name], "__metadata__", ())
    }


def _field_type(hint: Any, params: type) -> Any:
    """The annotation with each ``Annotated[float, "duration"]`` made a quantity."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind = next((note for note in arguments[1:] if note in quantities.KINDS), None)
        return Annotated[arguments[0], Quantity(kind)] if kind else arguments[0]
    if origin is Literal or hint in (str, int, float, bool):
        return hint
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        inner = next(argument for argument in arguments if argument is not type(None))
        return _field_type(inner, params) | None
    if origin is list:
        return list[_field_type(arguments[0], params)]  # type: ignore[misc]
    raise TypeError(f"{params.__module__}.{params.__qualname__}: {hint!r} cannot be a parameter of a document")
