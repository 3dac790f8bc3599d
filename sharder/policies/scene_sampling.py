"""Sample clips of several views from a scene. The frames of all views are at the same times of the scene's clock.

A scene is recorded by several cameras. A view is one camera's video. The clock is one of the views, or a generated
series of times. Times are matched in exact arithmetic. `facts_of` describes each view of a scene, for example its
duration and its longest gap.
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
    """The sampled part of a view's video, and its relation to the clock of the scene.

    Attributes:
        timeline: The times of the video.
        span: The sampled span of the video.
        offset_seconds: The time from the start of the span when the clock shows 0.
        rate: The number of seconds that pass in the video per second of the clock.
    """

    timeline: sampling.Timeline
    span: sampling.Span
    offset_seconds: Fraction = Fraction(0)
    rate: Fraction = Fraction(1)

    @property
    def frame_seconds(self) -> Fraction:
        """The average duration of a frame in the span, in seconds."""
        frames = self.span.stop - self.span.first
        return (self.span.end - self.span.start) * self.timeline.time_base / max(1, frames)

    @property
    def clock_seconds(self) -> Fraction:
        """The time of the clock at the end of the span, in seconds."""
        length = (self.span.end - self.span.start) * self.timeline.time_base
        return (length - self.offset_seconds) / self.rate


def match_frames(
    clock: Part, clock_frames: NDArray[np.int64], view: Part, policy: Policy
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return the frames of a view at the times of some frames of the clock.

    Args:
        clock: The part whose frames determine the times.
        clock_frames: int64 [times], the presentation numbers of frames of the clock.
        view: The part whose frames are returned. Its span must contain a frame.
        policy: The policy, whose `choose` and `tolerance_seconds` are applied. The distance of a frame from its wanted
            time is measured in seconds of the view. Without `tolerance_seconds`, the distance must be less than the
            average duration of the view's frames.

    Returns:
        Three arrays. int64 [times]: the presentation numbers of the frames. bool [times]: whether the distance of each
            frame from the wanted time is allowed. float64 [times]: each frame's time minus the wanted time, in seconds.
    """
    own = view.timeline
    # A frame of the clock with timestamp `pts` has the time `first + step * pts` in the view's time base. `first` and
    # `step` include the offsets and rates of the view and of the clock.
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


NO_TIMES = "has no frame at any of the wanted times"
LENIENT = "leave such clips out by `missing: skip`, mask their frames by `missing: mask`, or raise `tolerance_seconds`"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneView:
    """One view of a scene.

    Attributes:
        timeline: The times of the view's video.
        row: The values of the view's row of the listing, by column.
    """

    timeline: sampling.Timeline
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewSampled:
    """The frames of one view in a clip of several views.

    Attributes:
        sampled: The frames.
        away_seconds: float64 [F], the time of each frame minus the wanted time. NaN for padding.
    """

    sampled: sampling.Sampled
    away_seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneClip:
    """A clip of several views.

    Attributes:
        number: The number of the clip in the scene.
        views: The frames of each view, by name. The first view is the clock, if a view is the clock.
    """

    number: int
    views: dict[str, ViewSampled]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneSampling:
    """The result of sampling a scene.

    Attributes:
        clips: The clips in ascending order of their numbers.
        missed: (name of a view, clip) for each clip that cannot be made because of that view. The name is None if the
            scene has no valid row for the view.
    """

    clips: list[SceneClip]
    missed: list[tuple[str | None, sampling.Missed]]


