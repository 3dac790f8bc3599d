"""What the AV1 scanner says of headers written field by field, of damage, and of media made on the spot."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.av1_vpx.av1 import Av1Scanner, sequence_header_obu, split_obus
from framedex.indexer.bitstream.av1_vpx.av1_headers import (
    ALL_FRAMES,
    INTER_FRAME,
    INTRA_ONLY_FRAME,
    KEY_FRAME,
    SWITCH_FRAME,
    parse_frame_headers,
    parse_sequence_header,
)
from framedex.indexer.bitstream.base.pictures import CLOSED_START, NO_START, BitstreamError, Pictures
from tests.exactness.test_av_corpus import Packets, check_random_access, read_packets
from tests.support import media

TEMPORAL_DELIMITER = b"\x12\0"


class BitWriter:
    """Writes fields one after the other."""

    def __init__(self) -> None:
        self._text = ""

    def u(self, bits: int, value: int) -> None:
        if bits:
            self._text += f"{value & ((1 << bits) - 1):0{bits}b}"

    def bytes(self) -> bytes:
        padded = self._text + "1" + "0" * (-(len(self._text) + 1) % 8)
        return int(padded, 2).to_bytes(len(padded) // 8, "big")

    def __len__(self) -> int:
        return len(self._text)


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """Fields of a sequence header. points: (operating_point_idc, whether it has a decoder model)."""

    profile: int = 0
    reduced: bool = False
    timing: bool = False
    equal_interval: bool = False
    model: bool = False
    delay_bits: int = 7
    removal_bits: int = 11
    presentation_bits: int = 13
    initial_delay: bool = False
    points: tuple[tuple[int, bool], ...] = ((0, True),)
    size: tuple[int, int] = (176, 144)
    frame_ids: bool = False
    order_hint_bits: int = 7
    screen_tools: int = 2
    integer_mv: int = 2
    high_depth: bool = False
    twelve_bits: bool = False
    monochrome: bool = False
    colour: tuple[int, int, int] | None = None
    full_range: bool = False
    subsampling: tuple[int, int] = (1, 1)

    def write(self) -> bytes:
        """Return the payload, following 5.5.1."""
        out = BitWriter()
        out.u(3, self.profile)
        out.u(1, self.reduced)
        out.u(1, self.reduced)
        if self.reduced:
            out.u(5, 4)
        else:
            self._write_operation(out)
        out.u(8, 0x99)
        out.u(10, self.size[0] - 1)
        out.u(10, self.size[1] - 1)
        if not self.reduced:
            out.u(1, self.frame_ids)
            if self.frame_ids:
                out.u(4, 5)
                out.u(3, 6)
        out.u(3, 5)
        if not self.reduced:
            self._write_tools(out)
        out.u(3, 6)
        self._write_colour(out)
        out.u(1, 0)
        return out.bytes()

    @property
    def has_model(self) -> bool:
        return self.timing and self.model and not self.reduced

    def _write_operation(self, out: BitWriter) -> None:
        out.u(1, self.timing)
        if self.timing:
            out.u(32, 1)
            out.u(32, 25)
            out.u(1, self.equal_interval)
            if self.equal_interval:
                out.u(3, 0b010)
            out.u(1, self.model)
            if self.model:
                out.u(5, self.delay_bits - 1)
                out.u(32, 90_000)
                out.u(5, self.removal_bits - 1)
                out.u(5, self.presentation_bits - 1)
        out.u(1, self.initial_delay)
        out.u(5, len(self.points) - 1)
        for number, (point, modelled) in enumerate(self.points):
            out.u(12, point)
            out.u(5, 6 + 3 * (number % 2))
            if number % 2:
                out.u(1, 1)
            if self.timing and self.model:
                out.u(1, modelled)
                if modelled:
                    out.u(2 * self.delay_bits + 1, 3)
            if self.initial_delay:
                out.u(1, number % 2)
                if number % 2:
                    out.u(4, 9)

    def _write_tools(self, out: BitWriter) -> None:
        out.u(4, 10)
        out.u(1, self.order_hint_bits > 0)
        if self.order_hint_bits:
            out.u(2, 1)
        out.u(1, self.screen_tools == 2)
        if self.screen_tools != 2:
            out.u(1, self.screen_tools)
        if self.screen_tools:
            out.u(1, self.integer_mv == 2)
            if self.integer_mv != 2:
                out.u(1, self.integer_mv)
        if self.order_hint_bits:
            out.u(3, self.order_hint_bits - 1)

    def _write_colour(self, out: BitWriter) -> None:
        out.u(1, self.high_depth)
        if self.profile == 2 and self.high_depth:
            out.u(1, self.twelve_bits)
        if self.profile != 1:
            out.u(1, self.monochrome)
        out.u(1, self.colour is not None)
        for code in self.colour or ():
            out.u(8, code)
        if self.monochrome and self.profile != 1:
            out.u(1, self.full_range)
            return
        if self.colour != (1, 13, 0):
            out.u(1, self.full_range)
            across, down = self.subsampling
            if self.profile == 2 and self.high_depth and self.twelve_bits:
                out.u(1, across)
                if across:
                    out.u(1, down)
            if self.chroma == 1:
                out.u(2, 0)
        out.u(1, 0)

    @property
    def chroma(self) -> int:
        """chroma_format_idc."""
        if self.monochrome and self.profile != 1:
            return 0
        if self.profile == 1 or self.colour == (1, 13, 0):
            return 3
        if self.profile == 0:
            return 1
        if self.high_depth and self.twelve_bits:
            return 3 - self.subsampling[0] * (1 + self.subsampling[1])
        return 2


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Fields of a frame header."""

    existing: bool = False
    kind: int = INTER_FRAME
    shown: bool = True
    resilient: bool = False
    screen: bool = False
    resized: bool = False
    removal: bool = False
    refresh: int = 0
    extension: int = -1
    filler: int = field(default=0x5A5A5A5A5A5A5A5A)

    def write(self, sequence: Sequence) -> tuple[bytes, int]:
        """Return the payload and the bits up to refresh_frame_flags, following 5.9.2."""
        out = BitWriter()
        if sequence.reduced:
            out.u(32, self.filler)
            return out.bytes(), 0
        out.u(1, self.existing)
        if self.existing:
            return out.bytes() + b"\0", 1
        out.u(2, self.kind)
        out.u(1, self.shown)
        if self.shown and sequence.has_model and not sequence.equal_interval:
            out.u(sequence.presentation_bits, self.filler)
        if not self.shown:
            out.u(1, 1)
        if not self.takes_all:
            out.u(1, self.resilient)
        out.u(1, 0)
        if sequence.screen_tools == 2:
            out.u(1, self.screen)
        if (self.screen if sequence.screen_tools == 2 else sequence.screen_tools) and sequence.integer_mv == 2:
            out.u(1, 1)
        out.u(14 if sequence.frame_ids else 0, self.filler)
        if self.kind != SWITCH_FRAME:
            out.u(1, self.resized)
        out.u(sequence.order_hint_bits, self.filler)
        if not (self.kind in (KEY_FRAME, INTRA_ONLY_FRAME) or self.resilient or self.takes_all):
            out.u(3, 5)
        if sequence.has_model:
            self._write_removal_times(out, sequence)
        if not self.takes_all:
            out.u(8, self.refresh)
        length = len(out)
        out.u(64, self.filler)
        return out.bytes(), length

    @property
    def takes_all(self) -> bool:
        return self.kind == SWITCH_FRAME or (self.kind == KEY_FRAME and self.shown)

    def _write_removal_times(self, out: BitWriter, sequence: Sequence) -> None:
        out.u(1, self.removal)
        layer = max(self.extension, 0)
        for point, modelled in sequence.points if self.removal else ():
            within = point >> (layer >> 5) & 1 and point >> ((layer >> 3 & 3) + 8) & 1
            if modelled and (point == 0 or within):
                out.u(sequence.removal_bits, self.filler)


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


