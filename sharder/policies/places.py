"""Turn the places that clips want into the frames that they get, for all policies.

A policy determines where its clips begin, and which places each clip wants from there on, as times or as frame numbers
of a span of the video. All clips of a span are then computed together, in blocks: jitter, choice of frames, tolerance,
padding.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.sharder.configuration.parameters import MAX_WANTED
from framedex.sharder.policies import sampling
from framedex.sharder.policies.policy import Policy, ShortClip

MAX_CLIPS = 1_000_000  # of one video, or of one range of it; more are a typing error
BLOCK = 1 << 18  # so many wanted frames are computed at a time, which takes some ten MB


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
        if max(abs(self.low), abs(self.limit)) >= sampling.SAFE and self.starts.dtype != object:
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


def times(span: sampling.Span, starts: Piece, offsets: Sequence[Piece], *, time_step: int = 1) -> WantedFrames:
    """Return clips that begin at the times of a series, and from there want the times of several consecutive series.

    Args:
        span: Stretch of the video; all times are in time base units.
        starts: The series of the clips' beginnings.
        offsets: The series of distances from there.
        time_step: Factor by which times are counted more finely than needed.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _check_counts(starts[2], sum(count for _, _, count in offsets))
    denominator = time_step * sampling.common_denominator(
        [time for first, step, _ in (starts, *offsets) for time in (first, step)]
    )
    if all(count == 1 for _, _, count in offsets):  # such as a list of many times: one array instead of many
        joined = sampling.integers([int(first * denominator) for first, _, _ in offsets])
    else:
        joined = np.concatenate([_series(piece, denominator) for piece in offsets])
    return _wanted_times(span, _series(starts, denominator), joined, denominator)


