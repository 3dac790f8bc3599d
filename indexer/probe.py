"""Probe one medium: demux every packet with PyAV, look into each, and return its rows of `videos` and `frames`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import av
import av.container
import av.error
import av.logging
import av.stream
import av.video.stream
import numpy as np

from framedex.errors import MediaError
from framedex.indexer.bitstream.h264 import H264Scanner
from framedex.indexer.bitstream.hevc import HevcScanner
from framedex.indexer.bitstream.pictures import BitstreamError, Pictures, Scanner
from framedex.indexer.containers import TruncatedError, check_whole, media_edits
from framedex.indexer.fingerprint import fingerprint
from framedex.indexer.schema import FAILED, OK, REFUSED
from framedex.indexer.timeline import HIDDEN, NO_PTS, SKIPPED, check_order, check_reorder_depth, packet_flags, summarise

Row = dict[str, Any]

SCANNERS: dict[str, type[H264Scanner] | type[HevcScanner]] = {"h264": H264Scanner, "hevc": HevcScanner}
CONTAINERS = {"mov,mp4,m4a,3gp,3g2,mj2": "mp4", "matroska,webm": "matroska"}
PAYLOAD_OFFSETS = (0, 4)  # from packet.pos to the payload: ISO BMFF, Matroska SimpleBlock (one-byte track number)
COLOR_RANGES = {1: "limited", 2: "full"}  # AVColorRange


def probe_medium(path: str) -> tuple[Row, Row]:
    """Return the (videos, frames) columns of one medium, without its identity; never raises for a bad medium.

    What cannot be used becomes a row with status `failed` or `refused`, a kind and a reason, and empty packet lists.
    """
    av.logging.set_level(None)
    video: Row = {"stream_index": -1}
    frames = no_frames()
    try:
        with _open_file(path, video) as descriptor:
            frames = _probe(path, descriptor, video)
        video["status"] = OK
    except MediaError as error:
        video |= {
            "status": REFUSED if error.refused else FAILED,
            "error_kind": error.kind,
            "error_message": error.what,
        }
    return video, frames


def no_frames() -> Row:
    """Return the `frames` columns of a medium that is not usable."""
    return {"pts": [], "offset": [], "size": [], "flags": []}


@contextmanager
def _open_file(path: str, video: Row) -> Iterator[int]:
    """Open the file, note its identity, and check once more at the end that it did not change meanwhile."""
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        kind = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        raise MediaError(kind, f"cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MediaError("unreadable", "is not a regular file")
        if status.st_size == 0:
            raise MediaError("empty", "the file is empty")
        video |= {
            "size_bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "fingerprint": fingerprint(descriptor, status.st_size),
        }
        yield descriptor
        after = os.stat(path)
        if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise MediaError("changing", "the file changed while it was probed")
    finally:
        os.close(descriptor)


def _probe(path: str, descriptor: int, video: Row) -> Row:
    try:
        # Only local files: a playlist or a reference inside the file must not reach the network.
        # The file: prefix keeps names with a colon from being read as a protocol.
        container = av.open(f"file:{path}", metadata_errors="replace", options={"protocol_whitelist": "file"})
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError("not_media", f"not a video, or damaged at its start: {_reason(error)}") from error
    with container:
        name = container.format.name
        video["container"] = CONTAINERS.get(name, name)
        stream = _best_video_stream(container)
        _describe_stream(stream, video)
        _describe_audio(container, video)
        _check_supported(path, stream, video)
        return _probe_packets(container, stream, descriptor, video)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _best_video_stream(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    """Return libavformat's choice among the video streams, cover art left out."""
    cover = av.stream.Disposition.attached_pic
    videos = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not videos:
        raise MediaError("no_video", "there is no video stream")
    best = container.streams.best("video")
    return next((stream for stream in videos if stream is best), videos[0])


def _describe_stream(stream: av.video.stream.VideoStream, video: Row) -> None:
    context = stream.codec_context
    aspect = stream.sample_aspect_ratio
    video |= {
        "stream_index": stream.index,
        "codec": context.name,
        "profile": context.profile,
        "pixel_format": context.pix_fmt,
        "width": context.width,
        "height": context.height,
        "sample_aspect_ratio": float(aspect) if aspect else None,
        "color_range": COLOR_RANGES.get(int(context.color_range)),
        "color_matrix": int(context.colorspace),
        "color_primaries": int(context.color_primaries),
        "color_transfer": int(context.color_trc),
        "time_base_num": stream.time_base.numerator if stream.time_base else None,
        "time_base_den": stream.time_base.denominator if stream.time_base else None,
        "extradata": context.extradata,
        "reorder_depth": context.reorder_depth,
    }


def _describe_audio(container: av.container.InputContainer, video: Row) -> None:
    if not container.streams.audio:
        return
    audio = container.streams.audio[0]
    time_base = audio.time_base
    video |= {
        "audio_codec": audio.codec_context.name,
        "audio_rate": audio.codec_context.sample_rate,
        "audio_channels": audio.codec_context.channels,
        "audio_start_seconds": float(audio.start_time * time_base)
        if time_base and audio.start_time is not None
        else None,
        "audio_duration_seconds": float(audio.duration * time_base) if time_base and audio.duration else None,
    }


