"""Output of libavformat's muxers, through PyAV: whole tiny files in memory, and configuration records."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction

import av
import av.container
import av.error
import numpy as np
from av.video.stream import VideoStream

from framedex.indexer.containers.opening import demux_packets, memory_errors, open_container, packet_with
from framedex.sharder.clips.byte_source import stale
from framedex.sharder.clips.medium import Medium
from framedex.sharder.packing.mp4 import SampleTimes
from framedex.sharder.reading.sources import openable

# The same packets give the same bytes: no version strings, no random numbers. Times stay as they are given.
OPTIONS = {"fflags": "+bitexact", "avoid_negative_ts": "disabled"}
MOV_OPTIONS = {"use_editlist": "0", "movflags": "+negative_cts_offsets"}
MUXERS = {"mkv": "matroska", "mov": "mov", "mp4": "mp4", "avi": "avi"}


class Template:
    """A medium's stream as libavformat opens it. It tells muxers everything besides the packets. Raises StaleError."""

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
    late = int((ascending - times.packet_time).max())  # no packet may be shown before it is decoded
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
                packet.dts = int(ascending[number]) - late
                packet.duration = int(durations[np.searchsorted(ascending, times.packet_time[number])])
                packet.is_keyframe = number in starts
                out.mux_one(packet)
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        raise ValueError(f"libavformat's {MUXERS[suffix]} muxer: {error}") from error
    return file.getvalue()


def configuration_record(template: Template, box: bytes, packet: bytes) -> bytes:
    """Return the decoder configuration record (`avcC`, `hvcC`, `av1C`, `vpcC`) that libavformat writes for a stream.

    Args:
        packet: The first packet of the stream.

    Raises:
        ValueError: libavformat writes no such record.
    """
    times = SampleTimes(packet_time=np.zeros(1, np.int64), timescale=30, last=1)
    return configuration_box(mux("mp4", template, [packet], times, [0]), box)


def configuration_box(movie: bytes, box: bytes) -> bytes:
    """Return the content of a decoder configuration box of a movie that libavformat wrote. Raises ValueError."""
    at = movie.rfind(box)  # moov comes after the packet
    size = int.from_bytes(movie[at - 4 : at], "big") if at >= 4 else 0
    if size <= 8 or at - 4 + size > len(movie):
        raise ValueError(f"libavformat writes no {box.decode()} for the stream")
    return movie[at + 4 : at - 4 + size]
