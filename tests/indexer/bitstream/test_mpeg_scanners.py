"""MPEG hazards that no encoder here writes: field, skipped, packed, disposable, abbreviated pictures, lone headers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framedex.indexer.bitstream.base.states import StateTable
from framedex.indexer.bitstream.intra.intra_codecs import INTRA
from framedex.indexer.bitstream.registry import SCANNERS
from tests.support.depth import EXAMPLES
from tests.support.mpeg2_fields import B_FIELD, BOTTOM, I_FIELD, P_FIELD, TOP, field, group, sequence
from tests.support.planned import (
    OPEN_START,
    BitstreamError,
    Stream,
    demux,
    encode,
    presented,
    scan,
    scan_packets,
    wrong_frames,
)

HERE = sorted(
    {"mpeg1video", "mpeg2video", "mpeg4", "h263", "flv1", "ffv1", "theora", "mjpeg", "msmpeg4v3", "wmv2", "cfhd"}
)
VOP = b"\0\0\1\xb6"


def assert_exact(stream: Stream) -> Any:
    """Assert that the order and every single frame are those of a full decode; return what the scanner found."""
    pictures = scan(stream)
    full = stream.decode(range(len(stream.packets)))
    truth = {number: md5 for number, md5 in full if number is not None}
    assert presented(pictures) == [number for number, _ in full]
    assert wrong_frames(stream, pictures, truth, seed=3) == []
    return pictures


def field_pairs(second: int, *, headers_once: bool) -> list[tuple[bytes, bytes]]:
    """Return frames as pairs of field pictures: four open GOPs of I B B P B B."""
    frames = []
    for number in range(4):
        head = (b"" if headers_once and number else sequence()) + group()
        level = 10 + 11 * number
        after = field(I_FIELD, BOTTOM, 2, -level) if second == I_FIELD else field(P_FIELD, BOTTOM, 2, select=0)
        frames.append((head + field(I_FIELD, TOP, 2, level), after))
        frames += [(field(B_FIELD, TOP, place), field(B_FIELD, BOTTOM, place)) for place in (0, 1)]
        frames.append((field(P_FIELD, TOP, 5, select=1), field(P_FIELD, BOTTOM, 5, select=number % 2)))
        frames += [(field(B_FIELD, TOP, place), field(B_FIELD, BOTTOM, place)) for place in (3, 4)]
    return frames


@pytest.mark.parametrize("second", [I_FIELD, P_FIELD])
@pytest.mark.parametrize("headers_once", [False, True])
@pytest.mark.parametrize("apart", [lambda n: False, lambda n: True, lambda n: n % 2 == 0])
def test_field_pictures_are_kept_together(second: int, headers_once: bool, apart: Callable[[int], bool]) -> None:
    packets: list[bytes] = []
    for number, pair in enumerate(field_pairs(second, headers_once=headers_once)):
        packets += pair if apart(number) else [b"".join(pair)]
    stream = Stream(decoder="mpeg2video", codec="mpeg2video", packets=tuple(packets), reorder_depth=1)
    pictures = assert_exact(stream)
    assert np.count_nonzero(pictures.continues) == sum(apart(number) for number in range(24))
    assert pictures.field_coded.all()
    assert np.count_nonzero(pictures.start == OPEN_START) == 4
    assert len(pictures.states) == 1 + headers_once


@pytest.fixture(scope="module")
def mpeg4(media_folder: Path) -> Stream:
    """Return MPEG-4 with B-VOPs; its headers are in the extradata."""
    path = media_folder / "scan_hazards.mp4"
    return demux(encode(path, "mpeg4", {"g": "9", "bf": "2"}, pix_fmt="yuv420p", size=(176, 144), frames=30))


def lone_vop(kind: int, increment: int) -> bytes:
    """Return a VOP that is not coded; at 25 frames per second, the increment has 5 bits."""
    bits = f"{kind:02b}01{increment:05b}1001111111"[:16]
    return VOP + int(bits, 2).to_bytes(2, "big")


@pytest.mark.parametrize("at", [5, 14, 30])
@pytest.mark.parametrize("count", [1, 2])
def test_vops_that_are_not_coded_give_no_picture_but_at_the_end(mpeg4: Stream, at: int, count: int) -> None:
    lone = tuple(lone_vop(1, at % 25) for _ in range(count))
    assert_exact(dataclasses.replace(mpeg4, packets=mpeg4.packets[:at] + lone + mpeg4.packets[at:]))


def test_mpeg4_headers_that_come_once_are_states(mpeg4: Stream) -> None:
    packets = tuple(packet[packet.find(VOP) :] for packet in mpeg4.packets)
    once = dataclasses.replace(mpeg4, extradata=b"", packets=(mpeg4.extradata + packets[0], *packets[1:]))
    assert assert_exact(once).states == (b"", mpeg4.extradata)
    named = b"\0\0\1\xb2XviD0050"  # from here on, the decoder uses another inverse transform
    changed = dataclasses.replace(mpeg4, packets=(*packets[:13], named + packets[13], *packets[14:]))
    assert assert_exact(changed).states == (b"", mpeg4.extradata + named)


def packed(stream: Stream, increments: Callable[[int], int]) -> Stream:
    """Return the stream with B-VOPs packed as XviD does it: [P B] [B] [placeholder, with a time increment]."""
    packets: list[bytes] = []
    anchor, waiting = 0, False
    for packet in (*stream.packets, None):
        is_b = packet is not None and packet[packet.find(VOP) + 4] >> 6 == 2
        if packet is not None and is_b and not waiting:
            packets[-1] += packet
            waiting = True
        elif packet is not None and is_b:
            packets.append(packet)
        else:
            if waiting:
                packets.append(lone_vop(1, increments(anchor)))
            waiting = False
            if packet is not None:
                packets.append(packet)
                head = int.from_bytes(packet[packet.find(VOP) + 4 :][:3], "big")
                anchor = head >> 15 & 31 if not head >> 21 & 1 else head >> 14 & 31
    return dataclasses.replace(stream, extradata=stream.extradata + b"\0\0\1\xb2DivX503b1393p", packets=tuple(packets))


def test_packed_b_vops_belong_to_the_next_packet(mpeg4: Stream) -> None:
    stream = packed(mpeg4, lambda anchor: anchor)
    pictures = assert_exact(stream)
    assert not pictures.non_reference.any()
    assert np.count_nonzero(pictures.start == OPEN_START) >= 2
    other_times = assert_exact(packed(mpeg4, lambda anchor: (anchor + 7) % 25))
    assert np.flatnonzero(other_times.start).tolist() == [0]
    with pytest.raises(BitstreamError, match="not marked as packed"):
        scan(dataclasses.replace(stream, extradata=mpeg4.extradata))


def test_disposable_pictures_of_flash_video_may_be_dropped(media_folder: Path) -> None:
    path = media_folder / "scan_hazards.flv"
    stream = demux(encode(path, "flv", {"g": "10"}, pix_fmt="yuv420p", size=(176, 144), frames=30))
    packets = list(stream.packets)
    for number in (1, 5, 11, 12, 16, 25):  # 1 before any other P picture: never shown
        value = int.from_bytes(packets[number], "big")
        shift = 8 * len(packets[number]) - 33 - 2  # after a size that takes a 3-bit code alone
        packets[number] = (value ^ (3 << shift)).to_bytes(len(packets[number]), "big")
    pictures = assert_exact(dataclasses.replace(stream, packets=tuple(packets)))
    assert np.flatnonzero(pictures.non_reference).tolist() == [1, 5, 11, 12, 16, 25]
    assert np.flatnonzero(pictures.leading).tolist() == [1, 11, 12]
    assert np.flatnonzero(pictures.skipped).tolist() == [1]


def test_abbreviated_jpeg_starts_where_tables_are(media_folder: Path) -> None:
    path = media_folder / "scan_hazards.avi"
    stream = demux(encode(path, "mjpeg", {"huffman": "optimal"}, pix_fmt="yuvj420p", size=(128, 64), frames=20))
    packets = [packet if n % 6 == 0 else without(packet, 0xC4) for n, packet in enumerate(stream.packets)]
    pictures = assert_exact(dataclasses.replace(stream, packets=tuple(packets)))
    assert np.flatnonzero(pictures.start).tolist() == [0, 6, 12, 18]


def without(jpeg: bytes, marker: int) -> bytes:
    """Return a JPEG picture without the segments that have a given marker."""
    at, kept = 2, jpeg[:2]
    while jpeg[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        kept += jpeg[at:end] if jpeg[at + 1] != marker else b""
        at = end
    return kept + jpeg[at:]


def test_mpeg2_size_change_loses_the_picture_held_back(media_folder: Path) -> None:
    options = {"g": "9", "bf": "2"}
    streams = [
        demux(
            encode(media_folder / f"scan_{w}.m2v", "mpeg2video", options, pix_fmt="yuv420p", size=(w, 128), frames=15)
        )
        for w in (160, 176)
    ]
    both = dataclasses.replace(streams[0], packets=streams[0].packets + streams[1].packets)
    pictures = assert_exact(both)
    assert pictures.varying_shape
    assert np.flatnonzero(pictures.skipped).tolist() == [13]  # of packets 0 to 14, the last P picture


def test_mpeg2_delay_that_changes_is_refused(media_folder: Path) -> None:
    streams = [
        demux(
            encode(media_folder / f"scan_{b}.m2v", "mpeg2video", options, pix_fmt="yuv420p", size=(160, 128), frames=9)
        )
        for b, options in enumerate(({"g": "9", "bf": "2"}, {"g": "9", "bf": "0", "flags": "+low_delay"}))
    ]
    with pytest.raises(BitstreamError, match="low_delay changes at packet 9"):
        scan(dataclasses.replace(streams[0], packets=streams[0].packets + streams[1].packets))


def test_unknown_codecs_are_decoded_from_the_beginning() -> None:
    pictures = scan_packets("cinepak", b"\0", b"\0", b"\0")
    assert pictures.start.tolist() == [1, 0, 0]
    assert not pictures.non_reference.any()


def test_chained_theora_and_packets_without_data_are_refused() -> None:
    frames = (b"\0", b"\x40")
    assert len(scan_packets("theora", *frames).start) == 2
    with pytest.raises(BitstreamError, match="a header packet stands between frames"):
        scan_packets("theora", *frames, b"\x80theora")
    with pytest.raises(BitstreamError, match="packet 2 has no data"):
        scan_packets("theora", *frames, b"")


def test_cineform_with_inter_frames_is_decoded_from_the_beginning() -> None:
    for kind, starts in ((9, [1, 1]), (2, [1, 0])):
        assert scan_packets("cfhd", b"\0\1\0\x09", bytes([0, 1, 0, kind])).start.tolist() == starts


def test_intra_codecs_are_known_by_name() -> None:
    assert not INTRA & SCANNERS.keys()
    for codec in INTRA:
        pictures = scan(Stream(decoder="", codec=codec, intra_only=True, packets=(b"\0",)))
        assert pictures.non_reference.tolist() == [True]


@given(st.binary(max_size=60), st.lists(st.binary(max_size=60), max_size=5), st.sampled_from(HERE))
@settings(max_examples=4 * EXAMPLES)
def test_scanners_raise_bitstream_errors_alone(configuration: bytes, packets: list[bytes], codec: str) -> None:
    prefix = {"mpeg4": b"\0\0\1\x20", "mjpeg": b"\xff\xd8\xff", "h263": b"\0\0\x80"}.get(codec, b"\0\0\1")
    with contextlib.suppress(BitstreamError):
        pictures = scan_packets(codec, *(prefix + packet for packet in packets), configuration=configuration)
        assert len(pictures.start) == len(packets)


@pytest.mark.parametrize("codec", HERE)
def test_streams_of_no_packets_have_no_pictures(codec: str) -> None:
    assert len(scan_packets(codec).start) == 0


def test_an_mpeg4_start_code_within_another_is_none() -> None:
    """Found by fuzzing: the first of the two start codes had three bytes."""
    pictures = scan_packets("mpeg4", b"\0\0\1" + VOP, configuration=b"\0\0\1" + VOP)
    assert pictures.damaged.all()
    assert not pictures.start.any()


def test_mpeg4_user_data_that_names_no_encoder_is_no_state(mpeg4: Stream) -> None:
    notes = [b"\0\0\1\xb2time %d" % number for number in range(len(mpeg4.packets))]
    noted = [note + packet for note, packet in zip(notes, mpeg4.packets, strict=True)]
    assert scan_packets("mpeg4", *noted, configuration=mpeg4.extradata).states == (b"",)


@pytest.mark.parametrize(
    ("codec", "before", "unit"),
    [
        ("mpeg4", b"", b"\0\0\1\xb2Lavc%d"),
        ("mpeg2video", sequence(), b"\0\0\1\xb5\x38%04d"),
        ("mpeg2video", sequence(), b"\0\0\1\xb5\x20%04d"),
    ],
)
def test_headers_that_gather_without_end_are_refused(codec: str, before: bytes, unit: bytes) -> None:
    with pytest.raises(BitstreamError, match="header units"):
        scan_packets(codec, before + b"".join(unit % number for number in range(65)))


def test_decoder_states_without_end_are_refused() -> None:
    table = StateTable(b"")
    assert [table.number(b"%d" % number) for number in range(1, 1000)] == [*range(1, 1000)]
    with pytest.raises(BitstreamError, match="1000 decoder states"):
        table.number(b"another")
    with pytest.raises(BitstreamError, match="65537 bytes"):
        StateTable(b"").number(bytes((1 << 16) + 1))


def test_packet_0_of_mpeg2_brings_its_own_state() -> None:
    packet = b"\0\0\1\xb2\0TMPGEXS\0" + field(I_FIELD, TOP, 0) + field(I_FIELD, BOTTOM, 0)
    pictures = scan_packets("mpeg2video", packet, group() + packet, configuration=sequence())
    assert pictures.start.all()
    assert pictures.state.tolist()[0] == 0
    assert pictures.state.tolist()[1] > 0


def test_mpeg2_pictures_before_the_first_start_are_damaged() -> None:
    leading = sequence() + group(closed=True) + field(B_FIELD, TOP, 0) + field(B_FIELD, BOTTOM, 0)
    pictures = scan_packets("mpeg2video", leading, field(I_FIELD, TOP, 1) + field(I_FIELD, BOTTOM, 1))
    assert pictures.damaged.tolist() == [True, False]


def test_mpeg4_pictures_before_the_first_start_are_damaged(mpeg4: Stream) -> None:
    """If only some groups carry time codes, decoding starts only at these."""
    time_code = b"\0\0\1\xb3\0\x10\x07"
    last = max(number for number, start in enumerate(scan(mpeg4).start.tolist()) if start)
    bare = [packet[7:] if packet.startswith(b"\0\0\1\xb3") else packet for packet in mpeg4.packets]
    packets = [time_code + packet if number == last else packet for number, packet in enumerate(bare)]
    pictures = scan_packets("mpeg4", VISUAL_OBJECT, *packets, configuration=mpeg4.extradata)
    assert np.flatnonzero(pictures.start).tolist() == [last + 1]
    assert pictures.damaged[1 : last + 1].all()


def test_starts_before_disposable_pictures_are_open() -> None:
    """Found by fuzzing: the plans of runs from such starts overlapped."""
    codes = [f"{1:017b}" + "0" * 13 + "010" + f"{kind:02b}" + "1" * 5 for kind in (0, 1, 0, 2)]
    pictures = scan_packets("flv1", *(int(code, 2).to_bytes(5, "big") for code in codes))
    assert pictures.start.tolist() == [1, 0, OPEN_START, 0]
    assert pictures.leading.tolist() == [False, False, False, True]


VISUAL_OBJECT = b"\0\0\1\xb5\x09"
