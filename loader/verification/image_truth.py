"""Reads what a folder or a tar of images holds: the images in the order of their names, one by one.

Clips are compared with this, so it uses nothing of the index except where the medium is and which one it is.
"""

from __future__ import annotations

import os
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from framedex.errors import StaleError
from framedex.indexer.sources.sequences import group_names, visible_images
from framedex.sharder.clips.medium import Medium

Used = TypeVar("Used")
TAR = "tar"  # the value of `media.container`


def image_checksums(medium: Medium, wanted: Iterable[int]) -> dict[int, str] | None:
    """Return the CRC-32 of wanted images by their number, 8 hex digits each. See `images_of`."""
    return images_of(medium, wanted, lambda data: f"{zlib.crc32(data):08x}")


def images_of(medium: Medium, wanted: Iterable[int], use: Callable[[bytes], Used]) -> dict[int, Used] | None:
    """Return what `use` makes of the wanted images, by their number; a medium may lack some.

    Returns:
        The results. None: a listing made the sequence, and nothing else records its order.

    Raises:
        StaleError: the images are missing, or their number is not the indexed one.
    """
    try:
        if medium.container == TAR:
            with tarfile.open(medium.path, "r:", errors="surrogateescape") as tar:
                return _used(medium, wanted, *_in_tar(tar, medium.member), use)
        if not os.path.isdir(medium.path):
            return _used(medium, wanted, [medium.path], _read, use)
        if medium.member is not None:
            return None
        with os.scandir(medium.path) as entries:
            names = visible_images(entry.name for entry in entries if not entry.is_dir())
        return _used(medium, wanted, list(names), lambda name: _read(os.path.join(medium.path, name)), use)
    except (OSError, tarfile.TarError) as error:
        raise _stale(medium, str(error)) from error


def _read(path: str) -> bytes:
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()


def _in_tar(tar: tarfile.TarFile, member: str | None) -> tuple[list[str], Callable[[str], bytes]]:
    """Return the names that make up a member of a tar, in order, and a function that reads one of them."""
    entries = {posixpath.normpath(entry.name): entry for entry in tar.getmembers() if entry.isfile()}
    images = visible_images(name for name in entries if posixpath.basename(name)[:1] != ".")
    names = group_names(images).get(member or "", [member] if member in images else [])

    def read(name: str) -> bytes:
        file = tar.extractfile(entries[name])
        assert file is not None  # a regular file
        return file.read()

    return names, read


def _used(
    medium: Medium,
    wanted: Iterable[int],
    names: list[str],
    read: Callable[[str], bytes],
    use: Callable[[bytes], Used],
) -> dict[int, Used]:
    if len(names) != medium.frame_count:
        raise _stale(medium, f"{len(names)} images")
    return {number: use(read(names[number])) for number in sorted(wanted) if 0 <= number < len(names)}


def _stale(medium: Medium, found: str) -> StaleError:
    return StaleError(
        "the source does not hold the images that were indexed",
        where=medium.path if medium.member is None else f"{medium.path}, {medium.member}",
        found=found,
        allowed=f"{medium.frame_count} images",
        remedy="index and shard again, or point root at where the sources moved",
    )