def obu(kind: int, payload: bytes, extension: int = -1) -> bytes:
    """Return an OBU with a size field of two bytes."""
    size = bytes([len(payload) & 127 | 128, len(payload) >> 7])
    if extension < 0:
        return bytes([kind << 3 | 2]) + size + payload
    return bytes([kind << 3 | 6, extension]) + size + payload


SEQUENCE = Sequence()
SEQUENCE_OBU = obu(1, SEQUENCE.write())


def frame_obu(sequence: Sequence = SEQUENCE, **fields: Any) -> bytes:
    """Return a frame OBU, or a frame header OBU that shows an existing frame."""
    frame = Frame(**fields)
    return obu(3 if frame.existing else 6, frame.write(sequence)[0], frame.extension)


KEY = frame_obu(kind=KEY_FRAME)
REFERENCE, LONE = frame_obu(refresh=4), frame_obu(refresh=0)


def scan(*packets: bytes, configuration: bytes = b"") -> Pictures:
    scanner = Av1Scanner(configuration)
    for packet in packets:
        scanner.feed(packet)
    return scanner.finish()


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
    with pytest.raises(BitstreamError, match="packet 1 holds 2 shown frames") as caught:
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
    with pytest.raises(BitstreamError, match="changes at packet 1") as caught:
        scan(SEQUENCE_OBU + KEY, late, REFERENCE)
    assert caught.value.kind == "parameter_sets"


