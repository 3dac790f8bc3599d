"""The packets of one medium: a row of `frames` as numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.arrays import as_numpy
from framedex.core.column_rules import RowAt, check_row, reading
from framedex.indexer.parts.layout import REMEDY
from framedex.indexer.parts.row_checks import check_audio_packets, check_packets
from framedex.indexer.schema import FRAME_RULES
from framedex.indexer.timeline import START, STATED, USED_SHIFT
from framedex.records.clip import NO_PTS

VIDEO_COLUMNS = ("pts", "gap", "size", "flags", "slots", "start_state", "md5", "path", "crc32")
AUDIO_COLUMNS = ("audio_sample", "audio_gap", "audio_size")
UNREAD = -1  # in place of flags that were not read
NULLS = {"pts": NO_PTS, "flags": UNREAD}  # what stands for null in lists that may hold it


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """The packets of one medium in decode order: a row of `frames` as numpy columns.

    Attributes:
        pts: int64 [packets], `timeline.NO_PTS` where null.
        offset: int64 [packets], None if the medium is not addressable by bytes.
        size: int64 [packets].
        flags: int32 [packets], 0 where not read, with the bits of `slots` as in `timeline.packet_flags`.
        read: bool [packets], whether flags were read.
        state: int32 [packets], which of the medium's decoder states a start point needs.
        md5: 16 bytes or None for each packet, or None for all.
        path: the file of each packet for loose images, else None.
        crc32: int64 [packets] for images, else None.
    """

    pts: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]
    flags: NDArray[np.int32]
    read: NDArray[np.bool_]
    state: NDArray[np.int32]
    md5: list[bytes | None] | None = None
    path: list[str] | None = None
    crc32: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.pts, self.size, self.flags, self.read, self.state)}
        lengths |= {len(column) for column in (self.offset, self.md5, self.path, self.crc32) if column is not None}
        if len(lengths) != 1:
            raise ValueError(f"packet columns of different lengths: {sorted(lengths)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPackets:
    """The audio packets of one medium in decode order, columns int64 [packets].

    Attributes:
        sample: position of each packet's first decoded sample, sample n being at n / `videos.audio_rate` seconds. It
            counts all samples that the packet is coded to hold: a decoder that trims by itself (Opus' pre-skip) must be
            told not to.
        offset: None if packets are not one range of the file each.
        size: in bytes.
    """

    sample: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.sample, self.offset, self.size) if column is not None}
        if len(lengths) != 1:
            raise ValueError(f"audio packet columns of different lengths: {sorted(lengths)}")


def lists_of(record: pa.Table, columns: Sequence[str], at: RowAt) -> dict[str, Any]:
    """Return the lists of the one row of `record`, checked against `FRAME_RULES`.

    Returns:
        By column, a numpy array, a Python list for texts and hashes, or None where the list is null. Flags that were
        not read are UNREAD, and timestamps that are null are NO_PTS.
    """
    row: dict[str, Any] = {}
    for name in columns:
        column = record[name].combine_chunks()
        if column.null_count:
            row[name] = None
            continue
        values = column.flatten()
        if name in ("md5", "path"):
            with reading(f"{at.file}, row {at.row}, column {name}", REMEDY):
                row[name] = column[0].as_py()
            continue
        if values.null_count and name not in NULLS:
            raise at.wrong(name, "null", "a value for each packet")
        known = as_numpy(values.drop_null())
        check_row({name: known}, {name: FRAME_RULES[name]}, at)
        row[name] = as_numpy(values.fill_null(NULLS[name])) if values.null_count else known
    return row


def packets_of(row: dict[str, Any], at: RowAt) -> Packets:
    """Return the packets of a row of `frames`. Raises FormatError if its lists do not belong together."""
    for name in ("pts", "size", "flags"):
        if row[name] is None:
            raise at.wrong(name, "null", "a list")
    is_read = row["flags"] != UNREAD
    stored = np.where(is_read, row["flags"], 0).astype(np.int32)
    flags, looked_at = stored & ~STATED, (stored & STATED) == 0
    check_packets(row | {"flags": flags}, at)
    if row["slots"] is not None:
        flags |= row["slots"].astype(np.int32) << USED_SHIFT
    size, gap = row["size"].astype(np.int64), row["gap"]
    state = np.zeros(len(flags), np.int32)
    if row["start_state"] is not None:
        state[np.flatnonzero(flags & START)] = row["start_state"]
    return Packets(
        pts=row["pts"],
        offset=None if gap is None else offsets_of(gap, size),
        size=size,
        flags=flags,
        read=is_read & looked_at,
        state=state,
        md5=row["md5"],
        path=row["path"],
        crc32=row["crc32"],
    )


def audio_packets_of(row: dict[str, Any], at: RowAt) -> AudioPackets | None:
    """Return the audio packets of a row of `frames`, or None if it has none.

    Raises:
        FormatError: if its lists do not belong together.
    """
    sample, gap, size = (row[name] for name in AUDIO_COLUMNS)
    if sample is None:
        return None
    if size is None:
        raise at.wrong("audio_size", "null", "a list")
    check_audio_packets(row, at)
    size = size.astype(np.int64)
    return AudioPackets(sample=sample, offset=None if gap is None else offsets_of(gap, size), size=size)


def gaps_of(offset: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the `frames.gap` column, int64 [packets]: each packet's distance from the end of the packet before it."""
    ends = offset + size
    return offset - np.append(np.int64(0), ends[:-1])


def offsets_of(gap: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 [packets]: the offset at which each packet begins."""
    ends: NDArray[np.int64] = np.cumsum(gap + size)
    return ends - size
