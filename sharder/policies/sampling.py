"""Define the input and output of policies, and shared functions for random draws, choice of frames and padding.

A policy gets the timestamps of a video. It returns clips, and the clips that it wanted but could not make. Arithmetic
is exact, with integers and fractions. A random number depends only on a seed, a video's name, a purpose, an epoch and
the number's position in the random stream. It does not depend on earlier draws.

Padding has the modes of DALI. A clip ABC that needs six frames becomes ABC (`none`), ABC··· (`constant`), ABCCCC
(`edge`), ABCCBA (`reflect_1001`, called `symmetric` by numpy.pad) or ABCBAB (`reflect_101`, called `reflect` by
numpy.pad). These modes repeat frames of the clip. The additional mode `ends` instead repeats the first or last frame of
the video (or of the range) where the clip extends beyond the video (or the range).
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
    """Return uint64 [count]: the numbers at positions `first`, first + 1, … of an infinite random stream.

    Each combination of seed, name, purpose and epoch has a separate stream. The stream is the raw output of PCG64
    (O'Neill 2014), which is the same in all versions of NumPy.
    """
    purpose = f"{purpose} of epoch {epoch}" if epoch else purpose  # epoch 0 has the draws of versions without epochs
    text = f"{seed}\0{purpose}\0{name}".encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    return np.asarray(np.random.PCG64(key).advance(first).random_raw(count), np.uint64)


def below(drawn: NDArray[np.uint64], limit: int) -> NDArray[Any]:
    """Map random draws to whole numbers from 0 to below `limit`, as int64, or Python integers if `limit` is large."""
    if limit < 1 << 62:
        return (drawn % np.uint64(limit)).astype(np.int64)
    return drawn.astype(object) * limit >> 64


Choose = Literal["nearest", "previous", "next"]
CHOICES: tuple[Choose, ...] = ("nearest", "previous", "next")

SAFE = 1 << 60  # for numbers below this limit, twice the sum of any two of them fits in int64


def progression(first: int, step: int, count: int) -> NDArray[Any]:
    """Return first + k * step for k from 0 to below `count`, as int64, or as Python integers if int64 is too small."""
    if abs(first) + abs(step) * count < SAFE:
        return first + step * np.arange(count, dtype=np.int64)
    return np.array([first + step * k for k in range(count)], dtype=object)


def integers(values: Sequence[int]) -> NDArray[Any]:
    """Return whole numbers as an array of int64, or of Python integers if int64 is too small."""
    return np.array(values, dtype=np.int64 if all(abs(value) < SAFE for value in values) else object)


def common_denominator(times: Sequence[Fraction]) -> int:
    """Return the least common denominator of some times."""
    return math.lcm(*(time.denominator for time in times))


def over_common_denominator(times: Sequence[Fraction]) -> tuple[NDArray[Any], int]:
    """Return times as (numerators [n], common denominator), exactly."""
    denominator = common_denominator(times)
    return integers([int(time * denominator) for time in times]), denominator


def frames_at(pts: NDArray[np.int64], numerators: NDArray[Any], denominator: int, choose: Choose) -> NDArray[np.int64]:
    """Return int64, shaped like `numerators`: the presentation number of the frame chosen for each time.

    If several frames have the chosen pts, the first of these frames is returned.

    Args:
        pts: int64 [frames], the timestamps of all frames, ascending, in presentation order.
        numerators: The numerators of the times, in the unit of `pts`.
        denominator: The denominator of the times.
        choose: The rule. `previous` chooses the last frame with pts <= time, or the first frame if no frame is that
            early. A player shows this frame at the given time. `next` chooses the first frame with pts >= time, or the
            last frame if no frame is that late. `nearest` chooses the frame with the least distance. If two frames
            have the same distance, the earlier frame is chosen.
    """
    low, high = int(pts[0]) - 1, int(pts[-1]) + 1  # bounds to which times are clipped, so that they fit in int64
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
    """Return the timestamps of frames minus the wanted times, as numerators over `denominator`.

    Args:
        pts: int64 [frames], the timestamps of all frames.
        frames: int64, the presentation number of the frame for each time.
        numerators: The numerators of the times, in the unit of `pts`.
        denominator: The denominator of the times.
    """
    shown = pts[frames]
    if numerators.dtype == object or int(np.abs(shown).max(initial=0)) * denominator >= SAFE:
        shown, numerators = shown.astype(object), numerators.astype(object)
    return np.asarray(shown * denominator - numerators)


PadMode = Literal["none", "constant", "edge", "ends", "reflect_101", "reflect_1001"]


def reflected(index: NDArray[np.int64], length: NDArray[np.int64], mode: PadMode) -> NDArray[np.int64]:
    """Replace indices beyond a sequence's bounds by the index of the element to repeat. Return int64, like `index`.

    Args:
        index: The indices, which may be below 0 or at least `length`.
        length: The number of elements of the sequence.
        mode: `edge`, `reflect_101` (reflection without repeating the border element) or `reflect_1001` (reflection that
            repeats the border element). A sequence of one element repeats this element.
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
    """Return int64 [clips, wanted]: the frames, with padding in place of the frames that are not real.

    A gap (consecutive frames that are not real) is filled from the real frames before the gap, as if the clip ended
    where the gap begins. A gap at the beginning of a clip is filled from the real frames after the gap.

    Args:
        frames: int64 [clips, wanted], the numbers of the frames.
        real: bool [clips, wanted], False for frames to replace. Each clip must have at least one real frame.
        mode: The padding mode, except `none` and `ends`.
    """
    if mode == "constant":
        return np.where(real, frames, PAD)
    places = np.broadcast_to(np.arange(frames.shape[1]), frames.shape)
    order = np.argsort(~real, axis=1, kind="stable")  # for each clip, first the indices of its real frames, ascending
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
    """The times of a video: the input of a policy.

    Attributes:
        pts: int64 [frames], the timestamps of all frames, ascending, in presentation order.
        duration_pts: The time from the begin of the first frame to the end of the last frame.
        time_base: The unit of `pts` and `duration_pts`, in seconds.
        starts: int64 [starts], ascending: the presentation numbers of random access points.
        name: The medium's stable id. Random draws depend on this id and on `epoch`.
        uri: The medium's name in messages.
        epoch: The number of the epoch, from 0.
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
        """The duration of the video in seconds."""
        return self.duration_pts * self.time_base


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """A clip that a policy selected.

    Attributes:
        frames: int64 [wanted], the presentation numbers of the frames, in the clip's order. Numbers may repeat. -1
            means padding by a constant.
        mask: bool [wanted], False for padding.
        number: The number of the clip among all clips of the row, including missed clips.
        stretch: The frames [first, stop) of the video that the policy sampled: the whole video, or a range.
        anchor: The presentation number of the clip's anchor frame. None if the policy has no anchors.
    """

    frames: NDArray[np.int64]
    mask: NDArray[np.bool_]
    number: int
    stretch: tuple[int, int] | None = None
    anchor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A clip that a policy wanted but could not make, or all clips of a row of the listing.

    Attributes:
        kind: The reason: `short` (the video or range is too short), `tolerance` (a frame is too far from the wanted
            time), `row` (the row of the listing is not valid) or `view` (a view of a scene is missing).
        message: The reason in words.
        counts: Whether the missing clip counts as a failure of the run. False if the policy's rules leave it out.
        number: The number of the clip among all clips of the row. None if all clips of a row or range are missing.
    """

    kind: MissedKind
    message: str
    counts: bool
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """The result of a policy for one mention of a video (a row of the listing).

    Attributes:
        clips: The clips in ascending order of their numbers.
        missed: The clips that the policy wanted but could not make.
        following: The next free clip number. Clips that `max_clips` leaves out have used up numbers, too.
    """

    clips: list[Sampled]
    missed: list[Missed]
    following: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a video.

    Attributes:
        first: The number of the first frame.
        stop: The number after the last frame.
        start: The time at which the part begins, in time base units, on the clock of pts.
        end: The time at which the part ends (exclusive), in the same unit.
        time_step: The factor by which the unit of wanted times is finer than the given times require. Random shifts of
            times need a finer unit.
    """

    first: int
    stop: int
    start: Fraction
    end: Fraction
    time_step: int = 1

    @property
    def is_empty(self) -> bool:
        """Whether the span contains no frame."""
        return self.first >= self.stop


def whole(timeline: Timeline) -> Span:
    """Return the span of a whole video."""
    start = Fraction(int(timeline.pts[0]) if len(timeline.pts) else 0)
    return Span(first=0, stop=len(timeline.pts), start=start, end=start + timeline.duration_pts)


def beginning(timeline: Timeline, span: Span, seconds: Fraction) -> Span:
    """Return the first `seconds` of a span, or the whole span if the span is shorter."""
    end = span.start + seconds / timeline.time_base
    if end >= span.end:
        return span
    before_end = np.searchsorted(timeline.pts[span.first : span.stop], math.ceil(end), side="left")
    return replace(span, stop=span.first + int(before_end), end=end)


MAX_WANTED = 20_000_000  # maximum number of frames in all clips of one video; more frames would fill the memory
MAX_CLIPS = 1_000_000  # maximum number of clips of one video or range; a greater number is assumed to be a typing error
BLOCK = 1 << 18  # number of wanted frames that are computed at a time, which takes about 10 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFrames:
    """The wanted places of clips of equal length. The wanted places of clip c are starts[c] + offsets.

    If `denominator` is None, a place is a frame number. Otherwise, a place is the numerator of a time, and place /
    denominator is the time in time base units, on the clock of pts.

    Attributes:
        starts: [clips], the place at which each clip begins. int64, or Python integers if int64 is too small.
        offsets: [wanted], the distances of the places from the clip's start, in the type and unit of `starts`.
        denominator: The denominator of the times. None if places are frame numbers.
        low: The least place in the span.
        limit: The end (exclusive) of the places in the span.
    """

    starts: NDArray[Any]
    offsets: NDArray[Any]
    denominator: int | None
    low: int
    limit: int

    def __post_init__(self) -> None:
        # If places exceed SAFE, sums of places could overflow int64, so all places become Python integers.
        if max(abs(self.low), abs(self.limit)) >= SAFE and self.starts.dtype != object:
            object.__setattr__(self, "starts", self.starts.astype(object))

    def any_whole(self) -> bool:
        """Return whether at least one clip lies completely in the span."""
        if not len(self.starts) or not len(self.offsets):
            return False
        first, last = self.low - int(self.offsets.min()), self.limit - int(self.offsets.max())
        return bool(((self.starts >= first) & (self.starts < last)).any())

    def inside(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return bool, shaped like `places`: whether each place is in the span."""
        return np.asarray((places >= self.low) & (places < self.limit), np.bool_)

    def blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (number of the first clip, places [clips, wanted]) for each block of successive clips."""
        size = max(1, BLOCK // max(1, len(self.offsets)))
        for at in range(0, len(self.starts), size):
            yield at, self.starts[at : at + size, None] + self.offsets[None, :]


Piece = tuple[Fraction, Fraction, int]  # (first, step, count) of a series of times at equal distances


def times(span: Span, starts: Piece, offsets: Sequence[Piece]) -> WantedFrames:
    """Return the wanted times of clips that begin at regular intervals. All times are in time base units.

    Args:
        span: The span of the video that contains the available times.
        starts: The series of the times at which clips begin.
        offsets: One or more series of distances from the begin of a clip. A clip wants the times of all these series,
            one series after the other.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _check_counts(starts[2], sum(count for _, _, count in offsets))
    denominator = span.time_step * common_denominator(
        [time for first, step, _ in (starts, *offsets) for time in (first, step)]
    )
    if all(count == 1 for _, _, count in offsets):  # for a list of many times, build one array instead of many
        joined = integers([int(first * denominator) for first, _, _ in offsets])
    else:
        joined = np.concatenate([_series(piece, denominator) for piece in offsets])
    return _wanted_times(span, _series(starts, denominator), joined, denominator)


def times_from(span: Span, starts: NDArray[np.int64], offsets: Sequence[Fraction]) -> WantedFrames:
    """Return the wanted times of clips that begin at given timestamps.

    Args:
        span: The span of the video that contains the available times.
        starts: int64 [clips], the timestamps at which clips begin.
        offsets: The distances of the wanted times from the begin of a clip, in time base units. They may be negative.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _check_counts(len(starts), len(offsets))
    denominator = span.time_step * common_denominator(offsets)
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
    """Return the wanted frame numbers of clips that begin at regular intervals.

    Args:
        span: The span of the video that contains the available frames.
        starts: The frame numbers at which clips begin, as a series (first, step, count).
        offsets: The distances of the wanted frames from the begin of a clip, in frames.

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
    """Raise PolicyError if there are more than MAX_CLIPS clips or MAX_WANTED frames."""
    if clips > MAX_CLIPS or max(clips, 1) * length > MAX_WANTED:
        raise PolicyError(
            "the policy makes too many clips out of one video",
            found=f"{clips:.6g} clips of {length:,} frames",
            allowed=f"{MAX_CLIPS:,} clips, {MAX_WANTED:,} frames in all",
        )


def count_consecutive(start: Fraction | int, step: Fraction | int, length: Fraction | int, end: Fraction | int) -> int:
    """Return the number of consecutive clips, which begin at start, start + step, …

    The last clip may be one that `end` cuts short.

    Args:
        start: The first place (time or frame number) of the first clip.
        step: The distance between the first places of successive clips.
        length: The distance from a clip's first place to its last place.
        end: The end (exclusive) of the available places.
    """
    fitting = max(0, math.ceil(Fraction(end - start - length) / step))
    return fitting + (start + fitting * step < end)
