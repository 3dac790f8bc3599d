"""What a container's own structure says before any decoder sees it: is the file whole, and how many edits has it.

Reads box and element headers only, a few hundred bytes of any file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from framedex.indexer import boxes
from framedex.indexer.boxes import Box, TruncatedError

__all__ = ["Box", "TruncatedError", "check_whole", "iter_boxes", "media_edits"]

MAX_EDIT_BOX_BYTES = 1 << 20
SEGMENT_ID = 0x18538067


def iter_boxes(file: BinaryIO, start: int, end: int) -> Iterator[Box]:
    """Yield the boxes between two offsets. Raises TruncatedError where one does not fit."""

    def read(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(length)

    return boxes.iter_boxes(read, start, end)


def check_whole(path: str, container: str) -> None:
    """Raise TruncatedError when a Matroska or ISO BMFF file is shorter than its own structure says."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if container == "matroska":
            _check_segment(file, size)
        else:
            for _ in iter_boxes(file, 0, size):
                pass


def media_edits(path: str) -> dict[int, int]:
    """Return, for an ISO BMFF file, track id → number of edits that show media (empty edits not counted)."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        moov = next((box for box in iter_boxes(file, 0, size) if box.kind == b"moov"), None)
        if moov is None:
            return {}
        tracks = [box for box in iter_boxes(file, moov.start, moov.end) if box.kind == b"trak"]
        return dict(_track_edits(file, track) for track in tracks)


def _track_edits(file: BinaryIO, track: Box) -> tuple[int, int]:
    track_id, edits = 0, 0
    for box in iter_boxes(file, track.start, track.end):
        if box.kind == b"tkhd":
            head = _head(file, box, 24)
            track_id = int.from_bytes(head[20:24] if head[0] == 1 else head[12:16], "big")
        elif box.kind == b"edts":
            for child in iter_boxes(file, box.start, box.end):
                if child.kind == b"elst":
                    edits = _count_edits(_head(file, child, MAX_EDIT_BOX_BYTES))
    return track_id, edits


def _head(file: BinaryIO, box: Box, size: int) -> bytes:
    """Return up to `size` bytes of a full box's payload. Raises TruncatedError where version and flags do not fit."""
    file.seek(box.start)
    head = file.read(min(box.end - box.start, size))
    if len(head) < 4:
        raise TruncatedError(f"box {box.kind.decode('latin-1')!r} at byte {box.start - 8} has no version")
    return head


def _count_edits(payload: bytes) -> int:
    """Count the entries of an elst box (8.6.6) whose media_time is not -1."""
    entry = struct.Struct(">QqI" if payload[0] == 1 else ">IiI")
    count = int.from_bytes(payload[4:8], "big")
    available = min(count, (len(payload) - 8) // entry.size)
    return sum(entry.unpack_from(payload, 8 + number * entry.size)[1] != -1 for number in range(available))


def _check_segment(file: BinaryIO, size: int) -> None:
    """Compare the Segment element (RFC 9559 5.1) with the file; an unknown size (live recording) is accepted."""
    at = 0
    for _ in range(16):
        file.seek(at)
        head = file.read(16)
        id_length = _vint_length(head[:1])
        size_length = _vint_length(head[id_length : id_length + 1])
        if not id_length or not size_length:
            return
        identifier = int.from_bytes(head[:id_length], "big")
        mask = (1 << 7 * size_length) - 1
        claimed = int.from_bytes(head[id_length : id_length + size_length], "big") & mask
        payload = at + id_length + size_length
        if identifier == SEGMENT_ID:
            if claimed != mask and payload + claimed > size:
                raise TruncatedError(f"the Segment claims {payload + claimed} bytes, the file has {size}")
            return
        at = payload + claimed


def _vint_length(first: bytes) -> int:
    """Return the length in bytes of the EBML number that starts with `first` (RFC 8794 4), 0 if it is none."""
    return 9 - first[0].bit_length() if first and first[0] else 0
