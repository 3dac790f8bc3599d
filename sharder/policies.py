"""Sampling policies: which frames make a clip. One registry; every policy is a pure function of timestamps.

A policy is a frozen record of its parameters. `sample` takes a `Track` and returns the clips, each an int64 array of
presentation numbers, -1 for padding. Policies measure time from a video's first frame.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import yaml
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.sharder.sampling import CHOICES, Choose, frames_at, grid
from framedex.sharder.schema import PAD

Last = Literal["drop", "partial", "pad"]
LASTS: tuple[Last, ...] = ("drop", "partial", "pad")
Clip = NDArray[np.int64]

# What is written where a number may stand; bounded, as 1e999999999 would fill the memory.
NUMBER = re.compile(r"[+-]?(\d{1,15}(\.\d{0,15})?|\.\d{1,15})([eE][+-]?\d{1,2})?(/\d{1,15})?")
MOST_SHOWN = 10**20
MOST_FRAMES = 100_000_000  # nineteen days at 60 fps; a larger number is a slip of the keyboard


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A video as a policy sees it. pts: int64 [frames], ascending; duration in time base units; time_base in seconds."""

    pts: NDArray[np.int64]
    duration_pts: int
    time_base: Fraction


class Policy(Protocol):
    """What every entry of the registry does."""

    def sample(self, track: Track) -> list[Clip]:
        """Return the clips of one video."""


def _at(track: Track, start: Fraction, step: Fraction, count: int, choose: Choose) -> Clip:
    """Return the frames at `count` times from `start`, `step` apart, both in seconds from the first frame."""
    offset = Fraction(int(track.pts[0]))
    times, denominator = grid(offset + start / track.time_base, step / track.time_base, count)
    return frames_at(track.pts, times, denominator, choose)


