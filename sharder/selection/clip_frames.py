"""An explicit clip and a video's timestamps → the frames of the clip, and which of them are padding."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.records.clip import PAD
from framedex.sharder.sampling.frames_at import Choose, frames_at, over_common_denominator
from framedex.sharder.sampling.records import Timeline
from framedex.sharder.selection.explicit_clips import ExplicitClip, Outside

Bools = NDArray[np.bool_]


def frames_of(
    clip: ExplicitClip, timeline: Timeline, choose: Choose, outside: Outside
) -> tuple[NDArray[np.int64], Bools]:
    """Return the frames of an explicit clip: int64 [F], presentation numbers, and bool [F], False where padded.

    Seconds are read on the container's own clock, the one that `seconds` of a loaded clip shows. In a video that starts
    late, 0 may therefore lie before the first frame, and gives that frame.

    Args:
        clip: The clip. A place that is None is padding.
        choose: Which frame a time means.
        outside: What happens to places outside of the video, unless the clip says so itself.

    Raises:
        PolicyError: A place lies outside of the video and may not, or no place lies in it.
    """
    if clip.seconds is None:
        assert clip.frames is not None  # one of the two, as parsed
        places: Sequence[int | Fraction | None] = clip.frames
        frames, inside = _numbered(clip.frames, timeline)
    else:
        places = clip.seconds
        frames, inside = _timed(clip.seconds, timeline, choose)
    what = clip.outside or outside
    beyond = (frames != PAD) & ~inside
    if what == "error" and beyond.any():
        raise _error(places[int(np.argmax(beyond))], clip, timeline)
    if all(place is None for place in places):
        raise PolicyError("a clip of padding alone", found=f"{len(places)} padded frames")
    if not inside.any():
        raise PolicyError(
            "no frame of the clip lies in the video", found=_shown(places), allowed=_allowed(clip, timeline)
        )
    if what == "drop":
        return frames[~beyond], inside[~beyond]
    return (frames if what == "edge" else np.where(inside, frames, PAD)), inside


def _numbered(places: list[int | None], timeline: Timeline) -> tuple[NDArray[np.int64], Bools]:
    """Return the nearest frame for each number, -1 where padded, and whether the number is that of a frame."""
    numbers = np.array([PAD if place is None else place for place in places], np.int64)
    last = len(timeline.pts) - 1
    return np.minimum(numbers, last), (numbers != PAD) & (numbers <= last)


def _timed(places: list[Fraction | None], timeline: Timeline, choose: Choose) -> tuple[NDArray[np.int64], Bools]:
    """Return the frame for each time, -1 where padded, and whether the time lies in the video."""
    first, end = _seconds(timeline)
    inside = np.array([place is not None and first <= place < end for place in places], np.bool_)
    numerators, denominator = over_common_denominator([(place or 0) / timeline.time_base for place in places])
    found = frames_at(timeline.pts, numerators, denominator, choose)
    return np.where([place is None for place in places], PAD, found), inside


def _seconds(timeline: Timeline) -> tuple[Fraction, Fraction]:
    """Return the times that lie in a video, from the first to below the second. Zero does, if the video starts late."""
    first = int(timeline.pts[0]) * timeline.time_base
    return min(first, Fraction(0)), first + timeline.duration_pts * timeline.time_base


def _error(place: object, clip: ExplicitClip, timeline: Timeline) -> PolicyError:
    remedy = "`outside` says what else happens to such places: pad, edge or drop"
    if clip.seconds is None:
        what, found = "a frame outside the video", str(place)
    else:
        assert isinstance(place, Fraction)  # a time of the clip
        what, found = "a time outside the video", f"{float(place):g} s"
    return PolicyError(what, found=found, allowed=_allowed(clip, timeline), remedy=remedy)


def _allowed(clip: ExplicitClip, timeline: Timeline) -> str:
    if clip.seconds is None:
        return f"0 to {len(timeline.pts) - 1}"
    first, end = _seconds(timeline)
    return f"{float(first):g} to below {float(end):g} s"


def _shown(places: Sequence[int | Fraction | None]) -> str:
    return ", ".join("null" if place is None else f"{float(place):g}" for place in places[:5])
