"""Checks that this machine has enough memory before large arrays are allocated."""

from __future__ import annotations

import functools
import os

from framedex.errors import DecodeError

GIBIBYTE = 1 << 30


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
