"""Parsing AV1 sequence and frame headers gives the fields that were written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.av1 import packet_slots, sequence_header_obu, split_obus
from framedex.indexer.bitstream.av1_headers import (
    ALL_FRAMES,
    INTRA_ONLY_FRAME,
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
    shows=st.integers(0, 7),
    short=st.booleans(),
    references=st.tuples(*[st.integers(0, 7)] * 7),
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
    assert found.listed.tolist() == [frame.lists(sequence) for frame in written]
    for row, frame in enumerate(written):
        if frame.lists(sequence):
            assert found.uses[row] == frame.uses(sequence)
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


def scanned(*packets: list[Frame]) -> tuple[list[int], bool]:
    """Return what `packet_slots` returns for packets of frames, of which the first is a start."""
    sequence = Sequence(frame_ids=False)
    frames = [frame for packet in packets for frame in packet]
    heads = [frame.write(sequence)[0] for frame in frames]
    headers = parse_frame_headers(heads, np.full(len(frames), -1), parse_sequence_header(sequence.write()))
    number = np.repeat(np.arange(len(packets)), [len(packet) for packet in packets])
    slots, gap = packet_slots(number, headers, np.arange(len(packets)) == 0)
    return slots.tolist(), gap


def slots_of(*packets: list[Frame]) -> list[tuple[int, int] | None]:
    """Return (used, refreshed) slots of packets of frames, of which the first is a start. None: they are not known."""
    found, _ = scanned(*packets)
    return [(slots & 255, slots >> 8 & 255) if slots >> 16 else None for slots in found]


KEY = Frame(kind=KEY_FRAME, hint=0)


def test_a_packet_uses_the_slots_that_it_did_not_refresh_itself() -> None:
    hidden = Frame(shown=False, refresh=0b1000, references=(0,) * 7, hint=4)
    shown = Frame(refresh=0b0010, references=(3, 3, 3, 3, 3, 3, 5), hint=1)
    found = slots_of([KEY], [hidden, shown], [replace(shown, hint=2)])
    assert found == [(0, 255), (0b100001, 0b1010), (0b101000, 0b10)]


def test_only_a_key_frame_that_is_shown_again_refreshes_slots() -> None:
    again = Frame(existing=True, shows=2)
    inter = Frame(refresh=0b100, references=(0,) * 7, shown=False, hint=1)
    key = Frame(kind=KEY_FRAME, shown=False, refresh=0b100, hint=2)
    found = slots_of([KEY], [inter], [again], [key], [again])
    assert found[1:] == [(1, 0b100), (0b100, 0), (0, 0b100), (0b100, 255)]


@pytest.mark.parametrize(
    "frame",
    [Frame(short=True), Frame(resilient=True), Frame(kind=SWITCH_FRAME), Frame(kind=INTRA_ONLY_FRAME, resilient=True)],
    ids=["short signaling", "states order hints", "switch frame", "intra-only frame that states order hints"],
)
def test_slots_that_depend_on_the_decoder_s_state_are_not_known(frame: Frame) -> None:
    assert slots_of([KEY], [replace(frame, hint=1)]) == [(0, 255), None]


def test_what_is_shown_again_before_any_key_frame_is_not_known() -> None:
    assert slots_of([Frame(existing=True, shows=2)]) == [None]


@pytest.mark.parametrize("hints", [(1, 3), (1, 1), (2, 1), (126, 127)], ids=str)
def test_from_a_missing_picture_on_nothing_is_known_until_the_next_start(hints: tuple[int, int]) -> None:
    found = slots_of([KEY], *[[Frame(hint=hint)] for hint in (*hints, hints[-1] + 1)])
    known = [slots is not None for slots in found]
    assert known[-2:] == [False, False]
    assert known[:2] == [True, hints[0] == 1]


def test_order_hints_begin_again_at_zero() -> None:
    hints = [[Frame(hint=hint % 128)] for hint in range(120, 140)]
    assert None not in slots_of([replace(KEY, hint=119)], *hints)
    assert not scanned([replace(KEY, hint=119)], *hints)[1]


@pytest.mark.parametrize("hints", [(1, 3), (1, 1), (2, 1)], ids=str)
def test_shown_frames_that_do_not_follow_each_other_are_a_gap(hints: tuple[int, int]) -> None:
    _, gap = scanned([KEY], *[[Frame(hint=hint)] for hint in hints])
    assert gap