def times_from(
    span: sampling.Span, starts: NDArray[np.int64], offsets: Sequence[Fraction], *, time_step: int = 1
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
    denominator = time_step * sampling.common_denominator(offsets)
    fits = int(np.abs(starts).max(initial=0)) * denominator < sampling.SAFE
    numerators = sampling.integers([int(offset * denominator) for offset in offsets])
    return _wanted_times(span, (starts if fits else starts.astype(object)) * denominator, numerators, denominator)


def _wanted_times(span: sampling.Span, starts: NDArray[Any], offsets: NDArray[Any], denominator: int) -> WantedFrames:
    low, limit = math.ceil(span.start * denominator), math.ceil(span.end * denominator)
    return WantedFrames(starts=starts, offsets=offsets, denominator=denominator, low=low, limit=limit)


def _series(piece: Piece, denominator: int) -> NDArray[Any]:
    first, step, count = piece
    return sampling.progression(int(first * denominator), int(step * denominator), count)


def numbers(span: sampling.Span, starts: tuple[int, int, int], offsets: Sequence[int]) -> WantedFrames:
    """Return clips that begin at frames (first, step, count) and want frames by their offsets from there.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _check_counts(starts[2], len(offsets))
    return WantedFrames(
        starts=sampling.progression(*starts),
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


def sample(
    timeline: sampling.Timeline,
    span: sampling.Span,
    wanted: WantedFrames,
    policy: Policy,
    *,
    first: int = 0,
    among: NDArray[np.int64] | None = None,
    anchors: NDArray[np.int64] | None = None,
    stretch: sampling.Span | None = None,
) -> sampling.Sampling:
    """Return the clips that get their wanted frames, numbered from `first`.

    docs/policies.md describes what happens to other clips.

    Args:
        timeline: The video.
        span: The span that the wanted places refer to.
        wanted: The wanted places.
        policy: The keys that all policies share.
        first: The number of the first clip.
        among: int64, the frames that numbers refer to. If None, all frames of the video.
        anchors: int64 [clips], the frame that each clip is about, or None.
        stretch: The stretch of the video that is sampled. If None, `span`.

    Raises:
        PolicyError: No clip is whole, and `short: error` forbids that.
    """
    short_clip = policy.short_clip(wanted.any_whole() and not span.is_empty)
    if short_clip == "error" or (policy.short == "error" and policy.min_frames > len(wanted.offsets)):
        raise PolicyError(_too_short(timeline, span, wanted, policy), remedy="choose `short: skip` or `short: pad`")
    # Jitter moves no place into the span or out of it, so all epochs make the same clips.
    real = [np.zeros(0, np.int64)]
    if not span.is_empty:
        real += [wanted.inside(places).sum(axis=1) for _, places in wanted.blocks()]
    count = np.concatenate(real)
    made = np.flatnonzero((count >= policy.min_frames) & ((count == len(wanted.offsets)) | (short_clip != "drop")))
    kept = np.zeros(len(wanted.starts), np.bool_)
    kept[_thin_out(made.tolist(), policy.max_clips)] = True
    clips: list[sampling.Sampled] = []
    missed: list[sampling.Missed] = []
    of = stretch or span
    for at, places in _blocks(timeline, wanted, policy) if kept.any() else ():
        inside = wanted.inside(places)
        frames = np.clip(places, wanted.low, wanted.limit - 1)
        if wanted.denominator is None:
            frames = np.asarray(frames, np.int64)
        else:
            pts = timeline.pts[span.first : span.stop]
            frames = span.first + sampling.frames_at(pts, frames, wanted.denominator, policy.choose)
        if policy.pad == "ends" and wanted.denominator is not None:
            # A last frame that is shown for no time counts, too: the first one of those with equal timestamps.
            last = span.first + int(np.searchsorted(pts, pts[-1], side="left"))
            frames = np.where(places >= wanted.limit, last, frames)
        if among is not None:
            frames = among[frames]
        here = kept[at : at + len(places)]
        far: NDArray[np.bool_] = np.zeros(len(places), np.bool_)
        if policy.tolerance_seconds is not None and wanted.denominator is not None and len(timeline.pts):
            allowed = math.floor(policy.tolerance_seconds / timeline.time_base * wanted.denominator)
            away = sampling.distances(timeline.pts, frames, places, wanted.denominator)
            far = np.asarray((np.asarray(away > allowed, np.bool_) & inside).any(axis=1), np.bool_)
        missed += [_missed_time(number + first + at, policy) for number in np.flatnonzero(here & far).tolist()]
        chosen = np.flatnonzero(here & ~far)
        about = [None] * len(chosen) if anchors is None else anchors[at + chosen].tolist()
        numbered = zip((chosen + first + at).tolist(), about, strict=True)
        ends = (of.first, of.stop)
        known = [{"number": number, "anchor": anchor, "stretch": ends} for number, anchor in numbered]
        clips += _records(frames[chosen], inside[chosen], known, short_clip, policy)
    if not clips and not missed:
        message = _too_short(timeline, span, wanted, policy)
        missed.append(sampling.Missed(kind="short", message=message, counts=False))
    return sampling.Sampling(clips=clips, missed=missed, following=first + int(made.max(initial=-1)) + 1)


def _thin_out(numbers: list[int], most: int | None) -> list[int]:
    """Return at most so many of some numbers, spread evenly: the middle one of each of `most` equal parts."""
    if most is None or len(numbers) <= most:
        return numbers
    return [numbers[(2 * part + 1) * len(numbers) // (2 * most)] for part in range(most)]


def _blocks(timeline: sampling.Timeline, wanted: WantedFrames, policy: Policy) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield blocks of clips as `WantedFrames.blocks` does, with jitter."""
    if wanted.denominator is None:
        most = policy.jitter_frames
    else:
        most = int(policy.jitter_seconds / timeline.time_base * wanted.denominator)
    jitter = max(0, min(most, wanted.limit - wanted.low))  # more would be clipped anyway
    for at, places in wanted.blocks():
        if jitter:
            first = at * len(wanted.offsets)
            drawn = sampling.draws(
                policy.seed, timeline.name, "jitter", first=first, count=places.size, epoch=timeline.epoch
            )
            moved = places + (sampling.below(drawn, 2 * jitter + 1).reshape(places.shape) - jitter)
            moved = np.clip(moved, wanted.low, wanted.limit - 1)
            places = _in_order(places, np.where(wanted.inside(places), moved, places))
        yield at, places


def _in_order(places: NDArray[Any], moved: NDArray[Any]) -> NDArray[Any]:
    """Return moved places, reassigned so that a clip's places keep the order that they had before."""
    order = np.argsort(places, axis=1, kind="stable")
    dealt = np.empty_like(moved)
    np.put_along_axis(dealt, order, np.sort(moved, axis=1), axis=1)
    return dealt


def _records(
    frames: NDArray[np.int64],
    inside: NDArray[np.bool_],
    known: list[dict[str, Any]],
    short_clip: ShortClip,
    policy: Policy,
) -> list[sampling.Sampled]:
    """Return the records of clips, [clips, wanted], padded or cut if they are not whole.

    Args:
        known: The other attributes of each clip.
    """
    short = np.flatnonzero(~inside.all(axis=1))
    if len(short) and short_clip == "pad" and policy.pad != "ends":  # otherwise the ends are there already
        frames[short] = sampling.padded(frames[short], inside[short], policy.pad)
    found = [
        sampling.Sampled(frames=row, mask=mask, **facts) for row, mask, facts in zip(frames, inside, known, strict=True)
    ]
    if short_clip != "pad":
        for place in short.tolist():
            real = inside[place]
            found[place] = sampling.Sampled(frames=frames[place][real], mask=real[real], **known[place])
    return found


def _missed_time(number: int, policy: Policy) -> sampling.Missed:
    assert policy.tolerance_seconds is not None  # otherwise no frame is too far away
    message = f"clip {number}: no frame within {float(policy.tolerance_seconds):g} s of a time that it wants"
    return sampling.Missed(kind="tolerance", message=message, counts=False, number=number)


def _too_short(timeline: sampling.Timeline, span: sampling.Span, wanted: WantedFrames, policy: Policy) -> str:
    """Return why a span gives no clip."""
    video = sampling.whole(timeline)
    seconds, frames = float((span.end - span.start) * timeline.time_base), span.stop - span.first
    what = f"{seconds:.6g} s with {frames} frames"
    if (span.start, span.end) != (video.start, video.end):
        what += f", {float((span.start - video.start) * timeline.time_base):.6g} s into the video"
    return f"{what}: too short for a clip of {len(wanted.offsets)} frames (min_frames: {policy.min_frames})"
