"""One mention of a medium, and what the name of a file says about its contents."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from framedex.errors import MediaError
from framedex.storage.objects import Facts

Form = Literal["video", "image", "folder", "tar", "parquet"]
Holder = Literal["tar", "parquet"]  # forms of files with several media
Images = Literal["sequences", "single", "ignore"]
Named = Literal["source", "list", "search"]

VIDEO_SUFFIXES = frozenset(
    [
        ".264",
        ".265",
        ".3g2",
        ".3gp",
        ".apng",
        ".asf",
        ".avi",
        ".divx",
        ".dv",
        ".f4v",
        ".flv",
        ".gif",
        ".h264",
        ".h265",
        ".hevc",
        ".ivf",
        ".m1v",
        ".m2t",
        ".m2ts",
        ".m2v",
        ".m4v",
        ".mjpeg",
        ".mjpg",
        ".mk3d",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mpv",
        ".mts",
        ".mxf",
        ".nut",
        ".obu",
        ".ogm",
        ".ogv",
        ".ogx",
        ".qt",
        ".ts",
        ".vob",
        ".webm",
        ".wmv",
        ".y4m",
    ]
)
IMAGE_SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp"})
TAR_SUFFIX = ".tar"
PARQUET_SUFFIX = ".parquet"
# Compressed tars count as tars, and reading them says how to decompress them.
TAR_ENDINGS = (TAR_SUFFIX, ".tgz", *(f".tar.{kind}" for kind in ("bz2", "gz", "lz4", "xz", "zst")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """Rows of a Parquet file, one for each frame of a stretch of a medium.

    Attributes:
        path: the absolute path, or the uri of an object.
        row: number of the row of the stretch's first frame.
    """

    path: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMedium:
    """One mention of a medium: its absolute path, its uri as spelled, and the user's columns beside it.

    Attributes:
        path: the absolute path, or the uri of an object.
        spelled: the uri as the user spells it.
        columns: the user's columns, by name.
        row: number of the row in the listing, from 0, or None if the mention is not from a listing.
        folder: the folder that it was found through; no link may lead out of it. None: it was named itself.
        error: why the medium must not be opened; None for most media. A name that is not valid UTF-8 cannot be written
            into an index: such a medium has an error, and `path` and `spelled` show its stray bytes as `\\xNN`.
        member: which of several sequences of one folder, by the value of a listing's `sequence` column.
        images: names of a sequence's loose images in the folder `path`, in order. None: not a sequence of loose images.
        fps: rate of the images, as a listing states it. None: not stated.
        seconds: one time per image, as a listing states them; None for a missing one. None: not stated.
        facts: of an object, if its folder was listed.
        frame_table: what was recorded for each frame of the stretch that the mention is about.
        named: how it was named: as a `source` itself, by a `list` or listing, or not at all: the `search` of a folder
            or pattern found it.
    """

    path: str
    spelled: str
    columns: dict[str, Any] = field(default_factory=dict)
    row: int | None = None
    folder: str | None = None
    error: MediaError | None = None
    member: str | None = None
    images: tuple[str, ...] | None = None
    fps: Fraction | None = None
    seconds: tuple[float | None, ...] | None = None
    facts: Facts | None = None
    frame_table: FrameTable | None = None
    named: Named = "list"

    @property
    def form(self) -> Form:
        """How the medium is stored: a folder of images, one image, a tar, a Parquet file, or a video."""
        if self.images is not None:
            return "folder"
        return form_of(self.path)


def form_of(name: str) -> Form:
    """Return what a file is by its name. Whatever is no image, tar or Parquet file may be a video."""
    if is_image_name(name):
        return "image"
    if is_tar_name(name):
        return "tar"
    return "parquet" if Path(name).suffix.lower() == PARQUET_SUFFIX else "video"


def is_image_name(name: str) -> bool:
    """Return whether a file name has the ending of an image, in upper or lower case."""
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def is_video_name(name: str) -> bool:
    """Return whether a file name has the ending of a video, in upper or lower case."""
    return Path(name).suffix.lower() in VIDEO_SUFFIXES


def is_tar_name(name: str) -> bool:
    """Return whether a file name has the ending of a tar, in upper or lower case."""
    return name.lower().endswith(TAR_ENDINGS)


def readable_name(name: str) -> str:
    """Return a file name with the bytes that are not valid UTF-8 shown as `\\xNN`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
