"""What a file with several media holds: the members of a tar, or the values of a column of a Parquet file."""

from __future__ import annotations

from dataclasses import dataclass

from framedex.errors import MediaError
from framedex.storage.ranges import ByteRange

MOST_MEDIA = 10_000_000  # limits the memory that a malicious file takes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMember:
    """A video inside a file.

    Attributes:
        name: its name in the file.
        part: its bytes. None: it is no range of bytes, but a value of a compressed column.
        sidecars: the user's columns beside it, as JSON (`sidecars.sidecar_text`). None: none are read.
        remark: what is wrong with the sidecars, or that the file ends within it. None: nothing.
        error: why it must not be opened. None: it may be.
    """

    name: str
    part: ByteRange | None
    sidecars: str | None = None
    remark: str | None = None
    error: MediaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileImage:
    """An image inside a file.

    Attributes:
        name: its path in the file.
        offset: of its first byte in the file.
        size: in bytes.
        problem: why it is not usable as an image, or None.
    """

    name: str
    offset: int
    size: int
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """The media of a file in the order of the file.

    Attributes:
        images: the images.
        videos: the videos, each name once.
        damage: what is damaged or cut off in the file, or None.
    """

    images: list[FileImage]
    videos: list[FileMember]
    damage: str | None
