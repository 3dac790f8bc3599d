"""Records and types for the parameters in documents that users write, such as policies.

A record is a frozen dataclass that pydantic reads from a document. Each field of a record has a type, such as `Count`
in `frames: Count`. The type checks the value, with error messages of framedex, and describes the value in the JSON
Schema with which editors complete and check documents.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from framedex.core.words import did_you_mean
from framedex.errors import PolicyError

# The accepted notation of numbers. The number of digits is bounded, because the exact value of 1e999999999 would fill
# the memory.
NUMBER = re.compile(r"[+-]?(\d{1,15}(\.\d{0,20})?|\.\d{1,20})([eE][+-]?\d{1,2})?(/\d{1,15})?")
MAX_SHOWN = 10**20  # greater integers are not converted to text, which Python does slowly or not at all
MAX_FRAMES = 100_000_000  # nineteen days at 60 fps; a greater number of frames is assumed to be a typing error
MAX_LISTED = 100_000  # maximum number of elements of a list in a document


class RefusedError(PolicyError, ValueError):
    """Error for a value that is not allowed.

    Because the class is a ValueError, pydantic catches the error and adds the location of the value in the document.
    """


def shown(value: object) -> str:
    """Return a value as text for an error message, truncated if the text is long."""
    if isinstance(value, int) and abs(value) > MAX_SHOWN:
        return "a number of many digits"
    return repr(value)[:80] if isinstance(value, int | float | str | None) else type(value).__name__


def as_fraction(value: object) -> Fraction | None:
    """Return a number with the exact value of its decimal notation, or None if the value is not a number.

    For example, 29.97 gives 2997/100, and "30000/1001" gives 30000/1001.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | Fraction):
        return None
    if isinstance(value, int) and abs(value) > MAX_SHOWN:
        return None
    text = str(value).strip()
    if not NUMBER.fullmatch(text):
        return None
    numerator, _, denominator = text.partition("/")
    below = int(denominator or 1)
    return Fraction(numerator) / below if below else None


def refuse_with(what: str, *, allowed: str | None = None) -> WrapValidator:
    """Return a validator that raises an error with the message `what` instead of pydantic's own error."""

    def check(value: object, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError:
            raise RefusedError(what, found=shown(value), allowed=allowed) from None

    return WrapValidator(check)


def _refuse_whole(least: str) -> WrapValidator:
    return refuse_with(f"must be a whole number from {least} to {MAX_FRAMES:,}")


def listed(example: str) -> BeforeValidator:
    """Return a validator that accepts only non-empty lists. `example` is a valid list, for the error message."""

    def check(value: object) -> object:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_LISTED:
            found = f"{len(value)} elements" if isinstance(value, list) else shown(value)
            raise RefusedError(f"must be a list of 1 to {MAX_LISTED:,} elements", found=found, allowed=example)
        return value

    return BeforeValidator(check)


def exactly(refused: str | None, *, zero: bool = True) -> PlainValidator:
    """Return a validator that converts a number to a Fraction with the exact value of its decimal notation.

    Args:
        refused: The error message for numbers that are not allowed. If None, all numbers are allowed. Otherwise,
            numbers below zero are not allowed.
        zero: Whether zero is allowed. Used only with `refused`.
    """
    allowed = "such as 2, -0.5, 29.97 or '-1001/30000'" if refused is None else "such as 2, 0.5, 29.97 or '30000/1001'"

    def check(value: object) -> Fraction:
        if (number := as_fraction(value)) is None:
            raise RefusedError("must be a number", found=shown(value), allowed=allowed)
        if refused is not None and (number < 0 or not (number or zero)):
            raise RefusedError(refused, found=value)
        return number

    return PlainValidator(check)


def described(**limits: int) -> WithJsonSchema:
    """Return the JSON Schema of a number that may also be given as text. The limits do not apply to text.

    The schema accepts any text with non-ASCII characters, because validators of JSON Schema disagree on whether `\\s`
    and `\\d` match such characters.
    """
    as_text = {"type": "string", "pattern": rf"^\s*{NUMBER.pattern}\s*$|[^\x00-\x7f]"}
    return WithJsonSchema({"anyOf": [{"type": "number", **limits}, as_text], "examples": [2, 0.5, 29.97, "30000/1001"]})


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must be printable")
    return name


Rate = Annotated[Fraction, exactly("a rate must be above zero", zero=False), described(exclusiveMinimum=0)]
Seconds = Annotated[Fraction, exactly("a time must not be negative"), described(minimum=0)]
Distance = Annotated[Fraction, exactly(None), described()]
Share = Annotated[Fraction, exactly("a share must not be negative"), described(minimum=0)]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_FRAMES), _refuse_whole("1")]
Number = Annotated[int, Field(strict=True, ge=0, le=MAX_FRAMES), _refuse_whole("0")]
Step = Annotated[int, Field(strict=True, ge=-MAX_FRAMES, le=MAX_FRAMES), _refuse_whole(f"-{MAX_FRAMES:,}")]
Seed = Annotated[
    int, Field(strict=True, ge=0, le=(1 << 63) - 1), refuse_with("a seed must be a whole number from 0 to 2^63 - 1")
]
YesNo = Annotated[bool, Field(strict=True), refuse_with("must be true or false")]
_Name = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_printable)]
ColumnName = Annotated[_Name, refuse_with("must be the name of a column")]
FolderName = Annotated[_Name, refuse_with("must be the name of a folder, or a uri")]
ColumnNames = Annotated[
    tuple[ColumnName, ...],
    Field(min_length=1, max_length=100),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    refuse_with("must be the name of a column, or a list of names"),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
]
FilterText = Annotated[
    str, Field(strict=True), refuse_with("a filter must be an expression in text", allowed="width >= 640")
]
MANY = Field(min_length=1, max_length=MAX_LISTED, fail_fast=True)


