"""The base of all policies: the keys that they share, and the way from wanted places to clips.

A policy determines where its clips begin, and which places each clip wants from there on, as times or as frame numbers
of a span of the video. All clips of a span are then computed together, in blocks: jitter, choice of frames, tolerance,
padding.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.schema import LISTING_PROBLEM
from framedex.sharder.configuration.listing_rows import Split, Views
from framedex.sharder.configuration.parameters import (
    Count,
    FilterText,
    Number,
    Rate,
    Record,
    RefusedError,
    Seconds,
    Seed,
    parameter,
)
from framedex.sharder.policies import sampling
from framedex.sharder.policies.ranges import Places, Ranges

Last = Literal["drop", "partial", "pad"]
Short = Literal["skip", "pad", "error"]
ShortClip = Literal["drop", "partial", "pad", "error"]
TIME_STEP = 1 << 10  # random times are drawn to this fraction of the finest step among a policy's times


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Record):
    """The parameters common to all policies. A policy is such a record with parameters of its own.

    A policy does not read `split`, `filter` and `views` itself; its callers apply them.

    Attributes:
        choose: The frame taken for a time.
        tolerance_seconds: How far that frame may lie from the time. If None, any distance is allowed.
        jitter_seconds: How far each place is moved at most, for policies by time.
        jitter_frames: How far each place is moved at most, for policies by number.
        seed: Seed of random draws.
        pad: What replaces missing frames of a clip.
        last: What happens to a clip that the video's end cuts short.
        short: What happens to that clip if no clip is whole; by default, the value of `last`.
        min_frames: Least number of real frames of a clip.
        max_clips: Greatest number of clips of a video, or of a stretch of it. The clips that are kept are spread evenly
            among all.
        max_seconds: Number of seconds of a video, or of a stretch of it, that are sampled at most, from its beginning.
        range: The listing's columns with the stretch of a video that is sampled, as if it were a video of its own. If
            None, whole videos are sampled.
        views: Which rows are views of one scene. If None, each row stands alone.
        split: Which rows go to which split.
        filter: Which rows are sampled.
    """

    choose: sampling.Choose = parameter(
        "which frame a time means: the nearest, the one before it, or the one after it", "nearest"
    )
    tolerance_seconds: Seconds | None = parameter("clips with a frame further from its time are left out", None)
    jitter_seconds: Seconds = parameter("by time: greatest random shift of a wanted time", Fraction(0))
    jitter_frames: Number = parameter("by number: greatest random shift of a wanted number", 0)
    seed: Seed = parameter("seed of jitter and of random clips", 0)
    pad: sampling.PadMode = parameter("how the missing frames of a clip are replaced", "constant")
    last: Last = parameter("how a clip is treated that the end of the video cuts short", "pad")
    short: Short | None = parameter("the same if the video has no whole clip; by default, the value of last", None)
    min_frames: Count = parameter("a clip with fewer real frames is left out", 1)
    max_clips: Count | None = parameter("greatest number of clips of a video, spread evenly", None)
    max_seconds: Rate | None = parameter("how many seconds of a video are sampled at most, from its beginning", None)
    range: Ranges | None = parameter("the listing's columns with the stretch of a video that is sampled", None)
    views: Views | None = parameter("the listing's rows that are views of one scene, for clips of several views", None)
    split: Split | None = parameter("which rows belong to train, val and test", None)
    filter: FilterText | None = parameter("which rows are sampled, by columns of the index and the listing", None)

    def __post_init__(self) -> None:
        if self.by_number and self.jitter_seconds:
            raise RefusedError("this policy goes by frame numbers", found="jitter_seconds", allowed="jitter_frames")
        if not self.by_number and self.jitter_frames:
            raise RefusedError("this policy goes by time", found="jitter_frames", allowed="jitter_seconds")
        if self.length is not None and self.length > sampling.MAX_WANTED:
            raise RefusedError(f"a clip has at most {sampling.MAX_WANTED:,} frames", found=f"{self.length:.3g} frames")
        if self.length is not None and self.min_frames > self.length:
            raise RefusedError("min_frames is more than a clip has", found=self.min_frames, allowed=self.length)
        if self.views is None:
            return
        if self.needs_video and self.views.clock is None:
            raise RefusedError("this policy goes by the frames of a view", where="views", found="clock_fps")
        if any(view.seconds is not None for view in (self.views.each or {}).values()) and not self.takes_seconds:
            what = "seconds of a view are for the policy around by seconds"
            raise RefusedError(what, where="views: each", found="seconds")

    @property
    def by_number(self) -> bool:
        """Whether clips want frame numbers instead of times."""
        return False

    @property
    def takes_seconds(self) -> bool:
        """Whether a clip wants the times of a list `seconds`, which a view may replace."""
        return False

    @property
    def length(self) -> int | None:
        """Number of frames of a whole clip, from the key `frames`. If None, it depends on the video."""
        frames: int | tuple[int, ...] | None = getattr(self, "frames", None)
        return len(frames) if isinstance(frames, tuple) else frames

    @property
    def time_step(self) -> int:
        """Factor by which times must be counted more finely than the policy's own times require."""
        return TIME_STEP if self.jitter_seconds else 1

    @property
    def is_random(self) -> bool:
        """Whether something is drawn at random, so that epochs differ."""
        return bool(self.jitter_seconds or self.jitter_frames)

    @property
    def shared_keys_need_pts(self) -> bool:
        """Whether a shared key makes a video's number of clips depend on its timestamps or on the listing."""
        return self.tolerance_seconds is not None or self.range is not None or self.max_seconds is not None

    @property
    def counts_by_pts(self) -> bool:
        """Whether a video's number of clips depends on more than its duration and its number of frames."""
        return self.shared_keys_need_pts

    @property
    def names_ranges(self) -> bool:
        """Whether columns of the listing hold the stretches of a video that are sampled."""
        return self.range is not None

    def ranges(self, names: Sequence[str]) -> Ranges | None:
        """Return the columns that hold the sampled ranges, for a listing with columns `names`, or None for
        whole videos.

        Raises:
            PolicyError: The names of the columns contradict the policy's unit.
        """
        return self.range

    def _places(self, timeline: sampling.Timeline, row: Mapping[str, Any], ranges: Ranges) -> list[Places]:
        """Return the ranges of a row. Raises PolicyError."""
        return ranges.places(timeline, row)

    def span_of(self, timeline: sampling.Timeline, row: Mapping[str, Any]) -> sampling.Span:
        """Return the stretch from the first range of a row to its last one, or the whole video. Raises PolicyError."""
        ranges = self.ranges(list(row))
        if ranges is None:
            return sampling.whole(timeline)
        places = self._places(timeline, row, ranges)
        first, last = places[0], places[-1]
        return ranges.span(timeline, row, None if first is None or last is None else (first[0], last[1]))

    @property
    def needs_video(self) -> bool:
        """Whether clips depend on more than times and numbers of frames: random access points, or ranges of rows."""
        return False

    def sample(self, timeline: sampling.Timeline, row: Mapping[str, Any]) -> sampling.Sampling:
        """Return the clips of one mention of a video.

        A pure function: the same input gives the same output.

        Args:
            row: The listing's columns of the mention, or {} without columns.

        Raises:
            PolicyError: `short: error` forbids the video, or the parameters would give more than MAX_CLIPS clips or
                MAX_WANTED frames.
        """
        wrong = row.get(LISTING_PROBLEM)
        return _wrong_row(str(wrong)) if wrong else self.sample_row(timeline, row)

    def sample_row(self, timeline: sampling.Timeline, row: Mapping[str, Any]) -> sampling.Sampling:
        """Return the clips of one mention that has no problem. Each range is sampled as if it were a video."""
        try:
            ranges = self.ranges(list(row))
            places = [] if ranges is None else self._places(timeline, row, ranges)
        except PolicyError as error:
            return _wrong_row(error.text())
        if ranges is None:
            return self.sample_span(timeline, self._limited(timeline, sampling.whole(timeline)))
        clips: list[sampling.Sampled] = []
        missed: list[sampling.Missed] = []
        following = 0
        for one in places:
            try:
                span = ranges.span(timeline, row, one)
            except PolicyError as error:
                more = _wrong_row(error.text(), following)
            else:
                more = self.sample_span(timeline, self._limited(timeline, span), following)
            clips += more.clips
            missed += more.missed
            following = more.following
        return sampling.Sampling(clips=clips, missed=missed, following=following)

    def _limited(self, timeline: sampling.Timeline, span: sampling.Span) -> sampling.Span:
        """Return the part of a stretch that is sampled: its first `max_seconds`, or all of it."""
        return span if self.max_seconds is None else sampling.beginning(timeline, span, self.max_seconds)

    def sample_span(self, timeline: sampling.Timeline, span: sampling.Span, first: int = 0) -> sampling.Sampling:
        """Return the clips of a stretch of a video, numbered from `first`, as if it were a video of its own."""
        return self.clips_of(timeline, span, self.wanted(timeline, span), first)

    def wanted(self, timeline: sampling.Timeline, span: sampling.Span) -> sampling.WantedFrames:
        """Return the places that clips want in a stretch of a video."""
        raise NotImplementedError(type(self).__name__)

    def clips_of(
        self,
        timeline: sampling.Timeline,
        span: sampling.Span,
        wanted: sampling.WantedFrames,
        first: int,
        *,
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
            first: The number of the first clip.
            among: int64, the frames that numbers refer to. If None, all frames of the video.
            anchors: int64 [clips], the anchor frame of each clip, or None.
            stretch: The stretch of the video that is sampled. If None, `span`.

        Raises:
            PolicyError: No clip is whole, and `short: error` forbids that.
        """
        short_clip = self.short_clip(wanted.any_whole() and not span.is_empty)
        if short_clip == "error" or (self.short == "error" and self.min_frames > len(wanted.offsets)):
            raise PolicyError(self._too_short(timeline, span, wanted), remedy="choose `short: skip` or `short: pad`")
        # Jitter moves no place into the span or out of it, so all epochs make the same clips.
        real = [np.zeros(0, np.int64)]
        if not span.is_empty:
            real += [wanted.inside(places).sum(axis=1) for _, places in wanted.blocks()]
        count = np.concatenate(real)
        made = np.flatnonzero((count >= self.min_frames) & ((count == len(wanted.offsets)) | (short_clip != "drop")))
        following = first + int(made.max(initial=-1)) + 1
        if self.max_clips is not None and len(made) > self.max_clips:  # the middle one of each of max_clips equal parts
            made = made[(2 * np.arange(self.max_clips) + 1) * len(made) // (2 * self.max_clips)]
        kept = np.zeros(len(wanted.starts), np.bool_)
        kept[made] = True
        clips: list[sampling.Sampled] = []
        missed: list[sampling.Missed] = []
        ends = (span.first, span.stop) if stretch is None else (stretch.first, stretch.stop)
        for at, places in self._blocks(timeline, wanted) if kept.any() else ():
            inside = wanted.inside(places)
            frames = np.clip(places, wanted.low, wanted.limit - 1)
            if wanted.denominator is None:
                frames = np.asarray(frames, np.int64)
            else:
                pts = timeline.pts[span.first : span.stop]
                frames = span.first + sampling.frames_at(pts, frames, wanted.denominator, self.choose)
                if self.pad == "ends":
                    # A last frame that is shown for no time counts, too: the first one of those with equal timestamps.
                    last = span.first + int(np.searchsorted(pts, pts[-1], side="left"))
                    frames = np.where(places >= wanted.limit, last, frames)
            if among is not None:
                frames = among[frames]
            here = kept[at : at + len(places)]
            if self.tolerance_seconds is not None and wanted.denominator is not None:
                allowed = math.floor(self.tolerance_seconds / timeline.time_base * wanted.denominator)
                away = np.abs(sampling.differences(timeline.pts, frames, places, wanted.denominator))
                far = (np.asarray(away > allowed, np.bool_) & inside).any(axis=1)
                what = f"no frame within {float(self.tolerance_seconds):g} s of a time that it wants"
                missed += [
                    sampling.Missed(kind="tolerance", message=f"clip {number}: {what}", counts=False, number=number)
                    for number in (np.flatnonzero(here & far) + first + at).tolist()
                ]
                here = here & ~far
            chosen = np.flatnonzero(here)
            frames, inside = frames[chosen], inside[chosen]
            short = np.asarray(~inside.all(axis=1), np.bool_)
            if short_clip == "pad" and self.pad != "ends" and short.any():  # otherwise the ends are there already
                frames[short] = sampling.padded(frames[short], inside[short], self.pad)
            is_cut: list[bool] = [False] * len(chosen) if short_clip == "pad" else short.tolist()
            about = [None] * len(chosen) if anchors is None else anchors[at + chosen].tolist()
            numbers = (chosen + first + at).tolist()
            for row, mask, cut, number, anchor in zip(frames, inside, is_cut, numbers, about, strict=True):
                own, shown = (row[mask], mask[mask]) if cut else (row, mask)
                clips.append(sampling.Sampled(frames=own, mask=shown, number=number, stretch=ends, anchor=anchor))
        if not clips and not missed:
            missed.append(sampling.Missed(kind="short", message=self._too_short(timeline, span, wanted), counts=False))
        return sampling.Sampling(clips=clips, missed=missed, following=following)

    def _blocks(self, timeline: sampling.Timeline, wanted: sampling.WantedFrames) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield blocks of clips as `WantedFrames.blocks` does, with jitter."""
        if wanted.denominator is None:
            most = self.jitter_frames
        else:
            most = int(self.jitter_seconds / timeline.time_base * wanted.denominator)
        jitter = max(0, min(most, wanted.limit - wanted.low))  # more would be clipped anyway
        for at, places in wanted.blocks():
            if jitter:
                first = at * len(wanted.offsets)
                drawn = sampling.draws(
                    self.seed, timeline.name, "jitter", first=first, count=places.size, epoch=timeline.epoch
                )
                moved = places + (sampling.below(drawn, 2 * jitter + 1).reshape(places.shape) - jitter)
                moved = np.where(wanted.inside(places), np.clip(moved, wanted.low, wanted.limit - 1), places)
                # The places of a clip keep the order that they had before.
                order = np.argsort(places, axis=1, kind="stable")
                places = np.empty_like(moved)
                np.put_along_axis(places, order, np.sort(moved, axis=1), axis=1)
            yield at, places

    def _too_short(self, timeline: sampling.Timeline, span: sampling.Span, wanted: sampling.WantedFrames) -> str:
        """Return why a span gives no clip."""
        video = sampling.whole(timeline)
        seconds, frames = float((span.end - span.start) * timeline.time_base), span.stop - span.first
        what = f"{seconds:.6g} s with {frames} frames"
        if (span.start, span.end) != (video.start, video.end):
            what += f", {float((span.start - video.start) * timeline.time_base):.6g} s into the video"
        return f"{what}: too short for a clip of {len(wanted.offsets)} frames (min_frames: {self.min_frames})"

    def short_clip(self, any_whole: bool) -> ShortClip:
        """Return the treatment of a clip that the end cuts short, which depends on whether any clip is whole."""
        if any_whole or self.short is None:
            return "partial" if self.last == "pad" and self.pad == "none" else self.last
        if self.short == "pad":
            return "partial" if self.pad == "none" else "pad"
        return "drop" if self.short == "skip" else "error"


def _wrong_row(message: str, following: int = 0) -> sampling.Sampling:
    """Return the result for a wrong row of the listing: a failure, and no clips."""
    missed = sampling.Missed(kind="row", message=message, counts=True)
    return sampling.Sampling(clips=[], missed=[missed], following=following)
