"""Files that a search of folders skips: images beside videos, and files whose endings are not those of videos."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from framedex.indexer.sources.image_times import TIMES_NAME
from framedex.indexer.sources.named_medium import IMAGE_SUFFIXES, TAR_SUFFIX, VIDEO_SUFFIXES, readable_name

TAKEN = VIDEO_SUFFIXES | IMAGE_SUFFIXES | {TAR_SUFFIX}


@dataclass(slots=True)
class Skipped:
    """The absolute paths that a search skips.

    Attributes:
        thumbnails: images that lie beside videos.
        others: files with other endings.
    """

    thumbnails: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFiles:
    """Skipped files with the same ending.

    Attributes:
        ending: in lower case, empty for none.
        count: number of files.
        example: path of the first file.
    """

    ending: str
    count: int
    example: str


def is_other(name: str) -> bool:
    """Return whether a file is skipped because of its ending. Hidden files and timestamps files are not reported."""
    return _ending(name) not in TAKEN and name[:1] != "." and name != TIMES_NAME


def other_files(paths: Iterable[str]) -> list[OtherFiles]:
    """Return skipped files grouped by ending, the most frequent ending first."""
    by_ending: dict[str, list[str]] = {}
    for path in sorted(paths):
        by_ending.setdefault(_ending(path), []).append(path)
    found = [
        OtherFiles(ending=readable_name(ending), count=len(some), example=readable_name(some[0]))
        for ending, some in by_ending.items()
    ]
    return sorted(found, key=lambda some: (-some.count, some.ending))


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()
