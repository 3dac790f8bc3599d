"""What runs in the loader's workers: read a clip, decide who decodes it, and decode it unless a GPU will."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.indexer.schema import IMAGES
from framedex.loader.colour import correction
from framedex.loader.dataset import ClipDataset, describe
from framedex.loader.faults import Fault, fault_of
from framedex.loader.movie import clip_movie
from framedex.loader.routes import gpu_obstacle
from framedex.sharder.clip import Clip
from framedex.sharder.decoder import Size, decode_rgb
from framedex.sharder.schema import PAD
from framedex.sharder.sources import EncodedClip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A clip to fetch. on_gpu: a GPU is to decode it, if it can."""

    number: int
    on_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Movie:
    """A clip for NVDEC. content: uint8 [bytes], a tiny MP4. wanted: int32 [unique], ascending frame numbers in it.
    color: float32 [3, 3], what turns DALI's RGB into the stream's.
    """

    content: NDArray[np.uint8]
    wanted: NDArray[np.int32]
    color: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """A clip for nvJPEG. content: uint8 [bytes] of each image."""

    content: list[NDArray[np.uint8]]


@dataclass(slots=True, kw_only=True)
class Fetched:
    """A clip on its way into a batch: `frames`, or what a GPU decodes.

    item: what a batch holds of it besides frames. frames: uint8 [F, H, W, 3]. order: int64 [F], which of the decoded
    frames stands at each place, -1 where padded; None where frames are in their order. read_seconds, decode_seconds: of
    the worker. bytes_read, packets: of the clip.
    """

    number: int
    item: dict[str, Any]
    frames: NDArray[np.uint8] | None = None
    movie: Movie | None = None
    images: Images | None = None
    order: NDArray[np.int64] | None = None
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    bytes_read: int = 0
    packets: int = 0


class Fetcher:
    """Fetches clips of a dataset; picklable. size: (height, width) that frames are scaled to."""

    def __init__(self, dataset: ClipDataset, *, size: Size | None, threads: int) -> None:
        self._dataset, self._size, self._threads = dataset, size, threads

    def __call__(self, wanted: Wanted) -> Fetched | Fault:
        """Return a clip, or why it cannot be had."""
        try:
            return self._fetch(wanted)
        except (FramedexError, MemoryError, OSError) as error:
            return fault_of(wanted.number, error)

    def _fetch(self, wanted: Wanted) -> Fetched:
        begun = time.perf_counter()
        clip = self._dataset.clip(wanted.number)
        encoded = self._dataset.sources.read(clip.source, clip.recipe, clip.medium.states)
        fetched = Fetched(
            number=wanted.number,
            item=self._dataset.sound(clip) | describe(clip),
            read_seconds=time.perf_counter() - begun,
            bytes_read=len(encoded.payload),
            packets=len(clip.recipe.packet_size),
        )
        if wanted.on_gpu and gpu_obstacle(clip) is None:
            _prepare(fetched, clip, encoded)
        else:
            fetched.frames = decode_rgb(clip, encoded, size=self._size, threads=self._threads)
        fetched.decode_seconds = time.perf_counter() - begun - fetched.read_seconds
        return fetched


def _prepare(fetched: Fetched, clip: Clip, encoded: EncodedClip) -> None:
    """Fill in what a GPU decodes."""
    position = clip.recipe.position.astype(np.int64)
    unique = np.unique(position[position != PAD])
    fetched.order = np.where(position == PAD, PAD, np.searchsorted(unique, position))
    if clip.medium.kind == IMAGES:
        packet = np.empty(len(clip.recipe.packet_rank), np.int64)
        packet[clip.recipe.packet_rank] = np.arange(len(packet))
        edges = encoded.packet_first
        fetched.images = Images(
            content=[encoded.payload[edges[place] : edges[place + 1]] for place in packet[unique].tolist()]
        )
        return
    fetched.movie = Movie(
        content=clip_movie(clip, encoded),
        wanted=unique.astype(np.int32),
        color=correction(clip.medium.color_matrix),
    )
