"""A reference for the meaning of each policy, written as simply as the docs: one place at a time, in fractions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Place = Fraction | int
Clips = list[tuple[list[int], list[bool]]]


class Video(Protocol):
    """What a policy knows of a video."""

    @property
    def pts(self) -> NDArray[np.int64]:
        """In presentation order, ascending."""

    @property
    def duration_pts(self) -> int:
        """From the first frame's pts to the end of the last frame."""

    @property
    def time_base(self) -> Fraction:
        """Unit of both, in seconds."""

    @property
    def starts(self) -> NDArray[np.int64]:
        """Presentation numbers of the frames where decoding may start."""

    @property
    def seconds(self) -> Fraction:
        """Duration of the video."""


@dataclass
class Stretch:
    """Frames [first, stop) and times [start, end) of a video, in seconds from its first frame."""

    first: int
    stop: int
    start: Fraction
    end: Fraction


def frame_times(timeline: Video) -> list[Fraction]:
    return [(int(pts) - int(timeline.pts[0])) * timeline.time_base for pts in timeline.pts]


def choose(timeline: Video, stretch: Stretch, time: Fraction, how: str) -> int:
    """Return the frame of a stretch for a time, found by checking every frame; of equally good ones, the first."""
    times = frame_times(timeline)
    frames = range(stretch.first, stretch.stop)
    if how == "nearest":
        return min(frames, key=lambda frame: (abs(times[frame] - time), times[frame], frame))
    good = [frame for frame in frames if (times[frame] <= time if how == "previous" else times[frame] >= time)]
    if how == "previous":
        best = times[good[-1]] if good else times[frames[0]]
    else:
        best = times[good[0]] if good else times[frames[-1]]
    return next(frame for frame in frames if times[frame] == best)


def stretch_of_frames(timeline: Video, first: int, last: int, *, include_end: bool) -> Stretch | None:
    """Return the stretch of a range of frames; None if it has no frame or reaches before the video.

    Otherwise, the range works like a Python slice.
    """
    count = len(timeline.pts)
    start, end = (place + count * (place < 0) for place in (first, last))
    frames = range(count)[max(0, start) : max(0, end + include_end)]
    if start < 0 or end < 0 or not frames:
        return None
    times = [*frame_times(timeline), timeline.seconds]
    return Stretch(frames[0], frames[-1] + 1, times[frames[0]], times[frames[-1] + 1])


def expected(document: dict[str, Any], timeline: Video, stretch: Stretch | None = None) -> Clips:
    """Return (frames, mask) of every clip that a policy without jitter and tolerance finds."""
    if stretch is None:
        stretch = Stretch(0, len(timeline.pts), Fraction(0), timeline.duration_pts * timeline.time_base)
    if "max_seconds" in document:
        stretch = first_seconds(timeline, stretch, number_of(document, "max_seconds"))
    wanted = list(PLACES[document["policy"]](document, timeline, stretch)) if stretch.first < stretch.stop else []
    inside = [[is_inside(place, timeline, stretch, document) for place in clip] for clip in wanted]
    any_whole = any(all(places) for places in inside)
    last, short = document.get("last", "pad"), document.get("short")
    if not any_whole and short is not None:
        last = "drop" if short == "skip" else short
    clips: Clips = []
    for places, real in zip(wanted, inside, strict=True):
        if sum(real) < document.get("min_frames", 1) or (last == "drop" and not all(real)):
            continue
        frames = [
            taken(place, timeline, stretch, document) if is_real else None
            for place, is_real in zip(places, real, strict=True)
        ]
        if document.get("pad") == "ends" and last != "partial":
            ends = [end_of(place, timeline, stretch, document) for place in places]
            clips.append(([end if frame is None else frame for frame, end in zip(frames, ends, strict=True)], real))
            continue
        clips.append(finished(frames, "none" if last == "partial" else document.get("pad", "constant")))
    most = min(document.get("max_clips", len(clips)), len(clips))
    return [clips[int(Fraction(2 * part + 1, 2 * most) * len(clips))] for part in range(most)]


def first_seconds(timeline: Video, stretch: Stretch, seconds: Fraction) -> Stretch:
    """Return the part of a stretch that is before a time, counted from its beginning."""
    end = min(stretch.end, stretch.start + seconds)
    times = frame_times(timeline)
    frames = [frame for frame in range(stretch.first, stretch.stop) if times[frame] < end or end == stretch.end]
    return Stretch(stretch.first, stretch.first + len(frames), stretch.start, end)


def is_inside(place: Place, timeline: Video, stretch: Stretch, document: dict[str, Any]) -> bool:
    if isinstance(place, Fraction):
        return stretch.start <= place < stretch.end
    if document["policy"] == "around" and place < stretch.first:
        return False
    return place < (len(starts_before(stretch.stop, timeline)) if document["policy"] == "keyframes" else stretch.stop)


def starts_before(frame: int, timeline: Video) -> list[int]:
    return [start for start in timeline.starts.tolist() if start < frame]


