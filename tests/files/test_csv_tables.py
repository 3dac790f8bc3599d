"""CSV files: rows stay whole, ids keep their digits, empty cells are null, and wrong rows are told by number."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from framedex.files.csv_tables import Rows, read_csv


def read(text: str) -> Rows:
    return read_csv(io.BytesIO(text.encode()), ["uri"])


def cells(text: str) -> list[Any]:
    """Return the column `id`."""
    found: list[Any] = read(text).table["id"].to_pylist()
    return found


def test_rows_with_line_ends_in_cells_are_whole_in_large_files() -> None:
    rows = [
        f'{number}.mp4,"one, {number}\nlots of red, green, blue\n{"x" * (number % 90)}",{number}'
        for number in range(30_000)
    ]
    found = read("uri,caption,id\n" + "\n".join(rows) + "\n")
    assert not found.wrong
    assert found.table["id"].to_pylist() == list(range(30_000))
    assert found.table["uri"].to_pylist() == [f"{number}.mp4" for number in range(30_000)]
    assert found.table["caption"][29_999].as_py().startswith("one, 29999\nlots of red")


def test_wrong_rows_are_left_out_by_number() -> None:
    found = read('uri,id\na.mp4,1\nb.mp4\nc.mp4,"2\n",3\nd.mp4,4\n')
    wrong = {1: "1 cell, but 2 columns", 2: "3 cells, but 2 columns"}
    assert (found.table["uri"].to_pylist(), found.numbers, found.wrong) == (["a.mp4", "d.mp4"], [0, 3], wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("007", "007"),
        ("-007", "-007"),
        ("9007199254740993", "9007199254740993"),
        ("-9223372036854775809", "-9223372036854775809"),
        ("123456789", 123456789.0),
        ("1e20", 1e20),
        ("0.5", 0.5),
        ("", None),
    ],
)
def test_numbers_that_would_lose_digits_are_texts(text: str, expected: object) -> None:
    assert cells(f"uri,id\na.mp4,{text}\nb.mp4,1.5\n") == [expected, "1.5" if isinstance(expected, str) else 1.5]


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ([1, "two", 3], [1]),
        ([1.5, None, "0:30", 2.0], [2]),
        ([*range(400), "x", "y", "z"], [400, 401, 402]),
        ([-30.0, 0.5, "1 inch"], [2]),
    ],
)
def test_a_mistake_in_a_column_of_numbers_costs_its_row_alone(given: list[Any], wrong: list[int]) -> None:
    rows = [f"{number}.mp4,{'' if cell is None else cell}\n" for number, cell in enumerate(given)]
    found = read("uri,id\n" + "".join(rows))
    numbers = [number for number in range(len(given)) if number not in wrong]
    assert found.table["id"].to_pylist() == [given[number] for number in numbers]
    assert found.table["uri"].to_pylist() == [f"{number}.mp4" for number in numbers]
    assert found.numbers == numbers
    assert found.wrong == {number: f"'id' is {given[number]!r}, but a number in most other rows" for number in wrong}


def test_numbers_may_be_spelled_in_any_way() -> None:
    assert cells("uri,id\n1, 1\n2,+2 \n3,-3e1\n4,.5\n5,5.\n6,inch\n") == [1.0, 2.0, -30.0, 0.5, 5.0]


@pytest.mark.parametrize(
    "given",
    [["1", "x"], ["1", "2", "x", "y"], ["007", "8", "9", "x"], ["1", "2", "12345678901234567", "x"], ["x", "y"]],
)
def test_columns_with_more_texts_are_texts(given: list[str]) -> None:
    assert cells("uri,id\n" + "".join(f"a.mp4,{cell}\n" for cell in given)) == given


def test_whole_numbers_keep_64_bits() -> None:
    assert cells("uri,id\na.mp4,9007199254740993\nb.mp4,\n") == [9007199254740993, None]


def test_names_are_texts_and_empty_texts_are_null() -> None:
    found = read("uri,label\n1,x\n2,\n")
    assert found.table.to_pydict() == {"uri": ["1", "2"], "label": ["x", None]}
    assert found.table.schema.field("uri").type == pa.string()
