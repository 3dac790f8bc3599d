"""Memory for pictures: checks that this machine has enough of it, and keeps what is freed."""

from __future__ import annotations

import functools
import os

import numpy as np

from framedex.errors import DecodeError

GIBIBYTE = 1 << 30
KEPT_BYTES = 31 << 20  # below the 32 MiB up to which glibc adapts (mallopt(3), M_MMAP_THRESHOLD)


@functools.cache
def machine_bytes() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
