"""The types of the model's fields: quantities with their units, names, counts.

In a document a quantity is text with its unit (``500ms``); inside it is an SI number. Which of the two a validation
takes depends on its context: a document's text is validated with ``DOCUMENT``, everything else gives SI numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from chaos import quantities
from chaos.documents.errors import describe

DOCUMENT: Final = {"document": True}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME_PATTERN: Final = f"^{_NAME.pattern}$"


@dataclass(frozen=True)
class Quantity:
    """Makes a ``float`` or ``int`` field a quantity of this kind, with its bounds in SI."""

    kind: quantities.Kind
    above_zero: bool = False
    most: float | None = None

    def read(self, value: object, info: ValidationInfo) -> float:
        """The SI value. Raises ``ValueError`` that says what would be right."""
        if info.context == DOCUMENT:
            number = quantities.parse(self.kind, value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"found {describe(value)}; give a number in SI")
        elif not math.isfinite(value) or value < 0:
            raise ValueError(f"found {value}; give a finite number of 0 or more")
        else:
            number = int(value) if self.kind == "size" else float(value)
        if self.above_zero and number == 0:
            raise ValueError(f"found 0; write a {self.kind} above zero, such as {quantities.example(self.kind)}")
        if self.most is not None and number > self.most:
            raise ValueError(f"found {describe(value)}; write at most {quantities.format(self.kind, self.most)}")
        return number

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic asks for this: how the field is validated."""
        return core_schema.with_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Pydantic asks for this: how the field reads in a document."""
        return self.json_schema()

    def json_schema(self) -> JsonSchemaValue:
        """How the quantity reads in a document: text with its unit, or a bare 0."""
        text = {
            "type": "string",
            "pattern": quantities.pattern(self.kind),
            "description": f"a {self.kind}, such as {quantities.example(self.kind)}",
        }
        return text if self.above_zero else {"anyOf": [text, {"const": 0}]}


@dataclass(frozen=True)
class Several:
    """Makes a field one number, several, or all that there are."""

    def read(self, value: object) -> int | list[int] | Literal["all"]:
        """The number, the list or ``all``. Raises ``ValueError`` that says what would be right."""
        if value == "all":
            return "all"
        if not isinstance(value, list):
            return self._number(value)
        if not value:
            raise ValueError("found an empty list; write at least one number, or 'all'")
        numbers = [self._number(item) for item in value]
        twice = next((number for number in numbers if numbers.count(number) > 1), None)
        if twice is not None:
            raise ValueError(f"found {twice} twice; write each number once")
        return numbers

    @staticmethod
    def _number(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"found {describe(value)}; write a whole number, a list of them, or 'all'")
        if value < 0:
            raise ValueError(f"found {value}; write 0 or more")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic asks for this: how the field is validated."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Pydantic asks for this: how the field reads in a document."""
        return self.json_schema()

    def json_schema(self) -> JsonSchemaValue:
        """How it reads in a document."""
        number = {"type": "integer", "minimum": 0}
        return {
            "anyOf": [number, {"type": "array", "items": number, "minItems": 1, "uniqueItems": True}, {"const": "all"}]
        }


@dataclass(frozen=True)
class Choice:
    """Makes a field a choice among targets: so many of them (an ``int``), or a share of them (a ``float``)."""

    def read(self, value: object, info: ValidationInfo) -> int | float:
        """The count or the share. Raises ``ValueError`` that says what would be right."""
        if value == "one":
            return 1
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        share: object = value
        if info.context == DOCUMENT:
            try:
                share = quantities.parse("ratio", value) if isinstance(value, str) else None
            except quantities.QuantityError:
                share = None
        if not isinstance(share, float) or not 0 < share <= 1:
            raise ValueError(f"found {describe(value)}; write one, a number of 1 or more, or a share such as 25%")
        return share

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic asks for this: how the field is validated."""
        return core_schema.with_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Pydantic asks for this: how the field reads in a document."""
        share = {"type": "string", "pattern": quantities.pattern("ratio")}
        return {"anyOf": [{"const": "one"}, {"type": "integer", "minimum": 1}, share]}


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"found {describe(value)}; write a name of letters, digits, '.', '_' and '-' (63 at most) that starts "
            "with a letter or digit"
        )
    return value


Seconds = Annotated[float, Quantity("duration")]
SecondsAboveZero = Annotated[float, Quantity("duration", above_zero=True)]
Ratio = Annotated[float, Quantity("ratio")]
Share = Annotated[float, Quantity("ratio", most=1.0)]
ShareAboveZero = Annotated[float, Quantity("ratio", above_zero=True, most=1.0)]
Name = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": NAME_PATTERN})]
Numbers = Annotated[int | list[int] | Literal["all"], Several()]
Pick = Annotated[int | float, Choice()]
Count = Annotated[int, Field(ge=0)]
Times = Annotated[int, Field(ge=1, le=1000)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
