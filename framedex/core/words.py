"""Texts for messages: suggestions for mistyped names, counts of values, and rounded numbers with units.

JSON and SQL tables contain exact numbers instead.
"""

import difflib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from framedex.errors import FramedexError

# Name in other tools → framedex's names for the same thing. `meant` suggests a name only if it is an allowed value.
MEANT = {
    "bframes": ("reorder_depth",),
    "bit_depth": ("pixel_format", "more_than_8_bits"),
    "class": ("label",),
    "corrupt": ("damaged", "damaged_gop_count"),
    "duration": ("duration_seconds",),
    "duplicates": ("copies",),
    "end_time": ("end", "end_seconds"),
    "filename": ("uri",),
    "file": ("uri",),
    "fold": ("split",),
    "format": ("container", "pixel_format"),
    "framerate": ("fps", "stated_rate"),
    "interval": ("stride", "every"),
    "keyframes": ("keyframe_count",),
    "length": ("frames", "duration_seconds", "frame_count"),
    "max_length": ("max_frames", "max_seconds"),
    "min_length": ("min_frames", "least_frames"),
    "n_clips": ("clips",),
    "n_frames": ("frames", "frame_count"),
    "nframes": ("frames", "frame_count"),
    "num_clips": ("clips",),
    "num_frames": ("frames", "frame_count"),
    "path": ("uri",),
    "rate": ("fps",),
    "resolution": ("width", "height"),
    "rotation": ("rotation_degrees",),
    "size": ("width", "height", "size_bytes"),
    "start_time": ("start", "start_seconds"),
    "vfr": ("is_vfr", "variable_rate"),
    "video": ("uri",),
}

# The least similarity (difflib's ratio) of a mistyped name and the name that was meant. `clip` and `clips` are similar
# enough, `duration` and `duration_pts` are not.
MISTYPED = 0.85


def meant(name: str, allowed: Iterable[str]) -> list[str]:
    """Return the allowed names that the user most likely meant, best first. The list is empty if none is similar.

    The function tries four ways in turn, and returns the result of the first that finds a name: names with the same
    meaning (`vfr` → `is_vfr`), a nearly equal spelling, names that contain all words of `name`
    (`timestamp` → `timestamp_column`), and the most similar spelling.
    """
    names = list(allowed)
    lowered = name.strip().lower().replace("-", "_").replace(" ", "_")
    if same := [other for other in names if other.lower() == lowered]:
        return same[:1]
    if known := [other for other in MEANT.get(lowered, ()) if other in names]:
        return known
    words = set(lowered.split("_"))
    sharing = sorted((other for other in names if words <= set(other.lower().split("_"))), key=len)
    close = difflib.get_close_matches
    return close(lowered, names, 1, cutoff=MISTYPED) or sharing[:2] or close(lowered, names, 1)


def did_you_mean(name: str, allowed: Iterable[str]) -> str | None:
    """Return a remedy that suggests the allowed names that the user most likely meant. None if none is similar."""
    found = meant(name, allowed)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else None


def check_choices(error: type[FramedexError] = FramedexError, /, **choices: tuple[object, Iterable[object]]) -> None:
    """Raise an error if the value of an argument is not among the allowed values.

    Args:
        error: The class of the error.
        choices: Name of the argument → (value, allowed values).
    """
    for name, (value, values) in choices.items():
        allowed = tuple(values)
        if value not in allowed:
            raise error(f"unknown {name}", found=repr(value), allowed=", ".join(map(repr, allowed)))


# Limits that make messages fit into a few lines of a terminal.
SHOWN = 5  # number of values of a column, or of names, that a message shows
COLUMNS = 4  # number of columns whose values a message shows
LONGEST = 60  # number of characters of a value that a message shows


