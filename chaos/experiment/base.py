"""What all parts of an experiment have in common."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from chaos.documents.model import Model
from chaos.experiment.fields import DOCUMENT

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
