"""Group images into sequences: those of a folder, of a part of a tar, or of rows of a listing.

Find the times of images, which have none themselves, by a rate, a listing, or a file beside them. Sort names with
numbers by value: frame2 before frame10.
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
PER_SECOND = 1_000_000  # ticks per second for times that a file or a listing states
MOST = (1 << 31) - 1  # a time base is two numbers of 32 bits
FARTHEST_SECONDS = 1 << 40  # as a number of ticks, this is far below the limit of 64 bits
# Decimal numbers of usual size. Fraction would need hours for 1e999999999.
NUMBER = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2})?")
RATE = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?|[0-9]{1,20}/[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTimes:
    """The times of images.

    Attributes:
        pts: int64 [images], in ticks.
        tick: The length of a tick in seconds.
        last_duration: The duration of the last image, in ticks. 0 stands for the median distance.
        source: The source of the times, as in `videos.pts_source`.
    """

    pts: NDArray[np.int64]
    tick: Fraction
    last_duration: int
    source: str


def rate_of(value: object) -> Fraction:
    """Return frames per second, from a number or text such as `25`, `29.97` or `30000/1001`. Raises ValueError."""
    text = str(value).strip()
    if not RATE.fullmatch(text) or not any(digit in "123456789" for digit in text.rpartition("/")[2]):
        raise ValueError(f"{value!r} is not a positive number of frames per second")
    rate = Fraction(text)
    if not rate or max(rate.numerator, rate.denominator) > MOST:
        raise ValueError(f"{value!r} frames per second is not a ratio of two positive numbers of 31 bits")
    return rate


def at_rate(count: int, rate: Fraction | None) -> ImageTimes:
    """Return the times of `count` images at a rate. If it is None, they have one second each."""
    return ImageTimes(
        pts=np.arange(count, dtype=np.int64),
        tick=1 / rate if rate is not None else Fraction(1),
        last_duration=1,
        source=COUNTED if rate is None else LISTED,
    )


def at_seconds(seconds: Sequence[Fraction | float | None], count: int) -> ImageTimes:
    """Return the given times, rounded to microseconds. A single image lasts one second.

    Args:
        seconds: The time of each image.
        count: The number of images.

    Raises:
        MediaError: There are too few or too many times, one is missing or too large, or they do not ascend.
    """
    if len(seconds) != count:
        raise _refused(f"{len(seconds)} timestamps for {count} images")
    ticks = [_ticks(time, number) for number, time in enumerate(seconds)]
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
    """Return the time in seconds of each image, from a timestamps file. It is None for images that the file omits.

    The file has a time for each image, in the order of the images, or lines `name time` in any order. Blank lines and #
    comments are ignored.

    Args:
        text: The text of the file.
        names: The names of the images.

    Raises:
        MediaError: The lines have another form or both forms, or an image is named twice or does not exist.
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
        raise _refused(f"{TIMES_NAME}: {text[:80]!r} is not a number of seconds")
    return Fraction(text)


def _refused(message: str) -> MediaError:
    return MediaError("timestamps", message, refused=True)


DIGITS = re.compile(r"([0-9]+)")

Key = tuple[tuple[str | tuple[int, str], ...], str]


def natural_key(name: str) -> Key:
    """Return the sort key of a name. It orders text by code points, and ASCII numbers of any length by value.

    Names that differ only in leading zeros are ordered by their text, so different names have different keys.
    """
    parts = DIGITS.split(name)  # text at even places, digits at odd ones
    return tuple(_value(part) if place % 2 else part for place, part in enumerate(parts)), name


def _value(digits: str) -> tuple[int, str]:
    """Return a key that orders numbers by value. It avoids int(), which refuses thousands of digits."""
    significant = digits.lstrip("0")
    return len(significant), significant


SEQUENCE_COLUMN, SECONDS_COLUMN, RATE_COLUMN = "sequence", "seconds", "fps"  # columns of a listing
NUMBERED = re.compile(r"(?P<key>[^.]+)\.[0-9]+\.[^.]+")  # webdataset's name for one of several files of a sample
NONE = (None, "")  # missing values; in CSV, an empty text is a missing value
TOP = "."  # name of the sequence of the images at the top of a tar


def visible_images(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of images in natural order, without hidden files."""
    return tuple(sorted((name for name in names if is_image_name(name) and name[:1] != "."), key=natural_key))


def group_names(names: Iterable[str], *, single: bool = False) -> dict[str, list[str]]:
    """Return the sequences of the image files in a tar, by name: files that share a key, else files of one folder.

    A key is the path up to the first dot of a name such as `key.000.jpg`. It is used if several images share it, unless
    a folder of images has the same name. Images at the top of the tar form the sequence `.`. Each image belongs to one
    sequence. Sequences and their images are in natural order.

    Args:
        names: The names of the files.
        single: Whether each image forms a sequence of its own.
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
    """Return the mention of a folder as the mention of a sequence of the images directly in it."""
    try:
        images = visible_images(files_in(item.path))
    except OSError as error:
        return replace(item, images=(), error=MediaError("unreadable", f"cannot be read: {error.strerror}"))
    except StorageError as error:
        return replace(item, images=(), error=MediaError("unreadable", f"cannot be read: {error.what}"))
    if not images:
        return replace(item, images=(), error=MediaError("empty", "no image lies directly in the folder"))
    return replace(item, images=images)


def join_rows(rows: Sequence[NamedMedium], where: str) -> list[NamedMedium]:
    """Return the rows of a listing. A sequence becomes one row, at the place of its first row.

    Images with the same value in a column `sequence` form a sequence. Columns that differ between its rows are dropped.

    Args:
        rows: The rows of the listing.
        where: The listing, for messages.

    Raises:
        SourceError: Images of a sequence lie in several folders, files of it are not images, or a rate is not valid.
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
            f"the images of sequence {name!r} lie in several folders",
            where=where,
            found=", ".join(folders[:3]),
            allowed="one folder",
            remedy="give each folder a sequence of its own",
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
    """Return a mention of images with the rate in its column `fps`. Return mentions of videos unchanged."""
    rate = row.columns.get(RATE_COLUMN)
    if rate in NONE or (row.form == "video" and not os.path.isdir(row.path)):
        return row
    try:
        return replace(row, fps=rate_of(rate))
    except ValueError as error:
        raise SourceError("a rate of images is not valid", where=f"{where}, {row.spelled}", found=error) from error


def check_one_timing(items: Iterable[NamedMedium]) -> None:
    """Raise SourceError if a medium is mentioned several times with different rates or times."""
    seen: dict[tuple[str, str | None], tuple[Fraction | None, Any]] = {}
    for item in items:
        timing = item.fps, item.seconds
        if timing != (None, None) and seen.setdefault((item.path, item.member), timing) != timing:
            raise SourceError("two rates for one medium", where=item.spelled, found=f"{item.fps} frames a second")
