"""Sample the views of a scene: clips of several views, whose frames belong to the same times of one clock.

Times are matched in exact arithmetic. `facts_of` describes the views: how long they last, and where they have gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.schema import LISTING_PROBLEM
from framedex.records.clip import PAD
from framedex.sharder.configuration.listing_rows import Views
from framedex.sharder.configuration.parameters import MAX_FRAMES, as_fraction, shown
from framedex.sharder.policies import sampling
from framedex.sharder.policies.policy import Policy
from framedex.sharder.policies.ranges import cell_of, is_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a video, on the clock of the scene.

    Attributes:
        timeline: The video.
        span: The stretch of it.
        offset_seconds: The time in the stretch when the clock begins.
        rate: Seconds that pass in the stretch while the clock counts one.
    """

    timeline: sampling.Timeline
    span: sampling.Span
    offset_seconds: Fraction = Fraction(0)
    rate: Fraction = Fraction(1)

    @property
    def frame_seconds(self) -> Fraction:
        """How long a frame of the stretch lasts on average."""
        frames = self.span.stop - self.span.first
        return (self.span.end - self.span.start) * self.timeline.time_base / max(1, frames)

    @property
    def clock_seconds(self) -> Fraction:
        """The time of the clock when the stretch ends."""
        length = (self.span.end - self.span.start) * self.timeline.time_base
        return (length - self.offset_seconds) / self.rate


