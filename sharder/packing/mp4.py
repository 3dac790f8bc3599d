"""Tiny files in memory: the headers of an MP4 (ISO/IEC 14496-12) as bytes, and whole files from libavformat's muxers.

Timestamps are presentation ranks, 0, 1, 2, …, or real ones, counted from the first. They are never negative, because
decoders that count frames (DALI among them) return wrong pictures without an error if a file has an edit list or
negative timestamps.
"""

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from framedex.indexer.containers import demux_packets, memory_errors, open_container, packet_with
from framedex.sharder.clips.clip import Medium, stale
from framedex.sharder.reading import openable

TIMESCALE = 30  # units per second if ranks are the times, so that players show 30 frames per second
UNSPECIFIED = 2  # code point of colour primaries, transfer and matrix (ISO/IEC 23091-2)
UINT32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEntry:
    """The four-character codes of a codec.

    Attributes:
        entry: The sample entry.
        inband: The sample entry if packets may carry parameter sets (ISO/IEC 14496-15 5.4.2.1, 8.4.1.1).
        configuration: The box around the codec's configuration record; empty for a codec without one.
    """

    entry: bytes
    inband: bytes
    configuration: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTimes:
    """The presentation times of packets.

    Attributes:
        packet_time: int64 [packets], all different, none below 0.
        timescale: Units per second.
        last: Duration of the frame that is shown last.
    """

    packet_time: NDArray[np.int64]
    timescale: int
    last: int


SAMPLE_ENTRIES = {
    "h264": SampleEntry(entry=b"avc1", inband=b"avc3", configuration=b"avcC"),
    "hevc": SampleEntry(entry=b"hvc1", inband=b"hev1", configuration=b"hvcC"),
    "av1": SampleEntry(entry=b"av01", inband=b"av01", configuration=b"av1C"),
    "vp9": SampleEntry(entry=b"vp09", inband=b"vp09", configuration=b"vpcC"),
    "mjpeg": SampleEntry(entry=b"jpeg", inband=b"jpeg", configuration=b""),
}
# VP codec configuration of 8-bit 4:2:0, level not stated, BT.709: libavformat assumes these if a file has none.
VP9_CONFIGURATION = bytes.fromhex("01000000 00 0a 82 01 01 01 0000")

FILE_TYPE = b"isom" + struct.pack(">I", 0x200) + b"isomiso4"
UNITY_MATRIX = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
RESOLUTION = 0x480000  # 72 dpi, which 12.1.3 demands

# With these options, the same packets give the same bytes (no version strings, no random numbers), and times stay.
OPTIONS = {"fflags": "+bitexact", "avoid_negative_ts": "disabled"}
MOV_OPTIONS = {"use_editlist": "0", "movflags": "+negative_cts_offsets"}
MUXERS = {"mkv": "matroska", "mov": "mov", "mp4": "mp4", "avi": "avi"}  # by the extension of a file's name


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
    times: SampleTimes | None = None,
    inband: bool = True,
    aspect: tuple[int, int] | None = None,
    colour: tuple[int, int, int, bool] | None = None,
) -> bytes:
    """Return all bytes of the movie up to its first packet. The packets follow, in decode order, without gaps.

    Args:
        configuration: The codec's decoder configuration record.
        packet_size: int [packets], in bytes.
        packet_rank: int [packets], a permutation of 0 … packets - 1.
        sync: int [starts], the numbers of packets where decoding may start.
        times: Presentation times; None for ranks.
        inband: Whether packets may carry parameter sets.
        aspect: Width and height of a pixel, in the same unit; None for square ones.
        colour: (primaries, transfer, matrix, full range) by their code points; None to leave them out.

    Raises:
        ValueError: The codec is unknown here, the movie is larger than 4 GiB, or times do not fit.
    """
    if codec not in SAMPLE_ENTRIES:
        raise ValueError(f"no MP4 sample entry for codec {codec!r}; known are {', '.join(SAMPLE_ENTRIES)}")
    count, payload = len(packet_size), int(packet_size.sum())
    if times is None:
        times = SampleTimes(packet_time=packet_rank.astype(np.int64), timescale=TIMESCALE, last=1)
    decoding_times, offsets, duration = _timing(times)
    entry = _sample_entry(codec, width, height, configuration, inband, aspect, colour)
    moov = _moov(
        [
            full_box(b"stsd", 0, 0, struct.pack(">I", 1), entry),
            full_box(b"stts", 0, 0, decoding_times),
            full_box(b"ctts", 1, 0, struct.pack(">I", count), offsets),
            full_box(b"stss", 0, 0, struct.pack(">I", len(sync)), (sync + 1).astype(">u4").tobytes()),
            full_box(b"stsc", 0, 0, struct.pack(">IIII", 1, 1, count, 1)),
            full_box(b"stsz", 0, 0, struct.pack(">II", 0, count), packet_size.astype(">u4").tobytes()),
            full_box(b"stco", 0, 0, struct.pack(">II", 1, 0)),
        ],
        (width, height),
        times.timescale,
        duration,
    )
    head = box(b"ftyp", FILE_TYPE)
    first = len(head) + len(moov) + 8
    if first + payload > UINT32:
        raise ValueError(f"a clip of {payload} bytes does not fit a movie of 4 GiB")
    # moov ends with stco, and stco with the offset of the first packet, which depends on the size of moov.
    return head + moov[:-4] + struct.pack(">II4s", first, 8 + payload, b"mdat")


