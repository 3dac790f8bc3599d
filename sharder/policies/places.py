"""From the places that clips want to the frames they get, for all policies.

A policy says where its clips begin, and which places each clip wants from there on, as times or as frame numbers of a
span of the video. All clips of a span are then computed together, in blocks: jitter, choice of frames, tolerance,
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

MAX_CLIPS = 1_000_000  # of one video, or of one range of it
BLOCK = 1 << 18  # wanted frames that are computed at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFrames:
    """The places that clips of equal length want: clip c wants starts[c] + offsets.

    Attributes:
        starts: [clips], int64, or Python integers if those do not fit. Frame numbers if `denominator` is None;
            otherwise numerators of times, in time base units on the clock of pts.
        offsets: [wanted], of the same type and unit as `starts`.
        denominator: Of the times; None for frame numbers.
        low: Least place that lies in the span.
        limit: End (exclusive) of the places that lie in the span.
    """

    starts: NDArray[Any]
    offsets: NDArray[Any]
    denominator: int | None
    low: int
    limit: int

    def __post_init__(self) -> None:
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


Piece = tuple[Fraction, Fraction, int]  # a regular series of times: (first, step, count)


def times(span: sampling.Span, starts: Piece, offsets: Sequence[Piece], *, time_step: int = 1) -> WantedFrames:
    """Return clips that begin at the times of a series, and from there want the times of several consecutive series.

    Args:
        span: Stretch of the video; all times are in time base units.
        time_step: Factor by which times are counted finer than needed.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _bounded(starts[2], sum(count for _, _, count in offsets))
    denominator = time_step * sampling.common_denominator(
        [time for first, step, _ in (starts, *offsets) for time in (first, step)]
    )
    return WantedFrames(
        starts=_series(starts, denominator),
        offsets=_joined(offsets, denominator),
        denominator=denominator,
        low=math.ceil(span.start * denominator),
        limit=math.ceil(span.end * denominator),
    )


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
    _bounded(len(starts), len(offsets))
    denominator = time_step * sampling.common_denominator(offsets)
    fits = int(np.abs(starts).max(initial=0)) * denominator < sampling.SAFE
    return WantedFrames(
        starts=(starts if fits else starts.astype(object)) * denominator,
        offsets=sampling.integers([int(offset * denominator) for offset in offsets]),
        denominator=denominator,
        low=math.ceil(span.start * denominator),
        limit=math.ceil(span.end * denominator),
    )


def _series(piece: Piece, denominator: int) -> NDArray[Any]:
    first, step, count = piece
    return sampling.progression(int(first * denominator), int(step * denominator), count)


def _joined(pieces: Sequence[Piece], denominator: int) -> NDArray[Any]:
    if all(count == 1 for _, _, count in pieces):
        return sampling.integers([int(first * denominator) for first, _, _ in pieces])
    return np.concatenate([_series(piece, denominator) for piece in pieces])


def numbers(span: sampling.Span, starts: tuple[int, int, int], offsets: Sequence[int]) -> WantedFrames:
    """Return clips that begin at frames (first, step, count) and want frames by their offsets from there.

    Raises:
        PolicyError: There are too many clips or frames.
    """
    _bounded(starts[2], len(offsets))
    return WantedFrames(
        starts=sampling.progression(*starts),
        offsets=np.asarray(offsets, np.int64),
        denominator=None,
        low=span.first,
        limit=span.stop,
    )


def _bounded(clips: int, length: int) -> None:
    """Raise PolicyError for more clips or frames than any realistic use wants."""
    if clips > MAX_CLIPS or max(clips, 1) * length > MAX_WANTED:
        raise PolicyError(
            "the policy makes too many clips out of one video",
            found=f"{clips:.6g} clips of {length:,} frames",
            allowed=f"{MAX_CLIPS:,} clips, {MAX_WANTED:,} frames in all",
        )


