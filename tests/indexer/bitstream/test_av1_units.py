"""The AV1 scanner finds start points and droppable units, refuses unsupported streams and marks damaged units."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.av1 import Av1Scanner, sequence_header_obu, split_obus
from tests.support.av1_writer import INTRA_ONLY_FRAME, KEY_FRAME, SWITCH_FRAME, Frame, Sequence, obu
from tests.support.planned import CLOSED_START, NO_START, BitstreamError, scan_packets

TEMPORAL_DELIMITER = b"\x12\0"
SEQUENCE = Sequence()
SEQUENCE_OBU = obu(1, SEQUENCE.write())


def frame_obu(sequence: Sequence = SEQUENCE, **fields: Any) -> bytes:
    """Return a frame OBU, or a frame header OBU that shows an existing frame."""
    frame = Frame(**fields)
    return obu(3 if frame.existing else 6, frame.write(sequence)[0], frame.extension)


KEY = frame_obu(kind=KEY_FRAME)
REFERENCE, LONE = frame_obu(refresh=4), frame_obu(refresh=0)


scan = partial(scan_packets, "av1")


def test_starts_are_units_that_begin_with_a_shown_key_frame() -> None:
    units = [
        SEQUENCE_OBU + KEY,
        REFERENCE,
        SEQUENCE_OBU + frame_obu(kind=KEY_FRAME, shown=False, refresh=8) + REFERENCE,
        frame_obu(existing=True),
        frame_obu(kind=INTRA_ONLY_FRAME, refresh=1),
        frame_obu(kind=SWITCH_FRAME),
        frame_obu(shown=False, refresh=1) + SEQUENCE_OBU + KEY,
        TEMPORAL_DELIMITER + SEQUENCE_OBU + KEY + frame_obu(shown=False, refresh=1),
    ]
    pictures = scan(*units)
    assert pictures.start.tolist() == [CLOSED_START, *[NO_START] * 6, CLOSED_START]
    assert not pictures.damaged.any()
    assert not pictures.skipped.any()
    assert pictures.chroma_format == 1


def test_units_are_droppable_when_none_of_their_frames_is_kept() -> None:
    hidden = frame_obu(shown=False, refresh=1)
    units = [
        SEQUENCE_OBU + KEY,
        LONE,
        hidden + LONE,
        frame_obu(existing=True),
        SEQUENCE_OBU + LONE,
        frame_obu(shown=False, refresh=0) + LONE,
        hidden,
    ]
    pictures = scan(*units)
    assert pictures.non_reference.tolist() == [False, True, False, False, False, True, False]
    assert np.flatnonzero(pictures.skipped).tolist() == [6]


def test_units_with_several_shown_frames_are_refused() -> None:
    with pytest.raises(BitstreamError, match="packet 1 holds 2 frames that are output") as caught:
        scan(SEQUENCE_OBU + KEY, REFERENCE + LONE)
    assert caught.value.kind == "packing"


def test_spatial_layers_are_refused() -> None:
    layered = Sequence(points=((0x301, False), (0x101, False)))
    with pytest.raises(BitstreamError, match="spatial layers") as caught:
        scan(obu(1, layered.write()) + frame_obu(layered, kind=KEY_FRAME, extension=0))
    assert caught.value.kind == "packing"


def test_obus_outside_the_operating_point_count_for_nothing() -> None:
    layered = Sequence(points=((0x101, False), (0x103, False)))
    pictures = scan(
        obu(1, layered.write()) + frame_obu(layered, kind=KEY_FRAME, extension=0),
        frame_obu(layered, refresh=1, extension=0x20),
        frame_obu(layered, refresh=1, extension=0),
    )
    assert pictures.skipped.tolist() == [False, True, False]


@pytest.mark.parametrize("tile", [obu(4, b"tile"), obu(8, b"tiles")])
def test_loose_tiles_are_refused(tile: bytes) -> None:
    with pytest.raises(BitstreamError) as caught:
        scan(SEQUENCE_OBU + KEY, tile)
    assert caught.value.kind == "packing"


def test_a_frame_header_needs_its_tiles() -> None:
    header = obu(3, Frame(refresh=1).write(SEQUENCE)[0])
    pictures = scan(SEQUENCE_OBU + KEY, header + obu(4, b"tile"), header, LONE)
    assert pictures.damaged.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    "damage",
    [
        KEY[:-1],
        b"\x32",
        b"\x36\0",
        b"\xb2\0",
        b"\x32" + b"\xff" * 9,
        bytes([6 << 3 | 2, 1, 0x10]),
        obu(1, b"\0\0"),
    ],
)
def test_damaged_units_are_marked_and_the_rest_is_read(damage: bytes) -> None:
    pictures = scan(SEQUENCE_OBU + KEY, damage, SEQUENCE_OBU + KEY, LONE)
    assert pictures.damaged.tolist() == [False, True, False, False]
    assert pictures.start.tolist() == [CLOSED_START, NO_START, CLOSED_START, NO_START]
    assert pictures.non_reference.tolist() == [False, False, False, True]
    assert not pictures.skipped.any()


def test_the_last_obu_may_lack_a_size() -> None:
    assert split_obus(b"\x12\0" + b"\x30" + b"abc") == [(2, -1, 2, 2), (6, -1, 3, 6)]
    head = Frame(refresh=0).write(SEQUENCE)[0]
    assert scan(SEQUENCE_OBU + KEY, b"\x30" + head).non_reference.tolist() == [False, True]


def test_starts_without_a_sequence_header_are_given_the_one_in_force() -> None:
    other = Sequence(size=(320, 240))
    pictures = scan(SEQUENCE_OBU + KEY, KEY, obu(1, other.write()) + KEY, REFERENCE, KEY)
    assert pictures.start.tolist() == [1, 1, 1, 0, 1]
    given_ = [pictures.states[number] for number in pictures.state[[0, 1, 2, 4]].tolist()]
    assert given_ == [b"", sequence_header_obu(SEQUENCE.write()), b"", sequence_header_obu(other.write())]
    assert pictures.varying_shape


@pytest.mark.parametrize("unit", [REFERENCE, KEY])
def test_a_sequence_header_that_changes_past_its_place_is_refused(unit: bytes) -> None:
    other = obu(1, Sequence(order_hint_bits=3).write())
    late = unit + other if unit is KEY else other + unit
    with pytest.raises(BitstreamError, match="at packet 1") as caught:
        scan(SEQUENCE_OBU + KEY, late, REFERENCE)
    assert caught.value.kind == "parameter_sets"


def test_frames_before_any_sequence_header_are_refused() -> None:
    for configuration in (b"", b"\x81\0\0\0" + SEQUENCE_OBU):
        with pytest.raises(BitstreamError, match="precedes all sequence headers"):
            scan(KEY, configuration=configuration)


def test_frames_before_the_first_start_are_damaged_and_give_no_picture_before_an_intra_frame() -> None:
    intra = frame_obu(kind=INTRA_ONLY_FRAME, refresh=1)
    pictures = scan(SEQUENCE_OBU + REFERENCE, intra, REFERENCE, SEQUENCE_OBU + KEY, REFERENCE)
    assert pictures.skipped.tolist() == [True, False, False, False, False]
    assert pictures.damaged.tolist() == [True, True, True, False, False]


def test_sequence_headers_without_end_are_refused() -> None:
    headers = [obu(1, SEQUENCE_OBU[2:] + number.to_bytes(2, "big")) for number in range(1001)]
    with pytest.raises(BitstreamError, match="more than 1000 sequence headers"):
        scan(b"".join(headers))


def test_inband_headers_are_compared_with_the_configuration() -> None:
    other = obu(1, Sequence(order_hint_bits=3).write())
    for configuration, differs in ((SEQUENCE_OBU, False), (b"\x81\0\0\0" + SEQUENCE_OBU, False), (other, True)):
        assert scan(SEQUENCE_OBU + KEY, configuration=configuration).inband_sets is differs


@pytest.mark.parametrize("configuration", [b"\x0a\x7f\0", b"\x81\0\0\0\x0a\x02\0\0", b"\xff" * 40])
def test_a_configuration_record_that_is_none_is_refused(configuration: bytes) -> None:
    with pytest.raises(BitstreamError):
        Av1Scanner(configuration)


def test_empty_packets_are_refused_and_empty_streams_are_not() -> None:
    with pytest.raises(BitstreamError, match="empty"):
        scan(b"")
    assert len(scan().start) == 0


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=5), st.binary(max_size=30))
def test_the_scanner_raises_nothing_but_bitstream_errors(packets: list[bytes], configuration: bytes) -> None:
    with contextlib.suppress(BitstreamError):
        scan(SEQUENCE_OBU + KEY, *packets, b"\x32\x0c" + packets[0] if packets else KEY, configuration=configuration)


def test_references_of_a_packet_with_a_redundant_frame_header_are_not_known() -> None:
    first, second = frame_obu(refresh=4, hint=1), frame_obu(refresh=4, hint=2)
    key = SEQUENCE_OBU + frame_obu(kind=KEY_FRAME, hint=0)
    redundant = first + obu(7, Frame(refresh=4, hint=1).write(SEQUENCE)[0])
    for packet, known in ((first, True), (redundant, False)):
        slots = scan(key, packet, second).slots
        assert slots is not None
        assert (slots >> 16 != 0).tolist() == [True, known, True]