def sample_scene(
    policy: Policy, scene: Mapping[str, SceneView | str], names: Sequence[str], *, name: str
) -> SceneSampling:
    """Return the clips of a scene, and the clips that the policy wanted but could not make.

    Args:
        policy: A policy with `views`.
        scene: The views of the scene, by name. In place of an invalid view, a text with the reason.
        names: The names of the views that a clip must have.
        name: The scene's name. With a generated clock, random draws depend on this name.

    Raises:
        PolicyError: A view is missing and `missing` is "error", or the view that is the clock cannot be sampled (see
            `Policy.sample_row`).
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
    # `max_clips` applies only to the leading view, whose clips determine the clips of the scene. The other views are
    # sampled without this limit, and clips with the same numbers are taken from them.
    samplings: dict[str, sampling.Sampling] = {}
    for view in order:  # the clips of each view, as frames of the clock
        own_policy = policy if view == leading else replace(policy, max_clips=None)
        if (seconds := views.of(view).seconds) is not None:
            own_policy = replace(own_policy, seconds=seconds)  # type: ignore[call-arg]  # has it if `takes_seconds`
        if views.clock is None:
            own_policy = replace(own_policy, range=None)  # the generated clock starts at the begin of the ranges
        samplings[view] = own_policy.sample_row(clock.timeline, there[leading].row)
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
    """Return the `views` of a policy, which must not be None."""
    assert policy.views is not None  # scenes are made only for a policy with `views`
    return policy.views


def parts_of(
    policy: Policy, scene: Mapping[str, SceneView | str], names: Sequence[str]
) -> tuple[dict[str, Part], dict[str, sampling.Missed]]:
    """Return the parts of the usable views of a scene, and the reasons why other views are missing, by name.

    Args:
        policy: A policy with `views`.
        scene: The views of the scene, by name. In place of an invalid view, a text with the reason.
        names: The names of the views that a clip must have.
    """
    parts: dict[str, Part] = {}
    absent: dict[str, sampling.Missed] = {}
    for view in names:
        one = scene.get(view)
        if one is None:
            message = f"view {view!r} is missing: no usable row of the listing belongs to this view"
            absent[view] = sampling.Missed(kind="view", message=message, counts=False)
            continue
        try:
            parts[view] = _part(policy, view, one)
        except PolicyError as error:
            absent[view] = sampling.Missed(kind="row", message=f"view {view!r}: {error.text()}", counts=True)
    return parts, absent


def _part(policy: Policy, name: str, view: SceneView | str) -> Part:
    """Return the sampled part of a view's video. Raises PolicyError if the row of the view is not valid."""
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
    """Return the number in a cell, or None if the cell is empty or `column` is None.

    Raises:
        PolicyError: The column does not exist, or the cell does not contain a number.
    """
    if column is None or is_empty(cell_of(row, column)):
        return None
    if (number := as_fraction(row[column])) is None:
        raise PolicyError("must be a number", where=f"column {column!r}", found=shown(row[column]))
    return number


def _own_clock(views: Views, parts: Iterable[Part], view: SceneView, name: str) -> Part:
    """Return a generated clock with `clock_fps` frames per second, which ends when the last view ends."""
    assert views.clock_fps is not None  # `Views` requires it if no view is the clock
    seconds = max(part.clock_seconds for part in parts)
    ticks = max(0, math.ceil(seconds * views.clock_fps))
    if ticks > MAX_FRAMES:
        raise PolicyError(
            "the clock would have too many frames",
            where="views",
            found=f"{float(seconds):.6g} s at {float(views.clock_fps):.6g} frames per second",
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


def _sample_view(
    policy: Policy, name: str, clock: Part, view: Part, clips: list[sampling.Sampled]
) -> dict[int, ViewSampled | str]:
    """Return {number of a clip: the frames of a view in the clip, or the reason why the view has no such frames}."""
    found: dict[int, ViewSampled | str] = {}
    if not clips:
        return found
    if name == views_of(policy).clock:
        return {clip.number: ViewSampled(sampled=clip, away_seconds=np.where(clip.mask, 0.0, np.nan)) for clip in clips}
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
                f"has no frame within {float(allowed):.4g} s of {count} wanted times; "
                f"for one of them, the nearest frame is {farthest:.4g} s away"
            )
            continue
        frames = np.where(clip.frames == PAD, PAD, found_frames[place])
        # With `ends`, the view's nearest frames are the padding. `frames` already contains them.
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
    """The properties of a view of a scene. For a missing view, all properties except `view` and `problem` are None.

    Attributes:
        view: The name of the view.
        problem: The reason why the view is missing. None if the view is present.
        frames: The number of frames.
        begins_seconds: The time at which the view begins, on the clock of the scene.
        ends_seconds: The time at which the view ends, on the clock of the scene.
        rate: The number of seconds that pass in the view's video per second of the clock.
        frame_seconds: The average duration of a frame.
        longest_gap_seconds: The longest time from a frame to the next frame, or from the last frame to the end.
        gap_at_seconds: The time at which the longest gap begins, on the clock of the scene.
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
    """Return the properties of each view of a scene.

    Args:
        policy: A policy with `views`.
        scene: The views of the scene, by name. In place of an invalid view, a text with the reason.
        names: The names of the views that a clip must have.
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