def consecutive(start: Fraction | int, step: Fraction | int, length: Fraction | int, end: Fraction | int) -> int:
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
    terms: Policy,
    *,
    first: int = 0,
    among: NDArray[np.int64] | None = None,
    anchors: NDArray[np.int64] | None = None,
    stretch: sampling.Span | None = None,
) -> sampling.Sampling:
    """Return the clips that get their wanted frames, numbered from `first`.

    docs/policies.md describes what happens to other clips.

    Args:
        among: int64, the frames that numbers refer to; None for all frames of the video.
        anchors: int64 [clips], the frame that each clip is about; None if there is none.
        stretch: The stretch of the video that is sampled; None for `span`.

    Raises:
        PolicyError: No clip is whole, and `short: error` forbids that.
    """
    short_clip = terms.short_clip(wanted.any_whole() and not span.is_empty)
    if short_clip == "error" or (terms.short == "error" and terms.min_frames > len(wanted.offsets)):
        raise PolicyError(_too_short(timeline, span, wanted, terms), remedy="choose `short: skip` or `short: pad`")
    made = np.flatnonzero(_is_made(span, wanted, terms, short_clip))
    kept = np.zeros(len(wanted.starts), np.bool_)
    kept[thinned(made.tolist(), terms.max_clips)] = True
    clips: list[sampling.Sampled] = []
    missed: list[sampling.Missed] = []
    of = stretch or span
    for at, places in _blocks(timeline, wanted, terms) if kept.any() else ():
        inside = wanted.inside(places)
        frames = _frames(timeline, span, np.clip(places, wanted.low, wanted.limit - 1), wanted, terms)
        if terms.pad == "ends" and wanted.denominator is not None:  # a last frame that is shown for no time counts, too
            frames = np.where(places >= wanted.limit, _last_frame(timeline, span), frames)
        if among is not None:
            frames = among[frames]
        here = kept[at : at + len(places)]
        far = _far(timeline, frames, places, inside, wanted, terms)
        missed += [_strayed(number + first + at, terms) for number in np.flatnonzero(here & far).tolist()]
        chosen = np.flatnonzero(here & ~far)
        about = [None] * len(chosen) if anchors is None else anchors[at + chosen].tolist()
        numbered = zip((chosen + first + at).tolist(), about, strict=True)
        ends = (of.first, of.stop)
        known = [{"number": number, "anchor": anchor, "stretch": ends} for number, anchor in numbered]
        clips += _records(frames[chosen], inside[chosen], known, short_clip, terms)
    if not clips and not missed:
        missed.append(
            sampling.Missed(kind="short", message=_too_short(timeline, span, wanted, terms), counts=False, number=None)
        )
    return sampling.Sampling(clips=clips, missed=missed, following=first + int(made.max(initial=-1)) + 1)


