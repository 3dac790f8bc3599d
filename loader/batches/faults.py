"""Records of fetched clips and of clips that are not available, and the counters of a loader."""

import logging
import operator
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import (
    REOPEN,
    DamageError,
    DecodeError,
    FramedexError,
    StaleError,
    StorageError,
    TransformError,
    printable,
)
from framedex.loader.routing.balance import ClipCost
from framedex.loader.routing.movie import GpuMovie
from framedex.sharder.decoding.cutout import Cutout
from framedex.sharder.decoding.video import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRequest:
    """A request to fetch a clip.

    Attributes:
        number: The number of the clip.
        on_gpu: Whether a GPU is to decode the clip, if it can. If None, the worker asks its caller.
    """

    number: int
    on_gpu: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A request to fetch clips of one medium, and to decode them together if possible.

    Attributes:
        numbers: The numbers of the clips, in the order in which they are needed.
        on_gpu: As for a ClipRequest.
    """

    numbers: list[int]
    on_gpu: bool | None


class GroupSizes(NamedTuple):
    """The question of a worker how many of the clips of a GroupRequest may be decoded now.

    Attributes:
        sizes: The number of bytes of the frames of each clip. 0 if the clip is not available.
    """

    sizes: list[int]


class OfMember(NamedTuple):
    """A question of a worker about one of the clips of a GroupRequest.

    Attributes:
        member: The index of the clip in `GroupRequest.numbers`.
        question: The question, as a worker asks it for a single clip.
    """

    member: int
    question: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NvdecClip:
    """The input of NVDEC for a clip, or for several clips that are decoded together.

    Attributes:
        packets: The clip's packets in a container, as NVDEC reads them.
        wanted: The indices of the wanted pictures among all pictures of the packets, int32 [unique], ascending.
    """

    packets: GpuMovie
    wanted: NDArray[np.int32]


@dataclass(slots=True, kw_only=True)
class Fetched:
    """A fetched clip that becomes part of a batch. It has decoded frames, or encoded pictures for a GPU.

    Attributes:
        number: number of the clip.
        item: the clip's item without frames.
        cost: the estimated times of decoding the clip.
        stored: (height, width) of the medium's pictures.
        size: (height, width) to which a GPU scales pictures.
        frames: the frames, if a worker decoded them: uint8 [F, H, W, 3], [crops, F, H, W, 3] if a clip has several
            crops, or the result of the dataset's transform. A `Placed` if the worker has written them into a room.
        movie: the input of NVDEC, if NVDEC decodes the clip. Clips that are decoded together have the same object.
        images: the bytes of each JPEG image, uint8 [bytes], if nvJPEG decodes the clip.
        order: int64 [F], for each frame of the clip, the index of the decoded frame, or -1 for a blank frame. If None,
            the decoded frames are already the frames of the clip.
        cutout: the rotation and cropping that a GPU applies to decoded frames. If None, it applies neither.
        read_seconds: the worker's time for reading.
        decode_seconds: the worker's time for decoding.
        bytes_read: the number of bytes read for the clip.
        packets: the number of packets of the clip. If clips are decoded together, the first one has the packets, the
            bytes, the cost and the times of all.
        decoding: the future of the clip with its frames, if it was given to the GPU together with other clips.
    """

    number: int
    item: dict[str, Any]
    cost: ClipCost
    stored: Size
    size: Size
    frames: Any = None
    movie: NvdecClip | None = None
    images: list[NDArray[np.uint8]] | None = None
    order: NDArray[np.int64] | None = None
    cutout: Cutout | None = None
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    bytes_read: int = 0
    packets: int = 0
    decoding: "Future[tuple[Fetched, Any] | None] | None" = None


OnError = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[OnError, ...] = ("raise", "skip", "replace")
TRANSFORM = "transform"  # the kind of fault if the user's transform fails, which also ends the run
ERRORS: dict[str, type[FramedexError]] = {"stale": StaleError, "undecodable": DecodeError, TRANSFORM: TransformError}
# A DamageError occurs when a clip is planned. Its fault has the kind "damaged", for which loaders raise DecodeError.
KINDS = ERRORS | {"damaged": DamageError}
# Kinds of StorageError that affect all clips and not only one. Such errors end the run, regardless of `on_error`.
OF_THE_RUN = frozenset({"denied", "forked", "foreign", REOPEN})

TRIES = 8  # number of replacements that are tried for a clip before its error is raised
MAX_FAULTS = 1000  # number of faults that a report keeps, so that a bad dataset does not fill the memory
_COUNTING = threading.Lock()  # one lock for all loaders is sufficient, because each holds it only briefly
LOG = logging.getLogger("framedex.loader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A clip that is not available.

    Attributes:
        number: The number of the clip.
        kind: The kind of fault: `stale`, `undecodable`, `damaged`, `crash` (the worker died) or `error`. Other kinds
            end the run: `denied` and `forked` (the store is not usable), `foreign` (the source must not be read),
            `reopen` (the dataset was changed) and `transform` (the user's transform fails).
        message: The reason.
    """

    number: int
    kind: str
    message: str

    @property
    def ends_the_run(self) -> bool:
        """Whether the fault affects all clips, or is an error in the user's code, so that the run must end."""
        return self.kind in OF_THE_RUN or self.kind == TRANSFORM

    def error(self) -> FramedexError:
        """Return the exception to raise for this clip."""
        if self.kind in OF_THE_RUN:
            return StorageError(self.message, kind=self.kind)
        return ERRORS.get(self.kind, DecodeError)(f"clip {self.number}: {self.message}")


