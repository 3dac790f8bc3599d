"""Reference picture sets: parsed as written, predicted as the standard specifies; missing pictures are found."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.base.bits import BitReader
from framedex.indexer.bitstream.h26x.hevc_references import (
    References,
    ReferringPicture,
    ShortTermSet,
    missing_references,
    parse_reference_sets,
    parse_short_term_set,
    parse_slice_references,
)
from tests.indexer.bitstream.test_bits import write

GAPS = st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=4)


def explicit(gaps: list[tuple[int, bool]], sign: int) -> tuple[tuple[int, bool], ...]:
    """Convert gaps between neighbours to differences from the current picture."""
    total, deltas = 0, []
    for gap, used in gaps:
        total += sign * gap
        deltas.append((total, used))
    return tuple(deltas)


@given(GAPS, GAPS)
def test_an_explicit_set_is_read_as_written(before: list[tuple[int, bool]], after: list[tuple[int, bool]]) -> None:
    fields: list[tuple[object, int]] = [("ue", len(before)), ("ue", len(after))]
    for gap, used in (*before, *after):
        fields += [("ue", gap - 1), (1, int(used))]
    found = parse_short_term_set(BitReader(write(fields)), [], in_slice=False)
    assert found == ShortTermSet(before=explicit(before, -1), after=explicit(after, 1))


def test_a_predicted_set_shifts_its_source() -> None:
    source = ShortTermSet(before=((-2, True), (-4, True)), after=((2, True),))
    # Predicted from the previous set with a shift of +1. The candidates are -2, -4, 2 and 0: the second is dropped,
    # the third is kept but unused.
    fields: list[tuple[object, int]] = [(1, 1), (1, 0), ("ue", 0), (1, 1), (1, 0), (1, 0), (1, 0), (1, 1), (1, 1)]
    found = parse_short_term_set(BitReader(write(fields)), [source], in_slice=False)
    assert found == ShortTermSet(before=((-1, True),), after=((1, True), (3, False)))


def refers(*deltas: int, unused: tuple[int, ...] = ()) -> References:
    return References(short_term=(*((d, True) for d in deltas), *((d, False) for d in unused)), long_term=())


def missing(pictures: list[tuple[int, bool, References | None]], cycle: int = 256) -> list[int]:
    return missing_references(ReferringPicture(*picture, cycle) for picture in pictures)


def test_a_picture_that_was_never_there_is_missing() -> None:
    pictures = [(0, True, refers()), (4, False, refers(-4)), (2, False, refers(-2, 2))]
    assert missing(pictures) == []
    assert missing([pictures[0], pictures[2]]) == [1]


def test_a_picture_that_an_earlier_set_let_go_is_missing() -> None:
    pictures = [(0, True, refers()), (1, False, refers(-1)), (2, False, refers(-1)), (3, False, refers(-3))]
    assert missing(pictures) == [3]
    pictures[2] = (2, False, refers(-1, unused=(-2,)))
    assert missing(pictures) == []


def test_skipped_pictures_neither_need_nor_are_references() -> None:
    pictures = [(8, True, refers()), (6, False, None), (10, False, refers(-4))]
    assert missing(pictures) == [2]


def test_long_term_references_match_by_low_bits_or_whole() -> None:
    first = (0, True, refers())
    for entry, expected in (
        ((0, False, True), []),
        ((0, True, True), []),
        ((16, True, True), [1]),
        ((3, False, False), []),
    ):
        assert missing([first, (40, False, References(short_term=(), long_term=(entry,)))], 16) == expected


@pytest.mark.parametrize("count", [65, 5000])
def test_absurd_numbers_of_sets_are_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="short-term"):
        parse_reference_sets(BitReader(write([("ue", count)])), 8)


@given(st.binary(max_size=60))
def test_any_bytes_end_in_sets_or_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        sets = parse_reference_sets(BitReader(data), 8)
        parse_slice_references(BitReader(data), sets, 100)


def test_more_long_term_pictures_than_allowed_are_refused() -> None:
    with pytest.raises(ValueError, match="33 long-term"):
        parse_reference_sets(BitReader(write([("ue", 0), (1, 1), ("ue", 33)])), 4)


def test_a_picture_buffer_does_not_grow_without_end() -> None:
    """Refer to every picture by its low bits, as long-term references may; no buffer holds more than 16."""
    every = References(short_term=(), long_term=tuple((low, False, False) for low in range(16)))
    pictures = [ReferringPicture(number, number == 0, every, 16) for number in range(40)]
    assert missing_references(pictures)[0] == 17
