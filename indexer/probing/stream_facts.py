"""What headers say about a stream: facts that libavformat gives, and the stated length and rate.

Describe the plainest files without libavformat: an MP4 of one progressive 8-bit H.264 track and nothing else.

Opening a file with libavformat decodes its first pictures, which takes longer than reading all of its sample tables.
Files that are not plain are left to libavformat. For plain files, every fact is the same as libavformat's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction

import av
import av.container
import av.stream
import av.video.stream
import numpy as np
from av.video.codeccontext import VideoCodecContext

from framedex.core.pyav import fraction_of
from framedex.errors import MediaError
from framedex.indexer.bitstream.h264_sets import SPS, Sequence, parse_configuration, parse_sequence
from framedex.indexer.facts import Stated, StreamFacts
from framedex.indexer.mp4.boxes import UntrustedTables, child_boxes
from framedex.indexer.mp4.tracks import Movie, Track, entry_table, read_sample_entries
from framedex.indexer.schema import NO_VIDEO, SCANNED
from framedex.records.medium import COLOR_RANGES, FIELD_ORDERS

# Containers whose headers state how long a stream is. For others, libavformat guesses.
STATING = frozenset({"mp4", "matroska", "avi", "flv", "asf", "mxf", "ivf"})
CLOCKED = frozenset({"h263"})  # codecs that state the rate of a clock instead of a frame rate
MOST_STATED_RATE = 1000  # frames per second; streams of variable rate state their clock, such as 90 000
CONTAINERS = {"mov,mp4,m4a,3gp,3g2,mj2": "mp4", "matroska,webm": "matroska"}


def container_name(container: av.container.InputContainer) -> str:
    """Return `mp4`, `matroska`, or libavformat's name for another container."""
    name = container.format.name
    return CONTAINERS.get(name, name)


def video_streams(container: av.container.InputContainer, *, skips: bool = False) -> list[av.video.stream.VideoStream]:
    """Return the video streams without cover art, libavformat's choice first.

    Args:
        container: an open container.
        skips: whether a file without a video stream is refused, so that a run counts it separately. Otherwise it is
            failed.

    Raises:
        MediaError: there is no video stream.
    """
    cover = av.stream.Disposition.attached_pic
    videos = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not videos:
        raise MediaError(NO_VIDEO, "there is no video stream", refused=skips)
    best = container.streams.best("video")
    return sorted(videos, key=lambda stream: (stream is not best, stream.index))


