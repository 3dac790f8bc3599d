"""Places that are spread evenly over a span: the frames of one clip, or the beginnings of several clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from framedex.sharder.policies.places import WantedFrames, numbers, times
from framedex.sharder.sampling.records import Timeline
from framedex.sharder.sampling.spans import Span

By = Literal["time", "number"]
Spread = Literal["centres", "ends", "starts"]
Rounding = Literal["half_up", "half_even", "down"]


def spread_numbers(count: int, total: int, spread: Spread, rounding: Rounding = "half_up") -> list[int]:
    """Return `count` of the numbers 0 to `total` - 1, evenly spread, ascending; some repeat if there are fewer.

    Args:
        spread: `centres` takes the middles of `count` equal parts (TSN, Wang et al. 2016), `starts` their beginnings.
            `ends` takes equally spaced numbers from the first to the last; a single one is the first.
        rounding: With `ends`, how fractions become numbers: `half_up` is DALI's uniform_sample, `half_even` is
            torch.round, `down` is int().
    """
    if spread == "centres":
        return [(2 * part + 1) * total // (2 * count) for part in range(count)]
    if spread == "starts":
        return [part * total // count for part in range(count)]
    gaps = max(1, count - 1)
    if rounding == "half_even":
        return [round(Fraction(part * (total - 1), gaps)) for part in range(count)]
    half = gaps if rounding == "half_up" else 0
    return [(2 * part * (total - 1) + half) // (2 * gaps) for part in range(count)]


def spread_times(count: int, length: Fraction, spread: Spread) -> tuple[Fraction, Fraction]:
    """Return (first, step) of `count` times that are evenly spread over a length of time, from 0 on.

    Args:
        spread: As for `spread_numbers`. `ends` includes both ends.
    """
    if spread == "ends":
        return Fraction(0), length / max(1, count - 1)
    part = length / count
    return (part / 2 if spread == "centres" else Fraction(0)), part


def evenly(
    timeline: Timeline,
    span: Span,
    count: int,
    by: By,
    spread: Spread,
    *,
    rounding: Rounding = "half_up",
    grain: int = 1,
) -> WantedFrames:
    """Return one clip of `count` places over a span; none if the span is empty.

    Args:
        spread: As for `spread_numbers`. By time, `ends` reaches from the first frame's time to the last one's.
        rounding: As for `spread_numbers`.
        grain: As for `times`.
    """
    if by == "number":
        frames = span.stop - span.first
        return numbers(span, (span.first, 1, min(1, frames)), spread_numbers(count, frames, spread, rounding))
    if spread == "ends" and not span.is_empty:
        begin, length = Fraction(int(timeline.pts[span.first])), last_time(timeline, span)
        length -= begin
    else:
        begin, length = span.start, span.end - span.start
    first, step = spread_times(count, length, spread)
    clips = int(not span.is_empty)
    return times(span, (span.start, Fraction(0), clips), [(begin - span.start + first, step, count)], grain=grain)


def last_time(timeline: Timeline, span: Span) -> Fraction:
    """Return the timestamp of the last frame of a span that has one."""
    return Fraction(int(timeline.pts[span.stop - 1]))


def clips_by_number(
    span: Span, clips: int, offsets: Sequence[int], spread: Spread, *, rounding: Rounding = "half_up"
) -> WantedFrames:
    """Return clips whose beginnings are spread evenly over the frames where a whole clip may begin.

    If no clip fits, there is one that begins with the span.

    Args:
        offsets: Frames of a clip, as distances from its first one, ascending from 0.
        rounding: As for `spread_numbers`.
    """
    room = span.stop - span.first - offsets[-1]
    if room <= 0:
        return numbers(span, (span.first, 1, int(not span.is_empty)), offsets)
    several = numbers(span, (span.first, 0, clips), offsets)
    return replace(several, starts=several.starts + spread_numbers(clips, room, spread, rounding))


def clips_by_time(
    timeline: Timeline, span: Span, clips: int, frames: int, step: Fraction, spread: Spread, *, grain: int = 1
) -> WantedFrames:
    """Return clips whose beginnings are spread evenly over the times where a whole clip may begin.

    With `ends`, the last clip ends with the span's last frame. If no clip fits, there is one that begins with the span.

    Args:
        frames: Frames per clip.
        step: Time between them, in time base units.
        grain: As for `times`.
    """
    room = span.end - span.start - step * (frames - 1)
    first, apart = Fraction(0), Fraction(0)
    if room <= 0:
        clips = int(not span.is_empty)
    elif spread == "ends":
        last = Fraction(span.start) if span.is_empty else last_time(timeline, span)
        first, apart = spread_times(clips, max(Fraction(0), last - span.start - step * (frames - 1)), spread)
    else:
        first, apart = spread_times(clips, room, spread)
    return times(span, (span.start + first, apart, clips), [(Fraction(0), step, frames)], grain=grain)
