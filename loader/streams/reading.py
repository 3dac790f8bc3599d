"""Read the clips of a lane from tars, from beginning to end, in large requests ahead of their use.

`decode_sample` decodes a single sample of a tar, for a user's own pipeline of webdataset.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

import numpy as np
import orjson
from numpy.typing import NDArray

from framedex.core.limits import check_room
from framedex.errors import DecodeError, FormatError, FramedexError, StaleError, StorageError
from framedex.loader.batches.chosen_clips import PixelArguments, check_arguments
from framedex.loader.batches.faults import OF_THE_RUN
from framedex.loader.batches.fetch import describe, picture, sound
from framedex.loader.pixels.options import PixelOptions
from framedex.records.clip import AudioFile
from framedex.sharder.clips.clip import Clip
from framedex.sharder.packing.sample_recipes import REMEDY, sample_clip
from framedex.sharder.reading import HeldBytes, SourceFiles
from framedex.storage.objects import GAP_BYTES

REQUEST_BYTES = 8 << 20  # if each request takes 30 ms, at most 250 MB/s
MAX_CLIPS = 256  # clips of one request, which are all in memory: even tiny clips have rows and arrays
AHEAD = 2  # requests: one is in progress while the clips of the other one are used


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadClip:
    """A clip that was read, or the reason why it was not.

    Attributes:
        place: place of the clip in the lane.
        clip: the clip. If None, its row in the manifest is wrong.
        extent: begin and end of the clip in the tar, in bytes.
        held: the bytes of the clip. If None, reading failed.
        error: the reason why the clip was not read.
    """

    place: int
    clip: Clip | None
    extent: tuple[int, int] = (0, 0)
    held: HeldBytes | None = None
    error: FramedexError | None = None


class LaneReader:
    """Reads clips in a given order, in a thread of its own. Use it in a `with` statement.

    Args:
        clip_at: function that returns the clip at a place of the lane.
        places: places in the lane, in the order of reading.
        sources: files of the tars.
    """

    def __init__(self, clip_at: Callable[[int], Clip], places: Sequence[int], sources: SourceFiles) -> None:
        self._clip_at, self._sources = clip_at, sources
        self._requests = self._grouped(places)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="framedex-stream")
        self._coming: collections.deque[Future[list[ReadClip]]] = collections.deque()
        self._arrived: dict[int, ReadClip] = {}

    def __enter__(self) -> Self:
        for _ in range(AHEAD):
            self._coming.append(self._thread.submit(self._read_next))
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self, place: int) -> ReadClip:
        """Read up to the clip at a place, and return it. Raise StorageError if the store is not usable."""
        while place not in self._arrived:
            read = self._coming.popleft().result()
            self._coming.append(self._thread.submit(self._read_next))
            self._arrived |= {clip.place: clip for clip in read}
        return self._arrived.pop(place)

    def _read_next(self) -> list[ReadClip]:
        """Read the next clips. Return an empty list behind the last one."""
        clips = next(self._requests, [])
        good = sorted((clip for clip in clips if clip.clip is not None), key=lambda clip: clip.extent)
        if not good:
            return clips
        try:
            good = self._read_together(good)
        except FramedexError as error:
            if isinstance(error, StorageError) and error.kind in OF_THE_RUN:
                raise
            if isinstance(error, StaleError):  # its text would be about a video, and not about the tar
                error = StaleError(
                    "the tar is not the one that was packed: it is missing, too short, or was changed",
                    where=error.where,
                    found=error.found,
                    allowed=error.allowed,
                    remedy="copy the tar from the dataset once more or shard again; "
                    "on_error='skip' leaves out its clips",
                )
            good = [replace(clip, error=error) for clip in good]
        return [clip for clip in clips if clip.clip is None] + good

    def _grouped(self, places: Sequence[int]) -> Iterator[list[ReadClip]]:
        """Yield groups of clips that one request reads: neighbours in one tar."""
        group: list[ReadClip] = []
        tar, left = "", REQUEST_BYTES
        for place in places:
            path, size = tar, 0
            try:
                clip = self._clip_at(place)
                begin, end = extent(clip)
                path, size = clip.source.path, end - begin
                found = ReadClip(place=place, clip=clip, extent=(begin, end))
            except FramedexError as error:
                found = ReadClip(place=place, clip=None, error=error)
            if group and (path != tar or size > left or len(group) == MAX_CLIPS):
                yield group
                group, left = [], REQUEST_BYTES
            group.append(found)
            tar, left = path, left - size
        if group:
            yield group

    def _read_together(self, clips: Sequence[ReadClip]) -> list[ReadClip]:
        """Read clips of one tar, sorted by their extents."""
        assert clips[0].clip is not None
        tar = clips[0].clip.source
        begin, end = np.array([clip.extent for clip in clips], np.int64).T
        first, last = spans(begin, end)
        check_room(int((last - first).sum()), "clips that are read together", where=tar.path)
        content = self._sources.read_ranges(tar, first, last - first)
        # The first byte of each clip in the content: its distance from the begin of its span, plus all earlier spans.
        span = np.searchsorted(first, begin, side="right") - 1
        at = begin - first[span] + (np.cumsum(last - first) - (last - first))[span]
        # Each clip is copied: one that waits in the shuffle buffer must not keep its neighbours in memory.
        return [
            replace(clip, held=HeldBytes(first_byte=byte, content=content[place : place + size].copy()))
            for clip, byte, place, size in zip(clips, begin.tolist(), at.tolist(), (end - begin).tolist(), strict=True)
        ]


def spans(begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join stretches of bytes that lie close together. Return the begins and ends of the spans, int64 [spans] each.

    Args:
        begin: int64 [stretches], ascending.
        end: int64 [stretches].
    """
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, begin[1:] - reached[:-1] > GAP_BYTES))
    return begin[first], reached[np.append(first[1:], len(begin)) - 1]