def taken(place: Place, timeline: Video, stretch: Stretch, document: dict[str, Any]) -> int:
    if isinstance(place, Fraction):
        return choose(timeline, stretch, place, document.get("choose", "nearest"))
    return int(timeline.starts[place]) if document["policy"] == "keyframes" else place


def end_of(place: Place, timeline: Video, stretch: Stretch, document: dict[str, Any]) -> int:
    """Return the frame of a stretch that is nearest to a place outside of it."""
    times = frame_times(timeline)
    if document["policy"] == "keyframes":
        starts = [start for start in starts_before(stretch.stop, timeline) if start >= stretch.first]
        return starts[-1]
    is_before = place < (stretch.start if isinstance(place, Fraction) else stretch.first)
    frame = stretch.first if is_before else stretch.stop - 1
    # Of frames with equal timestamps, a time means the first one.
    return frame if isinstance(place, int) else choose(timeline, stretch, times[frame], "nearest")


def finished(frames: list[int | None], mode: str) -> tuple[list[int], list[bool]]:
    """Pad one clip by walking to and fro over the real frames before each hole (or after it, if none are before)."""
    if mode == "none":
        real = [frame for frame in frames if frame is not None]
        return real, [True] * len(real)
    found = []
    for place, frame in enumerate(frames):
        if frame is not None:
            found.append(frame)
        elif mode == "constant":
            found.append(-1)
        else:
            before = [other for other in frames[:place] if other is not None]
            hole = len(list(itertools.takewhile(lambda other: other is None, reversed(frames[: place + 1]))))
            if not before:
                before = [other for other in reversed(frames) if other is not None]
                hole = len(list(itertools.takewhile(lambda other: other is None, frames[place:])))
            found.append(walk(before, mode)[len(before) - 1 + hole])
    return found, [frame is not None for frame in frames]


def walk(frames: list[int], mode: str) -> list[int]:
    """Return frames followed by the padding of a mode, longer than any test's clip."""
    if mode == "edge" or len(frames) == 1:
        return frames + [frames[-1]] * 200
    back = frames[::-1] if mode == "reflect_1001" else frames[-2:0:-1]
    return (frames + back) * 200


def number_of(document: dict[str, Any], key: str, default: int = 0) -> Fraction:
    value = document.get(key)
    return Fraction(default) if value is None else Fraction(str(value))


def cut(places: list[Any], length: int | None) -> Iterator[list[Any]]:
    """Yield runs of `length` places; fill the last one with places outside of every video."""
    outside: Place = Fraction(10**9) if places and isinstance(places[0], Fraction) else 10**9
    for at in range(0, len(places), length or max(1, len(places))):
        clip = places[at : at + length] if length else places
        yield clip + [outside] * ((length or len(clip)) - len(clip))


def rate_places(document: dict[str, Any], timeline: Video, stretch: Stretch) -> Iterator[list[Place]]:
    step, time = 1 / number_of(document, "fps"), stretch.start + number_of(document, "start_seconds")
    times = list(itertools.takewhile(lambda time: time < stretch.end, (time + k * step for k in itertools.count())))
    if times and "frames" not in document:
        within = bounded(document, len(times))
        count = multiple_of(document, within)
        if within != len(times):
            last = frame_times(timeline)[stretch.stop - 1]
            step = max(Fraction(0), last - time) / max(1, count - 1)
        times = [time + k * step for k in range(count)]
    yield from cut(times, document.get("frames"))


