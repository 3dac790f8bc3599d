"""The files of a dataset: which parts each table has, by the header.

The parts of a new dataset are numbered from 0, and each of the other tables is one file. A change of the dataset writes
new files, and then a header that names them. So readers see all of a change or nothing of it.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import check_header
from framedex.errors import FormatError
from framedex.files.headers import check_format, is_since
from framedex.files.parquet_parts import part_path, read_all
from framedex.records.columns import INT32
from framedex.sharder import schema
from framedex.sharder.schema import (
    CLIPS_FOLDER,
    COLUMNS_NAME,
    FAILURES_NAME,
    FIELDS_NAME,
    MEDIA_FOLDER,
    RECIPES_FOLDER,
    REMOVED_NAME,
    ROWS_FOLDER,
    SHARDS_NAME,
)
from framedex.storage.places import Place

Row = dict[str, Any]

MALFORMED = (KeyError, TypeError, ValueError, AttributeError)  # errors of headers with values of other types
REMEDY = "the dataset is damaged, so shard again, or copy it again from its origin"
# The tables that are not in parts of a limited number of rows. A change of the dataset may divide them into files.
FILES = (FIELDS_NAME, COLUMNS_NAME, FAILURES_NAME, SHARDS_NAME, REMOVED_NAME)
MAX_FILES = 1 << 20  # maximum number of parts and of ranges in a header


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a table.

    Attributes:
        number: The number in the part's name.
        rows: The number of rows.
    """

    number: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers that the rows of a table have, and the numbers of rows that were removed.

    Rows are numbered in order, and a removed number is never given again. So the number of a row is its position in the
    table, plus the count of removed numbers before it.

    Attributes:
        gone: int64 [ranges, 2], the first number of each range of removed numbers, and the number after its last.
    """

    gone: NDArray[np.int64]

    def row_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position in the table of each row with one of the numbers, or -1 if the row was removed."""
        before = np.cumsum(np.concatenate([[0], np.diff(self.gone, axis=1)[:, 0]]))
        ranges = np.searchsorted(self.gone[:, 0], numbers, side="right")
        ends = np.concatenate([[0], self.gone[:, 1]])[ranges]
        return np.where((numbers < 0) | (numbers < ends), -1, numbers - before[ranges])

    def of_row(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row at one of the positions."""
        shifts = self.shifts
        shift: NDArray[np.int64] = np.concatenate([[0], shifts[:, 1]])[
            np.searchsorted(shifts[:, 0], rows, side="right")
        ]
        return rows + shift

    @property
    def shifts(self) -> NDArray[np.int64]:
        """int64 [ranges, 2]: a position, and what rows from it on have to add to their positions for their numbers."""
        after = np.cumsum(np.diff(self.gone, axis=1)[:, 0])
        return np.stack([self.gone[:, 1] - after, after], axis=1)

    def without(self, numbers: NDArray[np.int64]) -> "Numbers":
        """Return the numbers after further rows were removed, by their numbers."""
        if not len(numbers):
            return self
        single = np.stack([numbers, numbers + 1], axis=1)
        every = np.concatenate([self.gone, single]).astype(np.int64)
        every = every[np.argsort(every[:, 0], kind="stable")]
        begins = np.flatnonzero(every[:, 0] > np.concatenate([[-1], every[:-1, 1]]))
        ends = np.append(begins[1:], len(every)) - 1
        return Numbers(gone=np.stack([every[begins, 0], every[ends, 1]], axis=1))


ALL = Numbers(gone=np.zeros((0, 2), np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files of a dataset.

    Attributes:
        clips: The parts of `clips`, in order. The parts of `recipes` have the same numbers and rows.
        media: The parts of `media`, in order.
        has_rows: Whether the parts have files from which single rows are read. Datasets before version 3.10 have none.
        files: For each table of FILES, the numbers of its files, in order. None if the header does not tell.
        media_numbers: The numbers by which clips refer to the rows of `media`.
        shard_numbers: The numbers by which clips refer to the rows of `shards`.
    """

    clips: list[Part]
    media: list[Part]
    has_rows: bool
    files: dict[str, list[int]] | None = None
    media_numbers: Numbers = field(default=ALL)
    shard_numbers: Numbers = field(default=ALL)

    def continues(self, earlier: "Layout") -> bool:
        """Return whether clips were only appended since an earlier layout of the dataset, so that its files are there.

        The files of `fields`, `columns` and `shards` change only if clips were removed.
        """
        pairs = ((self.clips, earlier.clips), (self.media, earlier.media))
        gone = ((self.media_numbers, earlier.media_numbers), (self.shard_numbers, earlier.shard_numbers))
        return all(now[: len(then)] == then for now, then in pairs) and all(
            np.array_equal(now.gone, then.gone) for now, then in gone
        )

    def parts(self, table: str) -> list[Part]:
        """Return the parts of `clips`, `recipes` or `media`."""
        return self.media if table == MEDIA_FOLDER else self.clips

    def paths(self, dataset: Place, name: str) -> list[Place]:
        """Return the paths of the files of a table of FILES. The table has no rows if there are no files."""
        return [dataset / file_name(name, number) for number in self.numbers(dataset, name)]

    def numbers(self, dataset: Place, name: str) -> list[int]:
        """Return the numbers of the files of a table of FILES."""
        if self.files is None:
            return [0] if (dataset / name).exists() else []
        return self.files.get(name, [])

    def names(self, dataset: Place) -> list[str]:
        """Return the names of all files of tables, relative to the dataset."""
        parts = [
            str(path)
            for table in (CLIPS_FOLDER, MEDIA_FOLDER)
            for part in self.parts(table)
            for path in part_files(table, part.number)
            if self.has_rows or path.parent.name != ROWS_FOLDER
        ]
        return parts + [path.name for name in FILES for path in self.paths(dataset, name)]

    def read(
        self, dataset: Place, name: str, columns: list[str] | None = None, *, row_bytes: int = 0
    ) -> pa.Table | None:
        """Read all rows of a table of FILES, or return None if it has no files. For errors, see `read_all`."""
        paths = self.paths(dataset, name)
        return pa.concat_tables([read_all(path, columns, row_bytes=row_bytes) for path in paths]) if paths else None

    def facts(self) -> Row:
        """Return the keys of the header of a dataset that was changed."""
        numbers = {"media": self.media_numbers, "shards": self.shard_numbers}
        return {
            "parts": {
                table: {"numbers": [part.number for part in parts], "rows": [part.rows for part in parts]}
                for table, parts in ((CLIPS_FOLDER, self.clips), (MEDIA_FOLDER, self.media))
            },
            "files": {name: own for name, own in (self.files or {}).items() if own},
            "gone": {table: own.gone.tolist() for table, own in numbers.items() if len(own.gone)},
        }


def part_files(table: str, number: int) -> list[Path]:
    """Return the paths of the files of a part of `clips` or `media`, relative to the dataset."""
    also = [part_path(Path(RECIPES_FOLDER), number)] if table == CLIPS_FOLDER else []
    return [*also, part_path(Path(table), number), Path(rows_name(table, number))]


def rows_name(table: str, number: int) -> str:
    """Return the name of the file of the rows of a part of `clips` or `media`, relative to the dataset."""
    return f"{ROWS_FOLDER}/{table}-{number:06d}.rows"


def file_name(name: str, number: int) -> str:
    """Return the name of a file of a table of FILES. File 0 has the name of the table."""
    stem, _, ending = name.rpartition(".")
    return f"{stem}-{number:06d}.{ending}" if number else name


def layout_of(header: Mapping[str, Any]) -> Layout:
    """Return the layout that a header has. Raises one of MALFORMED if it is malformed."""
    has_rows = is_since(header["schema_version"], schema.ROWS)
    if "parts" not in header:  # the dataset was never changed
        clips, media = (
            [Part(number=number, rows=rows) for number, rows in enumerate(header[key])]
            for key in ("clips_per_part", "media_per_part")
        )
        return Layout(clips=clips, media=media, has_rows=has_rows)
    clips, media = (
        [
            Part(number=number, rows=rows)
            for number, rows in zip(_whole(stored["numbers"]), _whole(stored["rows"]), strict=True)
        ]
        for stored in (header["parts"][table] for table in (CLIPS_FOLDER, MEDIA_FOLDER))
    )
    files = {name: _whole(header["files"].get(name, [])) for name in FILES}
    for numbers in (*([part.number for part in parts] for parts in (clips, media)), *files.values()):
        if len({*numbers}) < len(numbers):
            raise ValueError("two parts have the same number")
    gone = header["gone"]
    for earlier in header["before"]:
        _whole([earlier[name] for name in ("generation", "clips")])
        if type(earlier["checksum"]) is not int:
            raise TypeError("the checksum of an earlier header is not a number")
    return Layout(
        clips=clips,
        media=media,
        has_rows=has_rows,
        files=files,
        media_numbers=_numbers(gone.get("media", [])),
        shard_numbers=_numbers(gone.get("shards", [])),
    )


def _whole(values: Any) -> list[int]:
    """Return a list of numbers from 0 on. Raises TypeError, ValueError."""
    if not isinstance(values, list) or len(values) > MAX_FILES:
        raise TypeError(f"{str(values)[:80]} is not a list of numbers")
    for value in values:
        if type(value) is not int or not 0 <= value <= INT32:
            raise ValueError(f"{str(value)[:80]} is not a number from 0 to {INT32:,}")
    return values


def _numbers(ranges: Any) -> Numbers:
    if not isinstance(ranges, list) or len(ranges) > MAX_FILES:
        raise TypeError(f"{str(ranges)[:80]} is not a list of ranges")
    ends = [-1, *itertools.chain.from_iterable(_whole(pair) for pair in ranges)]
    if len(ends) != 2 * len(ranges) + 1 or any(one >= other for one, other in itertools.pairwise(ends)):
        raise ValueError("the ranges of removed numbers are not in order")
    return Numbers(gone=np.array(ends[1:], np.int64).reshape(-1, 2)) if ranges else ALL


def read_layout(dataset: Place) -> Layout:
    """Return the layout of a dataset. Raises FormatError if its header is missing or damaged."""
    return checked_header(dataset)[1]


def checked_header(dataset: Place) -> tuple[Row, Layout]:
    """Return the header of a dataset, and its layout. Raises FormatError if the header is missing or damaged."""
    header = dataset_header(dataset)
    check_header(header, schema.HEADER_KEYS, str(dataset / schema.HEADER), REMEDY)
    try:
        return header, layout_of(header)
    except MALFORMED as error:
        raise FormatError(
            f"{schema.HEADER} is damaged", where=str(dataset), found=repr(error), remedy=REMEDY
        ) from error


def dataset_header(out: Place) -> Row:
    """Return the header of a dataset. Raises FormatError if the header is missing or has an unsupported version."""
    return check_format(
        out, file_name=schema.HEADER, expected=schema.FORMAT, version=schema.SCHEMA_VERSION, what="a framedex dataset"
    )