def match_frames(
    clock: Part, clock_frames: NDArray[np.int64], view: Part, policy: Policy
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return the frames of a view at the times of some frames of the clock.

    Args:
        clock: The stretch whose frames give the times.
        clock_frames: int64 [times], presentation numbers in its video.
        view: A stretch that has a frame.
        policy: It has the frame that a time means, and the allowed distance from its time, in seconds of the view. By
            default, a distance must be less than the view's frames last on average.

    Returns:
        Frames, int64 [times], by presentation number; bool [times], whether each lies close enough to its time; and
            float64 [times], the frame's time minus the wanted one, in seconds.
    """
    own = view.timeline
    # A time in the view's own unit is first + step × pts of the clock, which may have an offset and a rate itself.
    rate = view.rate / clock.rate
    step = rate * clock.timeline.time_base / own.time_base
    offset = view.offset_seconds - rate * clock.offset_seconds
    first = view.span.start + offset / own.time_base - step * clock.span.start
    denominator = sampling.common_denominator([first, step])
    pts = clock.timeline.pts[clock_frames]
    factor, more = int(step * denominator), int(first * denominator)
    if int(np.abs(pts).max(initial=0)) * factor + abs(more) >= sampling.SAFE:
        pts = pts.astype(object)
    wanted = pts * factor + more
    own_pts = own.pts[view.span.first : view.span.stop]
    frames = view.span.first + sampling.frames_at(own_pts, wanted, denominator, policy.choose)
    away = sampling.differences(own.pts, frames, wanted, denominator)
    if policy.tolerance_seconds is None:
        limit = math.ceil(view.frame_seconds / own.time_base * denominator) - 1
    else:
        limit = math.floor(policy.tolerance_seconds / own.time_base * denominator)
    is_close = np.asarray(np.abs(away) <= limit, np.bool_)
    return frames, is_close, away.astype(np.float64) * float(own.time_base / denominator)


NO_TIMES = "has none of the times that it wants"
LENIENT = "`missing: skip` leaves such clips out, `missing: mask` masks their frames; or allow more `tolerance_seconds`"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneView:
    """One view of a scene.

    Attributes:
        timeline: Its video.
        row: The listing's columns of its row.
    """

    timeline: sampling.Timeline
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewSampled:
    """The part of one view in a clip of several views.

    Attributes:
        sampled: Its frames.
        away_seconds: float64 [F], each frame's time minus the wanted one, NaN where padded.
    """

    sampled: sampling.Sampled
    away_seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneClip:
    """A clip of several views. `views`: the part of each view, the clock's first."""

    number: int
    views: dict[str, ViewSampled]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneSampling:
    """The clips of a scene in order of their numbers, and the missed clips, each with its view."""

    clips: list[SceneClip]
    missed: list[tuple[str | None, sampling.Missed]]


def sample_scene(
    policy: Policy, scene: Mapping[str, SceneView | str], names: Sequence[str], *, name: str
) -> SceneSampling:
    """Return the clips of a scene.

    Args:
        policy: A policy with `views`.
        scene: The views of the scene, by name. A wrong view is a text with the reason.
        names: The views that a clip has.
        name: The scene's name, which seeds random draws of a clock of its own.

    Raises:
        PolicyError: A view is missing, and `missing: error` forbids that; or as for policies.
    """
    views = views_of(policy)
    there = {view: one for view, one in scene.items() if isinstance(one, SceneView)}
    parts, absent = parts_of(policy, scene, names)
    missed = [(view if view in there else None, one) for view, one in absent.items()]
    if absent and (views.missing != "mask" or views.clock in absent or not parts):
        if views.missing == "error":
            raise PolicyError(next(iter(absent.values())).message, remedy=LENIENT)
        return SceneSampling(clips=[], missed=missed)
    leading = next(iter(parts)) if views.clock is None else views.clock
    clock = parts[leading] if views.clock is not None else _own_clock(views, parts.values(), there[leading], name)
    order = [leading, *(view for view in parts if view != leading)]
    unlimited = replace(policy, max_clips=None)  # the leading view decides which clips there are
    samplings = {
        view: _sample_clock(policy if view == leading else unlimited, view, clock, there[leading].row) for view in order
    }
    found = {view: _sample_view(policy, view, clock, parts[view], samplings[view].clips) for view in order}
    clips: list[SceneClip] = []
    missed += [(leading, one) for one in samplings[leading].missed]
    for number in (clip.number for clip in samplings[leading].clips):
        own = {view: of_view.get(number, NO_TIMES) for view, of_view in found.items()}
        given = {view: sampled for view, sampled in own.items() if isinstance(sampled, ViewSampled)}
        if given and (len(given) == len(own) or views.missing == "mask"):
            clips.append(SceneClip(number=number, views=given))
            continue
        view, why = next((view, why) for view, why in own.items() if isinstance(why, str))
        message = f"clip {number}: view {view!r} {why}"
        if views.missing == "error":
            raise PolicyError(message, remedy=LENIENT)
        missed.append((view, sampling.Missed(kind="view", message=message, counts=False, number=number)))
    return SceneSampling(clips=clips, missed=missed)


def views_of(policy: Policy) -> Views:
    """Return the views of a policy that has them."""
    assert policy.views is not None  # the callers checked this
    return policy.views


def parts_of(
    policy: Policy, scene: Mapping[str, SceneView | str], names: Sequence[str]
) -> tuple[dict[str, Part], dict[str, sampling.Missed]]:
    """Return the stretches of a scene's views, and why others are missing.

    Args:
        scene: As for `sample_scene`.
        names: The views that a clip has.
    """
    parts: dict[str, Part] = {}
    absent: dict[str, sampling.Missed] = {}
    for view in names:
        one = scene.get(view)
        if one is None:
            message = f"view {view!r} is missing: no usable row of the listing names it"
            absent[view] = sampling.Missed(kind="view", message=message, counts=False)
            continue
        try:
            parts[view] = _part(policy, view, one)
        except PolicyError as error:
            absent[view] = sampling.Missed(kind="row", message=f"view {view!r}: {error.text()}", counts=True)
    return parts, absent


def _part(policy: Policy, name: str, view: SceneView | str) -> Part:
    """Return the stretch of a view. Raises PolicyError for a wrong row."""
    views = views_of(policy)
    if isinstance(view, str):
        raise PolicyError(view)
    if wrong := view.row.get(LISTING_PROBLEM):
        raise PolicyError(str(wrong))
    span = policy.span_of(view.timeline, view.row)
    if span.is_empty:
        raise PolicyError("the video has no frame")
    own = views.of(name)
    offset, rate = _number(view.row, views.offset_column), _number(view.row, views.rate_column)
    if rate is not None and rate <= 0:
        raise PolicyError("a rate must be above zero", where=f"column {views.rate_column!r}", found=float(rate))
    return Part(
        timeline=view.timeline,
        span=span,
        offset_seconds=own.offset_seconds if offset is None else offset,
        rate=own.rate if rate is None else rate,
    )


def _number(row: Mapping[str, Any], column: str | None) -> Fraction | None:
    """Return the number in a column; None if the cell is empty or no column is meant. Raises PolicyError."""
    if column is None or is_empty(cell_of(row, column)):
        return None
    number = as_fraction(row[column])
    if number is None:
        raise PolicyError("must be a number", where=f"column {column!r}", found=shown(row[column]))
    return number


def _own_clock(views: Views, parts: Iterable[Part], view: SceneView, name: str) -> Part:
    """Return a clock that counts until the last view ends."""
    assert views.clock_fps is not None  # it is given unless a view is the clock
    seconds = max(part.clock_seconds for part in parts)
    ticks = max(0, math.ceil(seconds * views.clock_fps))
    if ticks > MAX_FRAMES:
        raise PolicyError(
            "the clock counts too many frames",
            where="views",
            found=f"{float(seconds):.6g} s at {float(views.clock_fps):.6g} frames a second",
            allowed=f"{MAX_FRAMES:,} frames",
            remedy="choose a smaller clock_fps, or correct offset_seconds and rate of the views",
        )
    timeline = sampling.Timeline(
        pts=np.arange(ticks, dtype=np.int64),
        duration_pts=ticks,
        time_base=1 / views.clock_fps,
        name=name,
        epoch=view.timeline.epoch,
    )
    return Part(timeline=timeline, span=sampling.whole(timeline))


def _sample_clock(policy: Policy, view: str, clock: Part, row: Mapping[str, Any]) -> sampling.Sampling:
    """Return the clips that are wanted of a view, as frames of the clock."""
    views = views_of(policy)
    own = views.of(view).seconds
    if own is not None:
        policy = replace(policy, seconds=own)  # type: ignore[call-arg]  # of the policies that take seconds
    if views.clock is None:
        policy = replace(policy, range=None)  # the clock counts from the beginning of the ranges on
    return policy.sample_row(clock.timeline, row)


def _sample_view(
    policy: Policy, name: str, clock: Part, view: Part, clips: list[sampling.Sampled]
) -> dict[int, ViewSampled | str]:
    """Return the part of a view in each clip, by the clip's number, or the reason why it lacks the clip."""
    found: dict[int, ViewSampled | str] = {}
    if not clips:
        return found
    if name == views_of(policy).clock:
        for clip in clips:
            found[clip.number] = ViewSampled(sampled=clip, away_seconds=np.where(clip.mask, 0.0, np.nan))
        return found
    allowed = view.frame_seconds if policy.tolerance_seconds is None else policy.tolerance_seconds
    wanted = np.concatenate([clip.frames for clip in clips])
    anchors = np.array([PAD if clip.anchor is None else clip.anchor for clip in clips], np.int64)
    every = np.concatenate([wanted, anchors])
    times = np.where(every == PAD, 0, every)
    found_frames, is_close, away_seconds = match_frames(clock, times, view, policy)
    ends = np.cumsum([len(clip.frames) for clip in clips])
    of_anchor = np.where(anchors == PAD, PAD, found_frames[len(wanted) :]).tolist()
    for clip, stop, anchor in zip(clips, ends.tolist(), of_anchor, strict=True):
        place = slice(stop - len(clip.frames), stop)
        away, mask = away_seconds[place], clip.mask & is_close[place]
        lacking = clip.mask & ~mask
        if lacking.any() and (views_of(policy).missing != "mask" or np.count_nonzero(mask) < policy.min_frames):
            count, farthest = np.count_nonzero(lacking), float(np.abs(away[lacking]).max())
            found[clip.number] = (
                f"has no frame within {float(allowed):.4g} s of {count} of the times that it wants; "
                f"the farthest lies {farthest:.4g} s away"
            )
            continue
        frames = np.where(clip.frames == PAD, PAD, found_frames[place])
        # `ends` pads with the view's nearest frames, which are here already.
        if lacking.any() and policy.pad in ("none", "constant"):
            frames = np.where(lacking, PAD, frames)
        elif lacking.any() and policy.pad != "ends":
            frames = sampling.padded(frames[None], mask[None], policy.pad)[0]
        away = np.where(mask, away, np.nan)
        stretch = (view.span.first, view.span.stop)
        sampled = replace(clip, frames=frames, mask=mask, stretch=stretch, anchor=None if anchor == PAD else anchor)
        found[clip.number] = ViewSampled(sampled=sampled, away_seconds=away)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFacts:
    """A view of a scene.

    Attributes:
        view: The name of the view.
        problem: Why the view is missing, or None. If the view is missing, the other values are None.
        frames: How many frames it has.
        begins_seconds: When it begins, by the clock of the scene.
        ends_seconds: When it ends, by that clock.
        rate: Seconds that pass in the view while the clock counts one.
        frame_seconds: How long a frame lasts on average.
        longest_gap_seconds: The longest time from one frame to the next, or from the last one to the end.
        gap_at_seconds: When that begins, by the clock of the scene.
    """

    view: str
    problem: str | None = None
    frames: int | None = None
    begins_seconds: float | None = None
    ends_seconds: float | None = None
    rate: float | None = None
    frame_seconds: float | None = None
    longest_gap_seconds: float | None = None
    gap_at_seconds: float | None = None


def facts_of(policy: Policy, scene: Mapping[str, SceneView | str], names: Sequence[str]) -> list[ViewFacts]:
    """Return the facts of each view of a scene.

    Args:
        policy: A policy with `views`.
        scene: The views, as for `sample_scene`.
        names: The views that a clip has.
    """
    parts, absent = parts_of(policy, scene, names)
    return [
        _facts(view, parts[view]) if view in parts else ViewFacts(view=view, problem=absent[view].message)
        for view in names
    ]


def _facts(view: str, part: Part) -> ViewFacts:
    unit, span = float(part.timeline.time_base), part.span
    pts = part.timeline.pts[span.first : span.stop]
    gaps = np.diff(pts.astype(np.float64), append=float(span.end)) * unit
    widest = int(np.argmax(gaps))
    own_seconds = (float(pts[widest]) - float(span.start)) * unit
    offset, rate = float(part.offset_seconds), float(part.rate)
    return ViewFacts(
        view=view,
        frames=len(pts),
        begins_seconds=-offset / rate,
        ends_seconds=float(part.clock_seconds),
        rate=rate,
        frame_seconds=float(part.frame_seconds),
        longest_gap_seconds=float(gaps[widest]),
        gap_at_seconds=(own_seconds - offset) / rate,
    )
