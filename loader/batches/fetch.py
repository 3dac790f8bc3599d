"""Read a clip, choose its decoder, and decode it on the CPU unless a GPU does. This is the task of a loader's worker.

The functions that make the parts of an item (pictures, audio, and metadata of the frames) are used by all loaders.
"""

import bisect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import FramedexError
from framedex.loader.batches.faults import (
    ClipRequest,
    Fault,
    Fetched,
    GroupRequest,
    GroupSizes,
    NvdecClip,
    OfMember,
    fault_of,
)
from framedex.loader.batches.frames import Finish, finished_clip
from framedex.loader.batches.rooms import RoomRequest, write
from framedex.loader.batches.slots import SHARED_FROM
from framedex.loader.pixels.framing import Draw
from framedex.loader.pixels.options import PixelOptions, sendable
from framedex.loader.routing.balance import ClipCost, clip_cost
from framedex.loader.routing.driver import DriverSupport
from framedex.loader.routing.movie import Colour, clip_movie, gpu_movie
from framedex.loader.routing.routes import gpu_obstacle, nvjpeg_obstacle
from framedex.records.clip import PAD
from framedex.records.columns import item_of
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.together import JoinedClips, joined, shared_groups
from framedex.sharder.decoding.audio import read_audio
from framedex.sharder.decoding.cutout import Cutout
from framedex.sharder.decoding.video import decode_joined
from framedex.sharder.reading import EncodedClip, HeldBytes, SourceFiles

Decode = Literal["cpu", "movie"]
LOG = logging.getLogger("framedex.loader")


