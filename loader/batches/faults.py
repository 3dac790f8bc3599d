"""Records of clips on their way into a batch, of clips that are not available, and of a loader's counts."""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DamageError, DecodeError, FramedexError, StaleError, StorageError, TransformError, printable
from framedex.loader.routing.balance import ClipCost
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


@dataclass(slots=True, kw_only=True)
class Fetched:
    """A clip on its way into a batch: decoded frames, or encoded pictures for a GPU.

    Attributes:
        number: number of the clip.
        item: the entries of a batch besides frames.
        cost: the estimated cost of decoding it.
        frames: uint8 [F, H, W, 3], if a worker decoded them; [crops, F, H, W, 3] if a clip has several crops; or the
            result of the dataset's transform.
        movie: the input of NVDEC, if NVDEC decodes the clip.
        images: the bytes of each image, a JPEG, as uint8 [bytes], if nvJPEG decodes the clip.
        order: int64 [F], the number of the decoded frame at each place, -1 where padded. If None, frames are in order.
        size: (height, width) to which a GPU scales. If None, it does not scale.
        cutout: how a GPU then turns and cuts frames. If None, they stay as they are.
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
    images: list[NDArray[np.uint8]] | None = None
    order: NDArray[np.int64] | None = None
    size: Size | None = None
    cutout: Cutout | None = None
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    bytes_read: int = 0
    packets: int = 0


OnError = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[OnError, ...] = ("raise", "skip", "replace")
TRANSFORM = "transform"  # the user's transform fails, which ends the run, too
ERRORS: dict[str, type[FramedexError]] = {"stale": StaleError, "undecodable": DecodeError, TRANSFORM: TransformError}
# A loader raises DecodeError for a damaged clip: DamageError is an error of planning.
KINDS = ERRORS | {"damaged": DamageError}
# These kinds of StorageError concern the run and not one clip: the run ends, whatever `on_error` is.
OF_THE_RUN = frozenset({"denied", "forked", "foreign"})

TRIES = 8  # replacements that are drawn for a clip before the error is raised
MAX_FAULTS = 1000  # a report of a run over a bad dataset must not fill the memory
_COUNTING = threading.Lock()  # one lock for all loaders suffices, because it is held briefly
LOG = logging.getLogger("framedex.loader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A clip that is not available.

    Attributes:
        number: number of the clip.
        kind: `stale`, `undecodable`, `damaged`, `crash` (its worker died) or `error`. Other kinds end the run: `denied`
            or `forked` if the store is not usable, `foreign` if the source must not be read, `transform` if the user's
            transform fails.
        message: the reason.
    """

    number: int
    kind: str
    message: str

    @property
    def ends_the_run(self) -> bool:
        """Whether other clips are not available either, or the trainer's own code is wrong."""
        return self.kind in OF_THE_RUN or self.kind == TRANSFORM

    def error(self) -> FramedexError:
        """Return the exception to raise for this clip."""
        if self.kind in OF_THE_RUN:
            return StorageError(self.message, kind=self.kind)
        return ERRORS.get(self.kind, DecodeError)(f"clip {self.number}: {self.message}")


def fault_of(number: int, error: Exception) -> Fault:
    """Return the fault for an exception."""
    kind = next((kind for kind, known in KINDS.items() if isinstance(error, known)), "error")
    if isinstance(error, StorageError) and error.kind in OF_THE_RUN:
        kind = error.kind
    message = error.text() if isinstance(error, FramedexError) else printable(f"{type(error).__name__}: {error}")
    return Fault(number=number, kind=kind, message=message)


def replacements(number: int, count: int) -> list[int]:
    """Return the clips that are tried in place of a clip, drawn with its number as the seed.

    Args:
        number: the clip; negative numbers count from the end.
        count: the number of all clips.
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
    """Return an item, or another one if it is not available and `on_error` is "replace".

    Args:
        read: function that reads an item by its place.
        place: place of the item among the items of the loader, the seed of the draw of replacements.
        count: the number of these items.
        on_error: the reaction to an item that is not available.
        first: function that reads the item itself. Defaults to `read`.
        number: number of the item in messages. Defaults to `place`.

    Raises:
        DecodeError: no other item is available either.
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
        f"neither clip {number} nor any of {len(draws)} drawn in its place can be loaded",
        found=fault.message,
        remedy="framedex verify shows which clips decode",
    )


@dataclass(slots=True)
class LoaderReport:
    """The counts of a loader so far.

    Attributes:
        decoded: clips by decoder (`cpu`, `nvdec`, `nvjpeg`).
        seconds: time by stage, of this process and of all workers together.
        failures: clips that were not available, by kind.
        retried: by kind, clips on which one decoder failed and which another one decoded, and tasks of workers that
            died.
        replaced: clips that were replaced by another clip.
        skipped: clips that were left out.
        bytes_read: bytes read from sources.
        packets: packets that were decoded.
        frames: requested frames of these packets.
        faults: the first MAX_FAULTS clips that were not available.
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
    faults: list[Fault] = field(default_factory=list)

    def add_seconds(self, **stages: float) -> None:
        """Add to the time of stages. Safe to call from threads."""
        with _COUNTING:
            for name, seconds in stages.items():
                self.seconds[name] += seconds

    def count(self, clip: Fetched) -> None:
        """Count a clip of a batch. Safe to call from threads."""
        self.add_seconds(**{"workers reading": clip.read_seconds, "workers decoding": clip.decode_seconds})
        with _COUNTING:
            self.decoded["nvdec" if clip.movie else "cpu" if clip.images is None else "nvjpeg"] += 1
            self.bytes_read += clip.bytes_read
            self.packets += clip.packets
            self.frames += int((clip.item["frame_index"] >= 0).sum())

    def add(self, *, skipped: int = 0, replaced: int = 0, retried: str | None = None) -> None:
        """Count what happened to clips that were not available at once. Safe to call from threads."""
        with _COUNTING:
            self.skipped += skipped
            self.replaced += replaced
            if retried is not None:
                self.retried[retried] += 1

    def note(self, fault: Fault) -> None:
        """Count and log a clip that is not available. Safe to call from threads."""
        with _COUNTING:
            self.failures[fault.kind] += 1
            if len(self.faults) < MAX_FAULTS:
                self.faults.append(fault)
        LOG.warning("clip %d cannot be loaded (%s): %s", fault.number, fault.kind, fault.message)


# Returns the frames of each clip, uint8 [F, H, W, 3]. Raises RuntimeError where a decoder fails.
DecodeClips = Callable[[Sequence[Fetched], LoaderReport], list[Any]]
