"""Records of parameters: plain frozen dataclasses that pydantic reads from documents and describes for editors."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from framedex.core.hints import did_you_mean
from framedex.errors import PolicyError
from framedex.sharder.configuration.checks import RefusedError, shown

R = TypeVar("R", bound="Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of records that people write: only known keys, and every value of the type of its field.

    None stands for a field's default. A `__post_init__` raises RefusedError for values that contradict each other.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def plain(self) -> dict[str, Any]:
        """Return the record as plain YAML values, defaults included; fractions stay exact."""
        return {name: plain_value(getattr(self, name)) for name in names(type(self))}

    def changed(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, as plain YAML values."""
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
        """Return the keys that have a value.

        Raises:
            RefusedError: A key is unknown, or a required key has no value.
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
    """Return a dataclass field with a description and a default; without a default, it is required."""
    return field(default=default, metadata={"description": description})


def record(cls: type[R], content: object, where: str) -> R:
    """Build a record from an untrusted document. Raises PolicyError for the first error in it."""
    try:
        made: R = reader(cls).validate_python(content)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0], where) from None
    return made


# Reads and describes a record. It is made when it is first needed, as that takes milliseconds.
reader: Callable[[type[Any]], TypeAdapter[Any]] = functools.cache(TypeAdapter)  # type: ignore[assignment]


def names(cls: type[Record]) -> list[str]:
    """Return the keys of a record, its own before those that it inherits."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__dataclass_fields__", ())}
    return sorted((field.name for field in fields(cls)), key=lambda name: name in inherited)


def plain_value(value: Any) -> Any:
    """Return a parameter's value as a YAML value."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else str(value)
    if isinstance(value, tuple):
        return [plain_value(item) for item in value]
    return value.plain() if isinstance(value, Record) else value


def located(error: PolicyError, where: str) -> PolicyError:
    """Return an error with an outer location put before its own location."""
    where = where if error.where is None else f"{where}: {error.where}"
    return PolicyError(error.what, where=where, found=error.found, allowed=error.allowed, remedy=error.remedy)


def _refusal(error: ErrorDetails, where: str) -> PolicyError:
    """Return an error that the library found as one of framedex's own errors."""
    path = [step for step in error["loc"] if step != "[key]"]  # added if a key is wrong, not its value
    where += "".join(f"[{step}]" if isinstance(step, int) else f": {step}" for step in path)
    context, found = error.get("ctx", {}), shown(error["input"])
    if isinstance(refused := context.get("error"), RefusedError):
        return located(refused, where)
    if error["type"] == "literal_error":
        words = re.findall(r"'(.*?)'", context["expected"])
        written = error["input"]
        remedy = did_you_mean(written, words) if isinstance(written, str) else None
        return PolicyError("unknown value", where=where, found=found, allowed=", ".join(words), remedy=remedy)
    return PolicyError(error["msg"], where=where, found=found)