def _check_supported(path: str, stream: av.video.stream.VideoStream, video: Row) -> None:
    """Raise for what is truncated, or not covered yet."""
    if video["container"] not in CONTAINERS.values():
        raise MediaError(
            "container", f"container {video['container']!r} is not covered yet (MP4, MOV, MKV are)", refused=True
        )
    try:
        check_whole(path, video["container"])
        edits = media_edits(path).get(stream.id, 0) if video["container"] == "mp4" else 0
    except TruncatedError as error:
        raise MediaError("truncated", f"the file is truncated: {error}") from error
    if video["codec"] not in SCANNERS:
        raise MediaError("codec", f"codec {video['codec']!r} is not covered yet (H.264 and HEVC are)", refused=True)
    if edits > 1:
        raise MediaError("edit_list", f"the edit list shows {edits} pieces of the media; one is covered", refused=True)


def _probe_packets(
    container: av.container.InputContainer, stream: av.video.stream.VideoStream, descriptor: int, video: Row
) -> Row:
    """Demux and scan every packet; fill the summary columns of `video` and return the `frames` columns."""
    pts: list[int] = []
    offsets: list[int] = []
    sizes: list[int] = []
    hidden: list[bool] = []
    end_pts = NO_PTS
    last_duration = 0
    configuration = stream.codec_context.extradata or b""
    try:
        scanner: Scanner = SCANNERS[video["codec"]](configuration)
        for packet in _packets(container, stream):
            data = bytes(packet)
            if packet.is_corrupt:
                raise MediaError("damaged", f"packet {len(pts)} is marked corrupt (a truncated file?)")
            if packet.has_sidedata("encryption_info"):
                raise MediaError("encrypted", "the video is encrypted (Common Encryption, ISO/IEC 23001-7)")
            if packet.has_sidedata("new_extradata"):
                raise BitstreamError("parameter_sets", f"packet {len(pts)} switches the configuration record")
            scanner.feed(data)
            offsets.append(_payload_offset(packet, data, descriptor, len(pts)))
            sizes.append(len(data))
            hidden.append(packet.is_discard)
            pts.append(NO_PTS if packet.pts is None else packet.pts)
            if not packet.is_discard and pts[-1] >= end_pts:
                end_pts, last_duration = pts[-1], packet.duration or 0
        if not pts:
            raise MediaError("empty", "the video stream has no packets")
        rows = _finish(scanner.finish(), pts, offsets, sizes, hidden, last_duration, stream, video)
        video["rotation_degrees"] = _rotation(container, stream)
        return rows
    except BitstreamError as error:
        raise MediaError(error.kind, str(error), refused=not error.damaged) from error
    except (av.error.FFmpegError, IndexError) as error:  # damage can make demux() raise IndexError
        raise MediaError("damaged", f"demuxing stopped at packet {len(pts)}: {_reason(error)}") from error


def _packets(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> Iterator[av.Packet[Any]]:
    for packet in container.demux(stream):
        if packet.size:
            yield packet
        elif packet.dts is not None:
            raise BitstreamError("zero_size", "the stream has packets without data")


def _payload_offset(packet: av.Packet[Any], data: bytes, descriptor: int, number: int) -> int:
    """Return where the file holds exactly the packet's bytes; refuse when that is not found."""
    if packet.pos is not None and packet.pos >= 0:
        for delta in PAYLOAD_OFFSETS:
            if os.pread(descriptor, len(data), packet.pos + delta) == data:
                return packet.pos + delta
    raise BitstreamError("not_addressable", f"the bytes of packet {number} are not one range of the file")


def _finish(
    pictures: Pictures,
    pts_list: list[int],
    offsets: list[int],
    sizes: list[int],
    hidden: list[bool],
    last_duration: int,
    stream: av.video.stream.VideoStream,
    video: Row,
) -> Row:
    if len(set(offsets)) != len(offsets):
        raise BitstreamError("edit_list", "the edit list shows some packets more than once")
    pts = np.array(pts_list, np.int64)
    flags = packet_flags(pictures, np.array(hidden, np.bool_))
    check_order(pts, flags, pictures)
    check_reorder_depth(flags, pictures, stream.codec_context.reorder_depth)
    if not np.any((flags & (HIDDEN | SKIPPED)) == 0):
        raise MediaError("empty", "the video stream presents no frame")
    assert stream.time_base is not None  # demuxed video streams always have one
    summary = summarise(pts, flags, last_duration=last_duration, time_base_seconds=float(stream.time_base))
    video |= asdict(summary)
    video |= {
        "packet_count": len(pts),
        "byte_addressable": True,
        "preamble": pictures.preamble,
        "inband_parameter_sets": pictures.inband_sets,
        "inner_start_codes": pictures.inner_start_codes,
        "chroma_format": pictures.chroma_format,
        "max_ref_frames": pictures.max_ref_frames,
        "field_coded": bool(pictures.field_coded.any()),
    }
    return {
        "pts": [None if value == NO_PTS else value for value in pts_list],
        "offset": offsets,
        "size": sizes,
        "flags": flags,
    }


def _rotation(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> int:
    """Decode the first picture, which shows that there is a decoder for the stream, and read its display matrix."""
    try:
        container.seek(stream.start_time or 0, stream=stream)
        for frame in container.decode(stream):
            assert isinstance(frame, av.VideoFrame)  # the stream is a video stream
            return frame.rotation
    except av.error.FFmpegError as error:
        raise MediaError("undecodable", f"the first picture does not decode: {_reason(error)}") from error
    raise MediaError("undecodable", f"no picture decodes from the {stream.codec_context.name} stream")
