"""The task of the loader's workers: read a clip, choose its decoder, and decode it unless a GPU does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import FramedexError
from framedex.loader.batches.faults import Fault, fault_of
from framedex.loader.batches.fetched import ClipRequest, Fetched, NvdecClip, NvjpegClip
from framedex.loader.batches.items import ReadableClips, describe
from framedex.loader.batches.rotation import quarter_turns, stored_size, upright
from framedex.loader.pixels.options import PixelOptions
from framedex.loader.pixels.transforms import sendable
from framedex.loader.routing.colour import Colour
from framedex.loader.routing.costs import ClipCost, clip_cost
from framedex.loader.routing.driver import DriverSupport
from framedex.loader.routing.movie import gpu_movie
from framedex.loader.routing.routes import gpu_obstacle, nvjpeg_obstacle
from framedex.records.clip import PAD
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.decoding.cutout import Cutout, cut, whole
from framedex.sharder.reading.sources import EncodedClip


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How clips are fetched.

    Attributes:
        pixels: the size, the part and the form in which frames are delivered, after they are turned.
        upright: turn frames as their medium says.
        colour: how close a GPU's colours must come to the CPU's.
        caps: what the GPU's driver supports.
        nvjpeg: whether the GPU decodes JPEGs too.
    """

    pixels: PixelOptions = field(default_factory=PixelOptions)
    upright: bool = False
    colour: Colour = "close"
    caps: DriverSupport | None = None
    nvjpeg: bool = True


class Fetcher:
    """Fetches clips of a dataset; picklable."""

    def __init__(self, dataset: ReadableClips, options: FetchOptions) -> None:
        self._dataset, self._options = dataset, options

    @property
    def runs_own_code(self) -> bool:
        """Whether only framedex's code runs: no transform of the user and no class that extends a dataset."""
        return self._options.pixels.transform is None and type(self._dataset).__module__.startswith("framedex.")

    def __call__(self, wanted: ClipRequest, ask: Callable[[ClipCost], bool] | None = None) -> Fetched | Fault:
        """Return a clip, or the reason why it is not available. An exception that this raises is a bug.

        Args:
            wanted: the request.
            ask: returns whether a GPU decodes a clip of this cost, which it can decode. None: it does.
        """
        try:
            return self._fetch(wanted, ask)
        except MEDIUM_ERRORS as error:
            if isinstance(error, FramedexError):
                self._dataset.fit_remedy(error, wanted.number)
            return fault_of(wanted.number, error)

    def _fetch(self, wanted: ClipRequest, ask: Callable[[ClipCost], bool] | None) -> Fetched:
        begun = time.perf_counter()
        clip = self._dataset.clip(wanted.number)
        degrees = clip.medium.rotation_degrees if self._options.upright else 0
        pixels = self._options.pixels
        draw = pixels.draw(clip, self._dataset.epoch)
        size = stored_size((clip.medium.height, clip.medium.width), degrees)  # exchanges both for upright pictures
        cutout = pixels.cutout(size, len(clip.frames), draw)
        pixels.check_memory(clip, cutout)
        encoded = self._dataset.sources.read(clip)
        fetched = Fetched(
            number=wanted.number,
            item=self._dataset.beside(clip) | describe(clip),
            size=stored_size(cutout.scaled, degrees) if pixels.framing.scales else None,
            turns=quarter_turns(degrees),
            cutout=None if cutout.is_whole else cutout,
            cost=clip_cost(clip),
            read_seconds=time.perf_counter() - begun,
            bytes_read=len(encoded.payload),
            packets=len(clip.recipe.packet_size),
        )
        is_for_gpu = wanted.on_gpu and pixels.dtype == "uint8" and self._prepare(fetched, clip, encoded)
        if is_for_gpu and ask is not None and not ask(fetched.cost):
            is_for_gpu, fetched.movie, fetched.images, fetched.order = False, None, None, None
        if not is_for_gpu:
            frames = self._decoded(clip, encoded, cutout, degrees)
            fetched.frames = frames if pixels.transform is None else sendable(pixels.finished(frames, draw))
        fetched.decode_seconds = time.perf_counter() - begun - fetched.read_seconds
        return fetched

    def _decoded(self, clip: Clip, encoded: EncodedClip, cutout: Cutout, degrees: int) -> NDArray[Any]:
        """Return a clip's frames, decoded on the CPU, turned and then cut."""
        pixels = self._options.pixels
        if not quarter_turns(degrees):
            return pixels.decoded(clip, encoded, cutout)
        stored = pixels.decoded(clip, encoded, whole(stored_size(cutout.scaled, degrees)))
        return cut(upright(stored, degrees), cutout)

    def _prepare(self, fetched: Fetched, clip: Clip, encoded: EncodedClip) -> bool:
        """Add what a GPU decodes to a fetched clip. Return False if the CPU must decode it."""
        position = clip.recipe.position.astype(np.int64)
        unique = np.unique(position[position != PAD])
        if clip.medium.kind == IMAGES:
            if not self._options.nvjpeg or nvjpeg_obstacle(clip) is not None:
                return False
            fetched.images = NvjpegClip(content=_images(clip, encoded, unique))
        else:
            if gpu_obstacle(clip, encoded, self._options.caps, colour=self._options.colour) is not None:
                return False
            movie = gpu_movie(clip, encoded)
            if movie is None:
                return False
            fetched.movie = NvdecClip(packets=movie, wanted=unique.astype(np.int32))
        fetched.order = np.where(position == PAD, PAD, np.searchsorted(unique, position))
        return True


def _images(clip: Clip, encoded: EncodedClip, ranks: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """Return the encoded images with the given ranks."""
    packet = np.empty(len(clip.recipe.packet_rank), np.int64)
    packet[clip.recipe.packet_rank] = np.arange(len(packet))
    edges = encoded.packet_first
    return [encoded.payload[edges[place] : edges[place + 1]] for place in packet[ranks].tolist()]
