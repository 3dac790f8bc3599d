"""The input and output of policies, and the arithmetic that they share: draws, frames of times, padding.

A policy gets the timestamps of a video, and returns clips and the clips that were missed. Arithmetic is exact, with
integers and fractions. Random numbers depend only on a seed, a video's name, an epoch and their place, never on earlier
draws.

Padding follows DALI's modes. A clip ABC that needs six frames becomes ABC (`none`), ABC··· (`constant`), ABCCCC
(`edge`), ABCCBA (`reflect_1001`) or ABCBAB (`reflect_101`); numpy.pad calls the last two `symmetric` and `reflect`.
These modes repeat the clip's own frames. Only `ends` takes frames of the video, or of the range: the first one for
places before it, the last one for places after it.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.records.clip import PAD


def draws(seed: int, name: str, purpose: str, *, first: int, count: int, epoch: int = 0) -> NDArray[np.uint64]:
    """Return uint64 [count]: numbers `first`, first + 1, … of an endless random stream.

    Each combination of seed, name, purpose and epoch has a stream of its own. It is the raw stream of PCG64 (O'Neill
    2014), which NumPy keeps the same in all its versions.
    """
    purpose = f"{purpose} of epoch {epoch}" if epoch else purpose  # as in datasets that older versions wrote
    text = f"{seed}\0{purpose}\0{name}".encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    generator = np.random.PCG64(key).advance(first)
    return np.asarray(generator.random_raw(count), np.uint64)


def below(drawn: NDArray[np.uint64], limit: int) -> NDArray[Any]:
    """Return the draws as whole numbers from 0 to below `limit`: int64, or Python integers if those do not fit."""
    if limit < 1 << 62:
        return (drawn % np.uint64(limit)).astype(np.int64)
    return drawn.astype(object) * limit >> 64


Choose = Literal["nearest", "previous", "next"]
CHOICES: tuple[Choose, ...] = ("nearest", "previous", "next")

SAFE = 1 << 60  # the double of a sum of two such numbers fits int64


def progression(first: int, step: int, count: int) -> NDArray[Any]:
    """Return first + k * step for k below `count`: int64, or Python integers if those do not fit."""
    if abs(first) + abs(step) * count < SAFE:
        return first + step * np.arange(count, dtype=np.int64)
    return np.array([first + step * k for k in range(count)], dtype=object)


def integers(values: Sequence[int]) -> NDArray[Any]:
    """Return whole numbers as int64, or as Python integers if those do not fit."""
    small = all(abs(value) < SAFE for value in values)
    return np.array(values, dtype=np.int64 if small else object)


def common_denominator(times: Sequence[Fraction]) -> int:
    """Return the least number that makes all given times whole when multiplied by it."""
    return math.lcm(*(time.denominator for time in times))


def over_common_denominator(times: Sequence[Fraction]) -> tuple[NDArray[Any], int]:
    """Return (numerators [n], denominator) of arbitrary times, exactly."""
    denominator = common_denominator(times)
    return integers([int(time * denominator) for time in times]), denominator


def frames_at(pts: NDArray[np.int64], numerators: NDArray[Any], denominator: int, choose: Choose) -> NDArray[np.int64]:
    """Return int64, shaped as the times: the presentation number of the frame chosen at each time.

    Of equal pts, the first one is taken.

    Args:
        pts: int64 [frames], ascending, in presentation order.
        numerators: Times are numerators / denominator, in the unit of pts.
        choose: `previous` is the frame on screen at that time: the last one with pts <= time (before the first frame,
            the first one). `next` is the first one with pts >= time (after the last frame, the last one). `nearest` has
            the least distance; a tie goes to the earlier frame.
    """
    low, high = int(pts[0]) - 1, int(pts[-1]) + 1  # clips times far outside, which may not fit int64
    if choose == "next":
        ceilings = np.clip(-(-numerators // denominator), low, high).astype(np.int64)
        chosen = np.minimum(np.searchsorted(pts, ceilings, side="left"), len(pts) - 1)
        return np.asarray(np.searchsorted(pts, pts[chosen], side="left"), np.int64)
    floors = np.clip(numerators // denominator, low, high).astype(np.int64)
    chosen = np.maximum(np.searchsorted(pts, floors, side="right") - 1, 0)
    if choose == "nearest":
        after = np.minimum(chosen + 1, len(pts) - 1)
        middles = pts[chosen] + pts[after]
        if numerators.dtype == object or int(np.abs(middles).max(initial=0)) * denominator >= SAFE * 4:
            numerators, middles = numerators.astype(object), middles.astype(object)
        chosen = np.where((2 * numerators > middles * denominator).astype(np.bool_), after, chosen)
    return np.asarray(np.searchsorted(pts, pts[chosen], side="left"), np.int64)


def differences(
    pts: NDArray[np.int64], frames: NDArray[np.int64], numerators: NDArray[Any], denominator: int
) -> NDArray[Any]:
    """Return the times of frames minus given times, as numerators over the same denominator."""
    shown = pts[frames]
    if numerators.dtype == object or int(np.abs(shown).max(initial=0)) * denominator >= SAFE:
        shown, numerators = shown.astype(object), numerators.astype(object)
    return np.asarray(shown * denominator - numerators)


PadMode = Literal["none", "constant", "edge", "ends", "reflect_101", "reflect_1001"]


def reflected(index: NDArray[np.int64], length: NDArray[np.int64], mode: PadMode) -> NDArray[np.int64]:
    """Return int64, shaped as `index`: which of the elements 0 … length - 1 to use for an index outside them.

    Args:
        mode: `edge`, `reflect_101` (the border once) or `reflect_1001` (the border twice). A single element is
            repeated.
    """
    last = length - 1
    if mode == "edge":
        return np.asarray(np.clip(index, 0, last), np.int64)
    if mode == "reflect_101":
        period = np.maximum(2 * last, 1)
        around = index % period
        return np.asarray(np.minimum(np.minimum(around, period - around), last), np.int64)
    around = index % (2 * length)
    return np.asarray(np.minimum(around, 2 * length - 1 - around), np.int64)


def padded(frames: NDArray[np.int64], real: NDArray[np.bool_], mode: PadMode) -> NDArray[np.int64]:
    """Return int64 [clips, wanted]: frames, with those that are not real replaced according to the mode.

    A gap is filled from the real frames before it, as if the clip ended there. A gap before all real frames is filled
    from those after it.

    Args:
        real: bool [clips, wanted]; every clip has a real frame.
        mode: Any mode but `none` and `ends`.
    """
    if mode == "constant":
        return np.where(real, frames, PAD)
    places = np.broadcast_to(np.arange(frames.shape[1]), frames.shape)
    order = np.argsort(~real, axis=1, kind="stable")  # where each clip's real frames are, in order
    before = np.cumsum(real, axis=1)
    last_real = np.maximum.accumulate(np.where(real, places, -1), axis=1)
    first_real = np.argmax(real, axis=1)[:, None]
    leading = before == 0
    index = np.where(leading, places - first_real, before - 1 + places - last_real)
    length = np.where(leading, before[:, -1:], before)
    source = np.take_along_axis(order, reflected(index, length, mode), axis=1)
    return np.where(real, frames, np.take_along_axis(frames, source, axis=1))


MissedKind = Literal["short", "tolerance", "row", "view"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """The times of a video, which a policy samples.

    Attributes:
        pts: int64 [frames], ascending, in presentation order.
        duration_pts: From the first frame's pts to the end of the last frame.
        time_base: Unit of both, in seconds.
        starts: int64 [starts], ascending presentation numbers of random access points.
        name: The medium's stable id. Together with `epoch`, it seeds random draws.
        uri: The medium's name in messages.
        epoch: Number of the epoch.
    """

    pts: NDArray[np.int64]
    duration_pts: int
    time_base: Fraction
    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    name: str = ""
    uri: str = ""
    epoch: int = 0

    @property
    def seconds(self) -> Fraction:
        """Duration of the video."""
        return self.duration_pts * self.time_base


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """A clip that a policy selected.

    Attributes:
        frames: int64 [wanted], presentation numbers in the clip's order, repeats allowed; -1 only for padding by a
            constant.
        mask: bool [wanted], False where padded.
        number: Number of the clip among those that the policy sees in this row, including the missed ones.
        stretch: The frames [first, stop) of the video that were sampled: the whole video, or a range of it.
        anchor: Presentation number of the clip's anchor frame. If None, the policy has no anchors.
    """

    frames: NDArray[np.int64]
    mask: NDArray[np.bool_]
    number: int
    stretch: tuple[int, int] | None = None
    anchor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A clip, or all clips of a row, that a policy wanted and did not get.

    Attributes:
        kind: `short` (the video or range is too short), `tolerance` (a frame lies too far from the wanted place), `row`
            (the listing's row is not valid) or `view` (a view of a scene is missing).
        counts: Whether this is a failure of the run.
        number: As in `Sampled`. If None, a single clip is not meant.
    """

    kind: MissedKind
    message: str
    counts: bool
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """The result of a policy for one mention of a video.

    Attributes:
        clips: In order of their numbers.
        missed: The clips that the policy wanted and did not get.
        following: The number of a clip after all of these. Clips that `max_clips` leaves out have numbers, too.
    """

    clips: list[Sampled]
    missed: list[Missed]
    following: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a video: frames [first, stop) and times [start, end), in time base units on the clock of pts."""

    first: int
    stop: int
    start: Fraction
    end: Fraction

    @property
    def is_empty(self) -> bool:
        """Whether it contains no frame."""
        return self.first >= self.stop


def whole(timeline: Timeline) -> Span:
    """Return the span of a whole video."""
    start = Fraction(int(timeline.pts[0]) if len(timeline.pts) else 0)
    return Span(first=0, stop=len(timeline.pts), start=start, end=start + timeline.duration_pts)


def beginning(timeline: Timeline, span: Span, seconds: Fraction) -> Span:
    """Return the first seconds of a span; all of it if it is not longer."""
    end = span.start + seconds / timeline.time_base
    if end >= span.end:
        return span
    before_end = np.searchsorted(timeline.pts[span.first : span.stop], math.ceil(end), side="left")
    return replace(span, stop=span.first + int(before_end), end=end)


MAX_WANTED = 20_000_000  # frames of all clips of one video: more fill the memory, and are a typing error
MAX_CLIPS = 1_000_000  # more clips of one video or range are a typing error
BLOCK = 1 << 18  # number of wanted frames that are computed at a time, which takes some ten MB


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFrames:
    """The places that clips of equal length want: clip c wants starts[c] + offsets.

    Attributes:
        starts: [clips], int64, or Python integers if those do not fit. Frame numbers if `denominator` is None;
            otherwise numerators of times, in time base units on the clock of pts.
        offsets: [wanted], of the same type and unit as `starts`.
        denominator: The denominator of the times; None for frame numbers.
        low: Least place that lies in the span.
        limit: End (exclusive) of the places that lie in the span.
    """

    starts: NDArray[Any]
    offsets: NDArray[Any]
    denominator: int | None
    low: int
    limit: int

    def __post_init__(self) -> None:
        # Sums and comparisons of places beyond SAFE could overflow int64, so Python integers replace them.
        if max(abs(self.low), abs(self.limit)) >= SAFE and self.starts.dtype != object:
            object.__setattr__(self, "starts", self.starts.astype(object))

    def any_whole(self) -> bool:
        """Return whether all places of some clip lie in the span."""
        if not len(self.starts) or not len(self.offsets):
            return False
        first, last = self.low - int(self.offsets.min()), self.limit - int(self.offsets.max())
        return bool(((self.starts >= first) & (self.starts < last)).any())

    def inside(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return bool, shaped as the places: whether each lies in the span."""
        return np.asarray((places >= self.low) & (places < self.limit), np.bool_)

    def blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (number of the first clip, places [clips, wanted]) of blocks of clips."""
        size = max(1, BLOCK // max(1, len(self.offsets)))
        for at in range(0, len(self.starts), size):
            yield at, self.starts[at : at + size, None] + self.offsets[None, :]


Piece = tuple[Fraction, Fraction, int]  # a regular series of times: (first, step, count)


def times(span: Span, starts: Piece, offsets: Sequence[Piece], *, time_step: int = 1) -> WantedFrames:
    """Return clips that begin at the times of a series. From there on, they want the times of several series in turn.

    Args:
        span: Stretch of the video; all times are in time base units.
        starts: The series of the clips' beginnings.
        offsets: The series of distances from there.
        time_step: Factor by which times are counted more finely than needed.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _check_counts(starts[2], sum(count for _, _, count in offsets))
    denominator = time_step * common_denominator(
        [time for first, step, _ in (starts, *offsets) for time in (first, step)]
    )
    if all(count == 1 for _, _, count in offsets):  # such as a list of many times: one array instead of many
        joined = integers([int(first * denominator) for first, _, _ in offsets])
    else:
        joined = np.concatenate([_series(piece, denominator) for piece in offsets])
    return _wanted_times(span, _series(starts, denominator), joined, denominator)


