"""NAL units: splitting whatever packets hold, and what parameter sets do to start points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.nal import (
    ParameterSets,
    join_length_prefixed,
    split_annex_b,
    split_length_prefixed,
    unescape,
)

UNIT = st.binary(min_size=1, max_size=40).filter(lambda unit: b"\0\0\1" not in unit)
# As a valid NAL unit is: no start code inside, and no trailing zero.
STRICT_UNIT = UNIT.filter(lambda unit: b"\0\0" not in unit and unit[-1] != 0)


@given(st.lists(UNIT, max_size=6), st.sampled_from([1, 2, 4]))
def test_length_prefixed_units_come_back(units: list[bytes], length_size: int) -> None:
    data = join_length_prefixed(units, length_size)
    spans, inner = split_length_prefixed(data, length_size)
    assert [data[start:end] for start, end in spans] == units
    assert not inner


@given(st.lists(STRICT_UNIT, min_size=1, max_size=6), st.booleans())
def test_annex_b_units_come_back_with_either_start_code(units: list[bytes], long: bool) -> None:
    code = b"\0\0\0\1" if long else b"\0\0\1"
    data = b"".join(code + unit for unit in units)
    assert [data[start:end] for start, end in split_annex_b(data)] == units


@given(st.lists(STRICT_UNIT, min_size=2, max_size=5))
def test_start_codes_inside_a_prefixed_unit_split_it(units: list[bytes]) -> None:
    inside = b"\0\0\1".join(units)
    data = join_length_prefixed([inside], 4)
    spans, inner = split_length_prefixed(data, 4)
    assert [data[start:end] for start, end in spans] == units
    assert inner


@pytest.mark.parametrize("data", [b"\0\0\0\5abc", b"\0\0", b"\xff\xff\xff\xff"])
def test_lengths_that_do_not_tile_the_packet_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="claims"):
        split_length_prefixed(data, 4)


def test_emulation_prevention_is_removed() -> None:
    assert unescape(b"\x01\0\0\3\1\0\0\3\0") == b"\x01\0\0\1\0\0\0"


SPS = (7, 0)


def test_sets_equal_to_the_record_change_nothing() -> None:
    sets = ParameterSets()
    sets.configure(SPS, b"a", "facts")
    sets.meet(SPS, b"a\0", "facts", 4)
    assert sets.changed([0, 9]) is None
    assert sets.missing_at([0, 9]) == []
    assert sets.differing() == []


def test_a_change_that_a_start_does_not_carry_is_found() -> None:
    sets = ParameterSets()
    sets.configure(SPS, b"a", "facts")
    sets.meet(SPS, b"b", "facts", 9)
    assert sets.changed([0, 9, 20]) == (SPS, 9)


def test_a_change_that_every_start_carries_is_harmless() -> None:
    sets = ParameterSets()
    for packet, nal in ((0, b"a"), (9, b"b"), (20, b"b")):
        sets.meet(SPS, nal, "facts", packet)
    assert sets.changed([0, 9, 20]) is None
    assert sets.differing() == [SPS]


def test_a_change_of_shape_is_never_harmless() -> None:
    sets = ParameterSets()
    sets.meet(SPS, b"a", "small", 0)
    sets.meet(SPS, b"b", "large", 9)
    assert sets.changed([0, 9]) == (SPS, 9)


def test_sets_sent_once_are_missing_at_later_starts() -> None:
    sets = ParameterSets()
    sets.meet(SPS, b"once", "facts", 0)
    assert sets.missing_at([0, 9]) == [b"once"]
