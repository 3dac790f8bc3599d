"""A clip as a tiny MP4: the sharder's box headers around the packets that were read. A movie can hold several clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.h26x import hevc_sets
from framedex.indexer.bitstream.h26x.nal import split_length_prefixed
from framedex.loader.routing.colour import NO_CORRECTION, REWRITABLE, correction, has_full_range, is_deep
from framedex.loader.routing.nvdec_headers import CodedPicture, coded_picture, nvdec_packets, nvdec_record
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.medium import Medium
from framedex.sharder.packing.mp4 import movie_header
from framedex.sharder.reading.sources import EncodedClip

# HEVC unit types (H.265 table 7-1): the first one that is not of a slice, and IDR_W_RADL and IDR_N_LP. The flag is in
# the third byte of IDR units.
FIRST_OTHER_UNIT, IDR_TYPES, NO_OUTPUT_OF_PRIOR_PICTURES = 32, (19, 20), 0x40


@dataclass(frozen=True, slots=True, kw_only=True)
class MovieStream:
    """What movies share that a decoder can play as one: their headers, and the processing of their pictures.

    Attributes:
        codec: the codec.
        configuration: the decoder configuration record.
        picture: the coded picture, and what is cut out of it.
        correction: float32 [3, 4] as bytes, the affine map (`MT` of fn.coord_transform) that turns DALI's RGB, 0…255,
            into the stream's.
    """

    codec: str
    configuration: bytes
    picture: CodedPicture
    correction: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMovie:
    """A clip in the form in which NVDEC receives it.

    Attributes:
        stream: what it shares with other movies of its stream.
        payload: uint8 [bytes], its packets.
        packet_size: int64 [packets].
        packet_rank: int64 [packets], the output order.
        run_first: int64 [runs], the packets where runs begin.
        can_follow: whether it can follow other movies of its stream in one movie. DALI takes pictures as they are
            decoded and orders them by the movie's times. So it is enough that no picture from the first one on
            references an earlier one. In HEVC, only IDR pictures count: a CRA picture may continue from what came
            before.
    """

    stream: MovieStream
    payload: NDArray[np.uint8]
    packet_size: NDArray[np.int64]
    packet_rank: NDArray[np.int64]
    run_first: NDArray[np.int64]
    can_follow: bool

    @property
    def correction(self) -> NDArray[np.float32]:
        """float32 [3, 4]: as in MovieStream."""
        return np.frombuffer(self.stream.correction, np.float32).reshape(3, 4)

    @property
    def movie(self) -> NDArray[np.uint8]:
        """uint8 [bytes]: the clip as a file."""
        return joined_movie([self])


def packets_before(movies: Sequence[GpuMovie]) -> NDArray[np.int64]:
    """Return int64 [movies]: how many packets of earlier movies precede each movie."""
    return np.cumsum([0, *(len(movie.packet_size) for movie in movies[:-1])])


def joined_movie(movies: Sequence[GpuMovie]) -> NDArray[np.uint8]:
    """Return uint8 [bytes]: a file of movies of one stream, one after another.

    Frame n of a movie has the number n + the packets of the movies before it (`packets_before`).
    """
    stream, first = movies[0].stream, packets_before(movies)
    header = movie_header(
        codec=stream.codec,
        width=stream.picture.width,
        height=stream.picture.height,
        configuration=stream.configuration,
        packet_size=np.concatenate([movie.packet_size for movie in movies]),
        packet_rank=np.concatenate([movie.packet_rank + at for movie, at in zip(movies, first, strict=True)]),
        sync=np.concatenate([movie.run_first + at for movie, at in zip(movies, first, strict=True)]),
    )
    return np.concatenate([np.frombuffer(header, np.uint8), *(movie.payload for movie in movies)])


def clip_movie(clip: Clip, encoded: EncodedClip) -> NDArray[np.uint8]:
    """Return uint8 [bytes]: a movie whose n-th presented frame is the clip's packet of rank n.

    The movie has the stream's own headers. A decoder that treats it as one stream sees every run after the first
    without a flush before it. `routes.gpu_obstacle` says when that is safe.
    """
    return plain_movie(clip, encoded).movie


def plain_movie(clip: Clip, encoded: EncodedClip) -> GpuMovie:
    """Return a clip as it is in its stream: with its own headers, whole pictures and unchanged colours."""
    medium = clip.medium
    return _movie(clip, encoded, medium.extradata or b"", _whole_picture(medium), NO_CORRECTION)


def gpu_movie(clip: Clip, encoded: EncodedClip) -> GpuMovie | None:
    """Return a clip in the form for DALI, or None if it must be decoded on the CPU.

    The movie of H.264 and HEVC states full range, whatever the stream or its container states. So DALI's conversion is
    known, and little of what the correction needs is clipped. The movie also states no cropping. None is not expected
    for a clip that `routes.gpu_obstacle` accepts.
    """
    medium, configuration = clip.medium, clip.medium.extradata or b""
    picture: CodedPicture | None = _whole_picture(medium)
    said_full = medium.codec in REWRITABLE
    if said_full:
        written, picture = nvdec_record(medium.codec, configuration), coded_picture(medium.codec, configuration)
        packets = None if written is None else nvdec_packets(medium.codec, configuration, encoded)
        if written is None or packets is None or picture is None:
            return None
        configuration, encoded = written, packets
    assert picture is not None  # else the CPU decodes
    return _movie(
        clip,
        encoded,
        configuration,
        picture,
        correction(medium.color_matrix, full_range=has_full_range(medium), said_full=said_full, deep=is_deep(medium)),
    )


def _whole_picture(medium: Medium) -> CodedPicture:
    """Return a picture that is shown entirely."""
    width, height = medium.width, medium.height
    return CodedPicture(width=width, height=height, left=0, top=0, shown_width=width, shown_height=height)


def _movie(
    clip: Clip, encoded: EncodedClip, configuration: bytes, picture: CodedPicture, corrected: NDArray[np.float32]
) -> GpuMovie:
    recipe = clip.recipe
    return GpuMovie(
        stream=MovieStream(
            codec=clip.medium.codec,
            configuration=configuration,
            picture=picture,
            correction=corrected.astype(np.float32).tobytes(),
        ),
        payload=encoded.payload,
        packet_size=np.diff(encoded.packet_first),
        packet_rank=recipe.packet_rank.astype(np.int64),
        run_first=recipe.run_first.astype(np.int64),
        can_follow=not recipe.run_open.any()
        and (clip.medium.codec != "hevc" or begins_with_idr(configuration, encoded)),
    )


def begins_with_idr(configuration: bytes, encoded: EncodedClip) -> bool:
    """Return whether the first picture of an HEVC clip is an IDR picture that does not drop the pictures before it.

    See H.265 table 7-1 and 7.3.6.1.

    Args:
        configuration: the record that states the size of the length fields of units.
        encoded: the clip's packets.
    """
    length_size, _ = hevc_sets.parse_configuration(configuration)
    packet = encoded.payload[: encoded.packet_first[1]].tobytes()
    spans, _ = split_length_prefixed(packet, length_size)
    types = [packet[start] >> 1 & 0x3F for start, _ in spans]
    first = next((number for number, kind in enumerate(types) if kind < FIRST_OTHER_UNIT), None)
    if first is None or types[first] not in IDR_TYPES:
        return False
    start, _ = spans[first]
    return not packet[start + 2] & NO_OUTPUT_OF_PRIOR_PICTURES
