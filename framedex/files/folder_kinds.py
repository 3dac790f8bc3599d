"""What a folder is that should be an index or a dataset and is not one, for the remedies of errors."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from framedex.storage.places import Place

# Endings of the usual video files; most others are found by their content only.
VIDEO_ENDINGS = frozenset(
    (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".m2ts", ".mpg", ".mpeg", ".flv", ".wmv", ".ogv", ".3gp")
)
MOST_ENTRIES = 1000  # entries of a folder
DEFAULT = "check the path, or make it anew"


def remedy_for(place: Place) -> str:
    """Return what to do about a folder that is not what it should be."""
    if not isinstance(place, Path):
        return DEFAULT
    try:
        if (place / "index.json").is_file():
            return (
                "this is an index: `framedex shard` makes a dataset of it, and ClipDataset.from_index takes it as it is"
            )
        if (place / "dataset.json").is_file():
            return "this is a dataset: name the index that it was made of"
        if place.is_dir() and _has_videos(place):
            return f"this is a folder of videos: run `framedex index {place} --out INDEX` first"
    except OSError:
        return DEFAULT
    return DEFAULT


def _has_videos(folder: Path) -> bool:
    """Return whether a folder, or a folder in it, has files that are named like videos."""
    with os.scandir(folder) as entries:
        here = list(itertools.islice(entries, MOST_ENTRIES))
    if any(_is_video(entry) for entry in here):
        return True
    for entry in here:
        if entry.is_dir():
            with os.scandir(entry.path) as inner:
                if any(_is_video(one) for one in itertools.islice(inner, MOST_ENTRIES)):
                    return True
    return False


def _is_video(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1].lower() in VIDEO_ENDINGS and entry.is_file()
