"""Parameters that assign the rows of a listing to splits (such as training and validation) and to views of scenes.

The split of a row comes from a column of the listing, or from a stable hash. The views of a scene are videos of several
cameras. A clip of several views contains frames of all views at the same times.
"""

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import PlainValidator, WithJsonSchema

from framedex.errors import PolicyError
from framedex.sharder.configuration.filters import no_column
from framedex.sharder.configuration.parameters import (
    CELL,
    MANY,
    Cell,
    ColumnName,
    ColumnNames,
    Distance,
    FolderName,
    Pairs,
    Rate,
    Record,
    RefusedError,
    Seed,
    Share,
    as_text,
    listed,
    located,
    parameter,
    plain_value,
    shown,
)
from framedex.sharder.schema import Missing

NAME = re.compile(r"[\w.-]{1,64}")  # the names of splits are used in names of files and folders


def _name(value: object) -> str:
    if (text := as_text(value)) is None or not NAME.fullmatch(text):
        raise RefusedError(
            "the name of a split must have 1 to 64 characters, only letters, digits, '_', '.' and '-'",
            found=shown(value),
        )
    return text


SplitName = Annotated[
    str,
    PlainValidator(_name),
    WithJsonSchema({"type": ["string", "number", "boolean"], "pattern": r"^[^\s/]+$", "maxLength": 64}),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Record):
    """The rule that assigns rows to named splits.

    With `column`, the values of that column are the names of the splits, or `names` maps these values to the names of
    splits. With `shares`, a hash assigns rows so that each split gets its share. Rows with equal values in the
    column `by` are one group and always get the same split. The split of a group does not depend on other rows, unless
    `stratify` is given. With `stratify`, the shares are met for each value of that column separately, as closely as
    whole groups allow. The split of a group then depends on the other groups with the same value. With `keep`, groups
    that are in an existing dataset keep their splits, and the other groups are assigned so that the shares are met.
    """

    column: ColumnName | None = parameter("the column with the split of each row (instead of shares)", None)
    names: Annotated[dict[Cell, SplitName], Pairs("{0: train, 1: val}", CELL)] | None = parameter(
        "the split for each value of the column; by default, the values are the names of the splits", None
    )
    shares: Annotated[dict[SplitName, Share], Pairs("{train: 8, val: 1, test: 1}", "a split has two shares")] | None = (
        parameter("the share of each split, relative to the sum of all shares (instead of column)", None)
    )
    by: ColumnName = parameter("with shares: rows with the same value in this column get the same split", "media_id")
    stratify: ColumnName | None = parameter("with shares: the shares are met for each value of this column", None)
    keep: FolderName | None = parameter("with stratify: an existing dataset, whose groups keep their splits", None)
    seed: Seed = parameter("with shares: seed of the hash; another seed gives other splits", 0)

    def __post_init__(self) -> None:
        self.check_one_of("a split needs either column or shares", "column", "shares")
        if self.names is not None and self.column is None:
            raise RefusedError("names requires column", found="names without column")
        if self.stratify is not None and self.shares is None:
            raise RefusedError("stratify requires shares", found="stratify without shares")
        if self.keep is not None and self.stratify is None:
            raise RefusedError("keep requires stratify", found="keep without stratify")
        if self.shares is not None and not any(self.shares.values()):
            raise RefusedError("at least one share must be above zero", where="shares", found=", ".join(self.shares))

    def plain(self) -> dict[str, Any]:
        """Return the rule as YAML values, including defaults. `record` reads an equal rule from these values."""
        if self.shares is None:
            return {"column": self.column} | ({} if self.names is None else {"names": self.names})
        more = {name: value for name in ("stratify", "keep") if (value := getattr(self, name)) is not None}
        return {"shares": plain_value(self.shares), "by": self.by, **more, "seed": self.seed}

    def deal(self, stratify: str, tables: Iterable[pa.Table], known: Mapping[str, str]) -> dict[str, str]:
        """Return {group: split}. A group consists of all rows with the same value in the column `by`.

        For each value of `stratify`, the groups are sorted by their hash, and the sorted list is cut in proportion to
        the shares. Groups in `known` keep their split. The other groups fill the remaining part of each share.

        Args:
            stratify: The name of a column. The shares are met for each value of this column separately.
            tables: All rows, with the columns `by` and `stratify`.
            known: The splits of the groups that keep their split.

        Raises:
            PolicyError: The tables lack a column, or a group has several values of `stratify`.
        """
        value_of: dict[str, object] = {}
        for table in tables:
            columns = (_column_of(table, name).to_pylist() for name in (self.by, stratify))
            for group, value in zip(*columns, strict=True):
                if group is None:  # `assign` refuses such rows
                    continue
                name = group_text(group)
                if value_of.setdefault(name, value) != value:
                    raise PolicyError(
                        "a group has several values in the column by which splits are stratified",
                        where=f"split, {self.by} {name!r}",
                        found=f"{stratify}: {shown(value_of[name])} and {shown(value)}",
                        remedy="set `by` to a column whose groups have one value each, or leave out stratify",
                    )
        groups_of: dict[str, list[str]] = {}
        for name, value in value_of.items():
            groups_of.setdefault(group_text(value), []).append(name)
        shares = self.shares or {}
        dealt: dict[str, str] = {}
        for groups in groups_of.values():
            kept = {name: known[name] for name in groups if name in known}
            new = sorted((name for name in groups if name not in known), key=self._hash)
            of_split = Counter(kept.values())
            wanted = _cut_at(list(shares.values()), len(groups))
            counts = [max(0, most - of_split[split]) for split, most in zip(shares, wanted, strict=True)]
            # The kept groups of a split may exceed its share. Then the other splits want more groups in total than
            # there are new groups.
            if sum(counts) != len(new):
                counts = _cut_at([Fraction(number) for number in counts], len(new))
            dealt |= kept | dict(zip(new, np.repeat(list(shares), counts).tolist(), strict=True))
        return dealt

    def assign(self, table: pa.Table, dealt: Mapping[str, str] | None = None) -> pa.Array:
        """Return string [rows]: the name of the split of each row.

        Args:
            table: Rows of the listing.
            dealt: With `stratify`, the result of `deal` for all rows. Otherwise None.

        Raises:
            PolicyError: The table lacks the column, or a cell is empty or is not the name of a split.
        """
        name = self.by if self.column is None else self.column
        column = _column_of(table, name).combine_chunks()
        try:
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        except pa.ArrowNotImplementedError as error:
            raise PolicyError(
                "rows cannot be split by a column of this type", where=f"split, column {name!r}", found=column.type
            ) from error
        if isinstance(encoded, pa.ChunkedArray):  # texts of more than 2 GiB in all are several chunks
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
            self._split_of(value, f"split, column {name!r}", dealt) if place in used else None
            for place, value in enumerate(encoded.dictionary.to_pylist())
        ]
        return pa.array(splits, pa.string()).take(encoded.indices)

    def _split_of(self, value: object, where: str, dealt: Mapping[str, str] | None) -> str:
        if dealt is not None:
            return dealt[group_text(value)]
        if self.shares is not None:
            # The hash is scaled to [0, sum of shares). Each split owns a part of this interval. The length of the part
            # is the share of the split.
            place = Fraction(self._hash(group_text(value)), 1 << 64) * sum(self.shares.values())
            bounds = itertools.accumulate(self.shares.values())
            return next(name for name, bound in zip(self.shares, bounds, strict=True) if place < bound)
        if self.names is None:
            try:
                return _name(value)
            except RefusedError as error:
                raise located(error, where) from None
        if (text := as_text(value)) is None or text not in self.names:
            raise PolicyError("names lacks a value", where=where, found=shown(value), allowed=", ".join(self.names))
        return self.names[text]

    def _hash(self, text: str) -> int:
        digest = hashlib.blake2b(f"{self.seed}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big")


