"""Define the base class of all policies, with the keys that all policies share.

A policy determines the wanted places of each clip. A place is a time or a frame number in a span of the video. The base
class converts wanted places to clips, for many clips at once: it adds jitter, chooses a frame for each place, checks
the tolerance, and pads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
# Resolution of random times: the number of steps into which the unit of a policy's times (their common denominator) is
# divided.
TIME_STEP = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Record):
    """Base class of all policies: a record of the parameters that all policies share.

    The parameters `split`, `filter` and `views` are applied by the code that calls a policy, not by the policy itself.

    Attributes:
        choose: The rule that chooses a frame for a wanted time.
        tolerance_seconds: The maximum distance between a wanted time and the chosen frame. If None, any distance is
            allowed.
        jitter_seconds: The maximum random shift of each wanted time, for policies by time.
        jitter_frames: The maximum random shift of each wanted frame number, for policies by number.
        seed: The seed of random draws.
        pad: The padding that replaces missing frames of a clip.
        last: The treatment of a clip that the end of the video cuts short.
        short: The treatment of a clip that is cut short if the video has no whole clip. If None, `last` applies.
        min_frames: The minimum number of real frames of a clip. Clips with fewer real frames are left out.
        max_clips: The maximum number of clips of a video, or of a sampled range. If there are more, only this number of
            clips is kept, spread evenly over all clips.
        max_seconds: The duration that is sampled, from the beginning of a video or of a range. If None, the whole video
            or range is sampled.
        range: The listing's columns with the range of a video that is sampled as if it were a whole video. If None,
            whole videos are sampled.
        views: The rule that joins rows of the listing to scenes. If None, each row is sampled alone.
        split: The rule that assigns rows to splits. If None, rows are not assigned.
        filter: The condition on the rows that are sampled. If None, all rows are sampled.
    """

    choose: sampling.Choose = parameter(
        "frame that is chosen for a time: the nearest frame, the one before the time, or the one after it", "nearest"
    )
    tolerance_seconds: Seconds | None = parameter(
        "maximum distance of a frame from its wanted time; clips that exceed it are left out", None
    )
    jitter_seconds: Seconds = parameter("by time: maximum random shift of each wanted time", Fraction(0))
    jitter_frames: Number = parameter("by number: maximum random shift of each wanted frame number", 0)
    seed: Seed = parameter("seed of jitter and of random clips", 0)
    pad: sampling.PadMode = parameter("padding that replaces the missing frames of a clip", "constant")
    last: Last = parameter("treatment of a clip that the end of the video cuts short", "pad")
    short: Short | None = parameter(
        "treatment of such a clip if the video has no whole clip; by default, the value of last", None
    )
    min_frames: Count = parameter("minimum number of real frames; clips with fewer are left out", 1)
    max_clips: Count | None = parameter(
        "maximum number of clips per video; if there are more, evenly spread clips are kept", None
    )
    max_seconds: Rate | None = parameter("only this many seconds of a video are sampled, from its beginning on", None)
    range: Ranges | None = parameter("the listing's columns with the range of a video that is sampled", None)
    views: Views | None = parameter("rule that joins the listing's rows to scenes, for clips of several views", None)
    split: Split | None = parameter("rule that assigns rows to splits, such as train, val and test", None)
    filter: FilterText | None = parameter("condition on the rows to sample, by columns of the index and listing", None)

    def __post_init__(self) -> None:
        if self.by_number and self.jitter_seconds:
            raise RefusedError("this policy selects by frame number", found="jitter_seconds", allowed="jitter_frames")
        if not self.by_number and self.jitter_frames:
            raise RefusedError("this policy selects by time", found="jitter_frames", allowed="jitter_seconds")
        if self.length is not None and self.length > sampling.MAX_WANTED:
            raise RefusedError(f"a clip has at most {sampling.MAX_WANTED:,} frames", found=f"{self.length:.3g} frames")
        if self.length is not None and self.min_frames > self.length:
            raise RefusedError("min_frames exceeds the frames of a clip", found=self.min_frames, allowed=self.length)
        if self.views is None:
            return
        if self.needs_video and self.views.clock is None:
            raise RefusedError("this policy needs a view as the clock", where="views", found="clock_fps")
        if any(view.seconds is not None for view in (self.views.each or {}).values()) and not self.takes_seconds:
            what = "seconds of a view can only be used with the policy around with seconds"
            raise RefusedError(what, where="views: each", found="seconds")

    @property
    def by_number(self) -> bool:
        """Whether the wanted places of clips are frame numbers instead of times."""
        return False

    @property
    def takes_seconds(self) -> bool:
        """Whether the policy has a list `seconds` of wanted times. Key `seconds` of a view can replace this list."""
        return False

    @property
    def length(self) -> int | None:
        """The number of frames of a whole clip, from the key `frames`. None if the number depends on the video."""
        frames: int | tuple[int, ...] | None = getattr(self, "frames", None)
        return len(frames) if isinstance(frames, tuple) else frames

    @property
    def time_step(self) -> int:
        """The factor by which the unit of times must be finer than the policy's times alone require.

        It is greater than 1 if times are random, so that random times can lie between multiples of the unit.
        """
        return TIME_STEP if self.jitter_seconds else 1

    @property
    def is_random(self) -> bool:
        """Whether clips depend on random draws, and therefore differ between epochs."""
        return bool(self.jitter_seconds or self.jitter_frames)

    @property
    def shared_keys_need_pts(self) -> bool:
        """Whether `tolerance_seconds`, `range` or `max_seconds` is set.

        If so, the number of clips of a video depends on its timestamps or on the listing.
        """
        return self.tolerance_seconds is not None or self.range is not None or self.max_seconds is not None

    @property
    def counts_by_pts(self) -> bool:
        """Whether a video's number of clips depends on more than its duration and its number of frames."""
        return self.shared_keys_need_pts

    @property
    def names_ranges(self) -> bool:
        """Whether the policy samples ranges that columns of the listing specify."""
        return self.range is not None

    def ranges(self, names: Sequence[str]) -> Ranges | None:
        """Return the columns of a listing that contain the ranges to sample, or None if whole videos are sampled.

        Args:
            names: The names of the listing's columns.

        Raises:
            PolicyError: The columns' names mention another unit than the policy, such as `start_frame` for seconds.
        """
        return self.range

    def _places(self, timeline: sampling.Timeline, row: Mapping[str, Any], ranges: Ranges) -> list[Places]:
        """Return the ranges of a row of the listing. Raises PolicyError if the row has no valid ranges."""
        return ranges.places(timeline, row)

    def span_of(self, timeline: sampling.Timeline, row: Mapping[str, Any]) -> sampling.Span:
        """Return the span from the begin of a row's first range to the end of its last range.

        If the policy does not sample ranges, return the span of the whole video.

        Raises:
            PolicyError: The row has no valid ranges.
        """
        ranges = self.ranges(list(row))
        if ranges is None:
            return sampling.whole(timeline)
        places = self._places(timeline, row, ranges)
        first, last = places[0], places[-1]
        return ranges.span(timeline, row, None if first is None or last is None else (first[0], last[1]))

    @property
    def needs_video(self) -> bool:
        """Whether clips also depend on random access points or on ranges of rows, not only on times of frames."""
        return False

    def sample(self, timeline: sampling.Timeline, row: Mapping[str, Any]) -> sampling.Sampling:
        """Return the clips of one mention of a video (a row of the listing).

        The result depends on the arguments alone.

        Args:
            timeline: The times of the video.
            row: The values of the row by column, {} if the listing has no columns.

        Raises:
            PolicyError: The video has no whole clip and `short` is "error", or the parameters would give more than
                MAX_CLIPS clips or MAX_WANTED frames.
        """
        wrong = row.get(LISTING_PROBLEM)
        return _wrong_row(str(wrong)) if wrong else self.sample_row(timeline, row)

    def sample_row(self, timeline: sampling.Timeline, row: Mapping[str, Any]) -> sampling.Sampling:
        """Return the clips of one mention whose row is valid. Each range is sampled as if it were a whole video."""
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
        """Return the part of a span that is sampled: the first `max_seconds`, or the whole span."""
        limited = span if self.max_seconds is None else sampling.beginning(timeline, span, self.max_seconds)
        return replace(limited, time_step=self.time_step)

    def sample_span(self, timeline: sampling.Timeline, span: sampling.Span, first: int = 0) -> sampling.Sampling:
        """Return the clips of a span, numbered from `first`, as if the span were a whole video."""
        return self.clips_of(timeline, span, self.wanted(timeline, span), first)

    def wanted(self, timeline: sampling.Timeline, span: sampling.Span) -> sampling.WantedFrames:
        """Return the wanted places of all clips in a span of a video."""
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
        """Convert wanted places to clips. Return the clips, numbered from `first`, and the clips that cannot be made.

        docs/policies.md describes the treatment of clips in which wanted frames are missing.

        Args:
            timeline: The times of the video.
            span: The span that contains the available places.
            wanted: The wanted places of all clips.
            first: The number of the first clip.
            among: int64, ascending: the numbers of the frames from which clips are made, such as random access points.
                If given, wanted numbers are indices into this array. If None, wanted numbers are frame numbers.
            anchors: int64 [clips], the anchor frame of each clip. None if clips have no anchors.
            stretch: The sampled span of the video, to be recorded in the clips. If None, `span` is recorded.

        Raises:
            PolicyError: No clip is whole and `short` is "error".
        """
        short_clip = self.short_clip(wanted.any_whole() and not span.is_empty)
        if short_clip == "error" or (self.short == "error" and self.min_frames > len(wanted.offsets)):
            raise PolicyError(self._too_short(timeline, span, wanted), remedy="choose `short: skip` or `short: pad`")
        # Jitter never moves a place across the bounds of the span, so all epochs have the same clips.
        blocks = () if span.is_empty else wanted.blocks()
        count = np.concatenate([np.zeros(0, np.int64), *(wanted.inside(places).sum(axis=1) for _, places in blocks)])
        made = np.flatnonzero((count >= self.min_frames) & ((count == len(wanted.offsets)) | (short_clip != "drop")))
        following = first + int(made.max(initial=-1)) + 1
        if self.max_clips is not None and len(made) > self.max_clips:  # keep the middle clip of each equal part
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
                    # If several last frames have equal timestamps, take the first of them, as `frames_at` does.
                    last = span.first + int(np.searchsorted(pts, pts[-1], side="left"))
                    frames = np.where(places >= wanted.limit, last, frames)
            if among is not None:
                frames = among[frames]
            here = kept[at : at + len(places)]
            if self.tolerance_seconds is not None and wanted.denominator is not None:
                allowed = math.floor(self.tolerance_seconds / timeline.time_base * wanted.denominator)
                away = np.abs(sampling.differences(timeline.pts, frames, places, wanted.denominator))
                far = (np.asarray(away > allowed, np.bool_) & inside).any(axis=1)
                what = f"no frame within {float(self.tolerance_seconds):g} s of a wanted time"
                missed += [
                    sampling.Missed(kind="tolerance", message=f"clip {number}: {what}", counts=False, number=number)
                    for number in (np.flatnonzero(here & far) + first + at).tolist()
                ]
                here = here & ~far
            chosen = np.flatnonzero(here)
            frames, inside = frames[chosen], inside[chosen]
            short = np.asarray(~inside.all(axis=1), np.bool_)
            if short_clip == "pad" and self.pad != "ends" and short.any():  # for `ends`, clipping has padded already
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
        """Yield the blocks of `WantedFrames.blocks`, with jitter added to the places."""
        if wanted.denominator is None:
            most = self.jitter_frames
        else:
            most = int(self.jitter_seconds / timeline.time_base * wanted.denominator)
        jitter = max(0, min(most, wanted.limit - wanted.low))  # a greater shift would be clipped to the span anyway
        for at, places in wanted.blocks():
            if jitter:
                first = at * len(wanted.offsets)
                drawn = sampling.draws(
                    self.seed, timeline.name, "jitter", first=first, count=places.size, epoch=timeline.epoch
                )
                moved = places + (sampling.below(drawn, 2 * jitter + 1).reshape(places.shape) - jitter)
                moved = np.where(wanted.inside(places), np.clip(moved, wanted.low, wanted.limit - 1), places)
                # Shifted places are sorted, and assigned in the order of the wanted places, so that jitter does not
                # reorder the frames of a clip.
                order = np.argsort(places, axis=1, kind="stable")
                places = np.empty_like(moved)
                np.put_along_axis(places, order, np.sort(moved, axis=1), axis=1)
            yield at, places

    def _too_short(self, timeline: sampling.Timeline, span: sampling.Span, wanted: sampling.WantedFrames) -> str:
        """Return an error message for a span that is too short for a clip."""
        video = sampling.whole(timeline)
        seconds, frames = float((span.end - span.start) * timeline.time_base), span.stop - span.first
        what = f"{seconds:.6g} s with {frames} frames"
        if (span.start, span.end) != (video.start, video.end):
            what += f", {float((span.start - video.start) * timeline.time_base):.6g} s into the video"
        return f"{what}: too short for a clip of {len(wanted.offsets)} frames (min_frames: {self.min_frames})"

    def short_clip(self, any_whole: bool) -> ShortClip:
        """Return the treatment of a clip that the end of the span cuts short.

        Args:
            any_whole: Whether the span has a whole clip.
        """
        if any_whole or self.short is None:
            return "partial" if self.last == "pad" and self.pad == "none" else self.last
        if self.short == "pad":
            return "partial" if self.pad == "none" else "pad"
        return "drop" if self.short == "skip" else "error"


def _wrong_row(message: str, following: int = 0) -> sampling.Sampling:
    """Return the result for an invalid row of the listing: one failure and no clips."""
    missed = sampling.Missed(kind="row", message=message, counts=True)
    return sampling.Sampling(clips=[], missed=[missed], following=following)
