"""Values of `where` are compared by what they are: numbers as numbers, times by their unit."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from framedex.core.column_rules import equal_values
from framedex.errors import FramedexError

WHOLE = pa.chunked_array([pa.array([1, 2, None])])
TENTHS = pa.chunked_array([pa.array([0.1, 1.0, None])])
SINGLE = pa.chunked_array([pa.array([0.1, 16777216.0, None], pa.float32())])
PRICES = pa.chunked_array([pa.array([Decimal("1.50"), Decimal("0.10"), None], pa.decimal128(5, 2))])
TIMES = pa.chunked_array([pa.array([1_000_000_000, 10**15, None], pa.timestamp("us"))])
SPANS = pa.chunked_array([pa.array([1_000_000_000, 1_000_000, None], pa.duration("us"))])


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (WHOLE, 1, [True, False]),
        (WHOLE, 1.0, [True, False]),
        (WHOLE, np.int8(2), [False, True]),
        (WHOLE, 1.5, [False, False]),
        (WHOLE, Decimal("1.5"), [False, False]),
        (WHOLE, Fraction(3, 2), [False, False]),
        (WHOLE, Decimal(2), [False, True]),
        (WHOLE, 1 << 70, [False, False]),
        (WHOLE, float("nan"), [False, False]),
        (PRICES, float("inf"), [False, False]),
        (TENTHS, 0.1, [True, False]),
        (TENTHS, Decimal("0.1"), [True, False]),
        (TENTHS, 1, [False, True]),
        (TENTHS, (1 << 53) + 1, [False, False]),
        (TENTHS, 10**400, [False, False]),
        (SINGLE, 0.1, [True, False]),
        (SINGLE, 16777216, [False, True]),
        (SINGLE, 16777217, [False, False]),
        (SINGLE, 16777217.0, [False, False]),
        (PRICES, 1.5, [True, False]),
        (PRICES, 0.1, [False, True]),
        (PRICES, Decimal("1.505"), [False, False]),
        (PRICES, 10**9, [False, False]),
        (TIMES, np.datetime64(1000, "s"), [True, False]),
        (TIMES, np.datetime64(1_000_000_000, "ns"), [False, False]),
        (TIMES, datetime.datetime(1970, 1, 1, 0, 16, 40), [True, False]),
        (SPANS, np.timedelta64(1_000_000_000, "ns"), [False, True]),
    ],
)
def test_equal_values(column: pa.ChunkedArray, value: Any, expected: list[bool]) -> None:
    assert equal_values(column, [value], "column", "here").tolist() == [*expected, False]


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        (WHOLE, "1", "cannot be compared with the values"),
        (TIMES, "now", "cannot be compared with the values"),
        (pa.chunked_array([[[1], [2]]]), [1], "lists or records"),
    ],
)
def test_what_cannot_be_compared_is_an_error(column: pa.ChunkedArray, value: Any, match: str) -> None:
    with pytest.raises(FramedexError, match=match):
        equal_values(column, [value], "column", "here")


@pytest.mark.parametrize("encoded", [False, True])
def test_several_values_and_signed_zeros_and_parts_that_encode_differently(encoded: bool) -> None:
    parts = [pa.array([0.0, -0.0, float("nan"), None]), pa.array([2.5, None, 0.0])]
    column = pa.chunked_array([part.dictionary_encode() for part in parts] if encoded else parts)
    found = equal_values(column, [0, 2.5, None, float("nan")], "column", "here").tolist()
    assert found == [True, True, False, False, True, False, True]
    assert equal_values(pa.chunked_array([], column.type), [1.0], "column", "here").tolist() == []