def times_from(
    span: Span, starts: NDArray[np.int64], offsets: Sequence[Fraction], *, time_step: int = 1
) -> WantedFrames:
    """Return clips that begin at given timestamps, and want times by their offsets from there.

    Args:
        span: Stretch of the video.
        starts: int64 [clips], timestamps.
        offsets: In time base units; may be negative.
        time_step: As for `times`.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _check_counts(len(starts), len(offsets))
    denominator = time_step * common_denominator(offsets)
    fits = int(np.abs(starts).max(initial=0)) * denominator < SAFE
    numerators = integers([int(offset * denominator) for offset in offsets])
    return _wanted_times(span, (starts if fits else starts.astype(object)) * denominator, numerators, denominator)


def _wanted_times(span: Span, starts: NDArray[Any], offsets: NDArray[Any], denominator: int) -> WantedFrames:
    low, limit = math.ceil(span.start * denominator), math.ceil(span.end * denominator)
    return WantedFrames(starts=starts, offsets=offsets, denominator=denominator, low=low, limit=limit)


def _series(piece: Piece, denominator: int) -> NDArray[Any]:
    first, step, count = piece
    return progression(int(first * denominator), int(step * denominator), count)


def numbers(span: Span, starts: tuple[int, int, int], offsets: Sequence[int]) -> WantedFrames:
    """Return clips that begin at frames (first, step, count) and want frames by their offsets from there.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _check_counts(starts[2], len(offsets))
    return WantedFrames(
        starts=progression(*starts),
        offsets=np.asarray(offsets, np.int64),
        denominator=None,
        low=span.first,
        limit=span.stop,
    )


def _check_counts(clips: int, length: int) -> None:
    """Raise PolicyError for more clips or frames than any realistic use wants."""
    if clips > MAX_CLIPS or max(clips, 1) * length > MAX_WANTED:
        raise PolicyError(
            "the policy makes too many clips out of one video",
            found=f"{clips:.6g} clips of {length:,} frames",
            allowed=f"{MAX_CLIPS:,} clips, {MAX_WANTED:,} frames in all",
        )


def count_consecutive(start: Fraction | int, step: Fraction | int, length: Fraction | int, end: Fraction | int) -> int:
    """Return the number of clips at start, start + step, …: all that are whole before `end`, and one that it cuts.

    Args:
        length: Distance from a clip's first place to its last.
    """
    fitting = max(0, math.ceil(Fraction(end - start - length) / step))
    return fitting + (start + fitting * step < end)
