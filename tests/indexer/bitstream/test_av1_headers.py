"""Parsing AV1 sequence and frame headers gives the fields that were written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.av1_vpx.av1 import sequence_header_obu, split_obus
from framedex.indexer.bitstream.av1_vpx.av1_headers import (
    ALL_FRAMES,
    KEY_FRAME,
    SWITCH_FRAME,
    parse_frame_headers,
    parse_sequence_header,
)
from tests.support.av1_writer import Frame, Sequence

sequences = st.builds(
    Sequence,
    profile=st.integers(0, 2),
    reduced=st.booleans(),
    timing=st.booleans(),
    equal_interval=st.booleans(),
    model=st.booleans(),
    delay_bits=st.integers(1, 32),
    removal_bits=st.integers(1, 32),
    presentation_bits=st.integers(1, 32),
    initial_delay=st.booleans(),
    points=st.lists(st.tuples(st.sampled_from([0, 0x101, 0x103, 0x107]), st.booleans()), min_size=1, max_size=4).map(
        tuple
    ),
    frame_ids=st.booleans(),
    order_hint_bits=st.integers(0, 8),
    screen_tools=st.integers(0, 2),
    integer_mv=st.integers(0, 2),
    high_depth=st.booleans(),
    twelve_bits=st.booleans(),
    monochrome=st.booleans(),
    colour=st.sampled_from([None, (1, 1, 1), (9, 16, 9)]),
    full_range=st.booleans(),
    subsampling=st.sampled_from([(1, 1), (1, 0), (0, 0)]),
)
frames = st.builds(
    Frame,
    existing=st.booleans(),
    kind=st.integers(0, 3),
    shown=st.booleans(),
    resilient=st.booleans(),
    screen=st.booleans(),
    resized=st.booleans(),
    removal=st.booleans(),
    refresh=st.integers(0, 255),
    extension=st.sampled_from([-1, 0, 0x20, 0x40, 0x28]),
)


@given(sequences)
def test_sequence_headers_give_the_fields_that_were_written(sequence: Sequence) -> None:
    found = parse_sequence_header(sequence.write())
    assert found.reduced == sequence.reduced
    assert found.shape[:2] == (sequence.size[0] - 1, sequence.size[1] - 1)
    assert found.chroma_format == sequence.chroma
    if not sequence.reduced:
        assert found.frame_id_bits == (14 if sequence.frame_ids else 0)
        assert found.order_hint_bits == sequence.order_hint_bits
        assert found.screen_content_tools == sequence.screen_tools
        assert found.operating_point == sequence.points[0][0]
        model = [point for point, modelled in sequence.points if modelled and sequence.has_model]
        assert list(found.removal_points) == model


@given(sequences, st.lists(frames, min_size=1, max_size=12))
def test_frame_headers_give_the_fields_that_were_written(sequence: Sequence, written: list[Frame]) -> None:
    heads = [frame.write(sequence) for frame in written]
    extension = np.array([frame.extension for frame in written])
    found = parse_frame_headers([head for head, _ in heads], extension, parse_sequence_header(sequence.write()))
    assert found.length.tolist() == [length for _, length in heads]
    for row, frame in enumerate(written):
        if sequence.reduced:
            assert (found.frame_type[row], found.shown[row], found.refresh[row]) == (KEY_FRAME, True, ALL_FRAMES)
            continue
        assert found.existing[row] == frame.existing
        assert found.shown[row] == (frame.existing or frame.shown)
        if not frame.existing:
            assert found.frame_type[row] == frame.kind
            assert found.refresh[row] == (ALL_FRAMES if frame.takes_all else frame.refresh)
            assert found.resized[row] == (frame.resized or frame.kind == SWITCH_FRAME)


@pytest.mark.parametrize("size", [1, 127, 128, 300])
def test_a_sequence_header_obu_holds_its_payload(size: int) -> None:
    data = sequence_header_obu(bytes(size))
    assert [(kind, data[start:end]) for kind, _, start, end in split_obus(data)] == [(1, bytes(size))]
