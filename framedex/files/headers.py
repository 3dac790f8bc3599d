"""The JSON header of an index or a dataset: read the header and check its format and version. Remedies for errors."""

import contextlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

from framedex.errors import FormatError
from framedex.storage.places import Place, small_text

# Common extensions of video files, to recognize a folder of videos. Indexing detects videos by their content as well.
VIDEO_ENDINGS = frozenset(
    (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".m2ts", ".mpg", ".mpeg", ".flv", ".wmv", ".ogv", ".3gp")
)
MAX_ENTRIES = 1000  # number of entries of a folder that are searched for videos, so that an error is shown quickly
DEFAULT = "check the path, or create the index or dataset again"


def remedy_for(place: Place) -> str:
    """Return the remedy for a folder that is not the expected index or dataset."""
    if not isinstance(place, Path):
        return DEFAULT
    with contextlib.suppress(OSError):
        if (place / "index.json").is_file():
            return "this is an index: make a dataset of it by `framedex shard`, or open it by ClipDataset.from_index"
        if (place / "dataset.json").is_file():
            return "this is a dataset: pass the index from which it was made"
        if place.is_dir() and _has_videos(place):
            return f"this is a folder of videos: run `framedex index {place} --out INDEX` first"
    return DEFAULT


def _has_videos(folder: str | Path, *, depth: int = 1) -> bool:
    """Return whether a folder has files with the extension of a video. Searches also `depth` levels of subfolders."""
    with os.scandir(folder) as entries:
        here = list(itertools.islice(entries, MAX_ENTRIES))
    if any(os.path.splitext(entry.name)[1].lower() in VIDEO_ENDINGS and entry.is_file() for entry in here):
        return True
    return depth > 0 and any(_has_videos(entry.path, depth=depth - 1) for entry in here if entry.is_dir())


def check_format(path: Place, *, file_name: str, expected: str, version: str, what: str) -> dict[str, Any]:
    """Read and return the JSON header of an index or a dataset.

    Args:
        path: The folder of the index or dataset.
        file_name: The name of the header file in the folder.
        expected: The value that the key `format` must have.
        version: The schema version that this framedex reads. Only the major number is compared.
        what: The expected kind of folder, for messages, such as "a framedex dataset".

    Raises:
        FormatError: The header cannot be read, or has another format or major version.
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
            remedy="create it again with this version of framedex, or install the version that wrote it",
        )
    return dict(content)


def is_since(version: str, least: tuple[int, int]) -> bool:
    """Return whether a schema version, such as "3.6", is `least` or later. Return False for a malformed version."""
    major, _, minor = version.partition(".")
    return major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) >= least
