"""Read the clips of a worker's lane from tars, sequentially, ahead of time and in large requests.

`decode_sample` decodes a single sample of a tar, in the user's own webdataset pipeline.
"""

import collections
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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

LOG = logging.getLogger("framedex.loader")
REQUEST_BYTES = 8 << 20  # bytes per request; with a latency of 30 ms per request, up to 250 MB/s
MAX_CLIPS = 256  # maximum number of clips per request, because even small clips need memory for rows and arrays
AHEAD = 2  # number of requests at a time: one is in progress while the clips of the other one are used


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipToRead:
    """A clip that is to be read from a tar.

    Attributes:
        place: The index of the clip in the lane.
        clip: The record of the clip.
        extent: The byte offsets (begin, end) of the clip in the tar.
    """

    place: int
    clip: Clip
    extent: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadClip:
    """A clip that was read from a tar.

    Attributes:
        place: The index of the clip in the lane.
        clip: The record of the clip.
        held: The bytes of the clip.
    """

    place: int
    clip: Clip
    held: HeldBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadClip:
    """A clip that could not be read.

    Attributes:
        place: The index of the clip in the lane.
        clip: The record of the clip. None if the clip's row in the manifest is malformed.
        error: The reason why the clip was not read.
    """

    place: int
    clip: Clip | None
    error: FramedexError


class LaneReader:
    """Reads clips in a given order, in a background thread. Use this class in a `with` statement.

    Args:
        clip_at: A function that returns the record of the clip with a given index in the lane.
        places: The indices in the lane of the clips to read, in the order of reading.
        sources: The files from which tars are read.
    """

    def __init__(self, clip_at: Callable[[int], Clip], places: Sequence[int], sources: SourceFiles) -> None:
        self._clip_at, self._sources = clip_at, sources
        self._requests = self._grouped(places)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="framedex-stream")
        self._coming: collections.deque[Future[list[ReadClip | UnreadClip]]] = collections.deque()
        self._arrived: dict[int, ReadClip | UnreadClip] = {}

    def __enter__(self) -> Self:
        for _ in range(AHEAD):
            self._coming.append(self._thread.submit(self._read_next))
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self, place: int) -> ReadClip | UnreadClip:
        """Wait until the clip with index `place` in the lane has been read, and return it. Raises StorageError.

        A StorageError means that the store is not usable. Errors of single clips are in `UnreadClip.error`.
        """
        while place not in self._arrived:
            read = self._coming.popleft().result()
            self._coming.append(self._thread.submit(self._read_next))
            self._arrived |= {clip.place: clip for clip in read}
        return self._arrived.pop(place)

    def _read_next(self) -> list[ReadClip | UnreadClip]:
        """Read the clips of the next request. Return an empty list if there are no more clips."""
        clips = next(self._requests, [])
        unread = [clip for clip in clips if isinstance(clip, UnreadClip)]
        wanted = sorted((clip for clip in clips if isinstance(clip, ClipToRead)), key=lambda clip: clip.extent)
        try:
            return [*unread, *(self._read_together(wanted) if wanted else [])]
        except FramedexError as error:
            if isinstance(error, StorageError) and error.kind in OF_THE_RUN:
                raise
            if isinstance(error, StaleError):  # the text of this error is about videos, so it is replaced
                error = StaleError(
                    "the tar is missing, too short, or was changed after packing",
                    where=error.where,
                    found=error.found,
                    allowed=error.allowed,
                    remedy="open the dataset again if it was changed, copy the tar from it once more, or shard again; "
                    "on_error='skip' leaves out its clips",
                )
            return [*unread, *(UnreadClip(place=one.place, clip=one.clip, error=error) for one in wanted)]

    def _grouped(self, places: Sequence[int]) -> Iterator[list[ClipToRead | UnreadClip]]:
        """Divide clips into groups of neighbours in the same tar. Each group is read by one request."""
        group: list[ClipToRead | UnreadClip] = []
        found: ClipToRead | UnreadClip
        tar, left = "", REQUEST_BYTES
        for place in places:
            path, size = tar, 0
            try:
                clip = self._clip_at(place)
                begin, end = extent(clip)
                path, size = clip.source.path, end - begin
                found = ClipToRead(place=place, clip=clip, extent=(begin, end))
            except FramedexError as error:
                found = UnreadClip(place=place, clip=None, error=error)
            if group and (path != tar or size > left or len(group) == MAX_CLIPS):
                yield group
                group, left = [], REQUEST_BYTES
            group.append(found)
            tar, left = path, left - size
        if group:
            yield group

    def _read_together(self, clips: Sequence[ClipToRead]) -> list[ReadClip]:
        """Read clips of one tar together. The clips must be sorted by their extents."""
        tar = clips[0].clip.source
        begin, end = np.array([clip.extent for clip in clips], np.int64).T
        first, last = spans(begin, end)
        check_room(int((last - first).sum()), "clips that are read together", where=tar.path)
        content = self._sources.read_ranges(tar, first, last - first)
        # The offset of each clip in `content` is its offset within its span plus the lengths of all earlier spans.
        span = np.searchsorted(first, begin, side="right") - 1
        at = begin - first[span] + (np.cumsum(last - first) - (last - first))[span]
        # Each clip is copied, so that a clip that waits to be used does not keep its neighbours in memory.
        return [
            ReadClip(
                place=one.place,
                clip=one.clip,
                held=HeldBytes(first_byte=byte, content=content[place : place + size].copy()),
            )
            for one, byte, place, size in zip(clips, begin.tolist(), at.tolist(), (end - begin).tolist(), strict=True)
        ]


