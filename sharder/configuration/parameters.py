"""Records of parameters: what a field says of the value that may be written for it, and records from what is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from fractions import Fraction
from typing import Any

from framedex.errors import PolicyError
from framedex.sharder.configuration.checks import Check, did_you_mean, shown


def parameter(check: Check, default: Any = MISSING) -> Any:
    """Return a dataclass field: how its value is checked, and its default; without one, it is required."""
    return field(default=default, metadata={"check": check})


def record(cls: type[Any], content: object, where: str, *, beside: tuple[str, ...] = ()) -> Any:
    """Build a record from an untrusted mapping: every key known, every value of its kind and range.

    beside: keys that are allowed, but are not the record's. None stands for a field's default. Raises PolicyError.
    """
    if not isinstance(content, Mapping):
        raise PolicyError("must be a mapping of keys to values", where=where, found=shown(content))
    known = {field.name: field for field in _own_first(cls)}
    for key in content:
        if key not in known and key not in beside:
            raise PolicyError(
                "unknown key",
                where=where,
                found=shown(key),
                allowed=", ".join([*known, *beside]),
                remedy=did_you_mean(key if isinstance(key, str) else shown(key), [*known, *beside]),
            )
    missing = [name for name, field in known.items() if field.default is MISSING and content.get(name) is None]
    if missing:
        raise PolicyError("a required key is missing", where=where, found=f"no {', '.join(missing)}")
    values = {
        key: known[key].metadata["check"](value, f"{where}: {key}")
        for key, value in content.items()
        if key in known and value is not None
    }
    try:
        return cls(**values)
    except PolicyError as error:  # the record does not know where it is written
        raise located(error, where) from error


def located(error: PolicyError, where: str) -> PolicyError:
    """Return an error with the place before what it says of its own place."""
    where = where if error.where is None else f"{where}: {error.where}"
    return PolicyError(error.what, where=where, found=error.found, allowed=error.allowed, remedy=error.remedy)


def plain(record: Any) -> dict[str, Any]:
    """Return a record as plain YAML values, defaults included; fractions stay exact."""
    return {field.name: _plain_value(getattr(record, field.name)) for field in _own_first(type(record))}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else str(value)
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return plain(value) if hasattr(value, "__dataclass_fields__") else value


def _own_first(cls: type[Any]) -> list[Any]:
    """Return a record's fields, its own before those that it inherits."""
    inherited = {
        field.name for base in cls.__mro__[1:] if hasattr(base, "__dataclass_fields__") for field in fields(base)
    }
    return sorted(fields(cls), key=lambda field: field.name in inherited)
