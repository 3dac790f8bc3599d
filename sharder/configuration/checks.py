"""Types for values that people write: they check a value and describe it, for error messages and JSON Schemas.

A type is an annotation for a field of a record (see parameters.py), such as `frames: Count`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from framedex.errors import PolicyError

# The accepted notation of numbers; its length is bounded, as 1e999999999 would fill the memory.
NUMBER = re.compile(r"[+-]?(\d{1,15}(\.\d{0,20})?|\.\d{1,20})([eE][+-]?\d{1,2})?(/\d{1,15})?")
MOST_SHOWN = 10**20
MOST_FRAMES = 100_000_000  # nineteen days at 60 fps; a larger number is a typing error
MOST_WANTED = 20_000_000  # frames of all clips that a policy makes of one video
MOST_LISTED = 100_000


class RefusedError(PolicyError, ValueError):
    """A value that is not allowed. As it is a ValueError, pydantic collects it and adds where the value is written."""


def shown(value: object) -> str:
    """Return a value for an error message, cut if it is long."""
    if isinstance(value, int) and abs(value) > MOST_SHOWN:
        return "a number of many digits"
    return repr(value)[:80] if isinstance(value, int | float | str | None) else type(value).__name__


def as_fraction(value: object) -> Fraction | None:
    """Return a number as it is written (29.97 is 2997/100, "30000/1001" is exact), or None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | Fraction):
        return None
    if isinstance(value, int) and abs(value) > MOST_SHOWN:
        return None
    text = str(value).strip()
    if not NUMBER.fullmatch(text):
        return None
    numerator, _, denominator = text.partition("/")
    below = int(denominator or 1)
    return Fraction(numerator) / below if below else None


def says(what: str, *, allowed: str | None = None) -> WrapValidator:
    """Return a validator that replaces the library's message about a value that a type refuses."""

    def check(value: object, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError:
            raise RefusedError(what, found=shown(value), allowed=allowed) from None

    return WrapValidator(check)


def listed(example: str) -> BeforeValidator:
    """Return a check that a tuple is written as a list and is not empty.

    Args:
        example: How such a list is written, for errors.
    """

    def check(value: object) -> object:
        if not isinstance(value, list) or not 1 <= len(value) <= MOST_LISTED:
            found = f"{len(value)} elements" if isinstance(value, list) else shown(value)
            raise RefusedError(f"must be a list of 1 to {MOST_LISTED:,} elements", found=found, allowed=example)
        return value

    return BeforeValidator(check)


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def exactly(refused: str, *, zero: bool = True) -> PlainValidator:
    """Return a validator for numbers from zero on that keeps the exact value that was written.

    Args:
        refused: Message for numbers below that.
        zero: Whether zero itself is allowed.
    """

    def check(value: object) -> Fraction:
        number = as_fraction(value)
        if number is None:
            raise RefusedError("must be a number", found=shown(value), allowed="such as 2, 0.5, 29.97 or '30000/1001'")
        if number < 0 or not (number or zero):
            raise RefusedError(refused, found=value)
        return number

    return PlainValidator(check)


def _distance(value: object) -> Fraction:
    number = as_fraction(value)
    if number is None:
        raise RefusedError("must be a number", found=shown(value), allowed="such as 2, -0.5, 29.97 or '-1001/30000'")
    return number


def described(**limits: int) -> WithJsonSchema:
    """Return the JSON Schema of a number that may also be written as text. The limits are not checked for text.

    Text that is not ASCII passes: the meaning of `\\s` and `\\d` there depends on the reader of the schema.
    """
    as_text = {"type": "string", "pattern": rf"^\s*{NUMBER.pattern}\s*$|[^\x00-\x7f]"}
    return WithJsonSchema({"anyOf": [{"type": "number", **limits}, as_text], "examples": [2, 0.5, 29.97, "30000/1001"]})


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must be printable")
    return name


Rate = Annotated[Fraction, exactly("a rate must be above zero", zero=False), described(exclusiveMinimum=0)]
Seconds = Annotated[Fraction, exactly("a time must not be negative"), described(minimum=0)]
Distance = Annotated[Fraction, PlainValidator(_distance), described()]
Share = Annotated[Fraction, exactly("a share must not be negative"), described(minimum=0)]
Count = Annotated[
    int, Field(strict=True, ge=1, le=MOST_FRAMES), says(f"must be a whole number from 1 to {MOST_FRAMES:,}")
]
Number = Annotated[
    int, Field(strict=True, ge=0, le=MOST_FRAMES), says(f"must be a whole number from 0 to {MOST_FRAMES:,}")
]
Step = Annotated[
    int,
    Field(strict=True, ge=-MOST_FRAMES, le=MOST_FRAMES),
    says(f"must be a whole number from -{MOST_FRAMES:,} to {MOST_FRAMES:,}"),
]
Seed = Annotated[int, Field(strict=True, ge=0, le=(1 << 63) - 1), says("a seed is a whole number from 0 to 2^63 - 1")]
YesNo = Annotated[bool, Field(strict=True), says("must be true or false")]
ColumnName = Annotated[
    str, Field(strict=True, min_length=1), AfterValidator(_printable), says("must be the name of a column")
]
FolderName = Annotated[
    str, Field(strict=True, min_length=1), AfterValidator(_printable), says("must be the name of a folder, or a uri")
]
ColumnNames = Annotated[
    tuple[ColumnName, ...],
    Field(min_length=1, max_length=100),
    BeforeValidator(_one_or_more),
    says("must be the name of a column, or a list of names"),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
]
FilterText = Annotated[str, Field(strict=True), says("a filter is an expression in text", allowed="width >= 640")]
MANY = Field(min_length=1, max_length=MOST_LISTED, fail_fast=True)
