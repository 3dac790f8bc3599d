"""Headers for NVDEC, of records and of packets, get full range and no cropping by FFmpeg's filters; the rest stays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import pytest

from framedex.indexer.bitstream import h264, hevc, nal
from framedex.loader.routing.movie import (
    SCANNERS,
    SEQUENCE_SET,
    CodedPicture,
    coded_picture,
    nvdec_packets,
    nvdec_record,
    nvdec_sets,
)
from tests.support.media import RECIPES
from tests.support.planned import packet_of
from tests.support.reading import encoded_of
from tests.support.shown_planes import planes_md5

NAMES = [name for name, recipe in RECIPES.items() if recipe.codec in ("libx264", "libx265")]
PARSERS = {"h264": h264, "hevc": hevc}
JPEG_RANGE = 2  # libav's number of full range


def _decoded(
    codec: str, record: bytes, packets: list[bytes], shown: CodedPicture | None = None
) -> tuple[list[str], set[int]]:
    """Return the md5 of the pictures' planes and the ranges that they state.

    Args:
        shown: the part of each picture to cut out before.
    """
    context = av.CodecContext.create(codec, "r")
    context.extradata = record
    context.thread_count = 1
    frames = [frame for packet in packets for frame in context.decode(packet_of(packet))] + context.decode(None)
    # Only the planes are compared: FFmpeg uses the name yuvj420p for yuv420p of full range.
    plain = [frame.reformat(format=frame.format.name.replace("j", "")) for frame in frames]
    return [planes_md5(frame, shown) for frame in plain], {int(frame.color_range) for frame in frames}


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_full_range_and_decodes_to_the_same_planes(name: str, medium: Callable[[str], Path]) -> None:
    with av.open(str(medium(name))) as container:
        stream = container.streams.video[0]
        codec, record = stream.codec_context.name, bytes(stream.codec_context.extradata or b"")
        packets = [bytes(packet) for packet in container.demux(stream) if packet.size][:12]
    written = nvdec_record(codec, record)
    assert written is not None
    before, after = (PARSERS[codec].parse_configuration(it) for it in (record, written))
    assert before[0] == after[0]
    others = [unit for unit in before[1] if unit not in nvdec_sets(codec, record)]
    assert others == [unit for unit in after[1] if SCANNERS[codec].unit_type(unit[0]) != SEQUENCE_SET[codec]]
    assert nvdec_record(codec, written) == written

    rewritten = nvdec_packets(codec, record, encoded_of(packets))
    assert rewritten is not None
    data, at = rewritten.payload.tobytes(), rewritten.packet_first.tolist()
    assert not any(unit in data for unit in nvdec_sets(codec, record))
    picture = coded_picture(codec, record)
    assert picture is not None
    planes, ranges = _decoded(codec, written, [data[a:b] for a, b in itertools.pairwise(at)], picture)
    assert planes == _decoded(codec, record, packets)[0]
    assert ranges == {JPEG_RANGE}
    assert coded_picture(codec, written) == replace(
        picture, left=0, top=0, shown_width=picture.width, shown_height=picture.height
    )


def _with_sets(codec: str, record: bytes, packet: bytes) -> bytes:
    """Return a packet that repeats the record's parameter sets."""
    length_size, units = PARSERS[codec].parse_configuration(record)
    return nal.join_length_prefixed(units, length_size) + packet


@pytest.mark.parametrize("name", ["h264_default.mp4", "hevc_closed.mp4"])
def test_sets_that_packets_repeat_say_full_range_as_well(name: str, medium: Callable[[str], Path]) -> None:
    with av.open(str(medium(name))) as container:
        stream = container.streams.video[0]
        codec, record = stream.codec_context.name, bytes(stream.codec_context.extradata or b"")
        packets = [bytes(packet) for packet in container.demux(stream) if packet.size][:8]
    repeated = [
        _with_sets(codec, record, packets[0]),
        *packets[1:4],
        _with_sets(codec, record, packets[4]),
        *packets[5:],
    ]
    encoded = encoded_of(repeated)
    rewritten = nvdec_packets(codec, record, encoded)
    assert rewritten is not None
    data, at = rewritten.payload.tobytes(), rewritten.packet_first.tolist()
    assert at[-1] == len(data)
    for old, new in nvdec_sets(codec, record).items():
        assert old not in data
        assert data.count(new) == 2
    pieces = [data[a:b] for a, b in itertools.pairwise(at)]
    planes, ranges = _decoded(codec, nvdec_record(codec, record) or b"", pieces, coded_picture(codec, record))
    assert planes == _decoded(codec, record, packets)[0]
    assert ranges == {JPEG_RANGE}


def test_what_cannot_be_rewritten_is_left_to_the_cpu(medium: Callable[[str], Path]) -> None:
    with av.open(str(medium("h264_default.mp4"))) as container:
        record = bytes(container.streams.video[0].codec_context.extradata or b"")
    other = (sorted(nvdec_sets("h264", record))[0][:-3] + b"\x55\x55\x80").join([b"", b""])
    packet = nal.join_length_prefixed([other], 4)
    encoded = encoded_of([packet])
    assert nvdec_packets("h264", record, encoded) is None
    cut = encoded_of([packet[:-2]])
    assert nvdec_packets("h264", record, cut) is None
    assert nvdec_record("h264", b"") is None
    assert nvdec_record("h264", record[:9]) is None
    assert nvdec_record("vp9", b"") is None
    broken = bytearray(record)
    broken[9:20] = bytes(11)
    assert nvdec_record("h264", bytes(broken)) is None
