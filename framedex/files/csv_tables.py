"""A reader of CSV files with a header. Numeric ids such as 007 keep all digits, and empty cells become null."""

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from framedex.core.words import counted

NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
LEADING_ZERO = r"^\s*[-+]?0\d+\s*$"
WHOLE_NUMBER = r"^\s*[-+]?\d+\s*$"
MAX_DIGITS = 15  # float64 represents whole numbers of up to 15 digits exactly
MAX_EXACT = float(1 << 53)  # float64 represents all whole numbers up to this number exactly
# In a column of numbers, a cell that is not a number counts as a mistake if such cells are rare: at most one such cell
# per NUMBERS_PER_MISTAKE numbers, or a single such cell if there are at least FEWEST_NUMBERS numbers.
NUMBERS_PER_MISTAKE, FEWEST_NUMBERS = 100, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a table that a user wrote.

    Attributes:
        table: The rows without mistakes. In a CSV file, such a row has one cell per column, and each cell in a column
            of numbers is a number or empty.
        numbers: The row number in the file of each row of `table`, counted from 0 and without the header.
        wrong: Row number in the file → mistake, for each row with a mistake.
    """

    table: pa.Table
    numbers: Sequence[int]
    wrong: dict[int, str]


def read_csv(file: BinaryIO, texts: Iterable[str]) -> Rows:
    """Read a CSV file.

    The type of a column follows from its cells. If the conversion to a number would lose digits of a cell (such as 007,
    or more digits than float64 has), the column is a column of texts. If almost all cells are numbers, the column is a
    column of numbers. A cell that is not a number is then a mistake, and its row is left out. "Almost all" means that
    there is at most one other cell per hundred numbers, or a single other cell and at least two numbers.

    Args:
        file: The file. It is read several times from the beginning.
        texts: The names of columns that are columns of texts, even if all cells are numbers. Names that the file does
            not have are ignored. If a cell in such a column is not valid UTF-8, the column is a column of bytes.

    Raises:
        pa.ArrowException: The file is not a table.
    """
    types = dict.fromkeys(texts, pa.binary())
    table, wrong = _read(file, pyarrow.csv.ConvertOptions(column_types=types))
    names = [name for name in table.column_names if table.column_names.count(name) == 1]
    kinds = {name: table.schema.field(name).type for name in names}
    numbers = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
    if numbers:
        as_texts = dict.fromkeys(numbers, pa.string())
        spelled, _ = _read(file, pyarrow.csv.ConvertOptions(column_types=as_texts, include_columns=numbers))
        for name in numbers:
            if _loses_digits(table[name], spelled[name]):
                cells = pc.if_else(pc.is_null(table[name]), None, spelled[name])
                table = table.set_column(table.column_names.index(name), name, cells)
    for place, field in enumerate(table.schema):
        cells = table.column(place)
        if field.name in types:
            with contextlib.suppress(pa.ArrowInvalid):  # a column with invalid UTF-8 remains a column of bytes
                cells = cells.cast(pa.string())
        if pa.types.is_string(cells.type):
            cells = pc.if_else(pc.equal(cells, ""), None, cells)
        table = table.set_column(place, field.name, cells)
    there = [number for number in range(len(table) + len(wrong)) if number not in wrong]
    strings = {field.name for field in table.schema if pa.types.is_string(field.type)}
    of_texts = strings.intersection(names) - {*types, *numbers}
    return _without_mistakes(Rows(table=table, numbers=there, wrong=wrong), of_texts)


def _without_mistakes(found: Rows, names: Collection[str]) -> Rows:
    """Convert columns of texts to numbers if almost all of their cells are numbers.

    Rows with another cell in such a column are left out, since this cell is probably a mistake.

    Args:
        found: The content of the file, with the types of columns that Arrow detected.
        names: The names of the columns of texts that may be converted.
    """
    table, mistakes = found.table, dict[int, str]()  # `mistakes`: row of the table → mistake
    for place, name in enumerate(table.column_names):
        cells = table.column(place)
        is_number = pc.match_substring_regex(cells, NUMBER) if name in names else None
        if is_number is None or pc.any(_texts_lose_digits(cells)).as_py():
            continue
        numbers, others = pc.sum(is_number).as_py() or 0, pc.sum(pc.invert(is_number)).as_py() or 0
        if not others or numbers < FEWEST_NUMBERS or others > max(1, numbers // NUMBERS_PER_MISTAKE):
            continue
        for row in pc.indices_nonzero(pc.fill_null(pc.invert(is_number), False)).to_pylist():
            mistakes.setdefault(row, f"{name!r} is {cells[row].as_py()!r}, but a number in most other rows"[:200])
        spelled = pc.if_else(is_number, cells, None)
        is_whole = pc.all(pc.match_substring_regex(spelled, WHOLE_NUMBER)).as_py()
        trimmed = pc.replace_substring_regex(pc.utf8_trim_whitespace(spelled), r"^\+", "")
        table = table.set_column(place, name, trimmed.cast(pa.int64() if is_whole else pa.float64()))
    if not mistakes:
        return found
    rows = [row for row in range(len(table)) if row not in mistakes]
    return Rows(
        table=table.take(pa.array(rows, pa.int64())),
        numbers=[found.numbers[row] for row in rows],
        wrong=found.wrong | {found.numbers[row]: what for row, what in mistakes.items()},
    )


def _texts_lose_digits(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each text whether its conversion to a number would lose digits, as a column of bool."""
    is_long = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(cells)), MAX_DIGITS)
    is_whole = pc.match_substring_regex(cells, WHOLE_NUMBER)
    return pc.or_(pc.match_substring_regex(cells, LEADING_ZERO), pc.and_(is_whole, is_long))


def _loses_digits(numbers: pa.ChunkedArray, spelled: pa.ChunkedArray) -> bool:
    """Return whether converting a column to numbers has lost digits: of 007, or of integers too large for float64.

    Args:
        numbers: The column as numbers.
        spelled: The same column as texts.
    """
    lost = pc.match_substring_regex(spelled, LEADING_ZERO)
    if pa.types.is_floating(numbers.type):
        is_whole = pc.match_substring_regex(spelled, WHOLE_NUMBER)
        lost = pc.or_kleene(lost, pc.and_kleene(is_whole, pc.greater_equal(pc.abs(numbers), MAX_EXACT)))
    return bool(pc.any(lost).as_py())


def _read(file: BinaryIO, options: pyarrow.csv.ConvertOptions) -> tuple[pa.Table, dict[int, str]]:
    """Return (table of the rows with one cell per column, row number → mistake for all other rows)."""
    wrong: list[pyarrow.csv.InvalidRow] = []

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        wrong.append(row)
        return "skip"

    for threads in (True, False):  # only without threads, which is slower, Arrow reports the numbers of wrong rows
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
    return table, {
        row.number - 2: f"{counted(row.actual_columns, 'cell')}, but {counted(row.expected_columns, 'column')}"
        for row in wrong
    }