def describe_header(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> Stated:
    """Return what the container's header states about a stream's length and rate."""
    name = container_name(container)
    if name not in STATING or (name == "mp4" and not stream.frames):  # fragmented: no header covers all fragments
        return stated(None, None, fraction_of(stream.codec_context.framerate))
    seconds = None if container.duration is None else container.duration / av.time_base
    time_base = fraction_of(stream.time_base)
    if stream.duration is not None and time_base is not None:
        seconds = float(stream.duration * time_base)
    elif len(container.streams) > 1:  # the file's duration may be that of a longer stream
        seconds = None
    rate = None if stream.codec_context.codec.canonical_name in CLOCKED else fraction_of(stream.codec_context.framerate)
    if rate is None and name != "mp4":  # for mp4, libavformat computes the average rate itself
        rate = fraction_of(stream.average_rate)
    frames = stream.frames if name == "mp4" else None  # elsewhere, libavformat derives it from a duration
    return stated(frames, seconds, rate)


def describe_stream(stream: av.video.stream.VideoStream) -> StreamFacts:
    """Return what libavformat says about a stream. Raises MediaError if there is no decoder."""
    context = stream.codec_context
    if context is None:
        raise MediaError("no_decoder", "FFmpeg has no decoder of the video stream's codec", refused=True)
    aspect, time_base = fraction_of(stream.sample_aspect_ratio), fraction_of(stream.time_base)
    return StreamFacts(
        codec=context.codec.canonical_name,
        codec_tag=_codec_tag(context),
        bits_per_coded_sample=context.bits_per_coded_sample,
        profile=context.profile,
        pixel_format=context.pix_fmt,
        width=context.width,
        height=context.height,
        field_order=FIELD_ORDERS.get(int(context.field_order)),
        sample_aspect_ratio=float(aspect) if aspect else None,
        color_range=COLOR_RANGES.get(int(context.color_range)),
        color_matrix=int(context.colorspace),
        color_primaries=int(context.color_primaries),
        color_transfer=int(context.color_trc),
        time_base_num=time_base.numerator if time_base else None,
        time_base_den=time_base.denominator if time_base else None,
        extradata=context.extradata,
        reorder_depth=context.reorder_depth,
    )


def _codec_tag(context: VideoCodecContext) -> str | None:
    """Return the tag, which may be a number instead of letters: FFmpeg turns raw pictures by 3, AVI's bit fields."""
    try:
        tag = context.codec_tag
    except UnicodeDecodeError:
        return None
    is_kept = tag.isprintable() or context.codec.canonical_name not in SCANNED
    return tag if is_kept and tag.strip("\0") else None


def stated(frames: int | None, seconds: float | None, rate: Fraction | None) -> Stated:
    """Return the length and rate that a header states. Impossible values become None."""
    return Stated(
        stated_frames=frames,
        stated_duration_seconds=seconds if seconds is not None and seconds > 0 else None,
        stated_rate=None if rate is None or not 0 < rate <= MOST_STATED_RATE else float(rate),
    )


VISUAL_ENTRY_BYTES = 78  # of a VisualSampleEntry before its boxes (ISO/IEC 14496-12 12.1.3)
PLAIN_BOXES = frozenset({b"avcC", b"pasp", b"btrt"})
COLOR_DEPTH = 24
MAX_DURATION = 1 << 62
PROFILES = {66: "Baseline", 77: "Main", 100: "High"}
CONSTRAINED = 0b010000  # constraint_set1_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMovie:
    """What the headers of a plain MP4 say.

    Attributes:
        track_id: of its only track.
        stream: what they state about the stream.
        stated: what they state about its length and rate.
    """

    track_id: int
    stream: StreamFacts
    stated: Stated


def describe_plain(movie: Movie) -> PlainMovie | None:
    """Return what the headers of a plain movie say, or None if the movie is not plain."""
    if len(movie.tracks) != 1:
        return None
    (track,) = movie.tracks.values()
    try:
        return _describe(movie, track) if track.handler == b"vide" else None
    except (UntrustedTables, ValueError, struct.error):
        return None


def _describe(movie: Movie, track: Track) -> PlainMovie | None:
    entries = read_sample_entries(movie, track)
    if entries.codec_tag != b"avc1" or len(entries.configurations) != 1:
        return None
    _, nals = parse_configuration(entries.configurations[0])
    sets = [nal for nal in nals if nal[0] & 31 == SPS]
    boxes = _entry_boxes(movie.data, track)
    if len(sets) != 1 or boxes is None:
        return None
    sequence = parse_sequence(sets[0])
    aspect = struct.unpack(">II", boxes[b"pasp"]) if b"pasp" in boxes else (0, 1)
    plain = (
        sequence.profile_idc in PROFILES
        and (sequence.chroma_format, sequence.bit_depth) == (1, 8)
        and sequence.frames_only
        and sequence.reorder_depth is not None
        and (sequence.width, sequence.height) == (entries.width, entries.height)
        and aspect == sequence.sample_aspect
    )
    if not plain:
        return None
    return PlainMovie(
        track_id=track.track_id,
        stream=_stream(sequence, track, entries.configurations[0]),
        stated=_stated(sequence, movie, track),
    )


def _entry_boxes(data: bytes, track: Track) -> dict[bytes, bytes] | None:
    """Return the boxes in a track's only sample entry by kind, or None if anything is unusual."""
    start, end = track.tables[b"stsd"]
    ((_, first, last),) = child_boxes(data, start + 8, end)
    (depth,) = struct.unpack_from(">H", data, first + VISUAL_ENTRY_BYTES - 4)
    found = {kind: data[begin:stop] for kind, begin, stop in child_boxes(data, first + VISUAL_ENTRY_BYTES, last)}
    return found if depth == COLOR_DEPTH and found.keys() <= PLAIN_BOXES else None


def _stream(sequence: Sequence, track: Track, configuration: bytes) -> StreamFacts:
    profile = PROFILES[sequence.profile_idc]
    if sequence.profile_idc == 66 and sequence.constraints & CONSTRAINED:
        profile = "Constrained Baseline"
    ranges = {None: None, False: "limited", True: "full"}
    width, height = sequence.sample_aspect
    assert sequence.reorder_depth is not None  # of a plain movie
    return StreamFacts(
        codec="h264",
        codec_tag="avc1",
        bits_per_coded_sample=COLOR_DEPTH,
        profile=profile,
        pixel_format="yuvj420p" if sequence.full_range else "yuv420p",
        width=sequence.width,
        height=sequence.height,
        field_order="progressive",
        sample_aspect_ratio=width / height if width and height else None,
        color_range=ranges[sequence.full_range],
        color_matrix=sequence.matrix,
        color_primaries=sequence.primaries,
        color_transfer=sequence.transfer,
        time_base_num=1,
        time_base_den=track.timescale,
        extradata=configuration,
        reorder_depth=sequence.reorder_depth,
    )


def _stated(sequence: Sequence, movie: Movie, track: Track) -> Stated:
    """Return the stated length and rate.

    The length is what libavformat takes: the shortest duration that the headers state, with edits counted.
    """
    if b"stts" not in track.tables:
        raise UntrustedTables("the track has no stts box")
    counts, steps = entry_table(movie.data, track.tables[b"stts"], 2, "stts").astype(np.int64).T
    rate = None
    if sequence.ticks is not None and all(sequence.ticks):
        rate = Fraction(sequence.ticks[1], 2 * sequence.ticks[0])
    if not counts.sum():
        return stated(None, None, rate)
    units = min(track.duration or MAX_DURATION, int(counts @ steps))
    if track.edits:
        edited = sum(edit.duration for edit in track.edits) * track.timescale
        units = min(units, round(edited / track.movie_timescale))
    return stated(int(counts.sum()), float(Fraction(units, track.timescale)), rate)
