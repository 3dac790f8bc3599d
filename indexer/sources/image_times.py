"""Determine the times of images, which state none themselves: from a rate, a listing, or a file beside them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.indexer.timeline import COUNTED, LISTED

TIMES_NAME = "timestamps.txt"
PER_SECOND = 1_000_000  # ticks per second for times that a file or a listing states
MOST = (1 << 31) - 1  # a time base is two numbers of 32 bits
FARTHEST_SECONDS = 1 << 40  # in ticks this is still far from the limits of 64 bits
# Numbers as people write them. Fraction itself would compute 1e999999999 for hours.
NUMBER = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2})?")
RATE = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?|[0-9]{1,20}/[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTimes:
    """When images are shown.

    Attributes:
        pts: int64 [images], in units of `tick`.
        tick: in seconds.
        last_duration: of the last image, in ticks. 0: the median distance.
        source: as `videos.pts_source`.
    """

    pts: NDArray[np.int64]
    tick: Fraction
    last_duration: int
    source: str


def rate_of(value: object) -> Fraction:
    """Return frames per second, from a number or text such as `25`, `29.97` or `30000/1001`. Raises ValueError."""
    text = str(value).strip()
    if not RATE.fullmatch(text) or not any(digit in "123456789" for digit in text.rpartition("/")[2]):
        raise ValueError(f"{value!r} is no number of frames a second above 0")
    rate = Fraction(text)
    if not rate or max(rate.numerator, rate.denominator) > MOST:
        raise ValueError(f"{value!r} frames a second is no ratio of two numbers of 31 bits above 0")
    return rate


def at_rate(count: int, rate: Fraction | None) -> ImageTimes:
    """Return the times of `count` images at a rate. None: one image per second."""
    return ImageTimes(
        pts=np.arange(count, dtype=np.int64),
        tick=1 / rate if rate is not None else Fraction(1),
        last_duration=1,
        source=COUNTED if rate is None else LISTED,
    )


def at_seconds(seconds: Sequence[Fraction | float | None], count: int) -> ImageTimes:
    """Return times as stated, rounded to microseconds. A single image lasts one second.

    Args:
        seconds: one time per image.
        count: number of images.

    Raises:
        MediaError: there are too few or too many times, one is missing or too large, or they do not ascend.
    """
    if len(seconds) != count:
        raise _refused(f"{len(seconds)} timestamps for {count} images")
    ticks: list[int] = [_ticks(time, number) for number, time in enumerate(seconds)]
    for number, (before, after) in enumerate(itertools.pairwise(ticks), 1):
        if after <= before:
            raise _refused(
                f"timestamps do not ascend: image {number} at {after / PER_SECOND:g} s "
                f"follows {before / PER_SECOND:g} s"
            )
    return ImageTimes(
        pts=np.array(ticks, np.int64),
        tick=Fraction(1, PER_SECOND),
        last_duration=PER_SECOND if count == 1 else 0,
        source=LISTED,
    )


def _ticks(time: Fraction | float | None, number: int) -> int:
    if time is None or not math.isfinite(time):
        raise _refused(f"image {number} has no timestamp")
    if not -FARTHEST_SECONDS <= time <= FARTHEST_SECONDS:
        raise _refused(f"the timestamp of image {number} is beyond {FARTHEST_SECONDS} s")
    return round(Fraction(str(time)) * PER_SECOND)


def read_times(text: str, names: Sequence[str]) -> list[Fraction | None]:
    """Return the time in seconds of each image, from the text of a timestamps file. None: the file has no time for it.

    Each line is a time, for the images in turn, or `name time`, in any order. Blank lines and # comments are ignored.

    Args:
        text: of the file.
        names: of the images.

    Raises:
        MediaError: a line is neither, lines mix the two, or a line names an image twice or one that does not exist.
    """
    lines = [line for line in (line.strip() for line in text.splitlines()) if line and not line.startswith("#")]
    pairs = [line.rsplit(None, 1) for line in lines]
    if all(len(pair) == 1 for pair in pairs):
        return [_number(line) for line in lines]
    if any(len(pair) == 1 for pair in pairs):
        raise _refused(f"some lines of {TIMES_NAME} name an image, and some do not")
    found: dict[str, Fraction] = {}
    known = set(names)
    for name, time in pairs:
        if name in found or name not in known:
            raise _refused(f"{TIMES_NAME} names {name!r} {'twice' if name in found else 'which is not there'}")
        found[name] = _number(time)
    return [found.get(name) for name in names]


def _number(text: str) -> Fraction:
    if not NUMBER.fullmatch(text):
        raise _refused(f"{TIMES_NAME}: {text[:80]!r} is no number of seconds")
    return Fraction(text)


def _refused(message: str) -> MediaError:
    return MediaError("timestamps", message, refused=True)