def few(counts: Mapping[str, int], *, most: int = SHOWN) -> str:
    """Return a text with the most frequent values and their counts, and with the number of further distinct values.

    Args:
        counts: Value → count. Among equally frequent values, the first ones are shown.
        most: The number of values that are shown.
    """
    shown = ", ".join(f"{value} ({count:,})" for value, count in Counter(counts).most_common(most))
    others = len(counts) - most
    return f"{shown} and {counted(others, 'other', 'others')}" if others > 0 else shown


def named(names: Iterable[str], count: int) -> str:
    """Return a text with the first few names and the number of further names. `count` is the number of all names."""
    shown = list(itertools.islice(names, SHOWN))
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number followed by a noun: `one` if the number is 1, else `many`, which defaults to `one` plus an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def tally(arrays: Iterable[Any]) -> Counter[str]:
    """Count the values in Arrow arrays. The keys of the result are texts for messages. Null is counted as "empty"."""
    found = Counter[str]()
    for array in arrays:
        try:
            pairs = [(row["values"], row["counts"]) for row in array.value_counts().to_pylist()]
        except NotImplementedError:  # Arrow cannot count lists and other nested values
            pairs = [(value, 1) for value in array.to_pylist()]
        for value, count in pairs:
            text = "empty" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)[:LONGEST]
            found[text] += count
    return found


def values_text(columns: Mapping[str, Mapping[str, int]]) -> str:
    """Return a text with the names and the most frequent values of the first few columns.

    Args:
        columns: Column name → value → count.
    """
    shown = itertools.islice(columns.items(), COLUMNS)
    return "; ".join(f"{name}: {few(counts) or 'no rows'}" for name, counts in shown)


def no_clip_has(where: Mapping[str, object], columns: Mapping[str, Mapping[str, int]], path: object) -> FramedexError:
    """Return the error for a selection that matches no clip.

    Args:
        where: Column name → wanted value.
        columns: Column name → value → count, of the columns in `where`.
        path: The path of the dataset or index.
    """
    return FramedexError(
        "no clip has " + ("this value" if len(where) == 1 else "all of these values"),
        where=str(path),
        found=", ".join(f"{name}={value!r}" for name, value in where.items()),
        allowed=values_text(columns),
        remedy="choose other values, or leave out `where`",
    )


DIGITS = 3  # significant digits of sizes and rates; people compare such numbers and seldom need more digits
SAME_RATE = 1.01  # frame rates that differ by less than this factor are shown as one rate
SIZES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
LEAST = 1e-6  # smaller numbers are shown with an exponent


def number_text(value: float, *, digits: int = DIGITS) -> str:
    """Return a number as text with a few significant digits. All digits before the decimal point are kept.

    Args:
        value: The number.
        digits: The maximum number of significant digits. Digits before the decimal point are never rounded away.
    """
    if not math.isfinite(value) or 0 < abs(value) < LEAST:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    whole, point, rest = f"{value:,.{decimals}f}".partition(".")
    rest = rest.rstrip("0")
    return whole + (point + rest if rest else "")


def rate_text(low: float, high: float) -> str:
    """Return a range of frame rates as text, such as `14.9–30.3 fps`, or `25 fps` if both rates are nearly equal."""
    least, most = (number_text(rate) for rate in (low, high))
    return f"{most} fps" if high <= SAME_RATE * low or least == most else f"{least}–{most} fps"


def duration_text(seconds: float) -> str:
    """Return a duration as text in the unit that fits, such as `0.08 s`, `23.97 s`, `4.2 min` or `2.8 h`."""
    for unit, each in (("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= each:
            return f"{number_text(seconds / each, digits=2)} {unit}"
    return f"{number_text(seconds, digits=4)} s"


def size_text(size_bytes: float) -> str:
    """Return a size as text in the decimal unit that fits, such as `144 kB` or `1.5 GB`."""
    for unit, each in SIZES:
        if size_bytes >= each * (1 - 0.5 / 10**DIGITS):  # so that 999.9 kB is shown as 1 MB, not as 1,000 kB
            return f"{number_text(size_bytes / each)} {unit}"
    return f"{number_text(size_bytes)} bytes"