def fault_of(number: int, error: Exception) -> Fault:
    """Return the fault of clip `number` that corresponds to an exception."""
    kind = next((kind for kind, known in KINDS.items() if isinstance(error, known)), "error")
    if isinstance(error, StorageError) and error.kind in OF_THE_RUN:
        kind = error.kind
    message = error.text() if isinstance(error, FramedexError) else printable(f"{type(error).__name__}: {error}")
    return Fault(number=number, kind=kind, message=message)


def replacements(number: int, count: int) -> list[int]:
    """Return the numbers of clips that may replace a clip, in the order in which they are tried.

    Args:
        number: The number of the clip, which is also the seed of the draw. Negative numbers count from the end.
        count: The number of all clips.
    """
    drawn: list[int] = np.random.default_rng(number % count).integers(0, count, TRIES).tolist()
    return drawn


def read_or_replaced(
    read: Callable[[int], dict[str, Any]],
    place: int,
    *,
    count: int,
    on_error: OnError,
    first: Callable[[], dict[str, Any]] | None = None,
    number: int | None = None,
) -> dict[str, Any]:
    """Return an item. If the item is not available and `on_error` is "replace", return another item.

    Args:
        read: A function that reads the item with a given index.
        place: The index of the item, which is also the seed of the draw of replacements.
        count: The number of all items.
        on_error: The reaction to an item that is not available.
        first: A function that reads the wanted item (and no replacement). Defaults to `read` with the index of the
            item.
        number: The number of the item in messages. Defaults to `place`.

    Raises:
        DecodeError: None of the replacements that were tried is available.
    """
    number = place if number is None else number
    try:
        return read(place) if first is None else first()
    except MEDIUM_ERRORS as error:
        fault = fault_of(number, error)
        if on_error != "replace" or fault.ends_the_run:
            raise
    draws = replacements(place, count)
    for draw in draws:
        try:
            found = read(draw)
        except MEDIUM_ERRORS as error:
            if fault_of(draw, error).ends_the_run:
                raise
            continue
        LOG.warning("clip %d is replaced by clip %d (%s): %s", number, draw, fault.kind, fault.message)
        return found
    raise DecodeError(
        f"clip {number} cannot be loaded, and none of {len(draws)} clips drawn as replacements either",
        found=fault.message,
        remedy="framedex verify shows which clips decode",
    )


