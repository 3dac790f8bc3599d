"""Read a clip, choose its decoder, and decode it on the CPU unless a GPU does. This is the task of a loader's worker.

The functions that make the parts of an item (pictures, audio, and metadata of the frames) are used by all loaders.
"""

import bisect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import FramedexError
from framedex.loader.batches.faults import ClipRequest, Fault, Fetched, NvdecClip, fault_of
from framedex.loader.batches.frames import Finish, finished_clip
from framedex.loader.batches.rooms import RoomRequest, write
from framedex.loader.batches.slots import SHARED_FROM
from framedex.loader.pixels.options import PixelOptions, sendable
from framedex.loader.routing.balance import clip_cost
from framedex.loader.routing.driver import DriverSupport
from framedex.loader.routing.movie import Colour, clip_movie, gpu_movie
from framedex.loader.routing.routes import gpu_obstacle, nvjpeg_obstacle
from framedex.records.clip import PAD
from framedex.records.columns import item_of
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.together import joined
from framedex.sharder.decoding.audio import read_audio
from framedex.sharder.decoding.video import decode_joined
from framedex.sharder.reading import EncodedClip, HeldBytes, SourceFiles

Decode = Literal["cpu", "movie"]


class ReadableClips(Protocol):
    """The methods that workers need of a dataset such as ClipDataset.

    Attributes:
        sources: The files from which packets are read.
    """

    sources: SourceFiles

    @property
    def epoch(self) -> int:
        """The epoch that determines random draws."""

    def __len__(self) -> int: ...

    def clip(self, number: int) -> Clip:
        """Return the record of clip `number`, which contains the clip's frames and byte ranges."""

    def fit_remedy(self, error: FramedexError, number: int) -> None:
        """Adapt the remedy in a clip's error to the kind of the dataset: on disk, or planned from an index."""

    def extra_values(self, clip: Clip) -> dict[str, Any]:
        """Return an item's audio and its `frame_columns`."""


def picture(
    clip: Clip, sources: SourceFiles | HeldBytes, *, decode: Decode, pixels: PixelOptions, epoch: int
) -> dict[str, Any]:
    """Return the entries of an item that come from its pictures: `frames`, or `movie` and `positions`.

    Raises:
        StaleError: The clip's source is missing or has changed.
        DecodeError: The clip does not decode, or would need too much memory. The memory is checked before reading.
        FramedexError: The framing cannot be applied to pictures of the clip's size, or the transform fails.
    """
    if decode == "movie":
        pixels.check_memory(clip, None)
        return {"movie": clip_movie(clip, sources.read(clip)), "positions": clip.recipe.position.astype(np.int64)}
    draw = pixels.draw(clip, epoch)
    cutout = pixels.cutout(clip.medium, len(clip.frames), draw)
    pixels.check_memory(clip, cutout)
    return {"frames": pixels.finished(pixels.decoded(clip, sources.read(clip), cutout), draw)}


