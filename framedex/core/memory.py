"""Memory for what a row asks for: looked at before it is taken."""

from __future__ import annotations

import functools
import os

from framedex.errors import DecodeError

GIBIBYTE = 1 << 30


@functools.cache
def machine_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_room(size_bytes: int, what: str, *, where: str, remedy: str | None = None) -> None:
    """Raise DecodeError for what needs more memory than this machine has. what: in words, with its numbers."""
    if size_bytes > machine_bytes():
        raise DecodeError(
            "needs more memory than this machine has",
            where=where,
            found=f"{what}: {size_bytes / GIBIBYTE:,.1f} GiB",
            allowed=f"{machine_bytes() / GIBIBYTE:,.1f} GiB",
            remedy=remedy,
        )
