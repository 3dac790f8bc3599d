"""CSV files with a header, read as tables. Ids keep their digits, and empty cells are null."""

import contextlib
from collections.abc import Collection, Iterable
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from framedex.core.words import counted

NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
LEADING_ZERO = r"^\s*[-+]?0\d+\s*$"
WHOLE_NUMBER = r"^\s*[-+]?\d+\s*$"
MAX_DIGITS = 15  # float64 represents whole numbers of up to 15 digits exactly
MAX_EXACT = float(1 << 53)  # float64 represents all whole numbers up to this one
# A text in a column of numbers is a mistake if it is rare: one in a hundred cells, or a single one beside two numbers.
NUMBERS_PER_MISTAKE, FEWEST_NUMBERS = 100, 2


class CsvTable(NamedTuple):
    """The content of a CSV file.

    Attributes:
        table: The correct rows: they have a cell for each column, and a number or null in each column of numbers.
        numbers: The row number of each row of `table` in the file, from 0, without the header.
        wrong: The mistake in each other row, by row number.
    """

    table: pa.Table
    numbers: list[int]
    wrong: dict[int, str]


def read_csv(file: BinaryIO, texts: Iterable[str]) -> CsvTable:
    """Read a CSV file.

    The type of a column follows from its cells. If a cell would lose digits as a number (007, or more digits than a
    number keeps), the column contains texts. If at most one cell in a hundred, or a single cell beside two or more
    numbers, is a text, the column contains numbers. Such a cell is a mistake, and its row is left out.

    Args:
        file: The file. It is read several times, from its beginning.
        texts: Columns that contain texts, even if all of their cells are numbers. They may be missing. If a cell is not
            valid UTF-8, the column contains bytes.

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
            with contextlib.suppress(pa.ArrowInvalid):  # bytes that are not UTF-8 stay bytes
                cells = cells.cast(pa.string())
        if pa.types.is_string(cells.type):
            cells = pc.if_else(pc.equal(cells, ""), None, cells)
        table = table.set_column(place, field.name, cells)
    there = [number for number in range(len(table) + len(wrong)) if number not in wrong]
    of_texts = [
        field.name
        for field in table.schema
        if pa.types.is_string(field.type) and field.name in names and field.name not in {*types, *numbers}
    ]
    return _without_mistakes(CsvTable(table=table, numbers=there, wrong=wrong), of_texts)


def _without_mistakes(found: CsvTable, names: Collection[str]) -> CsvTable:
    """Convert columns of texts to numbers if almost all of their cells are numbers. Leave out rows with other cells.

    Args:
        found: The file as Arrow reads it.
        names: The columns of texts to convert.
    """
    table, mistakes = found.table, dict[int, str]()  # by the row of the table
    for place, name in enumerate(table.column_names):
        cells = table.column(place)
        is_number = pc.match_substring_regex(cells, NUMBER) if name in names else None
        if is_number is None or pc.any(_texts_lose_digits(cells)).as_py():
            continue
        numbers, others = pc.sum(is_number).as_py() or 0, pc.sum(pc.invert(is_number)).as_py() or 0
        if not others or numbers < FEWEST_NUMBERS or others > max(1, numbers // NUMBERS_PER_MISTAKE):
            continue
        for row in pc.indices_nonzero(pc.fill_null(pc.invert(is_number), False)).to_pylist():
            mistakes.setdefault(row, f"{name!r} has numbers in the other rows, and here {cells[row].as_py()!r}"[:200])
        spelled = pc.if_else(is_number, cells, None)
        is_whole = pc.all(pc.match_substring_regex(spelled, WHOLE_NUMBER)).as_py()
        trimmed = pc.replace_substring_regex(pc.utf8_trim_whitespace(spelled), r"^\+", "")
        table = table.set_column(place, name, trimmed.cast(pa.int64() if is_whole else pa.float64()))
    if not mistakes:
        return found
    rows = [row for row in range(len(table)) if row not in mistakes]
    return CsvTable(
        table=table.take(pa.array(rows, pa.int64())),
        numbers=[found.numbers[row] for row in rows],
        wrong=found.wrong | {found.numbers[row]: what for row, what in mistakes.items()},
    )


def _texts_lose_digits(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return whether each text would have fewer digits as a number."""
    is_long = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(cells)), MAX_DIGITS)
    is_whole = pc.match_substring_regex(cells, WHOLE_NUMBER)
    return pc.or_(pc.match_substring_regex(cells, LEADING_ZERO), pc.and_(is_whole, is_long))


def _loses_digits(numbers: pa.ChunkedArray, spelled: pa.ChunkedArray) -> bool:
    """Return whether a cell has fewer digits as a number than as a text: 007, and whole numbers beyond float64."""
    lost = pc.match_substring_regex(spelled, LEADING_ZERO)
    if pa.types.is_floating(numbers.type):
        is_whole = pc.match_substring_regex(spelled, WHOLE_NUMBER)
        lost = pc.or_kleene(lost, pc.and_kleene(is_whole, pc.greater_equal(pc.abs(numbers), MAX_EXACT)))
    return bool(pc.any(lost).as_py())


def _read(file: BinaryIO, options: pyarrow.csv.ConvertOptions) -> tuple[pa.Table, dict[int, str]]:
    """Return a table of the rows with the right number of cells, and the mistakes in the other rows by row number."""
    wrong: list[pyarrow.csv.InvalidRow] = []

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        wrong.append(row)
        return "skip"

    for threads in (True, False):  # Arrow reports row numbers only without threads, which is slower
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
