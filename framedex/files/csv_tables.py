"""Reads CSV files with a header as tables. Ids keep their digits, and empty cells are null."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

LEADING_ZERO = r"^\s*[-+]?0\d+\s*$"
WHOLE_NUMBER = r"^\s*[-+]?\d+\s*$"
MOST_EXACT = float(1 << 53)  # float64 has all whole numbers up to this one


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvTable:
    """A CSV file.

    Attributes:
        table: The rows that have a cell for each column.
        numbers: The number of each row of `table` in the file, from 0, without the header.
        wrong: The other rows by their numbers: how many cells they have.
    """

    table: pa.Table
    numbers: list[int]
    wrong: dict[int, int]


def read_csv(file: BinaryIO, texts: Iterable[str]) -> CsvTable:
    """Read a CSV file.

    The types of other columns are those of their cells. A column of numbers is one of texts if a cell begins with a
    zero that a number would lose (007), or has more digits than a number keeps.

    Args:
        file: The file, which is read from its beginning, several times.
        texts: Columns that are texts, even if all of their cells are numbers. They may be missing. If a cell is not
            valid UTF-8, they are bytes.

    Raises:
        pa.ArrowException: The file is no such table.
    """
    types = dict.fromkeys(texts, pa.binary())
    table, wrong = _read(file, pyarrow.csv.ConvertOptions(column_types=types))
    names = [name for name in table.column_names if table.column_names.count(name) == 1]
    numbers = [name for name in names if _is_number(table.schema.field(name).type)]
    if numbers:
        as_texts = dict.fromkeys(numbers, pa.string())
        options = pyarrow.csv.ConvertOptions(column_types=as_texts, include_columns=numbers)
        spelled, _ = _read(file, options)
        for name in numbers:
            if _loses_digits(table[name], spelled[name]):
                cells = pc.if_else(pc.is_null(table[name]), None, spelled[name])
                table = table.set_column(table.column_names.index(name), name, cells)
    for place, field in enumerate(table.schema):
        cells = _as_text(table.column(place)) if field.name in types else table.column(place)
        if pa.types.is_string(cells.type):
            cells = pc.if_else(pc.equal(cells, ""), None, cells)
        table = table.set_column(place, field.name, cells)
    there = [number for number in range(len(table) + len(wrong)) if number not in wrong]
    return CsvTable(table=table, numbers=there, wrong=wrong)


def _as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return bytes as texts, or unchanged if some are not valid UTF-8."""
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        return cells


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _loses_digits(numbers: pa.ChunkedArray, spelled: pa.ChunkedArray) -> bool:
    """Return whether cells as numbers have fewer digits than as texts: 007, and whole numbers beyond float64."""
    lost = pc.match_substring_regex(spelled, LEADING_ZERO)
    if pa.types.is_floating(numbers.type):
        is_whole = pc.match_substring_regex(spelled, WHOLE_NUMBER)
        lost = pc.or_kleene(lost, pc.and_kleene(is_whole, pc.greater_equal(pc.abs(numbers), MOST_EXACT)))
    return bool(pc.any(lost).as_py())


def _read(file: BinaryIO, options: pyarrow.csv.ConvertOptions) -> tuple[pa.Table, dict[int, int]]:
    """Return a table without the rows that have too few or too many cells, and these rows as in `CsvTable`."""
    wrong: list[pyarrow.csv.InvalidRow] = []

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        wrong.append(row)
        return "skip"

    for threads in (True, False):  # rows have numbers without threads alone
        file.seek(0)
        wrong.clear()
        table = pyarrow.csv.read_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(use_threads=threads),
            parse_options=pyarrow.csv.ParseOptions(invalid_row_handler=skip, newlines_in_values=True),
            convert_options=options,
        )
        if not wrong:
            break
    return table, {row.number - 2: row.actual_columns for row in wrong}
