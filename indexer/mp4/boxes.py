"""Boxes of an ISO BMFF file (ISO/IEC 14496-12 4.2): iterators over the boxes in a file or in bytes already read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MAX_BOXES = 100_000  # a top level or a moov with more boxes is an attack, not a video

Read = Callable[[int, int], bytes]  # (offset, length) → that many bytes of the file, or fewer at its end
Span = tuple[int, int]  # start and end of a box's payload, half-open


class TruncatedError(ValueError):
    """A box or element claims bytes past the end of the file."""


class UntrustedTables(ValueError):  # noqa: N818 - it says what was found, as a reason for a refusal
    """The sample tables are malformed, or contain something whose exact meaning only a demuxer can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One ISO BMFF box (ISO/IEC 14496-12 4.2): its four-character type, and where its payload lies (half-open)."""

    kind: bytes
    start: int
    end: int


def iter_boxes(read: Read, start: int, end: int, *, limit: int = MAX_BOXES) -> Iterator[Box]:
    """Yield at most `limit` boxes between two offsets of a file. Raises TruncatedError if a box does not fit."""
    for _ in range(limit):
        if start + 8 > end:
            return
        size, kind = struct.unpack(">I4s", read(start, 8))
        payload = start + 8
        if size == 1:
            size, payload = int.from_bytes(read(payload, 8), "big"), start + 16
        elif size == 0:
            size = end - start
        if size < payload - start:
            return  # padding or garbage after the last box is ignored, as players do
        if start + size > end:
            raise TruncatedError(
                f"box {kind.decode('latin-1')!r} at byte {start} ends at {start + size}, past the end at {end}"
            )
        yield Box(kind=kind, start=payload, end=start + size)
        start += size


def child_boxes(data: bytes, start: int, end: int) -> list[tuple[bytes, int, int]]:
    """Return (type, payload start, payload end) of the boxes inside data[start:end].

    Raises:
        UntrustedTables: if a box does not fit into its parent, or there are more than MAX_BOXES.
    """
    found: list[tuple[bytes, int, int]] = []
    while start + 8 <= end:
        size = int.from_bytes(data[start : start + 4], "big")
        payload = start + 8
        if size == 1:
            payload = start + 16
            size = int.from_bytes(data[start + 8 : payload], "big")
        elif size == 0:
            size = end - start
        if size < payload - start:
            break  # QuickTime ends some lists with four zero bytes; demuxers stop here, too
        if start + size > end:
            kind = data[start + 4 : start + 8].decode("latin-1")
            raise UntrustedTables(f"box {kind!r} of {size} bytes does not fit the {end - start} left in its parent")
        found.append((data[start + 4 : start + 8], payload, start + size))
        if len(found) > MAX_BOXES:
            raise UntrustedTables(f"a box holds more than {MAX_BOXES} others")
        start += size
    return found
