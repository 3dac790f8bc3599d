"""A clip's recipe, one row of `recipes` as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to get a clip's frames out of its medium.

    `packet_pts`, `packet_shown` and `packet_start` are known when a clip is planned, and are not stored.

    Attributes:
        range_offset: int64 [ranges], where each byte range to read begins. Joined, the ranges hold the packets in
            decode order.
        range_length: int64 [ranges], in bytes.
        packet_size: int32 [packets], in bytes. The packets of one picture count as one.
        packet_rank: int32 [packets], presentation rank in the clip's own stream.
        run_first: int32 [runs], number of each run's first packet. Each run is decoded in a session of its own.
        run_open: bool [runs], whether the run begins at an open start point.
        run_state: int32 [runs], which of the medium's states the run's decoder must be given first.
        damaged: Whether some wanted frame lies in a damaged GOP.
        position: int32 [wanted], the rank of each wanted frame, -1 for padding.
        range_path: For loose images, the file of each range in the medium's folder; otherwise None.
        range_crc32: int64 [ranges], CRC-32 of each range's bytes; None if the index has no checksums.
        packet_pts: int64 [packets], timestamps.
        packet_shown: bool [packets], whether a decoder outputs the packet.
        packet_start: bool [packets], whether decoding may start at the packet without any state.
    """

    range_offset: NDArray[np.int64]
    range_length: NDArray[np.int64]
    packet_size: NDArray[np.int32]
    packet_rank: NDArray[np.int32]
    run_first: NDArray[np.int32]
    run_open: NDArray[np.bool_]
    run_state: NDArray[np.int32]
    damaged: bool
    position: NDArray[np.int32]
    range_path: list[str] | None = None
    range_crc32: NDArray[np.int64] | None = None
    packet_pts: NDArray[np.int64] | None = None
    packet_shown: NDArray[np.bool_] | None = None
    packet_start: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if len(self.packet_size) != len(self.packet_rank) or not (
            len(self.run_first) == len(self.run_open) == len(self.run_state)
        ):
            raise ValueError("recipe columns of different lengths")
        if int(self.range_length.sum()) != int(self.packet_size.sum()):
            raise ValueError("a recipe's ranges and packets differ in size")


def coalesce(
    offset: NDArray[np.int64], size: NDArray[np.int64], first_of: NDArray[np.intp] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join byte ranges that follow each other without a gap; return (offset, length), int64 [ranges].

    Args:
        first_of: Numbers of the input ranges that always begin a new range.
    """
    first = np.ones(len(offset), np.bool_)
    first[1:] = offset[1:] != offset[:-1] + size[:-1]
    if first_of is not None:
        first[first_of] = True
    return offset[first], np.add.reduceat(size, np.flatnonzero(first)).astype(np.int64)