@dataclass(slots=True)
class LoaderReport:
    """The counters of a loader since it was made.

    Attributes:
        decoded: The number of clips by decoder (`cpu`, `nvdec`, `nvjpeg`).
        seconds: The time in seconds by stage, summed over this process and all workers.
        failures: The number of clips that were not available, by kind of fault.
        retried: The number of repeated attempts, by kind: decoding with another decoder after one failed, and fetching
            again after a worker died.
        replaced: The number of clips that were replaced by another clip.
        skipped: The number of clips that were left out.
        bytes_read: The number of bytes read from sources.
        packets: The number of packets that were decoded.
        frames: The number of wanted frames that were delivered from these packets.
        waiting_bytes: The greatest number of bytes of memory for later batches whose first clips were decoded.
        faults: The first MAX_FAULTS clips that were not available.
    """

    decoded: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    failures: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    skipped: int = 0
    bytes_read: int = 0
    packets: int = 0
    frames: int = 0
    waiting_bytes: int = field(default=0, metadata={"joined": max})
    faults: list[Fault] = field(default_factory=list)

    def add_seconds(self, **stages: float) -> None:
        """Add seconds to the times of stages. Thread-safe."""
        with _COUNTING:
            for name, seconds in stages.items():
                self.seconds[name] += seconds

    def count(self, clip: Fetched) -> None:
        """Count a clip that is part of a batch. Thread-safe."""
        self.add_seconds(**{"workers reading": clip.read_seconds, "workers decoding": clip.decode_seconds})
        with _COUNTING:
            self.decoded["nvdec" if clip.movie else "cpu" if clip.images is None else "nvjpeg"] += 1
            self.bytes_read += clip.bytes_read
            self.packets += clip.packets
            self.frames += int((clip.item["frame_index"] >= 0).sum())

    def add(self, *, skipped: int = 0, replaced: int = 0, retried: str | None = None) -> None:
        """Count clips that were skipped or replaced, and attempts that were repeated. Thread-safe."""
        with _COUNTING:
            self.skipped += skipped
            self.replaced += replaced
            if retried is not None:
                self.retried[retried] += 1

    def note_waiting(self, size: int) -> None:
        """Record the number of bytes of memory for later batches whose first clips were decoded. Thread-safe."""
        with _COUNTING:
            self.waiting_bytes = max(self.waiting_bytes, size)

    def note(self, fault: Fault) -> None:
        """Count and log a clip that is not available. Thread-safe."""
        with _COUNTING:
            self.failures[fault.kind] += 1
            if len(self.faults) < MAX_FAULTS:
                self.faults.append(fault)
        LOG.warning("clip %d cannot be loaded (%s): %s", fault.number, fault.kind, fault.message)

    def take(self) -> dict[str, Any]:
        """Return the values that are not empty, by name, and begin again with empty values. Thread-safe."""
        taken, empty = {}, LoaderReport()
        with _COUNTING:
            for one in fields(self):
                value = getattr(self, one.name)
                if value:
                    taken[one.name] = dict(value) if isinstance(value, dict) else value
                    setattr(self, one.name, getattr(empty, one.name))
        return taken

    def extend(self, taken: dict[str, Any]) -> None:
        """Add the values that another report returned from `take`. Thread-safe."""
        joined = {one.name: one.metadata.get("joined", operator.add) for one in fields(self)}
        with _COUNTING:
            for name, value in taken.items():
                own = getattr(self, name)
                if isinstance(value, dict):
                    for key, more in value.items():
                        own[key] += more
                elif isinstance(value, list):
                    own.extend(value)
                else:
                    setattr(self, name, joined[name](own, value))
            del self.faults[MAX_FAULTS:]


# A function that returns the frames of some clips, after a decoder has decoded them into memory that it will use again.
# The arguments are the distinct frames of each of these clips, uint8 [unique, H, W, 3], and the indices of these clips.
Keep = Callable[[list[Any], list[int]], list[Any]]
# A function that decodes clips. It returns the result of its Keep for each clip, and raises RuntimeError if the decoder
# fails.
DecodeClips = Callable[[Sequence[Fetched], LoaderReport, Keep], list[Any]]
