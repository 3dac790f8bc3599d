"""A clip's packets as a tiny MP4 in memory (ISO/IEC 14496-12). Pure bytes: no demuxer, no muxer, no file.

Timestamps are presentation ranks: 0, 1, 2, … with nothing before zero, because decoders that count frames (DALI among
them) return wrong pictures without an error when an edit list or negative timestamps are present.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TIMESCALE = 30  # one rank is one unit; players show the clip at 30 frames a second


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEntry:
    """How a codec is announced: the sample entry's four characters, and the box around its configuration record."""

    entry: bytes
    configuration: bytes | None


SAMPLE_ENTRIES = {
    "h264": SampleEntry(entry=b"avc1", configuration=b"avcC"),
    "hevc": SampleEntry(entry=b"hev1", configuration=b"hvcC"),
    "av1": SampleEntry(entry=b"av01", configuration=b"av1C"),
    "vp9": SampleEntry(entry=b"vp09", configuration=b"vpcC"),
    "mjpeg": SampleEntry(entry=b"jpeg", configuration=None),
}
# VP codec configuration of 8-bit 4:2:0, level not stated, BT.709: what libavformat assumes when a file has none.
VP9_CONFIGURATION = bytes.fromhex("01000000 00 0a 82 01 01 01 0000")

FILE_TYPE = b"isom" + struct.pack(">I", 0x200) + b"isomiso4"
UNITY_MATRIX = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)


def box(kind: bytes, *payloads: bytes) -> bytes:
    """Return a box around its payloads."""
    payload = b"".join(payloads)
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def full_box(kind: bytes, version: int, flags: int, *payloads: bytes) -> bytes:
    """Return a box with a version and flags."""
    return box(kind, struct.pack(">I", version << 24 | flags), *payloads)


def movie_header(
    *,
    codec: str,
    width: int,
    height: int,
    configuration: bytes,
    packet_size: NDArray[np.integer],
    packet_rank: NDArray[np.integer],
    sync: NDArray[np.integer],
) -> bytes:
    """Return all bytes of the movie up to its first packet; the packets follow, in decode order, without gaps.

    configuration: the codec's decoder configuration record. packet_size, packet_rank: int [packets]; ranks are a
    permutation of 0 … packets - 1. sync: int [starts], the numbers of packets where decoding may start.
    Raises ValueError for a codec that has no sample entry here, and for more than 4 GiB.
    """
    if codec not in SAMPLE_ENTRIES:
        raise ValueError(f"no MP4 sample entry for codec {codec!r}; known are {', '.join(SAMPLE_ENTRIES)}")
    count, payload = len(packet_size), int(packet_size.sum())
    head = box(b"ftyp", FILE_TYPE)
    sample_tables = [
        full_box(b"stsd", 0, 0, struct.pack(">I", 1), _sample_entry(codec, width, height, configuration)),
        full_box(b"stts", 0, 0, struct.pack(">III", 1, count, 1)),
        full_box(b"ctts", 1, 0, struct.pack(">I", count), _composition_offsets(packet_rank)),
        full_box(b"stss", 0, 0, struct.pack(">I", len(sync)), (sync + 1).astype(">u4").tobytes()),
        full_box(b"stsc", 0, 0, struct.pack(">IIII", 1, 1, count, 1)),
        full_box(b"stsz", 0, 0, struct.pack(">II", 0, count), packet_size.astype(">u4").tobytes()),
    ]
    # stco, the last box of moov, holds the offset of the payload, which depends on everything before it.
    moov_size = len(_moov(sample_tables, 0, width, height, count))
    first = len(head) + moov_size + 8
    if first + payload >= 1 << 32:
        raise ValueError(f"a clip of {payload} bytes does not fit a movie of 4 GiB")
    return head + _moov(sample_tables, first, width, height, count) + struct.pack(">I4s", 8 + payload, b"mdat")


def _composition_offsets(rank: NDArray[np.integer]) -> bytes:
    """Return ctts entries (8.6.1.3, version 1: signed): packet n is shown at rank[n], decoded at n."""
    entries = np.ones((len(rank), 2), ">i4")
    entries[:, 1] = rank - np.arange(len(rank))
    return entries.tobytes()


def _sample_entry(codec: str, width: int, height: int, configuration: bytes) -> bytes:
    """Return a VisualSampleEntry (12.1.3) with the codec's configuration box."""
    announced = SAMPLE_ENTRIES[codec]
    if codec == "vp9" and not configuration:
        configuration = VP9_CONFIGURATION
    resolution = 0x480000  # 72 dpi
    visual = struct.pack(">6xH16xHHIIIH32sHh", 1, width, height, resolution, resolution, 0, 1, b"", 24, -1)
    extra = box(announced.configuration, configuration) if announced.configuration else b""
    return box(announced.entry, visual, extra)


def _moov(sample_tables: list[bytes], first_packet: int, width: int, height: int, duration: int) -> bytes:
    chunk = full_box(b"stco", 0, 0, struct.pack(">II", 1, first_packet))
    data_reference = box(b"dinf", full_box(b"dref", 0, 0, struct.pack(">I", 1), full_box(b"url ", 0, 1)))
    media = box(
        b"mdia",
        full_box(b"mdhd", 0, 0, struct.pack(">IIIIHH", 0, 0, TIMESCALE, duration, 0x55C4, 0)),
        full_box(b"hdlr", 0, 0, struct.pack(">I4s12xx", 0, b"vide")),
        box(
            b"minf",
            full_box(b"vmhd", 0, 1, bytes(8)),
            data_reference,
            box(b"stbl", *sample_tables, chunk),
        ),
    )
    track_header = full_box(
        b"tkhd",
        0,
        3,
        struct.pack(">IIIII8xHHHH", 0, 0, 1, 0, duration, 0, 0, 0, 0),
        UNITY_MATRIX,
        struct.pack(">II", width << 16, height << 16),
    )
    movie = full_box(
        b"mvhd",
        0,
        0,
        struct.pack(">IIIIIH10x", 0, 0, TIMESCALE, duration, 0x10000, 0x100),
        UNITY_MATRIX,
        bytes(24),
        struct.pack(">I", 2),
    )
    return box(b"moov", movie, box(b"trak", track_header, media))
