"""Which of the allowed names somebody meant, and the error about a name that is not allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from framedex.errors import FramedexError

# What people call things → the names that framedex has for them. Where several are allowed, all are meant.
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

MISTYPED = 0.85  # of difflib's ratio: `clip` for `clips`, but not `duration` for `duration_pts`


def meant(name: str, allowed: Iterable[str]) -> list[str]:
    """Return the allowed names that a name most likely means, best first; none if nothing is near.

    In this order: names that mean the same (`vfr` → `is_vfr`), a name that is nearly spelled like it, names that have
    all words of it (`timestamp` → `timestamp_column`), and the closest spelling.
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
    """Return a remedy that names the allowed names that were most likely meant, or None."""
    found = meant(name, allowed)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else None


def check_choices(error: type[FramedexError] = FramedexError, /, **choices: tuple[object, Iterable[object]]) -> None:
    """Raise an error for an argument whose value is not allowed.

    Args:
        error: The class of the error.
        choices: (value, allowed values) by the name of the argument.
    """
    for name, (value, values) in choices.items():
        allowed = tuple(values)
        if value not in allowed:
            raise error(f"unknown {name}", found=repr(value), allowed=", ".join(map(repr, allowed)))