def _is_made(span: sampling.Span, wanted: WantedFrames, terms: Policy, short_clip: ShortClip) -> NDArray[np.bool_]:
    """Return bool [clips]: whether the places of each clip allow to make it.

    Jitter does not matter: it moves no place into the span or out of it. So this is the same in all epochs.
    """
    if span.is_empty:
        return np.zeros(len(wanted.starts), np.bool_)
    width = len(wanted.offsets)
    size = max(1, BLOCK // max(1, width))
    real = np.concatenate(
        [np.zeros(0, np.int64)]
        + [
            wanted.inside(wanted.starts[at : at + size, None] + wanted.offsets[None, :]).sum(axis=1)
            for at in range(0, len(wanted.starts), size)
        ]
    )
    return np.asarray((real >= terms.min_frames) & ((real == width) | (short_clip != "drop")), np.bool_)


def thinned(numbers: list[int], most: int | None) -> list[int]:
    """Return at most so many of some numbers, spread evenly: the middle one of each of `most` equal parts."""
    if most is None or len(numbers) <= most:
        return numbers
    return [numbers[(2 * part + 1) * len(numbers) // (2 * most)] for part in range(most)]


def _blocks(timeline: sampling.Timeline, wanted: WantedFrames, terms: Policy) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield blocks of clips: (number of the first clip, places of the block's clips [clips, wanted], jittered)."""
    jitter = _jitter(timeline, wanted, terms)
    width = len(wanted.offsets)
    size = max(1, BLOCK // max(1, width))
    for at in range(0, len(wanted.starts), size):
        places = wanted.starts[at : at + size, None] + wanted.offsets[None, :]
        if jitter:
            drawn = sampling.draws(
                terms.seed, timeline.name, "jitter", first=at * width, count=places.size, epoch=timeline.epoch
            )
            moved = places + (sampling.below(drawn, 2 * jitter + 1).reshape(places.shape) - jitter)
            moved = np.clip(moved, wanted.low, wanted.limit - 1)
            places = _in_order(places, np.where(wanted.inside(places), moved, places))
        yield at, places


def _jitter(timeline: sampling.Timeline, wanted: WantedFrames, terms: Policy) -> int:
    """Return the greatest distance by which places are moved, in their unit; never more than the span's length."""
    if wanted.denominator is None:
        most = terms.jitter_frames
    else:
        most = int(terms.jitter_seconds / timeline.time_base * wanted.denominator)
    return max(0, min(most, wanted.limit - wanted.low))


def _in_order(places: NDArray[Any], moved: NDArray[Any]) -> NDArray[Any]:
    """Return moved places, reassigned so that a clip's places keep the order that they had before."""
    order = np.argsort(places, axis=1, kind="stable")
    dealt = np.empty_like(moved)
    np.put_along_axis(dealt, order, np.sort(moved, axis=1), axis=1)
    return dealt


def _frames(
    timeline: sampling.Timeline, span: sampling.Span, places: NDArray[Any], wanted: WantedFrames, terms: Policy
) -> NDArray[np.int64]:
    """Return int64 [clips, wanted]: the frames at some places in the span, which has frames."""
    if wanted.denominator is None:
        return np.asarray(places, np.int64)
    return span.first + sampling.frames_at(
        timeline.pts[span.first : span.stop], places, wanted.denominator, terms.choose
    )


def _last_frame(timeline: sampling.Timeline, span: sampling.Span) -> int:
    """Return the last frame of a span; of frames with equal timestamps, the first."""
    pts = timeline.pts[span.first : span.stop]
    return span.first + int(np.searchsorted(pts, pts[-1], side="left"))


def _far(
    timeline: sampling.Timeline,
    frames: NDArray[np.int64],
    places: NDArray[Any],
    inside: NDArray[np.bool_],
    wanted: WantedFrames,
    terms: Policy,
) -> NDArray[np.bool_]:
    """Return bool [clips]: whether some frame lies farther from its place than the tolerance."""
    if terms.tolerance_seconds is None or wanted.denominator is None or not len(timeline.pts):
        return np.zeros(len(places), np.bool_)
    allowed = math.floor(terms.tolerance_seconds / timeline.time_base * wanted.denominator)
    away = sampling.distances(timeline.pts, frames, places, wanted.denominator)
    too_far = np.asarray(away > allowed, np.bool_)
    return np.asarray((too_far & inside).any(axis=1), np.bool_)


def _records(
    frames: NDArray[np.int64],
    inside: NDArray[np.bool_],
    known: list[dict[str, Any]],
    short_clip: ShortClip,
    terms: Policy,
) -> list[sampling.Sampled]:
    """Return the records of clips, [clips, wanted], padded or cut if they are not whole.

    Args:
        known: The other attributes of each clip.
    """
    short = np.flatnonzero(~inside.all(axis=1))
    if len(short) and short_clip == "pad" and terms.pad != "ends":  # otherwise the ends are there already
        frames[short] = sampling.padded(frames[short], inside[short], terms.pad)
    found = [
        sampling.Sampled(frames=row, mask=mask, **facts) for row, mask, facts in zip(frames, inside, known, strict=True)
    ]
    if short_clip != "pad":
        for place in short.tolist():
            real = inside[place]
            found[place] = sampling.Sampled(frames=frames[place][real], mask=real[real], **known[place])
    return found


def _strayed(number: int, terms: Policy) -> sampling.Missed:
    assert terms.tolerance_seconds is not None  # otherwise no frame is too far away
    message = f"clip {number}: no frame within {float(terms.tolerance_seconds):g} s of a time that it wants"
    return sampling.Missed(kind="tolerance", message=message, counts=False, number=number)


def _too_short(timeline: sampling.Timeline, span: sampling.Span, wanted: WantedFrames, terms: Policy) -> str:
    """Return why a span gives no clip."""
    video = sampling.whole(timeline)
    seconds, frames = float((span.end - span.start) * timeline.time_base), span.stop - span.first
    what = f"{seconds:.6g} s with {frames} frames"
    if (span.start, span.end) != (video.start, video.end):
        what += f", {float((span.start - video.start) * timeline.time_base):.6g} s into the video"
    return f"{what}: too short for a clip of {len(wanted.offsets)} frames (min_frames: {terms.min_frames})"
