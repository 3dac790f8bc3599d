"""The packets of one medium: a row of `frames` as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt
from framedex.indexer.parts.row_checks import check_audio_packets, check_packets
from framedex.indexer.timeline import START, STATED, USED_SHIFT
from framedex.records.columns import columns_of, values_of_row
from framedex.records.packets import AUDIO, UNREAD, AudioPacketRecord, AudioPackets, PacketRecord, offsets_of

VIDEO_COLUMNS = tuple(columns_of(PacketRecord))
AUDIO_COLUMNS = tuple(AUDIO + name for name in columns_of(AudioPacketRecord))


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


def packets_of(record: pa.RecordBatch, at: RowAt) -> Packets:
    """Return the packets of a row of `frames`. Raises FormatError if its lists do not belong together."""
    row = values_of_row(PacketRecord, record, at)
    is_read = row["flags"] != UNREAD
    stored = np.where(is_read, row["flags"], 0)
    flags, looked_at = stored & ~STATED, (stored & STATED) == 0
    check_packets(row | {"flags": flags}, at)
    if row["slots"] is not None:
        flags |= row["slots"] << USED_SHIFT
    size, gap = row["size"], row["gap"]
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


def audio_packets_of(record: pa.RecordBatch, at: RowAt) -> AudioPackets | None:
    """Return the audio packets of a row of `frames`, or None if it has none.

    Raises:
        FormatError: if its lists do not belong together.
    """
    row = values_of_row(AudioPacketRecord, record, at, prefix=AUDIO)
    sample, gap, size = row["sample"], row["gap"], row["size"]
    if sample is None:
        return None
    if size is None:
        raise at.wrong("audio_size", "null", "a list")
    check_audio_packets({AUDIO + name: value for name, value in row.items()}, at)
    return AudioPackets(sample=sample, offset=None if gap is None else offsets_of(gap, size), size=size)
