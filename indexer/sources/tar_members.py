"""Find the images in a tar, and where their bytes are. Nothing is ever unpacked."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from dataclasses import dataclass

from framedex.errors import MediaError
from framedex.indexer.sources.named_medium import is_image_name

BLOCK = 512
MOST_IMAGES = 10_000_000  # limits the memory that a malicious tar takes


@dataclass(frozen=True, slots=True, kw_only=True)
class TarImage:
    """An image in a tar.

    Attributes:
        name: its path in the tar.
        offset: of its first byte in the tar.
        size: in bytes.
        problem: why it is not usable as an image, or None.
    """

    name: str
    offset: int
    size: int
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TarImages:
    """The images of a tar in the order of the tar.

    Attributes:
        images: the images.
        truncation: what is damaged or cut off at the end of the tar, or None.
    """

    images: list[TarImage]
    truncation: str | None


def read_tar(descriptor: int, size_bytes: int) -> TarImages:
    """Read the headers of a tar: ustar, GNU or pax. Names are never looked up outside of the tar.

    Files of other kinds, hidden files and folders are skipped.

    Args:
        descriptor: the open tar.
        size_bytes: of the tar.

    Raises:
        MediaError: the file is not a tar, or holds more than `MOST_IMAGES` images.
    """
    images: list[TarImage] = []
    truncation = None
    with io.FileIO(descriptor, closefd=False) as raw, io.BufferedReader(raw, BLOCK * 16) as file:
        end = last = -1
        try:
            with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape", encoding="utf-8") as tar:
                while (member := tar.next()) is not None:
                    if member.offset <= last or member.size < 0:
                        raise tarfile.ReadError(f"the header at byte {member.offset} leads backwards")
                    last = member.offset
                    image = _image(member, size_bytes)
                    if image is not None:
                        images.append(image)
                    if len(images) > MOST_IMAGES:
                        raise MediaError("tar", f"the tar has more than {MOST_IMAGES} images", refused=True)
                    tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all members
                    end = tar.offset
        except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
            if last < 0:
                raise MediaError("not_media", f"is no tar: {error}") from error
            truncation = f"no member can be read behind the one at byte {last}: {error or type(error).__name__}"
    return TarImages(images=images, truncation=truncation or _ending(descriptor, end, size_bytes))


def _image(member: tarfile.TarInfo, size_bytes: int) -> TarImage | None:
    name = posixpath.normpath(member.name) if member.name else ""
    if member.isdir() or not is_image_name(name) or posixpath.basename(name)[:1] == ".":
        return None
    problem = None
    if member.issparse():
        problem = "is stored with holes"
    elif member.issym() or member.islnk():
        problem = "is a link"
    elif not member.isreg():
        problem = "is no file"
    size = member.size if problem is None else 0
    return TarImage(name=name, offset=min(member.offset_data, size_bytes), size=size, problem=problem)


def _ending(descriptor: int, end: int, size_bytes: int) -> str | None:
    """Return why the headers end at byte `end`, or None if the tar ends there.

    A tar ends at a block of zeros, or with its file.
    """
    if end > size_bytes:
        return f"it ends at byte {size_bytes}, within a member that goes to byte {end}"
    if end >= 0 and any(os.pread(descriptor, BLOCK, end)):
        return f"there is no member's header at byte {end}"
    return None