def extent(clip: Clip) -> tuple[int, int]:
    """Return where a clip begins and ends in its tar, in bytes: its packets or images, and its audio file."""
    begin, end = clip.recipe.range_offset, clip.recipe.range_offset + clip.recipe.range_length
    first, last = int(begin.min()), int(end.max())
    audio = None if clip.audio is None else clip.audio.recipe
    if not isinstance(audio, AudioFile):
        return first, last
    offset, length = int(audio.range_offset[0]), int(audio.range_length[0])
    return min(first, offset), max(last, offset + length)


def decode_sample(
    sample: Mapping[str, Any], *, seed: int = 0, epoch: int = 0, **pixels: Unpack[PixelArguments]
) -> dict[str, Any]:
    """Decode the clip of a sample from the sample's own files, and return it as a dict.

    Use it in a pipeline of webdataset: `webdataset.WebDataset(urls).map(framedex.decode_sample)`. The frames equal
    those of `ClipDataset`, which uses the same decoders. The user's columns have the types of JSON.

    Args:
        sample: the files of a sample as bytes, by their names without the key, as webdataset yields them before any
            `decode`. `__key__` and `__url__` name the sample in messages.
        seed: as for `ClipDataset`.
        epoch: the epoch of the random draws of `framing` and `transform`. Make a new pipeline for every epoch.
        pixels: `size`, `framing`, `rotation`, `layout`, `dtype`, `transform`, `threads` and `clip_bytes`, as for
            `ClipDataset`. In a pipeline, use `functools.partial(framedex.decode_sample, size=(224, 224))`.

    Returns:
        A dict as `ClipDataset.__getitem__` describes it, with `frames`.

    Raises:
        FormatError: framedex did not pack the sample, or another version did; or a file is missing, or the JSON is
            damaged.
        DecodeError: a file is damaged.
        FramedexError: an option is not allowed, or the clip's pictures do not fit the `framing`.
        TransformError: the transform fails.
    """
    check_arguments(pixels, PixelArguments, "decode_sample")
    how = PixelOptions.of(seed=seed, **pixels)
    if not isinstance(sample, Mapping):
        raise FramedexError(
            "a sample is a dict of files, as webdataset gives it", found=type(sample).__name__, allowed="a dict"
        )
    where = f"{sample.get('__url__', 'sample')}, {sample.get('__key__', 'no key')}"
    files = {name: content for name, content in sample.items() if not name.startswith("__")}
    sizes = {name: len(content) for name, content in files.items() if isinstance(content, bytes)}
    found = sample_clip(_parse_json(files, where), sizes, where)
    content: Any = np.frombuffer(b"".join(files[name] for name in found.files), np.uint8)
    held, clip = HeldBytes(first_byte=0, content=content), found.clip
    try:
        shown = picture(clip, held, decode="cpu", pixels=how, epoch=epoch)
        return shown | sound(clip, held) | describe(clip)
    except StaleError as error:
        raise DecodeError(
            "the sample's files are not the ones that were packed", where=where, found=error.found, remedy=REMEDY
        ) from error


def _parse_json(files: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the sample's JSON, parsed. Raises FormatError."""
    content = files.get("json")
    if content is None:
        raise FormatError(
            "the sample has no JSON",
            where=where,
            found=", ".join(files) or "no files",
            allowed="KEY.json",
            remedy=REMEDY,
        )
    if isinstance(content, Mapping):  # a step of the pipeline parsed it
        return content
    try:
        parsed = orjson.loads(content)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=error, remedy=REMEDY) from error
    if not isinstance(parsed, dict):
        raise FormatError("the sample's JSON is damaged", where=where, found=type(parsed).__name__, remedy=REMEDY)
    return parsed