def test_frames_before_any_sequence_header_are_refused() -> None:
    for configuration in (b"", b"\x81\0\0\0" + SEQUENCE_OBU):
        with pytest.raises(BitstreamError, match="before any sequence header"):
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


@pytest.mark.parametrize("size", [1, 127, 128, 300])
def test_a_sequence_header_obu_holds_its_payload(size: int) -> None:
    data = sequence_header_obu(bytes(size))
    assert [(kind, data[start:end]) for kind, _, start, end in split_obus(data)] == [(1, bytes(size))]


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=5), st.binary(max_size=30))
def test_the_scanner_raises_nothing_but_bitstream_errors(packets: list[bytes], configuration: bytes) -> None:
    with contextlib.suppress(BitstreamError):
        scan(SEQUENCE_OBU + KEY, *packets, b"\x32\x0c" + packets[0] if packets else KEY, configuration=configuration)


SVT = {"preset": "12", "g": "12", "svtav1-params": "keyint=12"}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        media.Recipe(name="av1_default.mp4", codec="libsvtav1", options=SVT, frames=40),
        media.Recipe(name="av1_10bit.mkv", codec="libsvtav1", options=SVT, pix_fmt="yuv420p10le", frames=26),
        media.Recipe(name="av1_low_delay.mp4", codec="libsvtav1", options={**SVT, "svtav1-params": "pred-struct=1"}),
        media.Recipe(name="av1_grain.mkv", codec="libsvtav1", options={**SVT, "svtav1-params": "film-grain=20"}),
    )
}


@pytest.mark.parametrize("name", RECIPES)
def test_random_access_equals_the_full_decode(name: str, media_folder: Path, rng: np.random.Generator) -> None:
    packets = read_packets(media.make(RECIPES[name], media_folder))
    assert np.count_nonzero(packets.scan().start) >= 2
    truth = packets.full_decode()
    assert len(truth) == RECIPES[name].frames
    assert check_random_access(packets, truth, rng, most=12) == 12


def _strip_later_headers(packets: Packets) -> Packets:
    """Return the packets with the sequence headers left out of all but the first."""
    data = packets.data[:1]
    for packet in packets.data[1:]:
        kept = bytearray()
        at = 0
        for kind, _, _, end in split_obus(packet):
            kept += b"" if kind == 1 else packet[at:end]
            at = end
        data.append(bytes(kept))
    return replace(packets, data=data)


def test_starts_decode_with_the_state_they_are_given(media_folder: Path, rng: np.random.Generator) -> None:
    packets = _strip_later_headers(read_packets(media.make(RECIPES["av1_default.mp4"], media_folder)))
    pictures = packets.scan()
    assert len(pictures.states) == 2
    assert np.count_nonzero(pictures.state) == np.count_nonzero(pictures.start) - 1
    truth = packets.full_decode()
    assert len(truth) == 40
    check_random_access(packets, truth, rng, most=12)


def test_droppable_units_are_found_and_all_of_them_can_go_at_once(media_folder: Path) -> None:
    packets = read_packets(media.make(RECIPES["av1_default.mp4"], media_folder))
    truth, pictures = packets.full_decode(), packets.scan()
    needed = np.flatnonzero(~pictures.non_reference).tolist()
    assert len(needed) < 0.9 * len(packets.data)
    assert dict(packets.decode(needed)) == {number: truth[number] for number in needed if number in truth}