def pictures_together(
    clips: Sequence[Clip], sources: SourceFiles, *, pixels: PixelOptions, epoch: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the entries of several items that come from their pictures, as `picture` returns them with decode="cpu".

    Nothing is yielded if the clips cannot be decoded together, or take too much memory together.

    Args:
        clips: Clips of one medium that share pictures. Shared pictures are read and decoded once.
        sources: The files from which packets are read.
        pixels: The options for frames.
        epoch: The epoch that determines random draws.

    Yields:
        (the index of a clip, its entries), as soon as the clip is decoded.

    Raises:
        StaleError, DecodeError, FramedexError: As for `picture`, for any of the clips.
    """
    group = joined(clips)
    if group is None:
        return
    draws = [pixels.draw(clip, epoch) for clip in clips]
    cutouts = [pixels.cutout(clip.medium, len(clip.frames), draw) for clip, draw in zip(clips, draws, strict=True)]
    for clip, cutout in zip(clips, cutouts, strict=True):
        pixels.check_memory(clip, cutout)
    if not pixels.fit_together(group, cutouts):
        return
    encoded = sources.read(group.whole)
    for number, frames in decode_joined(group, encoded, cutouts, dtype=pixels.dtype, threads=pixels.threads):
        yield number, {"frames": pixels.finished(frames, draws[number])}


def sound(clip: Clip, sources: SourceFiles | HeldBytes) -> dict[str, Any]:
    """Return the audio entries of an item. The dict is empty if there is no audio. Raises StaleError, DecodeError."""
    audio = read_audio(clip, sources)
    return {} if audio is None else {"audio": audio.samples, "audio_mask": audio.mask, "audio_rate": audio.rate}


def describe(clip: Clip) -> dict[str, Any]:
    """Return the entries of an item with the metadata of the clip, its frames and its medium."""
    # Arrays in Arrow's memory are copied, because they are read-only and torch warns about such arrays.
    own = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in item_of(clip).items()}
    return own | item_of(clip.medium) | clip.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Options for fetching clips.

    Attributes:
        pixels: The options for frames. If datasets with different framings are joined, one for each dataset.
        ends: The numbers of the first clips after each joined dataset. Not used if there is one element in `pixels`.
        colour: how close a GPU's colours must come to the CPU's.
        caps: the formats that the GPU's driver supports. If None, all formats that NVDEC is known to decode exactly.
        nvjpeg: whether the GPU decodes JPEGs, too.
        finish: The normalization and layout that workers apply to frames. If None, the last stage of the loader does.
        windows: Whether the frames that the GPU decodes can be turned and cut afterwards. If not, workers decode the
            clips whose frames must be turned or cut.
    """

    pixels: Sequence[PixelOptions]
    ends: Sequence[int] = ()
    colour: Colour = "close"
    caps: DriverSupport | None = None
    nvjpeg: bool = True
    finish: Finish | None = None
    windows: bool = True

    def pixels_of(self, number: int) -> PixelOptions:
        """Return the options for the frames of a clip. Negative numbers count from the end."""
        if len(self.pixels) == 1:
            return self.pixels[0]
        return self.pixels[bisect.bisect_right(self.ends, number % self.ends[-1])]


class Fetcher:
    """A picklable function that fetches clips of a dataset."""

    def __init__(self, dataset: ReadableClips, options: FetchOptions) -> None:
        self._dataset, self._options = dataset, options

    def __call__(self, wanted: ClipRequest, ask: Callable[[Any], Any] | None = None) -> Fetched | Fault:
        """Return a clip, or a Fault if the clip is not available. An exception that this raises is a bug.

        Args:
            wanted: The request.
            ask: A function that asks the loader. For the cost of a clip (ClipCost) that the GPU can decode, it returns
                whether the GPU is to decode the clip. For a RoomRequest, it returns the place (Placed) to which frames
                are written, or None. Without this function, frames are returned.
        """
        try:
            return self._fetch(wanted, ask)
        except MEDIUM_ERRORS as error:
            if isinstance(error, FramedexError):
                self._dataset.fit_remedy(error, wanted.number)
            return fault_of(wanted.number, error)

    def _fetch(self, wanted: ClipRequest, ask: Callable[[Any], Any] | None) -> Fetched:
        begun = time.perf_counter()
        clip = self._dataset.clip(wanted.number)
        pixels = self._options.pixels_of(wanted.number)
        draw = pixels.draw(clip, self._dataset.epoch)
        cutout = pixels.cutout(clip.medium, len(clip.frames), draw)
        pixels.check_memory(clip, cutout)
        encoded = self._dataset.sources.read(clip)
        fetched = Fetched(
            number=wanted.number,
            item=self._dataset.extra_values(clip) | describe(clip),
            stored=(clip.medium.height, clip.medium.width),
            size=cutout.scaled_picture,
            cutout=None if cutout.is_whole else cutout,
            cost=clip_cost(clip),
            read_seconds=time.perf_counter() - begun,
            bytes_read=len(encoded.payload),
            packets=len(clip.recipe.packet_size),
        )
        is_fit = pixels.dtype == "uint8" and (self._options.windows or fetched.cutout is None)
        is_for_gpu = wanted.on_gpu is not False and is_fit and self._prepare(fetched, clip, encoded)
        if is_for_gpu and wanted.on_gpu is None and ask is not None and not ask(fetched.cost):
            is_for_gpu, fetched.movie, fetched.images, fetched.order = False, None, None, None
        if not is_for_gpu:
            # A transform may return any object. `sendable` converts it for sending to another process.
            frames = pixels.decoded(clip, encoded, cutout)
            finished = frames if pixels.transform is None else sendable(pixels.finished(frames, draw))
            fetched.frames = self._placed(finished, ask)
        fetched.decode_seconds = time.perf_counter() - begun - fetched.read_seconds
        return fetched

    def _placed(self, frames: Any, ask: Callable[[Any], Any] | None) -> Any:
        """Finish frames and write them to the place that the loader gives. Return the place, or else the frames."""
        if self._options.finish is not None and isinstance(frames, np.ndarray):
            frames = finished_clip(frames, self._options.finish)
        # A dataset's transform may return anything, such as masked arrays or numbers in another order of bytes.
        if ask is None or type(frames) is not np.ndarray or frames.nbytes < SHARED_FROM:
            return frames
        if not frames.dtype.isnative or frames.dtype.kind not in "biufc":
            return frames
        placed = ask(RoomRequest(frames.shape, frames.dtype.name))
        return frames if placed is None or not write(frames, placed) else placed

    def _prepare(self, fetched: Fetched, clip: Clip, encoded: EncodedClip) -> bool:
        """Add the input for a decoder on the GPU to a fetched clip. Return False if the CPU must decode the clip."""
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
