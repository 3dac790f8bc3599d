"""Clips on their way from a worker into a batch: the request and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.loader.routing.costs import ClipCost
from framedex.loader.routing.movie import GpuMovie
from framedex.sharder.decoding.cutout import Cutout
from framedex.sharder.decoding.video import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRequest:
    """A request to fetch a clip.

    Attributes:
        number: number of the clip.
        on_gpu: whether a GPU decodes it, if it can.
    """

    number: int
    on_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NvdecClip:
    """A clip that NVDEC is to decode.

    Attributes:
        packets: the movie.
        wanted: int32 [unique], ascending frame numbers among the packets' pictures.
    """

    packets: GpuMovie
    wanted: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvjpegClip:
    """A clip whose images nvJPEG is to decode.

    Attributes:
        content: the bytes of each image, a JPEG, as uint8 [bytes].
    """

    content: list[NDArray[np.uint8]]


@dataclass(slots=True, kw_only=True)
class Fetched:
    """A clip on its way into a batch: decoded frames, or what a GPU decodes.

    Attributes:
        number: number of the clip.
        item: the entries of a batch besides frames.
        cost: the estimated cost of decoding it.
        frames: uint8 [F, H, W, 3], if a worker decoded them; [crops, F, H, W, 3] if a clip has several crops; or what
            the dataset's transform made of them.
        movie: what NVDEC decodes, if it does.
        images: what nvJPEG decodes, if it does.
        order: int64 [F], which of the decoded frames is at each place, -1 where padded. None: frames are in their
            order.
        size: (height, width) to which a GPU scales. None: it does not scale.
        turns: quarter turns counterclockwise by which a GPU then turns frames.
        cutout: what a GPU then cuts out of them. None: they are whole.
        read_seconds: the worker's time for reading.
        decode_seconds: the worker's time for decoding.
        bytes_read: bytes read for the clip.
        packets: packets of the clip.
    """

    number: int
    item: dict[str, Any]
    cost: ClipCost
    frames: Any = None
    movie: NvdecClip | None = None
    images: NvjpegClip | None = None
    order: NDArray[np.int64] | None = None
    size: Size | None = None
    turns: int = 0
    cutout: Cutout | None = None
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    bytes_read: int = 0
    packets: int = 0
