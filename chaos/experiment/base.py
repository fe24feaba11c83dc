"""What all parts of an experiment have in common."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from chaos.experiment.fields import DOCUMENT


class Model(BaseModel):
    """A part of an experiment: frozen, strict, nothing unknown."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )


Part = TypeVar("Part", bound=Model)


def attempt(model: type[Part], written: object) -> Part | None:
    """That part of the document, or None where it cannot be read (which the check of the model tells)."""
    try:
        return model.model_validate(written, context=DOCUMENT, by_alias=True, by_name=False)
    except ValidationError:
        return None


def as_list(value: object) -> object:
    """A single mapping where a list of them may stand."""
    return [value] if isinstance(value, dict) else value
