"""The JSON header of an index or a dataset: reading it, checking its format and version, and remedies for errors."""

import contextlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

from framedex.errors import FormatError
from framedex.storage.places import Place, small_text

# Common endings of video files, which suffice for a remedy. Indexing also detects videos by their content.
VIDEO_ENDINGS = frozenset(
    (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".m2ts", ".mpg", ".mpeg", ".flv", ".wmv", ".ogv", ".3gp")
)
MAX_ENTRIES = 1000  # entries of a folder that are looked at; an error should not wait for a large folder
DEFAULT = "check the path, or make it anew"


def remedy_for(place: Place) -> str:
    """Return the remedy for a folder that is not an index or a dataset, as it should be."""
    if not isinstance(place, Path):
        return DEFAULT
    with contextlib.suppress(OSError):
        if (place / "index.json").is_file():
            return (
                "this is an index: `framedex shard` makes a dataset of it, and ClipDataset.from_index takes it as it is"
            )
        if (place / "dataset.json").is_file():
            return "this is a dataset: name the index that it was made of"
        if place.is_dir() and _has_videos(place):
            return f"this is a folder of videos: run `framedex index {place} --out INDEX` first"
    return DEFAULT


def _has_videos(folder: str | Path, *, depth: int = 1) -> bool:
    """Return whether a folder, or a folder in it up to this depth, has files that are named like videos."""
    with os.scandir(folder) as entries:
        here = list(itertools.islice(entries, MAX_ENTRIES))
    if any(os.path.splitext(entry.name)[1].lower() in VIDEO_ENDINGS and entry.is_file() for entry in here):
        return True
    return depth > 0 and any(_has_videos(entry.path, depth=depth - 1) for entry in here if entry.is_dir())


def check_format(path: Place, *, file_name: str, expected: str, version: str, what: str) -> dict[str, Any]:
    """Return the JSON header of an index or a dataset. Raises FormatError for another format or major version.

    Args:
        path: The folder of the index or dataset.
        file_name: The name of the header in it.
        expected: The value of `format`.
        version: The schema version that this framedex reads. Only its major number is compared.
        what: The expected kind of folder, for messages, such as "a framedex dataset".
    """
    header = path / file_name
    try:
        content = json.loads(small_text(header))
        found = content.get("format"), str(content.get("schema_version"))
    except FileNotFoundError:
        raise FormatError(f"is not {what}", where=str(path), found=f"no {file_name}", remedy=remedy_for(path)) from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"is not {what}: {file_name} cannot be read", where=str(path), found=error) from error
    if found[0] != expected:
        raise FormatError(f"is not {what}", where=str(path), found=f"format {found[0]!r}", allowed=repr(expected))
    if found[1].split(".")[0] != version.split(".")[0]:
        raise FormatError(
            f"is {what} of another major version",
            where=str(path),
            found=f"schema version {found[1]}",
            allowed=f"{version.split('.')[0]}.x",
            remedy="make it anew with this framedex, or install the framedex that wrote it",
        )
    return dict(content)


def is_since(version: str, least: tuple[int, int]) -> bool:
    """Return whether a schema version, such as "3.6", is at least the given one. Malformed versions are not."""
    major, _, minor = version.partition(".")
    return major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) >= least
