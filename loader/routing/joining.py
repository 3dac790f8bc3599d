"""Joins clips of one stream into one movie, so that NVDEC is set up once for many clips.

It decides which clips go together, and keeps track of which frames belong to which clip.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.loader.routing.movie import GpuMovie, joined_movie, packets_before

# Most packets of a movie of several clips, where each movie costs 8 ms before it is decoded. One of a GPU's decoders
# decodes a movie, one picture after another, so longer movies would leave the other decoders without work
# (benchmarks/nvdec.py).
MOST_PACKETS = 128
MOST_PIXELS = 500_000_000  # 1.5 GB of RGB, below the 2³¹ bytes that a 32-bit number can count


@dataclass(frozen=True, slots=True, kw_only=True)
class MovieFeed:
    """DALI's input for one movie.

    Attributes:
        content: uint8 [bytes], a tiny MP4.
        wanted: int32 [frames], ascending frame numbers in it.
        correction: float32 [3, 4], the affine map of RGB in 0…255 that turns DALI's colours into the stream's.
        start: int32 [2], the top left corner (y, x) of the shown part of a picture.
        shape: int32 [2], height and width of that part.
    """

    content: NDArray[np.uint8]
    wanted: NDArray[np.int32]
    correction: NDArray[np.float32]
    start: NDArray[np.int32]
    shape: NDArray[np.int32]

    def inputs(self) -> dict[str, NDArray[Any]]:
        """Return the inputs of a pipeline by name."""
        return {
            "movie": self.content,
            "wanted": self.wanted,
            "matrix": np.ascontiguousarray(self.correction[:, :3]),
            "offset": np.ascontiguousarray(self.correction[:, 3]),
            "start": self.start,
            "shape": self.shape,
        }


def movie_feed(movies: Sequence[GpuMovie], wanted: Sequence[NDArray[np.int32]]) -> MovieFeed:
    """Return clips of one stream as one movie.

    Args:
        movies: the clips.
        wanted: int32, ascending frame numbers in each clip.
    """
    picture = movies[0].stream.picture
    return MovieFeed(
        content=joined_movie(movies),
        wanted=np.concatenate([ones + at for ones, at in zip(wanted, packets_before(movies), strict=True)]).astype(
            np.int32
        ),
        correction=movies[0].correction,
        start=np.array([picture.top, picture.left], np.int32),
        shape=np.array([picture.shown_height, picture.shown_width], np.int32),
    )


def groups(
    movies: Sequence[GpuMovie], kinds: Sequence[Hashable], *, most_packets: int = MOST_PACKETS
) -> list[list[int]]:
    """Return which movies are decoded as one: groups of their numbers. Each number occurs once, in ascending order.

    Args:
        movies: the clips of a batch.
        kinds: one value per movie. Movies of a group have the same one.
        most_packets: limit for a group that has several movies. With 0, each movie is decoded by itself.
    """
    found: list[list[int]] = []
    open_groups: dict[Hashable, tuple[list[int], int]] = {}
    for number, (movie, kind) in enumerate(zip(movies, kinds, strict=True)):
        picture = movie.stream.picture
        most = min(most_packets, MOST_PIXELS // (picture.width * picture.height))
        key, packets = (movie.stream, kind), len(movie.packet_size)
        group, total = open_groups.get(key, ([], 0))
        if group and movie.can_follow and total + packets <= most:
            group.append(number)
        else:
            group, total = [number], 0
            found.append(group)
        open_groups[key] = group, total + packets
    return found
