"""The task of the loader's workers: read a clip, choose its decoder, and decode it unless a GPU does.

The parts of an item (pictures, audio, and the description of its frames) are made here for all loaders.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import FramedexError
from framedex.loader.batches.faults import ClipRequest, Fault, Fetched, NvdecClip, fault_of
from framedex.loader.pixels.options import PixelOptions, sendable
from framedex.loader.routing.balance import ClipCost, clip_cost
from framedex.loader.routing.driver import DriverSupport
from framedex.loader.routing.movie import Colour, clip_movie, gpu_movie
from framedex.loader.routing.routes import gpu_obstacle, nvjpeg_obstacle
from framedex.records.clip import PAD
from framedex.records.columns import item_of
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.decoding.audio import read_audio
from framedex.sharder.reading import EncodedClip, HeldBytes, SourceFiles

Decode = Literal["cpu", "movie"]


class ReadableClips(Protocol):
    """Clips by number, as in ClipDataset.

    Attributes:
        sources: where their packets are read from.
    """

    sources: SourceFiles

    @property
    def epoch(self) -> int:
        """The epoch whose random draws are used."""

    def __len__(self) -> int: ...

    def clip(self, number: int) -> Clip:
        """Return clip `number` as the manifest or the plan describes it."""

    def fit_remedy(self, error: FramedexError, number: int) -> None:
        """Change the remedy of a clip's error so that it fits the way in which the dataset was made."""

    def extra_values(self, clip: Clip) -> dict[str, Any]:
        """Return the entries of an item that are not read from its pictures: audio, and columns of frames' tables."""


def picture(
    clip: Clip, sources: SourceFiles | HeldBytes, *, decode: Decode, pixels: PixelOptions, epoch: int
) -> dict[str, Any]:
    """Return the part of an item that shows its frames, as `ClipDataset.__getitem__` describes it.

    Raises:
        StaleError: the clip's source is missing or changed.
        DecodeError: the clip does not decode, or would take too much memory, which is known before it is read.
        FramedexError: its pictures do not fit the framing of `pixels`, or the transform fails.
    """
    if decode == "movie":
        pixels.check_memory(clip, None)
        return {"movie": clip_movie(clip, sources.read(clip)), "positions": clip.recipe.position.astype(np.int64)}
    draw = pixels.draw(clip, epoch)
    cutout = pixels.cutout(clip.medium, len(clip.frames), draw)
    pixels.check_memory(clip, cutout)
    return {"frames": pixels.finished(pixels.decoded(clip, sources.read(clip), cutout), draw)}


def sound(clip: Clip, sources: SourceFiles | HeldBytes) -> dict[str, Any]:
    """Return the audio entries of an item, or an empty dict without audio. Raises StaleError, DecodeError."""
    audio = read_audio(clip, sources)
    if audio is None:
        return {}
    return {"audio": audio.samples, "audio_mask": audio.mask, "audio_rate": audio.rate}


def describe(clip: Clip) -> dict[str, Any]:
    """Return the part of an item that describes its frames."""
    # Arrow's memory is read-only, which torch warns about.
    own = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in item_of(clip).items()}
    return own | item_of(clip.medium) | clip.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How clips are fetched.

    Attributes:
        pixels: how frames are turned, scaled, cut and laid out.
        colour: how close a GPU's colours must come to the CPU's.
        caps: the formats that the GPU's driver supports.
        nvjpeg: whether the GPU decodes JPEGs, too.
        windows: whether frames of the GPU are turned and cut afterwards. If not, workers decode clips that need it.
    """

    pixels: PixelOptions = field(default_factory=PixelOptions)
    colour: Colour = "close"
    caps: DriverSupport | None = None
    nvjpeg: bool = True
    windows: bool = True


class Fetcher:
    """Fetches clips of a dataset; picklable."""

    def __init__(self, dataset: ReadableClips, options: FetchOptions) -> None:
        self._dataset, self._options = dataset, options

    def __call__(self, wanted: ClipRequest, ask: Callable[[ClipCost], bool] | None = None) -> Fetched | Fault:
        """Return a clip, or the reason why it is not available. An exception that this raises is a bug.

        Args:
            wanted: the request.
            ask: returns whether a GPU shall decode a clip of this cost, which it can decode. If None, it shall.
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
        pixels = self._options.pixels
        draw = pixels.draw(clip, self._dataset.epoch)
        cutout = pixels.cutout(clip.medium, len(clip.frames), draw)
        pixels.check_memory(clip, cutout)
        encoded = self._dataset.sources.read(clip)
        fetched = Fetched(
            number=wanted.number,
            item=self._dataset.extra_values(clip) | describe(clip),
            size=cutout.scaled_picture if pixels.framing.scales else None,
            cutout=None if cutout.is_whole else cutout,
            cost=clip_cost(clip),
            read_seconds=time.perf_counter() - begun,
            bytes_read=len(encoded.payload),
            packets=len(clip.recipe.packet_size),
        )
        is_fit = pixels.dtype == "uint8" and (self._options.windows or fetched.cutout is None)
        is_for_gpu = wanted.on_gpu and is_fit and self._prepare(fetched, clip, encoded)
        if is_for_gpu and ask is not None and not ask(fetched.cost):
            is_for_gpu, fetched.movie, fetched.images, fetched.order = False, None, None, None
        if not is_for_gpu:
            # A transform may return any object; `sendable` checks that it can leave the worker.
            frames = pixels.decoded(clip, encoded, cutout)
            fetched.frames = frames if pixels.transform is None else sendable(pixels.finished(frames, draw))
        fetched.decode_seconds = time.perf_counter() - begun - fetched.read_seconds
        return fetched

    def _prepare(self, fetched: Fetched, clip: Clip, encoded: EncodedClip) -> bool:
        """Add the input of a GPU's decoder to a fetched clip. Return False if the CPU must decode it."""
        position = clip.recipe.position.astype(np.int64)
        unique = np.unique(position[position != PAD])
        if clip.medium.kind == IMAGES:
            if not self._options.nvjpeg or nvjpeg_obstacle(clip) is not None:
                return False
            packet = np.argsort(clip.recipe.packet_rank)[unique]
            edges = encoded.packet_first
            fetched.images = [encoded.payload[edges[place] : edges[place + 1]] for place in packet.tolist()]
        else:
            if gpu_obstacle(clip, encoded, self._options.caps, colour=self._options.colour) is not None:
                return False
            movie = gpu_movie(clip, encoded)
            if movie is None:
                return False
            fetched.movie = NvdecClip(packets=movie, wanted=unique.astype(np.int32))
        fetched.order = np.where(position == PAD, PAD, np.searchsorted(unique, position))
        return True
