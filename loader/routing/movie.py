"""A clip as a tiny MP4: the sharder's box headers around the packets that were read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.loader.routing.colour import REWRITABLE, correction, has_full_range, is_deep
from framedex.loader.routing.full_range import full_range_packets, full_range_record
from framedex.sharder.clips.clip import Clip
from framedex.sharder.packing.mp4 import movie_header
from framedex.sharder.reading.sources import EncodedClip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMovie:
    """What DALI is fed for a clip. movie: uint8 [bytes]. correction: float32 [3, 4], the affine map (`MT` of
    fn.coord_transform) that turns DALI's RGB of it, 0…255, into the stream's.
    """

    movie: NDArray[np.uint8]
    correction: NDArray[np.float32]


def clip_movie(clip: Clip, encoded: EncodedClip) -> NDArray[np.uint8]:
    """Return uint8 [bytes]: a movie whose n-th presented frame is the clip's packet of rank n.

    A decoder that treats it as one stream sees every run after the first without a flush before it; see
    `routes.gpu_obstacle` for when that is safe.
    """
    return _movie(clip, encoded, clip.medium.extradata or b"")


def gpu_movie(clip: Clip, encoded: EncodedClip) -> GpuMovie | None:
    """Return a clip as DALI is to be fed it, and the correction of its colours; None: it must be decoded on the CPU.

    H.264 and HEVC say full range in the movie, whatever they or their container said, so that it is known what DALI does,
    and little of what the correction needs is clipped. Of a clip that `routes.gpu_obstacle` lets pass, None is not
    expected.
    """
    medium, configuration = clip.medium, clip.medium.extradata or b""
    said_full = medium.codec in REWRITABLE
    if said_full:
        written = full_range_record(medium.codec, configuration)
        packets = None if written is None else full_range_packets(medium.codec, configuration, encoded)
        if written is None or packets is None:
            return None
        configuration, encoded = written, packets
    return GpuMovie(
        movie=_movie(clip, encoded, configuration),
        correction=correction(
            medium.color_matrix, full_range=has_full_range(medium), said_full=said_full, deep=is_deep(medium)
        ),
    )


def _movie(clip: Clip, encoded: EncodedClip, configuration: bytes) -> NDArray[np.uint8]:
    header = movie_header(
        codec=clip.medium.codec,
        width=clip.medium.width,
        height=clip.medium.height,
        configuration=configuration,
        packet_size=np.diff(encoded.packet_first),
        packet_rank=clip.recipe.packet_rank,
        sync=clip.recipe.run_first,
    )
    return np.concatenate([np.frombuffer(header, np.uint8), encoded.payload])
