"""Bit fields: the scalar and the columnar reader return the values that were written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.base import BitColumns, BitReader

FIELDS = st.lists(
    st.one_of(
        st.tuples(st.just("ue"), st.integers(0, 5000)),
        st.integers(1, 16).flatmap(lambda bits: st.tuples(st.just(bits), st.integers(0, (1 << bits) - 1))),
    ),
    min_size=1,
    max_size=8,
)


def write(fields: list[tuple[object, int]]) -> bytes:
    """Encode fields as bits: unsigned Exp-Golomb codes ("ue") and fixed-length codes."""
    text = ""
    for kind, value in fields:
        digits = bin(value + 1)[2:]
        text += "0" * (len(digits) - 1) + digits if kind == "ue" else format(value, f"0{kind}b")
    text += "1"
    return int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")


@given(FIELDS)
def test_scalar_reader_returns_what_was_written(fields: list[tuple[object, int]]) -> None:
    bits = BitReader(write(fields))
    assert [bits.ue() if kind == "ue" else bits.u(int(str(kind))) for kind, _ in fields] == [
        value for _, value in fields
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 1), st.integers(0, 255), st.integers(0, 70_000)),
        min_size=1,
        max_size=20,
    )
)
def test_columnar_reader_reads_every_row_at_its_own_position(rows: list[tuple[int, int, int, int]]) -> None:
    columns = BitColumns([write([("ue", a), (1, b), (8, c), ("ue", d)]) for a, b, c, d in rows])
    found = [columns.ue(), columns.u(1), columns.u(8), columns.ue()]
    assert np.stack(found, axis=1).tolist() == [list(row) for row in rows]


def test_rows_left_out_do_not_move() -> None:
    columns = BitColumns([write([(4, 9), (4, 3)]), write([(4, 9), (4, 3)])])
    assert columns.u(4, where=np.array([True, False])).tolist() == [9, 0]
    assert columns.u(np.array([4, 8])).tolist() == [3, 0x93]


def test_reading_past_the_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="ends within"):
        BitReader(b"\x80").u(9)


@given(st.integers(-300, 300))
def test_signed_codes(value: int) -> None:
    code = 2 * value - 1 if value > 0 else -2 * value
    assert BitReader(write([("ue", code)])).se() == value
