"""Build tiny files in memory: MP4 headers (ISO/IEC 14496-12), and complete files from libavformat's muxers.

Timestamps are either presentation ranks (0, 1, 2, …) or the timestamps of the source, shifted to begin at 0. Files have
no edit lists and no negative timestamps, because decoders that count frames (such as DALI) then return wrong pictures
without an error.
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

TIMESCALE = 30  # units per second of files whose timestamps are ranks, so that they play at 30 frames per second
UNSPECIFIED = 2  # code point "unspecified" of colour primaries, transfer and matrix (ISO/IEC 23091-2)
UINT32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEntry:
    """The four-character codes that an MP4 uses for a codec.

    Attributes:
        entry: The type of the sample entry if packets contain no parameter sets.
        inband: The type of the sample entry if packets may contain parameter sets (ISO/IEC 14496-15 5.4.2.1, 8.4.1.1).
        configuration: The type of the box that contains the decoder configuration record. Empty if the codec has none.
    """

    entry: bytes
    inband: bytes
    configuration: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTimes:
    """The presentation times of packets.

    Attributes:
        packet_time: int64 [packets], the presentation time of each packet. All times are distinct and at least 0.
        timescale: The number of time units per second.
        last: The duration, in time units, of the frame that is shown last.
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
# VP codec configuration record for 8-bit 4:2:0, unspecified level and BT.709. libavformat assumes these values if a
# file has no such record.
VP9_CONFIGURATION = bytes.fromhex("01000000 00 0a 82 01 01 01 0000")

FILE_TYPE = b"isom" + struct.pack(">I", 0x200) + b"isomiso4"
UNITY_MATRIX = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
RESOLUTION = 0x480000  # 72 dpi, the value that ISO/IEC 14496-12 12.1.3 requires

# With these options, muxers write no version strings and no random numbers, so that the same packets always give the
# same bytes. They also leave the timestamps unchanged.
OPTIONS = {"fflags": "+bitexact", "avoid_negative_ts": "disabled"}
MOV_OPTIONS = {"use_editlist": "0", "movflags": "+negative_cts_offsets"}
MUXERS = {"mkv": "matroska", "mov": "mov", "mp4": "mp4", "avi": "avi"}  # name of the muxer for each file name extension


def box(kind: bytes, *payloads: bytes) -> bytes:
    """Return an MP4 box that contains the given payloads."""
    payload = b"".join(payloads)
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def full_box(kind: bytes, version: int, flags: int, *payloads: bytes) -> bytes:
    """Return an MP4 full box: a box with a version and flags before its payloads."""
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
    """Return the bytes of an MP4 up to its first packet. The packets must follow in decode order, without gaps.

    Args:
        codec: The name of the codec, a key of SAMPLE_ENTRIES.
        width: The width of the pictures in pixels.
        height: The height of the pictures in pixels.
        configuration: The decoder configuration record of the codec.
        packet_size: int [packets], the size of each packet in bytes.
        packet_rank: int [packets], the presentation rank of each packet: a permutation of 0 … packets - 1.
        sync: int [starts], the indices, in decode order, of the packets where decoding may start.
        times: The presentation times of the packets. If None, the times are the ranks.
        inband: Whether packets may contain parameter sets.
        aspect: The pixel aspect ratio as (width, height). None for square pixels.
        colour: Code points of the primaries, the transfer and the matrix, and whether the range is full. If None, the
            file does not describe its colours.

    Raises:
        ValueError: SAMPLE_ENTRIES lacks the codec, the file would exceed 4 GiB, or the times do not fit into 32 bits.
    """
    if codec not in SAMPLE_ENTRIES:
        raise ValueError(f"no MP4 sample entry for codec {codec!r}; supported: {', '.join(SAMPLE_ENTRIES)}")
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
        raise ValueError(f"a clip of {payload} bytes is too large for an MP4 of at most 4 GiB")
    # The last four bytes of moov are the offset of the first packet (in stco). The offset depends on the size of moov,
    # so it is filled in here.
    return head + moov[:-4] + struct.pack(">II4s", first, 8 + payload, b"mdat")


def _timing(times: SampleTimes) -> tuple[bytes, bytes, int]:
    """Return the entries of stts (8.6.1.2) and ctts (8.6.1.3, version 1 with signed offsets), and the duration.

    The decoding time of the n-th packet is the n-th smallest presentation time of all packets. The packet's
    presentation time may be before or after its decoding time.
    """
    ascending = np.sort(times.packet_time)
    steps = np.diff(ascending, append=ascending[-1] + times.last)
    offsets = times.packet_time - ascending
    if ascending[0] < 0 or steps.max() > UINT32 or np.abs(offsets).max() >= 1 << 31:
        raise ValueError("the presentation times do not fit into the 32-bit fields of an MP4")
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
    """Return a VisualSampleEntry (12.1.3) with boxes for the configuration, the pixel aspect ratio and the colours."""
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
    """Return the movie box (moov). It ends with the last of the given sample tables."""
    width, height = size
    version = int(duration > UINT32)  # version 1 of the boxes has 64-bit times
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
    """A medium's video stream, opened with libavformat. Muxers copy its properties into tiny files.

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
        assert isinstance(stream, VideoStream)  # the indexer found a video stream at this position
        self.stream, self.path = stream, medium.path
        # Decoders of ProRes need the codec tag. Without this, libavformat would write the tag of 4:2:2 HQ for every
        # profile.
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
        """Close the source file."""
        self._container.close()


def mux(suffix: str, template: Template, packets: Sequence[bytes], times: SampleTimes, sync: Sequence[int]) -> bytes:
    """Mux packets into a file with one stream, and return its content.

    Args:
        suffix: The file name extension, a key of MUXERS.
        template: The stream whose properties are copied.
        packets: The contents of the packets, in decode order.
        times: The presentation times of the packets.
        sync: The indices of the packets where decoding may start.

    Raises:
        ValueError: The muxer rejects the codec or the packets.
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
    """Return the decoder configuration record that libavformat writes for a stream.

    Args:
        template: The stream.
        box: The type of the box that contains the record: `avcC`, `hvcC`, `av1C` or `vpcC`.

    Raises:
        ValueError: The stream is empty, or libavformat does not write such a record.
    """
    times = SampleTimes(packet_time=np.zeros(1, np.int64), timescale=TIMESCALE, last=1)
    return configuration_box(mux("mp4", template, [template.first_packet()], times, [0]), box)


def configuration_box(movie: bytes, box: bytes) -> bytes:
    """Return the content of the decoder configuration box in an MP4 that libavformat wrote.

    Args:
        movie: The content of the MP4.
        box: The type of the box.

    Raises:
        ValueError: The MP4 has no such box.
    """
    at = movie.rfind(box)  # the last match: packets are stored before moov and may contain these bytes by chance
    size = int.from_bytes(movie[at - 4 : at], "big") if at >= 4 else 0
    if size <= 8 or at - 4 + size > len(movie):
        raise ValueError(f"libavformat writes no {box.decode()} box for the stream")
    return movie[at + 4 : at - 4 + size]