def bounded(document: dict[str, Any], count: int) -> int:
    """Return a number of frames within the bounds that are multiples themselves."""
    multiple = document.get("multiple", 1)
    while count < document.get("least_frames", 1) or count < multiple:
        count += 1
    while count % multiple and count < -(-document.get("least_frames", 1) // multiple) * multiple:
        count += 1
    while count > document.get("max_frames", count) // multiple * multiple and "max_frames" in document:
        count -= 1
    return count


def multiple_of(document: dict[str, Any], count: int) -> int:
    multiple = document.get("multiple", 1)
    return max(multiple, count - count % multiple)


def stride_places(document: dict[str, Any], timeline: Video, stretch: Stretch) -> Iterator[list[Place]]:
    numbers = range(stretch.first + document.get("start", 0), stretch.stop, document["stride"])
    yield from cut(list(numbers), document.get("frames"))


def keyframe_places(document: dict[str, Any], timeline: Video, stretch: Stretch) -> Iterator[list[Place]]:
    first, stop = (len(starts_before(frame, timeline)) for frame in (stretch.first, stretch.stop))
    yield from cut(list(range(first, stop, document.get("every", 1))), document.get("frames"))


def segment_places(document: dict[str, Any], timeline: Video, stretch: Stretch) -> Iterator[list[Place]]:
    start = stretch.start + number_of(document, "start_seconds")
    while start < stretch.end:
        clip: list[Place] = []
        following = Fraction(0)
        for segment in document["segments"]:
            offset = number_of(segment, "offset") if "offset" in segment else following
            rate = number_of(segment, "fps")
            count = segment.get("frames") or -(-number_of(segment, "seconds") * rate // 1)
            clip += [start + offset + k / rate for k in range(count)]
            following = offset + count / rate
        yield clip
        if "every_seconds" not in document:
            return
        start += number_of(document, "every_seconds")


def window_places(document: dict[str, Any], timeline: Video, stretch: Stretch) -> Iterator[list[Place]]:
    length = document["frames"]
    by_time = "fps" in document
    if by_time:
        apart: Any = 1 / number_of(document, "fps")
        step: Any = number_of(document, "step_seconds") or apart * length
        at: Any = stretch.start + number_of(document, "start_seconds")
    else:
        apart = document.get("stride", 1)
        step = document.get("step") or apart * length
        at = stretch.first + document.get("start", 0)
    end: Any = stretch.end if by_time else stretch.stop
    while at < end:
        yield [at + k * apart for k in range(length)]
        if at + (length - 1) * apart >= end:
            return  # a clip that is cut by the end is the last one
        at += step


def uniform_places(document: dict[str, Any], timeline: Video, stretch: Stretch) -> Iterator[list[Place]]:
    if "clips" in document:
        yield from uniform_clips(document, timeline, stretch)
        return
    count = document.get("uniform") or document.get("frames")
    if count is None:
        samples = int((stretch.end - stretch.start) * number_of(document, "fps"))
        count = multiple_of(document, min(bounded(document, samples), stretch.stop - stretch.first))
    by_number = document.get("by") == "number" or document.get("unit") == "frames"
    first: Any = stretch.first if by_number else stretch.start
    length: Any = stretch.stop - stretch.first if by_number else stretch.end - stretch.start
    spread = document.get("spread", "centres")
    if spread != "ends":
        places = [first + length * Fraction(2 * part + (spread == "centres"), 2 * count) for part in range(count)]
    else:
        first = first if by_number else frame_times(timeline)[stretch.first]
        whole = length - 1 if by_number else frame_times(timeline)[stretch.stop - 1] - first
        shares = [whole * Fraction(part, max(1, count - 1)) for part in range(count)]
        if by_number:  # numbers count from the first frame of the stretch, as in a video of its own
            shares = [rounded(share, document.get("rounding", "half_up")) for share in shares]
        places = [first + share for share in shares]
    yield [int(place // 1) for place in places] if by_number else places


def rounded(place: Fraction, rounding: str) -> Fraction:
    """Return a distance whose whole part is the number that the rounding gives."""
    if rounding == "down":
        return place
    return Fraction(round(place)) if rounding == "half_even" else place + Fraction(1, 2)


def uniform_clips(document: dict[str, Any], timeline: Video, stretch: Stretch) -> Iterator[list[Place]]:
    count, spread, by_time = document["clips"], document.get("spread", "centres"), "fps" in document
    apart: Any = 1 / number_of(document, "fps") if by_time else document["stride"]
    offsets = [k * apart for k in range(document["frames"])]
    begin: Any = stretch.start if by_time else stretch.first
    room: Any = (stretch.end if by_time else stretch.stop) - offsets[-1] - begin  # where a whole clip may begin
    if room <= 0:
        yield [begin + offset for offset in offsets]
        return
    for clip in range(count):
        if spread == "ends":
            latest = frame_times(timeline)[stretch.stop - 1] - offsets[-1] - begin if by_time else room - 1
            share = max(Fraction(0), latest * Fraction(clip, max(1, count - 1)))
            share = share if by_time else rounded(share, document.get("rounding", "half_up"))
        else:
            share = room * Fraction(2 * clip + (spread == "centres"), 2 * count)
        start = begin + share
        yield [(start if by_time else int(start)) + offset for offset in offsets]


def around_places(document: dict[str, Any], timeline: Video, stretch: Stretch) -> Iterator[list[Place]]:
    for anchor in range(stretch.first, stretch.stop, document.get("every", 1)):
        if "frames" in document:
            yield [anchor + distance for distance in document["frames"]]
        else:
            yield [frame_times(timeline)[anchor] + Fraction(str(distance)) for distance in document["seconds"]]


PLACES: dict[str, Any] = {
    "around": around_places,
    "fps": rate_places,
    "segments": segment_places,
    "stride": stride_places,
    "keyframes": keyframe_places,
    "windows": window_places,
    "uniform": uniform_places,
    "frames": lambda document, timeline, stretch: iter([[stretch.first + frame for frame in document["frames"]]]),
    "seconds": lambda document, timeline, stretch: iter(
        [[stretch.start + Fraction(str(time)) for time in document["seconds"]]]
    ),
    "per_row": lambda document, timeline, stretch: (
        rate_places if "fps" in document else stride_places if "stride" in document else uniform_places
    )(document, timeline, stretch),
}
