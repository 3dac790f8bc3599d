"""The recorded file or object that byte ranges point into."""

from __future__ import annotations

from dataclasses import dataclass

from framedex.errors import StaleError

CONTENT_ALONE = -1  # there is no modification time: only its content says whether a file is the one recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSource:
    """A file that byte ranges point into, as it was recorded. `mtime_ns` may be `CONTENT_ALONE`."""

    path: str
    size_bytes: int
    mtime_ns: int
    fingerprint: str


def stale(where: str, found: str, allowed: str | None = None) -> StaleError:
    """Return the error for a file that is not the one recorded."""
    return StaleError(
        "the source is not the file that was indexed",
        where=where,
        found=found,
        allowed=allowed,
        remedy="index and shard again, or point root at where the sources moved",
    )
