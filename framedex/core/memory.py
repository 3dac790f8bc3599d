"""Memory for pictures: checks that this machine has enough of it, and keeps what is freed."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError

GIBIBYTE = 1 << 30
KEPT_BYTES = 31 << 20  # below the 32 MiB up to which glibc adapts (mallopt(3), M_MMAP_THRESHOLD)
MOST_KEPT_BLOCKS = 256 << 20  # bytes, of arrays that glibc would return to the system

_free_blocks: dict[int, NDArray[np.uint8]] = {}


# Limits of a container, by version 2 and version 1 of control groups. A value may be a word, or more than there is.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
CLIP_SHARE = 4  # a clip may take one part in so many of the machine's memory


@functools.cache
def machine_bytes() -> int:
    """Return the memory of this machine in bytes, or that of the container in which this process runs."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(name).read_text(encoding="ascii")))
    return min(found)


def usual_clip_bytes() -> int:
    """Return the memory that the frames of one clip may take, unless the user chose another limit."""
    return machine_bytes() // CLIP_SHARE


def check_room(size_bytes: int, what: str, *, where: str, remedy: str | None = None) -> None:
    """Raise DecodeError if an array would need more memory than this machine has.

    Args:
        size_bytes: The memory that is needed.
        what: A description of what needs it, with its numbers.
        where: The clip or file, for the message.
        remedy: How to need less memory, for the message.
    """
    if size_bytes > machine_bytes():
        raise DecodeError(
            "needs more memory than this machine has",
            where=where,
            found=f"{what}: {size_bytes / GIBIBYTE:,.1f} GiB",
            allowed=f"{machine_bytes() / GIBIBYTE:,.1f} GiB",
            remedy=remedy,
        )


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep memory that pictures are freed from, for the next pictures.

    glibc returns the memory of a picture to the system when it is freed, and the system clears each page again for the
    next picture. On virtual machines, that takes longer than converting the picture. glibc adapts to blocks that are
    freed: it then keeps blocks of that size, and up to twice that size of free memory. So one block is allocated here,
    not touched, and freed. Other C libraries are not affected.
    """
    np.empty(KEPT_BYTES, np.uint8)


def pixel_array(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an uint8 array of a shape, with any content.

    Large arrays lie in memory that is kept when they and all their views are freed, and then used for the next ones, up
    to `MOST_KEPT_BLOCKS`. The system would clear 100 MB for each clip of 16 frames of 1080p.
    """
    size_bytes = math.prod(shape)
    if size_bytes <= KEPT_BYTES:
        return np.empty(shape, np.uint8)
    return np.asarray(_Loan(_block(size_bytes), shape))


class _Loan:
    """A block of memory in use: numpy's arrays refer to it, so that it goes when the last one goes."""

    def __init__(self, block: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        self._block = block
        where: tuple[int, bool] = (block.__array_interface__["data"][0], False)
        self.__array_interface__: dict[str, Any] = {"shape": shape, "typestr": "|u1", "data": where, "version": 3}

    def __del__(self, kept: dict[int, NDArray[np.uint8]] = _free_blocks, most: int = MOST_KEPT_BLOCKS) -> None:
        if self._block.nbytes + sum(block.nbytes for block in list(kept.values())) <= most:
            kept[id(self._block)] = self._block


def _block(size_bytes: int) -> NDArray[np.uint8]:
    """Return a free block, at most half of which would be unused, or a new one."""
    for key, block in list(_free_blocks.items()):
        if size_bytes <= block.nbytes <= 2 * size_bytes and _free_blocks.pop(key, None) is not None:
            return block
    _free_blocks.clear()  # pictures have another size now
    return np.empty(size_bytes, np.uint8)
