"""Group images into sequences, and determine the times of the images.

A sequence consists of the images of a folder, of some images of a tar, or of the images of several rows of a listing.
The times of the images are given by a rate, a listing, or a timestamps file in the folder. Names of images are sorted
by the values of the numbers in them, for instance frame2 before frame10.
"""

import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError, SourceError, StorageError
from framedex.indexer.sources.folders import files_in
from framedex.indexer.sources.named_medium import NamedMedium, form_of, is_image_name
from framedex.indexer.timeline import COUNTED, LISTED

TIMES_NAME = "timestamps.txt"
PER_SECOND = 1_000_000  # ticks per second of the time base for times from a file or a listing
MOST = (1 << 31) - 1  # maximum numerator and denominator of a time base, which are signed 32-bit integers
FARTHEST_SECONDS = 1 << 40  # maximum absolute value of a time; converted to ticks, it fits into 64 bits
# Decimal numbers of limited length. Without the limit, converting 1e999999999 to a Fraction would take hours.
NUMBER = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2})?")
RATE = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?|[0-9]{1,20}/[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTimes:
    """The times of the images of a sequence.

    Attributes:
        pts: int64 [images], the presentation timestamps, in ticks.
        tick: The duration of a tick, in seconds.
        last_duration: The duration of the last image, in ticks. If 0, the median distance of the images is used.
        source: The origin of the times, a value of `videos.pts_source`.
    """

    pts: NDArray[np.int64]
    tick: Fraction
    last_duration: int
    source: str


def rate_of(value: object) -> Fraction:
    """Parse a number of frames per second, such as `25`, `29.97` or `30000/1001`. Raises ValueError."""
    text = str(value).strip()
    if not RATE.fullmatch(text) or not any(digit in "123456789" for digit in text.rpartition("/")[2]):
        raise ValueError(f"{value!r} is not a positive number of frames per second")
    rate = Fraction(text)
    if not rate or max(rate.numerator, rate.denominator) > MOST:
        raise ValueError(f"{value!r} frames per second is not a ratio of two positive 31-bit integers")
    return rate


def at_rate(count: int, rate: Fraction | None) -> ImageTimes:
    """Return the times of `count` images at a rate, in images per second. If the rate is None, it is 1."""
    return ImageTimes(
        pts=np.arange(count, dtype=np.int64),
        tick=1 / rate if rate is not None else Fraction(1),
        last_duration=1,
        source=COUNTED if rate is None else LISTED,
    )


def at_seconds(seconds: Sequence[Fraction | float | None], count: int) -> ImageTimes:
    """Convert the given times of images, and round them to microseconds. A single image has a duration of one second.

    Args:
        seconds: The time of each image, in seconds. None if the time of an image is missing.
        count: The number of images.

    Raises:
        MediaError: There are too few or too many times, a time is missing or too large, or the times do not ascend.
    """
    if len(seconds) != count:
        raise _refused(f"there are {len(seconds)} timestamps for {count} images")
    ticks = [_ticks(time, number) for number, time in enumerate(seconds)]
    for number, (before, after) in enumerate(itertools.pairwise(ticks), 1):
        if after <= before:
            raise _refused(
                f"timestamps do not ascend: image {number} is at {after / PER_SECOND:g} s, "
                f"and the image before it is at {before / PER_SECOND:g} s"
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
    """Parse a timestamps file. Return the time of each image in seconds, or None if the time of an image is missing.

    The lines of the file either have one time each, in the order of the images, or have the form `name time`, in any
    order. Blank lines, and comments that begin with #, are ignored.

    Args:
        text: The text of the file.
        names: The names of the images.

    Raises:
        MediaError: A line has another form, some lines have names and some do not, or a name occurs twice or is not the
            name of an image.
    """
    lines = [line for line in (line.strip() for line in text.splitlines()) if line and not line.startswith("#")]
    pairs = [line.rsplit(None, 1) for line in lines]
    if all(len(pair) == 1 for pair in pairs):
        return [_number(line) for line in lines]
    if any(len(pair) == 1 for pair in pairs):
        raise _refused(f"some lines of {TIMES_NAME} begin with the name of an image, and some do not")
    found: dict[str, Fraction] = {}
    known = set(names)
    for name, time in pairs:
        if name in found or name not in known:
            raise _refused(f"{TIMES_NAME} has {name!r}{' twice' if name in found else ', which is not an image'}")
        found[name] = _number(time)
    return [found.get(name) for name in names]


def _number(text: str) -> Fraction:
    if not NUMBER.fullmatch(text):
        raise _refused(f"{TIMES_NAME}: {text[:80]!r} is not a number of seconds")
    return Fraction(text)


def _refused(message: str) -> MediaError:
    return MediaError("timestamps", message, refused=True)


DIGITS = re.compile(r"([0-9]+)")

Key = tuple[tuple[str | tuple[int, str], ...], str]


def natural_key(name: str) -> Key:
    """Return a sort key that orders numbers in names by value, and other text by code points.

    Numbers consist of ASCII digits, and may have any length. Names that differ only in leading zeros are ordered as
    text, so that different names have different keys.
    """
    parts = DIGITS.split(name)  # the elements with even indices are text, the elements with odd indices are digits
    return tuple(_value(part) if place % 2 else part for place, part in enumerate(parts)), name


def _value(digits: str) -> tuple[int, str]:
    """Return a sort key that orders texts of digits by value. (int() is not used: it rejects thousands of digits.)"""
    significant = digits.lstrip("0")
    return len(significant), significant


SEQUENCE_COLUMN, SECONDS_COLUMN, RATE_COLUMN = "sequence", "seconds", "fps"  # names of columns of listings of images
NUMBERED = re.compile(r"(?P<key>[^.]+)\.[0-9]+\.[^.]+")  # names such as `key.000.jpg` of the images of a sample
NONE = (None, "")  # values that count as missing; in CSV, a missing value is an empty text
TOP = "."  # name of the sequence that consists of the images in the top-level folder of a tar


def visible_images(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of images that are not hidden files, sorted by `natural_key`."""
    return tuple(sorted((name for name in names if is_image_name(name) and name[:1] != "."), key=natural_key))


def group_names(names: Iterable[str], *, single: bool = False) -> dict[str, list[str]]:
    """Group the images in a tar into sequences. Return the names of the images of each sequence, by its name.

    Each image belongs to exactly one sequence. Images that share a key form a sequence with the name of the key. The
    key is the path up to the first dot of a name such as `key.000.jpg`. A key is ignored if only one image has the key,
    or if the key is also the name of a folder of images. All other images of a folder form a sequence with the name of
    the folder. The name for the top-level folder of the tar is `.`. Sequences and their images are sorted by
    `natural_key`.

    Args:
        names: The names of the image files.
        single: Whether each image forms a separate sequence.
    """
    if single:
        return {name: [name] for name in names}
    by_key: dict[str, list[str]] = {}
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, base = name.rpartition("/")
        folders.setdefault(folder or TOP, []).append(name)
        if match := NUMBERED.fullmatch(base):
            by_key.setdefault(f"{folder}/{match['key']}" if folder else match["key"], []).append(name)
    keyed = {key: group for key, group in by_key.items() if len(group) > 1 and key not in folders}
    taken = {name for group in keyed.values() for name in group}
    rest = {folder: [name for name in group if name not in taken] for folder, group in folders.items()}
    groups = keyed | {folder: group for folder, group in rest.items() if group}
    return {name: sorted(groups[name], key=natural_key) for name in sorted(groups, key=natural_key)}


def folder_sequence(item: NamedMedium) -> NamedMedium:
    """Convert the mention of a folder into the mention of an image sequence with the images directly in the folder."""
    try:
        images = visible_images(files_in(item.path))
    except OSError as error:
        return replace(item, images=(), error=MediaError("unreadable", f"cannot be read: {error.strerror}"))
    except StorageError as error:
        return replace(item, images=(), error=MediaError("unreadable", f"cannot be read: {error.what}"))
    if not images:
        return replace(item, images=(), error=MediaError("empty", "the folder itself does not contain any images"))
    return replace(item, images=images)


def join_rows(rows: Sequence[NamedMedium], where: str) -> list[NamedMedium]:
    """Join rows of a listing that form image sequences. Return the rows, with one row for each sequence.

    Images with the same value in the column `sequence` form a sequence. The row of a sequence is at the position of the
    sequence's first image. The row lacks columns in which the joined rows differ.

    Args:
        rows: The rows of the listing.
        where: The name of the listing, for messages.

    Raises:
        SourceError: The images of a sequence are in several folders, a file of a sequence is not an image, or a rate or
            a time is not valid.
    """
    groups: dict[str, list[NamedMedium]] = {}
    places: list[str | NamedMedium] = []
    for row in rows:
        value = row.columns.get(SEQUENCE_COLUMN)
        if row.error is not None:
            places.append(row)
            continue
        if value in NONE or (form_of(row.path) != "image" and str(value) not in groups):
            places.append(_with_rate(row, where))
            continue
        name = str(value)
        if name not in groups:
            places.append(name)
        groups.setdefault(name, []).append(row)
    return [_joined(place, groups[place], where) if isinstance(place, str) else place for place in places]


def _joined(name: str, rows: list[NamedMedium], where: str) -> NamedMedium:
    folders = sorted({os.path.dirname(row.path) for row in rows})
    for row in rows:
        if form_of(row.path) != "image":
            raise SourceError(f"sequence {name!r} has a file that is not an image", where=where, found=row.spelled)
    if len(folders) > 1:
        raise SourceError(
            f"the images of sequence {name!r} are in several folders",
            where=where,
            found=", ".join(folders[:3]),
            allowed="one folder",
            remedy="write different values in the column `sequence` for different folders",
        )
    same = {
        column: value for column, value in rows[0].columns.items() if all(row.columns[column] == value for row in rows)
    }
    same.pop(SECONDS_COLUMN, None)
    times = tuple(_seconds(row.columns.get(SECONDS_COLUMN), name, where) for row in rows)
    return _with_rate(
        NamedMedium(
            path=folders[0],
            spelled=os.path.dirname(rows[0].spelled) or ".",
            columns=same,
            row=rows[0].row,
            folder=rows[0].folder,
            member=name,
            images=tuple(os.path.basename(row.path) for row in rows),
            seconds=times if any(time is not None for time in times) else None,
        ),
        where,
    )


def _seconds(value: object, name: str, where: str) -> float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise SourceError(f"a time of sequence {name!r} is not a number", where=where, found=repr(value))


def _with_rate(row: NamedMedium, where: str) -> NamedMedium:
    """Set the rate of a mention of images to the value of its column `fps`. Return mentions of videos unchanged."""
    rate = row.columns.get(RATE_COLUMN)
    if rate in NONE or (row.form == "video" and not os.path.isdir(row.path)):
        return row
    try:
        return replace(row, fps=rate_of(rate))
    except ValueError as error:
        raise SourceError("a rate of images is not valid", where=f"{where}, {row.spelled}", found=error) from error


def check_one_timing(items: Iterable[NamedMedium]) -> None:
    """Raise SourceError if several mentions of a medium state different rates or times."""
    seen: dict[tuple[str, str | None], tuple[Fraction | None, Any]] = {}
    for item in items:
        timing = item.fps, item.seconds
        if timing != (None, None) and seen.setdefault((item.path, item.member), timing) != timing:
            raise SourceError(
                "two mentions of a medium have different rates or times",
                where=item.spelled,
                found=f"{item.fps} frames per second",
            )