def _count_before_end(track: Track, start: Fraction, step: Fraction) -> int:
    """Return how many times start, start + step, … lie before the end of the video."""
    left = track.duration_pts * track.time_base - start
    return max(0, -(-left // step))


def _cut(frames: Clip, length: int | None, last: Last) -> list[Clip]:
    """Cut consecutive samples into clips of `length`; `last` says what becomes of a shorter rest."""
    if length is None:
        return [frames] if len(frames) else []
    clips = [frames[at : at + length] for at in range(0, len(frames), length)]
    if clips and len(clips[-1]) < length:
        clips[-1:] = _finish(clips[-1], length, last)
    return clips


def _finish(clip: Clip, length: int, last: Last) -> list[Clip]:
    if last == "drop":
        return []
    if last == "partial":
        return [clip] if len(clip) else []
    return [np.concatenate([clip, np.full(length - len(clip), PAD, np.int64)])] if len(clip) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class FpsPolicy:
    """A fixed rate over the whole video, cut into clips of `frames` samples one after the other.

    Sample k of a video is the frame at start_seconds + k / fps; real timestamps decide, not a nominal rate.
    """

    fps: Fraction
    frames: int | None = None
    choose: Choose = "nearest"
    start_seconds: Fraction = Fraction(0)
    last: Last = "pad"

    def sample(self, track: Track) -> list[Clip]:
        step = 1 / self.fps
        count = _count_before_end(track, self.start_seconds, step)
        return _cut(_at(track, self.start_seconds, step, count, self.choose), self.frames, self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of one rate in a clip: `frames` samples, or those within `seconds`, from `offset` seconds on.

    Without an offset, a segment begins where the one before it ends.
    """

    fps: Fraction
    frames: int | None = None
    seconds: Fraction | None = None
    offset: Fraction | None = None

    def count(self) -> int:
        """Return how many samples the segment has."""
        if self.frames is not None:
            return self.frames
        assert self.seconds is not None  # checked when the policy is read
        return -(-self.seconds * self.fps // 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsPolicy:
    """Several rates in one clip, such as 8 frames at 1 fps and then 8 at 2 fps.

    One clip begins at start_seconds; with every_seconds, further ones follow at that distance.
    """

    segments: tuple[Segment, ...]
    choose: Choose = "nearest"
    start_seconds: Fraction = Fraction(0)
    every_seconds: Fraction | None = None
    last: Last = "pad"

    def sample(self, track: Track) -> list[Clip]:
        clips: list[Clip] = []
        number = 0
        while True:
            start = self.start_seconds + number * (self.every_seconds or 0)
            if start >= track.duration_pts * track.time_base:
                return clips
            clips += self._clip(track, start)
            if self.every_seconds is None:
                return clips
            number += 1

    def _clip(self, track: Track, start: Fraction) -> list[Clip]:
        parts, following = [], Fraction(0)
        for segment in self.segments:
            offset = following if segment.offset is None else segment.offset
            step, count = 1 / segment.fps, segment.count()
            inside = min(count, _count_before_end(track, start + offset, step))
            found = _at(track, start + offset, step, inside, self.choose)
            parts.append(np.concatenate([found, np.full(count - inside, PAD, np.int64)]))
            following = offset + count * step
        frames = np.concatenate(parts)
        inside_video = frames[frames != PAD]
        return [frames] if len(inside_video) == len(frames) else self._short(frames, inside_video)

    def _short(self, frames: Clip, inside_video: Clip) -> list[Clip]:
        if self.last == "drop" or not len(inside_video):
            return []
        return [inside_video if self.last == "partial" else frames]


@dataclass(frozen=True, slots=True, kw_only=True)
class StridePolicy:
    """Every `stride`-th frame by number from frame `start` on, cut into clips of `frames` samples."""

    stride: int
    frames: int | None = None
    start: int = 0
    last: Last = "pad"

    def sample(self, track: Track) -> list[Clip]:
        return _cut(np.arange(self.start, len(track.pts), self.stride, dtype=np.int64), self.frames, self.last)


POLICIES: dict[str, type[FpsPolicy] | type[SegmentsPolicy] | type[StridePolicy]] = {
    "fps": FpsPolicy,
    "segments": SegmentsPolicy,
    "stride": StridePolicy,
}


def read_policy(path: Path) -> tuple[Policy, dict[str, Any]]:
    """Return (policy, resolved parameters) of a YAML file. Raises PolicyError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise PolicyError("the policy cannot be read", where=str(path), found=error) from error
    return make_policy(content, where=str(path))


def make_policy(content: object, *, where: str) -> tuple[Policy, dict[str, Any]]:
    """Return (policy, resolved parameters, defaults included) of a parsed document. Raises PolicyError."""
    if not isinstance(content, Mapping):
        raise PolicyError("a policy is a mapping", where=where, found=type(content).__name__, allowed="policy: fps …")
    name = content.get("policy")
    if not isinstance(name, str) or name not in POLICIES:
        raise PolicyError("unknown policy", where=where, found=_shown(name), allowed=", ".join(POLICIES))
    parameters = {key: value for key, value in content.items() if key != "policy"}
    policy = _record(POLICIES[name], parameters, where)
    return policy, {"policy": name} | _plain(policy)


def _record(cls: Any, parameters: Mapping[object, object], where: str) -> Any:
    """Build a policy or a segment from untrusted parameters: every key known, every value of its kind and range."""
    allowed = {field.name: field for field in fields(cls)}
    for key in parameters:
        if key not in allowed:
            close = difflib.get_close_matches(str(key), allowed, 1)
            raise PolicyError(
                "unknown key",
                where=where,
                found=_shown(key),
                allowed=", ".join(allowed),
                remedy=f"did you mean {close[0]!r}?" if close else None,
            )
    missing = [name for name, field in allowed.items() if field.default is MISSING and parameters.get(name) is None]
    if missing:
        raise PolicyError("a required key is missing", where=where, found=f"no {', '.join(missing)}")
    values = {
        str(key): _CHECKS[str(key)](value, f"{where}: {key}") for key, value in parameters.items() if value is not None
    }
    record = cls(**values)
    if isinstance(record, Segment) and (record.frames is None) == (record.seconds is None):
        raise PolicyError(
            "a segment has either frames or seconds", where=where, found=", ".join(map(_shown, parameters))
        )
    return record


def _rate(value: object, where: str) -> Fraction:
    number = _fraction(value, where)
    if number <= 0:
        raise PolicyError("a rate must be above zero", where=where, found=value)
    return number


def _seconds(value: object, where: str) -> Fraction:
    number = _fraction(value, where)
    if number < 0:
        raise PolicyError("a time must not be negative", where=where, found=value)
    return number


def _fraction(value: object, where: str) -> Fraction:
    """Return a number as it is written: 29.97 is 2997/100, and "30000/1001" is taken exactly."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str) or not NUMBER.fullmatch(str(value)):
            raise ValueError
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise PolicyError(
            "must be a number", where=where, found=_shown(value), allowed="such as 2, 0.5, 29.97 or '30000/1001'"
        ) from None


def _shown(value: object) -> str:
    """Return a value for an error message; of what is long, its beginning."""
    if isinstance(value, int) and abs(value) > MOST_SHOWN:
        return "a number of many digits"
    return repr(value)[:80] if isinstance(value, int | float | str | None) else type(value).__name__


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_FRAMES:
        raise PolicyError(f"must be a whole number from 1 to {MOST_FRAMES:,}", where=where, found=_shown(value))
    return value


def _number(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_FRAMES:
        raise PolicyError(f"must be a whole number from 0 to {MOST_FRAMES:,}", where=where, found=_shown(value))
    return value


def _one_of(allowed: tuple[str, ...]) -> Any:
    def check(value: object, where: str) -> object:
        if value not in allowed:
            raise PolicyError("unknown value", where=where, found=_shown(value), allowed=", ".join(allowed))
        return value

    return check


def _segments(value: object, where: str) -> tuple[Segment, ...]:
    if not isinstance(value, list) or not value:
        raise PolicyError(
            "must be a list of segments", where=where, found=_shown(value), allowed="- {fps: 1, frames: 8}"
        )
    segments = []
    for number, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise PolicyError("a segment is a mapping", where=f"{where}[{number}]", found=repr(item))
        segments.append(_record(Segment, item, f"{where}[{number}]"))
    return tuple(segments)


_CHECKS: dict[str, Any] = {
    "fps": _rate,
    "frames": _count,
    "choose": _one_of(CHOICES),
    "start_seconds": _seconds,
    "every_seconds": _rate,
    "seconds": _rate,
    "offset": _seconds,
    "segments": _segments,
    "stride": _count,
    "start": _number,
    "last": _one_of(LASTS),
}


def _plain(record: Any) -> dict[str, Any]:
    """Return a record as plain YAML values; fractions stay exact."""
    return {field.name: _plain_value(getattr(record, field.name)) for field in fields(record)}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
