"""Which rows belong to train, to validation, to test: by a column of the listing, or by a hash that nothing shifts."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pyarrow as pa

from framedex.errors import PolicyError
from framedex.sharder.configuration import checks
from framedex.sharder.configuration.checks import MOST_SHOWN, did_you_mean, shown
from framedex.sharder.configuration.parameters import parameter, plain, record

NAME = re.compile(r"[\w.-]{1,64}")  # splits become names of files and folders
MOST_SPLITS = 1000


def _name(value: object, where: str) -> str:
    text = as_text(value)
    if text is None or not NAME.fullmatch(text):
        raise PolicyError(
            "a split's name has letters, digits, '_', '.' and '-' alone, 64 at most", where=where, found=shown(value)
        )
    return text


def _pairs(value: object, where: str, allowed: str) -> list[tuple[Any, Any]]:
    if not isinstance(value, Mapping) or not 1 <= len(value) <= MOST_SPLITS:
        raise PolicyError(f"must be a mapping of 1 to {MOST_SPLITS}", where=where, found=shown(value), allowed=allowed)
    return list(value.items())


def _names(value: object, where: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for key, split in _pairs(value, where, "{0: train, 1: val}"):
        text = as_text(key)
        if text is None or text in found or not text.isprintable():
            raise PolicyError("must be a value of the column, once", where=where, found=shown(key))
        found[text] = _name(split, where)
    return tuple(found.items())


def _shares(value: object, where: str) -> tuple[tuple[str, Fraction], ...]:
    found: dict[str, Fraction] = {}
    for key, share in _pairs(value, where, "{train: 8, val: 1, test: 1}"):
        name = _name(key, where)
        if name in found:
            raise PolicyError("a split is named twice", where=where, found=name)
        found[name] = checks.share(share, f"{where}: {name}")
    if not any(found.values()):
        raise PolicyError("some share must be above zero", where=where, found=", ".join(found))
    return tuple(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How rows are assigned to named splits.

    By a column: its own values are the names, or `names` says which name each value stands for. By hash: `shares` gives the
    names and how much of the whole each gets; rows that agree in the column `by` always go together, and a row goes
    where it goes whatever other rows there are.
    """

    column: str | None = parameter(checks.column_name, None)
    names: tuple[tuple[str, str], ...] | None = parameter(_names, None)
    shares: tuple[tuple[str, Fraction], ...] | None = parameter(_shares, None)
    by: str = parameter(checks.column_name, "media_id")
    seed: int = parameter(checks.seed, 0)

    def __post_init__(self) -> None:
        if (self.column is None) == (self.shares is None):
            found = "neither" if self.column is None else "both"
            raise PolicyError("a split has either column or shares", found=found)
        if self.names is not None and self.column is None:
            raise PolicyError("names belong to a column", found="names without column")

    def plain(self) -> dict[str, Any]:
        """Return the split as YAML writes it, defaults included; reading that gives an equal split."""
        content = plain(self)
        if self.shares is None:
            names = None if self.names is None else dict(self.names)
            return {"column": self.column} | ({} if names is None else {"names": names})
        shares = {name: int(share) if share.denominator == 1 else str(share) for name, share in self.shares}
        return {"shares": shares, "by": content["by"], "seed": content["seed"]}

    def assign(self, table: pa.Table) -> pa.Array:
        """Return string [rows]: the split of each row of a table.

        Raises PolicyError if the table lacks the column, and for a cell that is empty or names no split.
        """
        name = self.by if self.column is None else self.column
        if name not in table.column_names:
            raise PolicyError(
                "the table has no such column",
                where="split",
                found=repr(name),
                allowed=", ".join(table.column_names),
                remedy=did_you_mean(name, table.column_names),
            )
        column = table[name].combine_chunks()
        try:
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        except pa.ArrowNotImplementedError as error:
            raise PolicyError(
                "rows cannot be split by a column of this type", where=f"split, column {name!r}", found=column.type
            ) from error
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        if encoded.null_count:
            raise PolicyError(
                "a row belongs to no split",
                where=f"split, column {name!r}",
                found=f"{encoded.null_count} empty cells",
                remedy=f"filter: {name} is not None",
            )
        used = set(encoded.indices.to_pylist())
        splits = [
            self._split_of(value, f"split, column {name!r}") if place in used else None
            for place, value in enumerate(encoded.dictionary.to_pylist())
        ]
        return pa.array(splits, pa.string()).take(encoded.indices)

    def _split_of(self, value: object, where: str) -> str:
        text = as_text(value)
        if self.shares is not None:
            return self._drawn(repr(value) if text is None else text)
        if self.names is None:
            return _name(value, where)
        names = dict(self.names)
        if text is None or text not in names:
            raise PolicyError("a value has no split", where=where, found=shown(value), allowed=", ".join(names))
        return names[text]

    def _drawn(self, text: str) -> str:
        """Return the split that a text hashes to: where it falls in [0, 1) decides, and the shares cut that into parts."""
        assert self.shares is not None  # see _split_of
        digest = hashlib.blake2b(f"{self.seed}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        place = Fraction(int.from_bytes(digest, "big"), 1 << 64) * sum(share for _, share in self.shares)
        for name, share in self.shares:
            place -= share
            if place < 0:
                return name
        raise AssertionError("a hash lies below one")


def make_split(content: object, where: str) -> Split:
    """Return a split from untrusted parameters. Raises PolicyError."""
    split: Split = record(Split, content, where)
    return split


def as_text(value: object) -> str | None:
    """Return a cell's value as text, whole numbers alike however they are stored (0, 0.0 and "0"); None for others."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int) and abs(value) > MOST_SHOWN:
        return None
    return str(value) if isinstance(value, str | int) else None