class ReadableClips(Protocol):
    """The methods that workers need of a dataset such as ClipDataset.

    Attributes:
        sources: The files from which packets are read.
    """

    sources: SourceFiles

    def epoch_of(self, number: int) -> int:
        """Return the epoch that determines the random draws of clip `number`."""

    def __len__(self) -> int: ...

    def clip(self, number: int) -> Clip:
        """Return the record of clip `number`, which contains the clip's frames and byte ranges."""

    def fitted(self, error: FramedexError, number: int) -> FramedexError:
        """Return a clip's error with a remedy for the kind of the dataset: on disk, or planned from an index."""

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
    clips: Sequence[Clip], sources: SourceFiles, *, pixels: PixelOptions, epochs: Sequence[int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the entries of several items that come from their pictures, as `picture` returns them with decode="cpu".

    Clips that take too much memory together are decoded in parts. Nothing is yielded for clips that cannot be decoded
    together with others.

    Args:
        clips: Clips of one medium that share pictures. Shared pictures are read and decoded once.
        sources: The files from which packets are read.
        pixels: The options for frames.
        epochs: The epoch of each clip, which determines its random draws.

    Yields:
        (the index of a clip, its entries), as soon as the clip is decoded.

    Raises:
        StaleError, DecodeError, FramedexError: As for `picture`, for any of the clips.
    """
    draws = [pixels.draw(clip, epoch) for clip, epoch in zip(clips, epochs, strict=True)]
    cutouts = [pixels.cutout(clip.medium, len(clip.frames), draw) for clip, draw in zip(clips, draws, strict=True)]
    for clip, cutout in zip(clips, cutouts, strict=True):
        pixels.check_memory(clip, cutout)
    first = 0
    while (group := joined_within_memory(clips[first:], cutouts[first:], pixels)) is not None:
        encoded, some = sources.read(group.whole), slice(first, first + len(group.clips))
        decoded = decode_joined(group, encoded, cutouts[some], dtype=pixels.dtype, threads=pixels.threads)
        for number, frames in decoded:
            yield first + number, {"frames": pixels.finished(frames, draws[first + number])}
        first = some.stop


def joined_within_memory(clips: Sequence[Clip], cutouts: Sequence[Cutout], pixels: PixelOptions) -> JoinedClips | None:
    """Join clips, or only the first ones if all take more memory than one clip may. None if they cannot be joined."""
    while len(clips) > 1:
        group = joined(clips)
        if group is None or pixels.fit_together(group, cutouts[: len(clips)]):
            return group
        clips = clips[: len(clips) // 2]
    return None


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


# A function that asks the loader a question.
Ask = Callable[[Any], Any]


def _ask_for(ask: Ask, member: int, question: object) -> Any:
    """Ask a question about one clip of a group."""
    return ask(question if isinstance(question, ClipCost) else OfMember(member, question))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A clip with its random draws.

    Attributes:
        number: The number of the clip.
        clip: The clip.
        pixels: The options for its frames.
        draw: The random draws.
        cutout: The part of its pictures that is delivered.
        finish: The normalization and layout that workers apply. None if they do not.
    """

    number: int
    clip: Clip
    pixels: PixelOptions
    draw: Draw
    cutout: Cutout
    finish: Finish | None

    @property
    def size_of_frames(self) -> int:
        """The number of bytes of the delivered frames. A dataset's transform may change it."""
        is_normalized = self.finish is not None and self.finish.normalize is not None
        return self.pixels.frame_bytes(self.cutout, len(self.clip.frames)) * (
            np.float32().nbytes if is_normalized else 1
        )

    def finished(self, frames: NDArray[Any]) -> Any:
        """Return decoded frames as they are delivered, or as the transform returns them."""
        # A transform may return any object. `sendable` converts it for sending to another process.
        found = frames if self.pixels.transform is None else sendable(self.pixels.finished(frames, self.draw))
        return finished_clip(found, self.finish) if self.finish is not None and isinstance(found, np.ndarray) else found


class Fetcher:
    """A picklable function that fetches clips of a dataset."""

    def __init__(self, dataset: ReadableClips, options: FetchOptions) -> None:
        self._dataset, self._options = dataset, options

    @overload
    def __call__(self, wanted: ClipRequest, ask: Ask | None = None) -> Fetched | Fault: ...

    @overload
    def __call__(self, wanted: GroupRequest, ask: Ask | None = None) -> list[Fetched | Fault | int]: ...

    def __call__(
        self, wanted: ClipRequest | GroupRequest, ask: Ask | None = None
    ) -> Fetched | Fault | list[Fetched | Fault | int]:
        """Return a clip, or a Fault if the clip is not available. An exception that this raises is a bug.

        For a GroupRequest, return this for each clip, or a number for a clip that must be requested again, together
        with the other clips that have this number.

        Args:
            wanted: The request.
            ask: A function that asks the loader. For the cost of a clip (ClipCost) that the GPU can decode, it returns
                whether the GPU is to decode the clip. For a RoomRequest, it returns the place (Placed) to which frames
                are written, or None. Without this function, frames are returned. For GroupSizes, it returns how many of
                the clips may be decoded now.
        """
        return self._one(wanted, ask) if isinstance(wanted, ClipRequest) else self._group(wanted, ask)

    def _one(self, wanted: ClipRequest, ask: Ask | None) -> Fetched | Fault:
        try:
            return self._fetch(wanted, ask)
        except MEDIUM_ERRORS as error:
            return self._fault(wanted.number, error)

    def _fault(self, number: int, error: Exception) -> Fault:
        if isinstance(error, FramedexError):
            error = self._dataset.fitted(error, number)
        return fault_of(number, error)

    def _group(self, wanted: GroupRequest, ask: Ask | None) -> list[Fetched | Fault | int]:
        """Fetch the first clip of a group, and those other clips that can be decoded together with it."""
        found: list[Fetched | Fault | int] = [0] * len(wanted.numbers)
        drawn: dict[int, _Drawn] = {}
        for member, number in enumerate(wanted.numbers):
            try:
                drawn[member] = self._drawn(number)
            except MEDIUM_ERRORS as error:
                found[member] = self._fault(number, error)
        asks = [None if ask is None else partial(_ask_for, ask, member) for member in range(len(found))]
        members, group = self._together(drawn, found, ask)
        if group is not None:
            try:
                for member, fetched in self._fetch_together([drawn[n] for n in members], group, wanted, ask):
                    fetched.frames = self._placed(fetched.frames, asks[members[member]])
                    found[members[member]] = fetched
            except MEDIUM_ERRORS as error:  # the clips that are missing are fetched alone, which shows the wrong clip
                LOG.debug("%d clips could not be decoded together: %r", len(members), error)
        for member in members:
            if isinstance(found[member], int):
                alone = ClipRequest(number=wanted.numbers[member], on_gpu=wanted.on_gpu)
                found[member] = self._one(alone, asks[member])
        return found

    def _together(
        self, drawn: Mapping[int, "_Drawn"], found: list[Fetched | Fault | int], ask: Ask | None
    ) -> tuple[list[int], JoinedClips | None]:
        """Choose the clips of a group that are decoded together with the first one.

        Args:
            drawn: The available clips, by their indices in the group.
            found: The result of `__call__`. Clips that are left out get the numbers with which they are returned.
            ask: See `__call__`.

        Returns:
            (the indices of the chosen clips, ascending; the joined clips, or None for a single clip)
        """
        if 0 not in drawn:
            return [], None
        if ask is not None:
            sizes = [drawn[member].size_of_frames if member in drawn else 0 for member in range(len(found))]
            allowed: int = ask(GroupSizes(sizes))
            drawn = {member: one for member, one in drawn.items() if member < allowed}
        members, clips = list(drawn), [one.clip for one in drawn.values()]
        for number, sharing in enumerate(shared_groups(clips), 1):  # 0 stands for clips that were not allowed
            for index in sharing:
                found[members[index]] = number
        chosen = [member for member in members if found[member] == found[0]]
        cutouts = [drawn[member].cutout for member in chosen]
        group = joined_within_memory([drawn[member].clip for member in chosen], cutouts, drawn[0].pixels)
        return ([0], None) if group is None else (chosen[: len(group.clips)], group)

    def _drawn(self, number: int) -> "_Drawn":
        """Return a clip with its random draws. Raises DecodeError if it takes too much memory."""
        clip = self._dataset.clip(number)
        pixels = self._options.pixels_of(number)
        draw = pixels.draw(clip, self._dataset.epoch_of(number))
        cutout = pixels.cutout(clip.medium, len(clip.frames), draw)
        pixels.check_memory(clip, cutout)
        return _Drawn(number=number, clip=clip, pixels=pixels, draw=draw, cutout=cutout, finish=self._options.finish)

    def _fetched(self, drawn: "_Drawn", **more: Any) -> Fetched:
        """Return a clip without its frames."""
        clip, cutout = drawn.clip, drawn.cutout
        return Fetched(
            number=drawn.number,
            item=self._dataset.extra_values(clip) | describe(clip),
            stored=(clip.medium.height, clip.medium.width),
            size=cutout.scaled_picture,
            cutout=None if cutout.is_whole else cutout,
            **more,
        )

    def _fetch_together(
        self, drawn: Sequence["_Drawn"], group: JoinedClips, wanted: GroupRequest, ask: Ask | None
    ) -> Iterator[tuple[int, Fetched]]:
        """Yield (the index of a clip, the clip) for clips that are decoded together.

        Nothing is yielded if a GPU decodes some of them alone, but cannot decode all of them together.

        Raises:
            StaleError, DecodeError, FramedexError: As for `picture`, for any of the clips.
        """
        begun, whole, medium = time.perf_counter(), group.whole, group.whole.medium
        encoded = self._dataset.sources.read(whole)
        own: list[dict[str, Any]] = [{"cost": ClipCost(codec=medium.codec, cpu=0.0, gpu=0.0)} for _ in drawn]
        own[0] = {
            "cost": clip_cost(whole),
            "bytes_read": len(encoded.payload),
            "packets": len(whole.recipe.packet_size),
        }
        clips = [self._fetched(one, **values) for one, values in zip(drawn, own, strict=True)]
        first, pixels = clips[0], drawn[0].pixels
        first.read_seconds = time.perf_counter() - begun
        alone = [
            wanted.on_gpu is not False and self._is_for_gpu(one, group.encoded(number, encoded))
            for number, one in enumerate(drawn)
        ]
        if all(alone) and self._prepare_together(clips, drawn, group, encoded):
            if wanted.on_gpu or ask is None or ask(first.cost):
                yield from enumerate(clips)
                return
            for clip in clips:
                clip.movie = clip.order = None
        elif any(alone) and (wanted.on_gpu or medium.kind == IMAGES):
            return
        decoded = decode_joined(
            group, encoded, [one.cutout for one in drawn], dtype=pixels.dtype, threads=pixels.threads
        )
        for number, frames in decoded:
            clips[number].frames = drawn[number].finished(frames)
            first.decode_seconds = time.perf_counter() - begun - first.read_seconds
            yield number, clips[number]

    def _prepare_together(
        self, clips: Sequence[Fetched], drawn: Sequence["_Drawn"], group: JoinedClips, encoded: EncodedClip
    ) -> bool:
        """Add the input of NVDEC to clips that NVDEC can decode alone. Return False if it cannot decode them together.

        All of them must be scaled alike.
        """
        whole, parts = group.whole, [one.cutout.part for one in drawn]
        if any((clip.size, part) != (clips[0].size, parts[0]) for clip, part in zip(clips, parts, strict=True)):
            return False
        if whole.medium.kind == IMAGES or self._obstacle(whole, encoded) is not None:
            return False
        movie = gpu_movie(whole, encoded)
        if movie is None:
            return False
        shown = whole.recipe.position.astype(np.int64)
        nvdec = NvdecClip(packets=movie, wanted=shown.astype(np.int32))
        for clip, one, ranks in zip(clips, drawn, group.ranks, strict=True):
            position = one.clip.recipe.position.astype(np.int64)
            clip.movie = nvdec
            clip.order = np.where(position == PAD, PAD, np.searchsorted(shown, ranks[np.maximum(position, 0)]))
        return True

    def _is_for_gpu(self, drawn: "_Drawn", encoded: EncodedClip) -> bool:
        """Return whether a GPU can decode a clip and make its frames."""
        is_fit = drawn.pixels.dtype == "uint8" and (self._options.windows or drawn.cutout.is_whole)
        return is_fit and self._obstacle(drawn.clip, encoded) is None

    def _obstacle(self, clip: Clip, encoded: EncodedClip) -> str | None:
        """Return the reason why a GPU must not decode a clip, or None if it may."""
        if clip.medium.kind == IMAGES:
            return nvjpeg_obstacle(clip) if self._options.nvjpeg else "nvJPEG is not used"
        return gpu_obstacle(clip, encoded, self._options.caps, colour=self._options.colour)

    def _fetch(self, wanted: ClipRequest, ask: Ask | None) -> Fetched:
        begun = time.perf_counter()
        drawn = self._drawn(wanted.number)
        clip, pixels = drawn.clip, drawn.pixels
        encoded = self._dataset.sources.read(clip)
        fetched = self._fetched(
            drawn,
            cost=clip_cost(clip),
            bytes_read=len(encoded.payload),
            packets=len(clip.recipe.packet_size),
        )
        fetched.read_seconds = time.perf_counter() - begun
        is_for_gpu = wanted.on_gpu is not False and self._is_for_gpu(drawn, encoded)
        is_for_gpu = is_for_gpu and self._prepare(fetched, clip, encoded)
        if is_for_gpu and wanted.on_gpu is None and ask is not None and not ask(fetched.cost):
            is_for_gpu, fetched.movie, fetched.images, fetched.order = False, None, None, None
        if not is_for_gpu:
            fetched.frames = self._placed(drawn.finished(pixels.decoded(clip, encoded, drawn.cutout)), ask)
        fetched.decode_seconds = time.perf_counter() - begun - fetched.read_seconds
        return fetched

    def _placed(self, frames: Any, ask: Ask | None) -> Any:
        """Write frames to the place that the loader gives. Return the place, or else the frames."""
        # A dataset's transform may return anything, such as masked arrays or numbers in another order of bytes.
        if ask is None or type(frames) is not np.ndarray or frames.nbytes < SHARED_FROM:
            return frames
        if not frames.dtype.isnative or frames.dtype.kind not in "biufc":
            return frames
        placed = ask(RoomRequest(frames.shape, frames.dtype.name))
        return frames if placed is None or not write(frames, placed) else placed

    def _prepare(self, fetched: Fetched, clip: Clip, encoded: EncodedClip) -> bool:
        """Add the input for a decoder on the GPU to a clip without an obstacle. Return False if there is no movie."""
        position = clip.recipe.position.astype(np.int64)
        unique = np.unique(position[position != PAD])
        if clip.medium.kind == IMAGES:
            packet = np.argsort(clip.recipe.packet_rank)[unique]
            edges = encoded.packet_first
            fetched.images = [encoded.payload[edges[place] : edges[place + 1]] for place in packet.tolist()]
        else:
            movie = gpu_movie(clip, encoded)
            if movie is None:
                return False
            fetched.movie = NvdecClip(packets=movie, wanted=unique.astype(np.int32))
        fetched.order = np.where(position == PAD, PAD, np.searchsorted(unique, position))
        return True