def _timing(times: SampleTimes) -> tuple[bytes, bytes, int]:
    """Return stts entries (8.6.1.2), ctts entries (8.6.1.3, version 1: signed) and the duration.

    The n-th packet is decoded at the n-th of all presentation times. Its own presentation time may differ from that in
    either direction.
    """
    ascending = np.sort(times.packet_time)
    steps = np.diff(ascending, append=ascending[-1] + times.last)
    offsets = times.packet_time - ascending
    if ascending[0] < 0 or steps.max() > UINT32 or np.abs(offsets).max() >= 1 << 31:
        raise ValueError("presentation times do not fit a movie")
    first = np.flatnonzero(np.diff(steps, prepend=-1))
    runs = np.stack([np.diff(first, append=len(steps)), steps[first]], axis=1).astype(">u4")
    entries = np.ones((len(offsets), 2), ">i4")
    entries[:, 1] = offsets
    return struct.pack(">I", len(runs)) + runs.tobytes(), entries.tobytes(), int(steps.sum())


def _sample_entry(
    codec: str,
    width: int,
    height: int,
    configuration: bytes,
    inband: bool,
    aspect: tuple[int, int] | None,
    colour: tuple[int, int, int, bool] | None,
) -> bytes:
    """Return a VisualSampleEntry (12.1.3) with boxes of the configuration, pixel aspect ratio and colours."""
    codes = SAMPLE_ENTRIES[codec]
    if codec == "vp9" and not configuration:
        configuration = VP9_CONFIGURATION
    visual = struct.pack(">6xH16xHHIIIH32sHh", 1, width, height, RESOLUTION, RESOLUTION, 0, 1, b"", 24, -1)
    extra = [box(codes.configuration, configuration)] if codes.configuration else []
    if aspect is not None:
        extra.append(box(b"pasp", struct.pack(">II", *aspect)))
    if colour is not None:
        *points, full_range = colour
        extra.append(box(b"colr", struct.pack(">4sHHHB", b"nclx", *points, full_range << 7)))
    return box(codes.inband if inband else codes.entry, visual, *extra)


def _moov(sample_tables: list[bytes], size: tuple[int, int], timescale: int, duration: int) -> bytes:
    """Return the movie box. It ends with the last sample table."""
    width, height = size
    version = int(duration > UINT32)  # in version 1, times have 64 bits
    times, length = ("QQ", "Q") if version else ("II", "I")
    data_reference = box(b"dinf", full_box(b"dref", 0, 0, struct.pack(">I", 1), full_box(b"url ", 0, 1)))
    media = box(
        b"mdia",
        full_box(b"mdhd", version, 0, struct.pack(f">{times}I{length}HH", 0, 0, timescale, duration, 0x55C4, 0)),
        full_box(b"hdlr", 0, 0, struct.pack(">I4s12xx", 0, b"vide")),
        box(b"minf", full_box(b"vmhd", 0, 1, bytes(8)), data_reference, box(b"stbl", *sample_tables)),
    )
    track_header = full_box(
        b"tkhd",
        version,
        3,
        struct.pack(f">{times}II{length}8xHHHH", 0, 0, 1, 0, duration, 0, 0, 0, 0),
        UNITY_MATRIX,
        struct.pack(">II", width << 16, height << 16),
    )
    movie = full_box(
        b"mvhd",
        version,
        0,
        struct.pack(f">{times}I{length}IH10x", 0, 0, timescale, duration, 0x10000, 0x100),
        UNITY_MATRIX,
        bytes(24),
        struct.pack(">I", 2),
    )
    return box(b"moov", movie, box(b"trak", track_header, media))


