"""Mappings and values of a listing's cells in what people write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import GetCoreSchemaHandler, PlainValidator, ValidatorFunctionWrapHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from framedex.sharder.configuration.checks import MOST_SHOWN, RefusedError, shown

MOST_PAIRS = 1000
CELL = "must be a value of the column, once"


def as_text(value: object) -> str | None:
    """Return a cell's value as text, or None for unsupported types. Equal whole numbers are alike (0, 0.0 and "0")."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int) and abs(value) > MOST_SHOWN:
        return None
    return str(value) if isinstance(value, str | int) else None


def _cell(value: object) -> str:
    text = as_text(value)
    if text is None or not text.isprintable():
        raise RefusedError(CELL, found=shown(value))
    return text


@dataclass(frozen=True, slots=True)
class Pairs:
    """A non-empty mapping, which is kept as a tuple of pairs.

    Attributes:
        example: How such a mapping is written, for errors.
        twice: Message for keys that mean the same.
    """

    example: str
    twice: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        key, value = map(handler.generate_schema, get_args(get_args(source)[0]))
        pairs = core_schema.dict_schema(key, value, min_length=1, max_length=MOST_PAIRS)
        return core_schema.no_info_wrap_validator_function(self._checked, pairs)

    def _checked(self, value: object, check: ValidatorFunctionWrapHandler) -> tuple[tuple[Any, Any], ...]:
        if not isinstance(value, Mapping) or not 1 <= len(value) <= MOST_PAIRS:
            raise RefusedError(f"must be a mapping of 1 to {MOST_PAIRS}", found=shown(value), allowed=self.example)
        made = check(value)
        if len(made) < len(value):
            texts = [as_text(key) for key in value]
            raise RefusedError(self.twice, found=next(shown(text) for text in texts if texts.count(text) > 1))
        return tuple(made.items())


Cell = Annotated[str, PlainValidator(_cell), WithJsonSchema({"type": ["string", "number", "boolean"]})]
