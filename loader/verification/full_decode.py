"""Decodes a source from its beginning, as a player would. Nothing of the index is used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

import av
import av.error
from av.video.codeccontext import VideoCodecContext

from framedex.errors import DecodeError
from framedex.indexer.containers.opening import decode_packet, demux_packets, open_container
from framedex.sharder.clips.medium import Medium
from framedex.sharder.decoding.rgb import UNSPECIFIED

Marked = TypeVar("Marked")


def decode_in_order(
    medium: Medium, wanted: set[int], *, by_pts: bool, mark: Callable[[av.VideoFrame], Marked]
) -> Iterator[tuple[int, int | None, Marked]]:
    """Yield (number, pts, mark) of the wanted frames by decoding the source from its beginning, as a player would.

    Frames are counted as the decoder returns them. Nothing of the index is used.

    Args:
        medium: the source.
        wanted: numbers of the wanted frames.
        by_pts: yield all frames, because the caller tells them apart by their timestamps.
        mark: makes the result from a picture.

    Raises:
        DecodeError: the video stream is missing.
    """
    last = max(wanted, default=-1)
    number = -1
    with open_container(medium.path) as container:
        there = 0 <= medium.stream_index < len(container.streams)
        context = container.streams[medium.stream_index].codec_context if there else None
        if not isinstance(context, VideoCodecContext):
            raise DecodeError(f"video stream {medium.stream_index} is no longer there", where=medium.path)
        context.thread_count = 1  # some decoders give other pictures with more (see `containers.decoders.ONE_THREAD`)
        matrix, color_range = context.colorspace, context.color_range  # decoding overwrites the container's values
        for packet in itertools.chain(demux_packets(container, medium.stream_index), [None]):
            try:
                frames = decode_packet(context, packet)
            except av.error.FFmpegError:
                continue  # damage; the frames after it are compared as well as possible
            for frame in frames:
                number += 1
                if number in wanted or by_pts:
                    if matrix != UNSPECIFIED:
                        frame.colorspace = matrix
                    if color_range:
                        frame.color_range = color_range
                    yield number, frame.pts, mark(frame)
            if number >= last and not by_pts:
                return