R = TypeVar("R", bound="Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base class of records that are read from documents of users.

    A document may contain only the record's fields as keys, and each value must have the type of its field. A null
    value means the field's default. `__post_init__` of a record raises RefusedError for values that contradict each
    other.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def check_one_of(self, what: str, *keys: str) -> None:
        """Raise RefusedError with the message `what` unless exactly one of the given keys has a value."""
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            raise RefusedError(what, found=" and ".join(given) or f"none of {', '.join(keys)}")

    def plain(self) -> dict[str, Any]:
        """Return the record as YAML values, including defaults. Fractions keep their exact values."""
        return {name: plain_value(getattr(self, name)) for name in names(type(self))}

    def changed(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, as YAML values."""
        defaults = {field.name: field.default for field in fields(self)}
        own = {name: getattr(self, name) for name in defaults}
        return {
            name: own[name].changed() if isinstance(own[name], Record) else value
            for name, value in self.plain().items()
            if own[name] != defaults[name]
        }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(cls._written, handler(source))

    @classmethod
    def _written(cls, content: object) -> dict[str, Any]:
        """Check the keys of a document. Return the document without the keys whose value is null.

        Raises:
            RefusedError: The document is not a mapping, a key is unknown, or a required key has no value.
        """
        if not isinstance(content, Mapping):
            raise RefusedError("must be a mapping of keys to values", found=shown(content))
        allowed = names(cls)
        for key in content:
            if key not in allowed:
                remedy = did_you_mean(key if isinstance(key, str) else shown(key), allowed)
                raise RefusedError("unknown key", found=shown(key), allowed=", ".join(allowed), remedy=remedy)
        required = (field.name for field in fields(cls) if field.default is MISSING)
        if missing := [name for name in required if content.get(name) is None]:
            raise RefusedError("a required key is missing", found=f"no {', '.join(missing)}")
        return {key: value for key, value in content.items() if value is not None}


def parameter(description: str, default: Any = MISSING) -> Any:
    """Return a dataclass field with a description. The field is required unless a default is given."""
    return field(default=default, metadata={"description": description})


def record(cls: type[R], content: object, where: str) -> R:
    """Read a record from an untrusted document. Raises PolicyError for the first error in the document.

    Args:
        cls: The class of the record.
        content: The parsed document.
        where: The location of the document, for errors.
    """
    try:
        built: R = reader(cls).validate_python(content)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0], where) from None
    return built


# Returns pydantic's reader of a class of records. The reader is built on its first use, which takes milliseconds.
reader: Callable[[type[Any]], TypeAdapter[Any]] = functools.cache(TypeAdapter)  # type: ignore[assignment]


def names(cls: type[Record]) -> list[str]:
    """Return the names of a record's fields: the fields of the class itself, and then the inherited fields."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__dataclass_fields__", ())}
    return sorted((field.name for field in fields(cls)), key=lambda name: name in inherited)


def plain_value(value: Any) -> Any:
    """Convert the value of a parameter to a YAML value."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else str(value)
    if isinstance(value, tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain_value(item) for name, item in value.items()}
    return value.plain() if isinstance(value, Record) else value


def located(error: PolicyError, where: str) -> PolicyError:
    """Return a copy of an error with an outer location before the location that the error states."""
    where = where if error.where is None else f"{where}: {error.where}"
    return PolicyError(error.what, where=where, found=error.found, allowed=error.allowed, remedy=error.remedy)


def _refusal(error: ErrorDetails, where: str) -> PolicyError:
    """Convert an error of pydantic to a PolicyError.

    Args:
        error: Pydantic's description of the error.
        where: The location of the document.
    """
    path = [step for step in error["loc"] if step != "[key]"]  # pydantic adds "[key]" for a wrong key
    where += "".join(f"[{step}]" if isinstance(step, int) else f": {step}" for step in path)
    context, found = error.get("ctx", {}), shown(error["input"])
    if isinstance(refused := context.get("error"), RefusedError):
        return located(refused, where)
    if error["type"] == "literal_error":
        words, written = re.findall(r"'(.*?)'", context["expected"]), error["input"]
        remedy = did_you_mean(written, words) if isinstance(written, str) else None
        return PolicyError("unknown value", where=where, found=found, allowed=", ".join(words), remedy=remedy)
    return PolicyError(error["msg"], where=where, found=found)


Json = dict[str, Any]


class _Generator(GenerateJsonSchema):
    """Generator of the JSON Schema of documents that `record` accepts. Keys with a default may be null."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # editors show the key itself as the title

    def encode_default(self, dft: Any) -> Any:
        return plain_value(dft)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        default = described.pop("default")
        # If the default is None, the type of the field already allows null.
        return described if default is None else {"anyOf": [described, {"type": "null"}], "default": default}


def definitions(records: list[type[Record]]) -> dict[str, Json]:
    """Return the JSON Schemas of classes of records and of the records that they contain, by class name."""
    mode: Literal["validation"] = "validation"
    readers = [(cls.__name__, mode, reader(cls)) for cls in records]
    _, schema = TypeAdapter.json_schemas(readers, schema_generator=_Generator)
    found: dict[str, Json] = schema["$defs"]
    for own in found.values():
        own.pop("title", None)
    return found


MAX_PAIRS = 1000
CELL = "must be a text or a number from the column, and each value may be given only once"


def as_text(value: object) -> str | None:
    """Return the value of a cell as text, or None if the value is neither a text nor a number.

    Equal whole numbers give the same text: 0, 0.0 and "0" give "0".
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int) and abs(value) > MAX_SHOWN:
        return None
    return str(value) if isinstance(value, str | int) else None


def _cell(value: object) -> str:
    if (text := as_text(value)) is None or not text.isprintable():
        raise RefusedError(CELL, found=shown(value))
    return text


@dataclass(frozen=True, slots=True)
class Pairs:
    """Annotation of a record's field whose value must be a non-empty mapping.

    Attributes:
        example: A valid mapping in YAML, for error messages.
        twice: The error message for two keys with the same meaning.
    """

    example: str
    twice: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        key, value = map(handler.generate_schema, get_args(source))
        pairs = core_schema.dict_schema(key, value, min_length=1, max_length=MAX_PAIRS)
        return core_schema.no_info_wrap_validator_function(self._checked, pairs)

    def _checked(self, value: object, check: ValidatorFunctionWrapHandler) -> dict[Any, Any]:
        if not isinstance(value, Mapping) or not 1 <= len(value) <= MAX_PAIRS:
            raise RefusedError(
                f"must be a mapping with 1 to {MAX_PAIRS} keys", found=shown(value), allowed=self.example
            )
        checked: dict[Any, Any] = check(value)
        if len(checked) < len(value):
            texts = [as_text(key) for key in value]
            raise RefusedError(self.twice, found=next(shown(text) for text in texts if texts.count(text) > 1))
        return checked


Cell = Annotated[str, PlainValidator(_cell), WithJsonSchema({"type": ["string", "number", "boolean"]})]