def _column_of(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise no_column("table", name, table.column_names, where="split")
    return table[name]


def group_text(value: object) -> str:
    """Return a cell of the column `by` as text. The text identifies a group, and its hash determines the split."""
    text = as_text(value)
    return repr(value) if text is None else text


def _cut_at(shares: Sequence[Fraction], count: int) -> list[int]:
    """Divide `count` in proportion to the shares. Return whole numbers, whose sum is `count`."""
    # The bounds between parts are rounded instead of the parts' sizes, so that rounding errors do not accumulate.
    bounds = [math.floor(passed / sum(shares) * count + Fraction(1, 2)) for passed in itertools.accumulate(shares)]
    return [stop - first for first, stop in itertools.pairwise([0, *bounds])]


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Record):
    """The parameters of one view.

    When the scene's clock shows t seconds, the time in the view's video is `offset_seconds` + `rate` * t. `seconds` is
    only for the policy `around`: the wanted times of this view, in seconds after the anchor (negative: before it).
    """

    offset_seconds: Distance = parameter("the time in the view's video when the clock shows 0, in seconds", Fraction(0))
    rate: Rate = parameter("seconds that pass in the view's video per second of the clock", Fraction(1))
    seconds: Annotated[tuple[Distance, ...], MANY, listed("[-0.1, 0]")] | None = parameter(
        "with the policy around: the wanted times of this view, as distances from the anchor", None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Views(Record):
    """The rule that joins rows of a listing to scenes, and relates the times of the views of a scene.

    Rows with the same value in the column `group` (or in each of several columns) form a scene. The column `view` has
    the name of each row's view. The policy selects frames of the view `clock`, or ticks of a generated clock that
    starts when the views begin and has `clock_fps` ticks per second. For the time of each selected frame or tick,
    `choose` determines a frame of every other view. The distance of this frame from the time must be at most
    `tolerance_seconds` or, without this key, less than the average frame duration of the view. `missing` determines the
    treatment of a clip if a view has no frame close enough.
    """

    group: ColumnNames = parameter("the listing's column or columns whose values are equal for the views of one scene")
    view: ColumnName = parameter("the listing's column with the name of each row's view")
    names: Annotated[tuple[Cell, ...], MANY, listed("[left, right]")] | None = parameter(
        "the names of the wanted views; by default, all values of the column `view`", None
    )
    clock: Cell | None = parameter("the view whose frames the policy selects (instead of clock_fps)", None)
    clock_fps: Rate | None = parameter(
        "frames per second of a generated clock whose frames the policy selects (instead of clock)", None
    )
    missing: Missing = parameter(
        "if a view has no frame for a clip: end with an error, leave the clip out, or mask the frames", "skip"
    )
    offset_column: ColumnName | None = parameter("the listing's column with the offset_seconds of each row", None)
    rate_column: ColumnName | None = parameter("the listing's column with the rate of each row", None)
    each: Annotated[dict[Cell, View], Pairs("{left: {offset_seconds: 0.02}}", "a view is named twice")] | None = (
        parameter("parameters of individual views, by the name of the view", None)
    )

    def __post_init__(self) -> None:
        self.check_one_of("views need either clock or clock_fps", "clock", "clock_fps")
        if self.names is not None and len(set(self.names)) < len(self.names):
            raise RefusedError(CELL, where="names", found=", ".join(self.names))
        for name, view in (self.each or {}).items():
            where = f"each: {name}"
            if self.names is not None and name not in self.names:
                allowed = ", ".join(self.names)
                raise RefusedError("no view has this name", where="each", found=shown(name), allowed=allowed)
            if name == self.clock and (view.offset_seconds or view.rate != 1):
                raise RefusedError(
                    "the view that is the clock cannot have an offset or a rate",
                    where=where,
                    found="offset_seconds or rate",
                )
            if view.offset_seconds and self.offset_column is not None:
                raise RefusedError(
                    "offsets must be given either by offset_column or by offset_seconds", where=where, found="both"
                )
            if view.rate != 1 and self.rate_column is not None:
                raise RefusedError("rates must be given either by rate_column or by rate", where=where, found="both")
        if self.names is not None and self.clock is not None and self.clock not in self.names:
            raise RefusedError("clock must be one of names", found=shown(self.clock), allowed=", ".join(self.names))

    @property
    def columns(self) -> list[str]:
        """The names of the listing's columns that are read."""
        others = (self.view, self.offset_column, self.rate_column)
        return [*self.group, *(name for name in others if name is not None)]

    def of(self, name: str) -> View:
        """Return the parameters of one view."""
        return (self.each or {}).get(name) or View()
