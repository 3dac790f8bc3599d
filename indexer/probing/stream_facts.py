"""What headers say about a stream: facts that libavformat gives, and the stated length and rate."""

from __future__ import annotations

from fractions import Fraction

import av
import av.container
import av.stream
import av.video.stream
from av.video.codeccontext import VideoCodecContext

from framedex.core.pyav import fraction_of
from framedex.errors import MediaError
from framedex.indexer.facts import Stated, StreamFacts
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
