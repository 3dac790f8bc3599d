"""NAL units: how packets are split into units, and how parameter sets affect start points."""

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
# Like valid NAL units: no start code inside, and no trailing zero.
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


SPS, PPS = (7, 0), (8, 0)


def test_sets_equal_to_the_record_change_nothing() -> None:
    sets = ParameterSets()
    sets.configure(SPS, b"a", "facts")
    sets.meet(SPS, b"a\0", "facts")
    assert sets.in_force == ()
    assert not sets.differs
    assert len(sets.epochs) == 1


def test_a_set_that_differs_from_the_record_is_in_force_from_then_on() -> None:
    sets = ParameterSets()
    sets.configure(SPS, b"a", "facts")
    sets.meet(SPS, b"b", "facts")
    assert sets.in_force == ((SPS, b"b"),)
    assert sets.differs
    sets.meet(SPS, b"a", "facts")
    assert sets.in_force == ()


def test_sets_sent_once_are_in_force_and_no_change() -> None:
    sets = ParameterSets()
    sets.meet(PPS, b"once", "facts")
    sets.meet(SPS, b"once", "facts")
    assert sets.in_force == ((SPS, b"once"), (PPS, b"once"))
    assert not sets.differs


def test_a_change_of_facts_begins_an_epoch() -> None:
    sets = ParameterSets()
    sets.configure(SPS, b"a", "small")
    sets.meet(SPS, b"b", "small")
    assert len(sets.epochs) == 1
    sets.meet(SPS, b"c", "large")
    assert [epoch[SPS] for epoch in sets.epochs] == ["small", "large"]
