"""Clips on their way from a worker into a batch: what was asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.loader.routing.movie import GpuMovie
from framedex.sharder.decoding.video import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRequest:
    """A clip to fetch. on_gpu: a GPU is to decode it, if it can."""

    number: int
    on_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NvdecClip:
    """A clip for NVDEC. wanted: int32 [unique], ascending frame numbers among the packets' pictures."""

    packets: GpuMovie
    wanted: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvjpegClip:
    """A clip for nvJPEG. content: uint8 [bytes] of each image, a JPEG."""

    content: list[NDArray[np.uint8]]


@dataclass(slots=True, kw_only=True)
class Fetched:
    """A clip on its way into a batch: `frames`, or what a GPU decodes.

    item: what a batch holds of it besides frames. frames: uint8 [F, H, W, 3]. order: int64 [F], which of the decoded
    frames stands at each place, -1 where padded; None where frames are in their order. size: (height, width) that a GPU
    scales to; None: none. turns: quarter turns, anticlockwise, that it makes then. read_seconds, decode_seconds: of
    the worker. bytes_read, packets: of the clip.
    """

    number: int
    item: dict[str, Any]
    frames: NDArray[np.uint8] | None = None
    movie: NvdecClip | None = None
    images: NvjpegClip | None = None
    order: NDArray[np.int64] | None = None
    size: Size | None = None
    turns: int = 0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    bytes_read: int = 0
    packets: int = 0
