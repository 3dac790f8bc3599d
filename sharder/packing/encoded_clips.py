"""A clip whose wanted frames alone are scaled and encoded again, as one closed GOP in a tiny MP4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from framedex.errors import UncuttableError
from framedex.indexer.images.rgb import resize_rgb
from framedex.records.clip import PAD
from framedex.records.medium import VIDEO
from framedex.records.recipe import Recipe
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.medium import Medium
from framedex.sharder.clips.samples import Member
from framedex.sharder.decoding.video import Size, decode_unique
from framedex.sharder.packing.clip_files import ClipFile, look_of, packet_times, places, shown_seconds
from framedex.sharder.packing.encode_options import EncodeOptions
from framedex.sharder.packing.encoders import ENCODERS, PIXEL_FORMAT, EncodedStream, colour_of, encode
from framedex.sharder.packing.mp4 import SAMPLE_ENTRIES, SampleTimes, movie_header
from framedex.sharder.packing.yuv420 import MATRIX, RANGE_NAME
from framedex.sharder.reading.sources import EncodedClip

CHROMA_420 = 1
CONTAINER = "mp4"


def encode_clip(clip: Clip, encoded: EncodedClip, options: EncodeOptions) -> EncodedStream:
    """Return the wanted frames of a clip, each once and in presentation order, as an encoded stream.

    Raises:
        DecodeError: The clip does not decode.
        UncuttableError: The encoder does not take pictures of this size.
    """
    medium = clip.medium
    size = options.stored_size(medium.height, medium.width)
    try:
        return encode(
            _pictures(clip, encoded, size), size, options, colour_of(medium.color_primaries, medium.color_transfer)
        )
    except UncuttableError as error:
        raise UncuttableError(
            error.what, where=medium.path, found=error.found, allowed=error.allowed, remedy=error.remedy
        ) from error


def encoded_file(clip: Clip, stream: EncodedStream, options: EncodeOptions) -> ClipFile:
    """Return the tiny file of a clip's encoded frames. Frames are shown at the source's times, from the first one.

    Raises:
        UncuttableError: The clip is larger than a file may be.
    """
    medium = encoded_medium(clip.medium, options, stream.configuration)
    size = np.array([len(packet) for packet in stream.packets], np.int64)
    recipe = _recipe(clip, stream.rank, size)
    times, real = packet_times(replace(clip, recipe=recipe), medium.time_base_den)
    header = _header(medium, size, stream.rank, times)
    return ClipFile(
        clip=replace(clip, medium=medium, md5=None, recipe=replace(recipe, range_offset=np.array([len(header)]))),
        member=Member(suffix=CONTAINER, pieces=[header, *stream.packets]),
        frames=places(recipe),
        seconds=shown_seconds(recipe, times),
        unshown=0,
        real_times=real,
    )


def encoded_medium(medium: Medium, options: EncodeOptions, configuration: bytes) -> Medium:
    """Return a medium with the properties of its encoded clips."""
    height, width = options.stored_size(medium.height, medium.width)
    encoder = ENCODERS[options.codec]
    colour = colour_of(medium.color_primaries, medium.color_transfer)
    return replace(
        medium,
        kind=VIDEO,
        container=CONTAINER,
        codec=options.codec,
        codec_tag=SAMPLE_ENTRIES[options.codec].entry.decode(),
        bits_per_coded_sample=None,
        profile=encoder.profile,
        pixel_format=PIXEL_FORMAT,
        width=width,
        height=height,
        field_order="progressive",
        color_range=RANGE_NAME,
        color_matrix=MATRIX,
        color_primaries=colour.primaries,
        color_transfer=colour.transfer,
        extradata=configuration,
        states=[b""],
        reorder_depth=encoder.reorder_depth,
        inband_parameter_sets=False,
        inner_start_codes=False,
        varying_shape=False,
        chroma_format=CHROMA_420,
        max_ref_frames=None,
        field_coded=False,
        hidden_unordered=False,
    )


def _header(medium: Medium, size: NDArray[np.int64], rank: NDArray[np.int32], times: SampleTimes) -> bytes:
    try:
        return movie_header(
            codec=medium.codec,
            width=medium.width,
            height=medium.height,
            configuration=medium.extradata or b"",
            packet_size=size,
            packet_rank=rank,
            sync=np.zeros(1, np.int64),
            times=times,
            inband=False,
            look=look_of(medium),
        )
    except ValueError as error:
        raise UncuttableError(str(error), where=medium.path, remedy="make clips of fewer frames") from error


def _pictures(clip: Clip, encoded: EncodedClip, size: Size) -> Iterator[NDArray[np.uint8]]:
    """Yield every wanted picture once, scaled, in presentation order."""
    scaled: Iterable[tuple[int, NDArray[np.uint8]]]
    scaled = ((rank, resize_rgb(rgb, *size)) for rank, rgb in decode_unique(clip, encoded))
    if clip.recipe.damaged or clip.medium.hidden_unordered:  # then pictures may come in another order
        scaled = sorted(scaled, key=lambda ranked: ranked[0])
    for _, rgb in scaled:
        yield rgb


def _recipe(clip: Clip, rank: NDArray[np.int32], size: NDArray[np.int64]) -> Recipe:
    """Return the recipe of a clip's file, whose packets follow each other from byte 0."""
    own = clip.recipe.position
    wanted, first = np.unique(own[own != PAD], return_index=True)
    pts = clip.pts[own != PAD][first]
    start = np.zeros(1, np.int32)
    return Recipe(
        range_offset=np.zeros(1, np.int64),
        range_length=np.array([size.sum()], np.int64),
        packet_size=size.astype(np.int32),
        packet_rank=rank,
        run_first=start,
        run_open=np.zeros(1, np.bool_),
        run_state=start,
        damaged=clip.recipe.damaged,
        position=np.where(own == PAD, PAD, np.searchsorted(wanted, own)).astype(np.int32),
        packet_pts=pts[rank],
        packet_shown=np.ones(len(rank), np.bool_),
        packet_start=np.arange(len(rank)) == 0,
    )