class Template:
    """A medium's stream as libavformat opens it, from which muxers copy everything but the packets.

    Raises:
        StaleError: The source is missing or changed.
    """

    def __init__(self, medium: Medium) -> None:
        source = openable(medium)
        try:
            self._container = open_container(source)
            stream = self._container.streams[medium.stream_index]
        except (av.error.FFmpegError, OSError, ValueError, IndexError) as error:
            raise stale(medium.path, str(error)) from error
        assert isinstance(stream, VideoStream)  # a video stream, as when it was indexed
        self.stream, self.path = stream, medium.path
        # How decoders interpret ProRes depends on the tag; libavformat would write the tag of 4:2:2 HQ for all of it.
        self.codec_tag = medium.codec_tag if medium.codec == "prores" else None

    def first_packet(self) -> bytes:
        """Return the first packet of the stream. Raises ValueError if there is none."""
        try:
            for packet in demux_packets(self._container, self.stream.index):
                return bytes(packet)
        except av.error.FFmpegError as error:
            raise ValueError(str(error)) from error
        raise ValueError("the stream has no packets")

    def close(self) -> None:
        """Close the file."""
        self._container.close()


def mux(suffix: str, template: Template, packets: Sequence[bytes], times: SampleTimes, sync: Sequence[int]) -> bytes:
    """Return a file of one stream.

    Args:
        sync: Numbers of the packets where decoding may start.

    Raises:
        ValueError: The muxer does not take the codec, or the packets.
    """
    file = io.BytesIO()
    options = dict(OPTIONS)
    if suffix in ("mov", "mp4"):
        options |= MOV_OPTIONS | {"video_track_timescale": str(times.timescale)}
    ascending = np.sort(times.packet_time)
    durations = np.diff(ascending, append=ascending[-1] + times.last)
    delay = int((ascending - times.packet_time).max())  # a packet must not be shown before it is decoded
    starts = set(sync)
    try:
        with memory_errors(), av.open(file, "w", format=MUXERS[suffix], options=options) as out:
            stream = out.add_stream_from_template(template.stream, opaque=True)
            tick = Fraction(1, times.timescale)
            stream.time_base = tick
            if template.codec_tag is not None:
                stream.codec_context.codec_tag = template.codec_tag
            for number, content in enumerate(packets):
                packet = packet_with(content)
                packet.stream, packet.time_base = stream, tick
                packet.pts = int(times.packet_time[number])
                packet.dts = int(ascending[number]) - delay
                packet.duration = int(durations[np.searchsorted(ascending, times.packet_time[number])])
                packet.is_keyframe = number in starts
                out.mux_one(packet)
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        raise ValueError(f"libavformat's {MUXERS[suffix]} muxer: {error}") from error
    return file.getvalue()


def configuration_record(template: Template, box: bytes) -> bytes:
    """Return the decoder configuration record (`avcC`, `hvcC`, `av1C`, `vpcC`) that libavformat writes for a stream.

    Raises:
        ValueError: The stream is empty, or libavformat does not write such a record.
    """
    times = SampleTimes(packet_time=np.zeros(1, np.int64), timescale=TIMESCALE, last=1)
    return configuration_box(mux("mp4", template, [template.first_packet()], times, [0]), box)


def configuration_box(movie: bytes, box: bytes) -> bytes:
    """Return the content of a decoder configuration box of a movie that libavformat wrote. Raises ValueError."""
    at = movie.rfind(box)  # the last match, because packets, which may have these bytes, come before moov
    size = int.from_bytes(movie[at - 4 : at], "big") if at >= 4 else 0
    if size <= 8 or at - 4 + size > len(movie):
        raise ValueError(f"libavformat writes no {box.decode()} for the stream")
    return movie[at + 4 : at - 4 + size]