def spans(begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join byte ranges that are close together into spans. Return the begin and end of each span, both int64 [spans].

    Args:
        begin: The begin of each range, ascending, int64 [ranges].
        end: The end of each range, int64 [ranges].
    """
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, begin[1:] - reached[:-1] > GAP_BYTES))
    return begin[first], reached[np.append(first[1:], len(begin)) - 1]


def extent(clip: Clip) -> tuple[int, int]:
    """Return the byte offsets (begin, end) of a clip in its tar, including its audio file."""
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
    """Decode the clip in a webdataset sample, using only the files of the sample. Return the clip's item as a dict.

    Use this function in a webdataset pipeline, as in `webdataset.WebDataset(urls).map(framedex.decode_sample)`. The
    frames are equal to those of `ClipDataset`, which uses the same decoders. The values of the user's columns have
    types of JSON, such as text and number, because they are read from the JSON file of the sample.

    Args:
        sample: the files of a sample as bytes, by their names without the key, as webdataset yields them before any
            `decode`. `__key__` and `__url__` name the sample in messages.
        seed: as for `ClipDataset`.
        epoch: the epoch of the random draws of `framing` and `transform`. It is fixed in a pipeline, so make a new
            pipeline for every epoch.
        pixels: `size`, `framing`, `rotation`, `layout`, `dtype`, `transform`, `threads` and `clip_bytes`, as for
            `ClipDataset`. In a pipeline, use `functools.partial(framedex.decode_sample, size=(224, 224))`.

    Returns:
        A dict as described for `ClipDataset.__getitem__`, with `frames`. Early versions of framedex packed samples
        without the shape of pixels. The pixels of such a sample are treated as squares. If the `framing` depends on the
        shape of pixels, a warning is logged.

    Raises:
        FormatError: The sample was not packed by framedex or was packed by another version, a file is missing, or the
            JSON is damaged.
        DecodeError: A file is damaged.
        FramedexError: An option is not allowed, or the `framing` cannot be applied to pictures of the clip's size.
        TransformError: The transform fails.
    """
    check_arguments(pixels, PixelArguments, "decode_sample")
    how = PixelOptions.of(seed=seed, **pixels)
    if not isinstance(sample, Mapping):
        raise FramedexError(
            "a sample must be a dict of files, as yielded by webdataset", found=type(sample).__name__, allowed="a dict"
        )
    where = f"{sample.get('__url__', 'sample')}, {sample.get('__key__', 'no key')}"
    files = {name: content for name, content in sample.items() if not name.startswith("__")}
    sizes = {name: len(content) for name, content in files.items() if isinstance(content, bytes)}
    parsed = _parse_json(files, where)
    found = sample_clip(parsed, sizes, where)
    content: Any = np.frombuffer(b"".join(files[name] for name in found.files), np.uint8)
    held, clip = HeldBytes(first_byte=0, content=content), found.clip
    if "sample_aspect_ratio" not in parsed and how.framing.shows_aspects:
        _warn_of_unknown_aspect()
    try:
        return picture(clip, held, decode="cpu", pixels=how, epoch=epoch) | sound(clip, held) | describe(clip)
    except StaleError as error:
        raise DecodeError(
            "the sample's files were changed after packing", where=where, found=error.found, remedy=REMEDY
        ) from error


@functools.cache
def _warn_of_unknown_aspect() -> None:
    """Log a warning that the JSON of a sample lacks the shape of pixels. Warn only once in this process."""
    LOG.warning(
        "samples lack `sample_aspect_ratio`, because an earlier version of framedex packed them; their pixels are "
        "treated as squares. Pack the clips again by `framedex shard --pack` to record it, or use "
        "Framing(aspect='stored'), which always treats pixels as squares"
    )


def _parse_json(files: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the parsed JSON of a sample. Raises FormatError if it is missing or damaged."""
    content = files.get("json")
    if content is None:
        raise FormatError(
            "the sample has no JSON",
            where=where,
            found=", ".join(files) or "no files",
            allowed="KEY.json",
            remedy=REMEDY,
        )
    if isinstance(content, Mapping):  # an earlier step of the pipeline has parsed the JSON
        return content
    try:
        parsed = orjson.loads(content)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=error, remedy=REMEDY) from error
    if not isinstance(parsed, dict):
        raise FormatError("the sample's JSON is damaged", where=where, found=type(parsed).__name__, remedy=REMEDY)
    return parsed
