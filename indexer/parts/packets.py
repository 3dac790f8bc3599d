"""Read the packets of one medium, a row of the table `frames`, as numpy columns.

Functions here also check that the columns of a row of `frames`, or of a usable row of `videos`, agree with each other.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt
from framedex.indexer.timeline import START, STATED, USED_SHIFT
from framedex.records import medium
from framedex.records.clip import AUDIO
from framedex.records.columns import Row, columns_of, values_of, values_of_row

PER_PACKET = ("gap", "size", "flags", "slots", "md5", "path", "crc32")


def check_video(row: Row, at: RowAt) -> None:
    """Check that the columns of a usable row of `videos` or `media` agree. Raises FormatError if they do not."""
    if row["width"] * row["height"] > medium.MAX_PIXELS:
        raise at.wrong("width", f"{row['width']} × {row['height']} pixels", f"up to {medium.MAX_PIXELS:,} in all")
    if not row["states"] or None in row["states"]:
        raise at.wrong("states", row["states"], "one or more states, none of which is null")
    if row["audio_stream_index"] is not None and row["audio_problem"] is None:
        for name in ("codec", "rate", "channels", "layout", "first_sample", "end_sample"):
            if row[f"audio_{name}"] is None:
                raise at.wrong(f"audio_{name}", "null", "a value, because the medium has audio")
        if row["audio_end_sample"] < row["audio_first_sample"]:
            raise at.unlike("audio_end_sample", "audio_first_sample", str(row["audio_end_sample"]))


def check_packets(row: Row, at: RowAt) -> None:
    """Check that the lists in a row of `frames` agree with each other.

    The values of timestamps are not checked, because no other column of the row depends on them.

    Args:
        row: The lists by column name, as numpy arrays or Python lists. A list is None if its column is null.
        at: The position of the row, for the error message.

    Raises:
        FormatError: The lists have different lengths, or an offset in the file is negative or too large.
    """
    _same_length(row, "pts", PER_PACKET, at)
    if row["start_state"] is not None:
        starts = int(np.count_nonzero(row["flags"] & START))
        if len(row["start_state"]) != starts:
            raise at.unlike("start_state", "flags", f"{len(row['start_state'])} for {starts} random access points")
    if row["gap"] is not None:
        _check_offsets(row["gap"], row["size"], "gap", at)


def check_audio_packets(row: Row, at: RowAt) -> None:
    """Check that the lists of audio packets in a row of `frames` agree. Raises FormatError if they do not."""
    _same_length(row, "audio_sample", ("audio_gap", "audio_size"), at)
    if (row["audio_sample"][1:] < row["audio_sample"][:-1]).any():
        raise at.wrong("audio_sample", "descending positions", "ascending positions")
    if row["audio_gap"] is not None:
        _check_offsets(row["audio_gap"], row["audio_size"], "audio_gap", at)


def _check_offsets(gap: NDArray[np.int64], size: NDArray[np.int64], name: str, at: RowAt) -> None:
    """Check that no packet begins at a negative offset in the file, or at an offset that is too large for any file.

    Args:
        gap: The distance of each packet's beginning from the end of the packet before, in bytes.
        size: The size of each packet in bytes.
        name: The name of the column with the gaps.
        at: The position of the row, for the error message.
    """
    begins = np.cumsum(gap.astype(np.float64) + size) - size
    if len(begins) and not 0 <= begins.min() <= begins.max() <= float(1 << 61):
        raise at.wrong(name, "packets that begin before their file, or after the end of any file")


def _same_length(row: Row, name: str, others: tuple[str, ...], at: RowAt) -> None:
    for other in others:
        if row[other] is not None and len(row[other]) != len(row[name]):
            raise at.unlike(other, name, f"{len(row[other])} elements for {len(row[name])}")


VIDEO_COLUMNS = tuple(columns_of(medium.PacketRecord))
AUDIO_COLUMNS = tuple(AUDIO + name for name in columns_of(medium.AudioPacketRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets(medium.PacketArrays):
    """The packets of one medium in decode order: a row of `frames` as numpy columns.

    `pts` is `NO_PTS` where a timestamp is missing. `flags` include the bits of the column `slots`, as in
    `timeline.packet_flags`. For packets whose headers have not been read, only flags that the sample tables state are
    set.

    Attributes:
        read: bool [packets], whether the header of the packet has been read.
        state: int32 [packets], the number of the decoder state that a random access point needs. 0 for other packets.
    """

    read: NDArray[np.bool_]
    state: NDArray[np.int32]

    def __post_init__(self) -> None:
        lengths = {len(column) for column in values_of(self).values() if column is not None}
        if len(lengths) != 1:
            raise ValueError(f"packet columns of different lengths: {sorted(lengths)}")


def packets_of(record: pa.RecordBatch, at: RowAt) -> Packets:
    """Return the packets in a row of `frames`.

    Args:
        record: The row, as a batch of length 1.
        at: The position of the row, for error messages.

    Raises:
        FormatError: The lists of the row do not agree with each other.
    """
    row = values_of_row(medium.PacketRecord, record, at)
    is_read = row["flags"] != medium.UNREAD
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
        offset=None if gap is None else medium.offsets_of(gap, size),
        size=size,
        flags=flags,
        read=is_read & looked_at,
        state=state,
        md5=row["md5"],
        path=row["path"],
        crc32=row["crc32"],
    )


def audio_packets_of(record: pa.RecordBatch, at: RowAt) -> medium.AudioPackets | None:
    """Return the audio packets in a row of `frames`, or None if the medium has no audio.

    Args:
        record: The row, as a batch of length 1.
        at: The position of the row, for error messages.

    Raises:
        FormatError: The lists of the row do not agree with each other.
    """
    row = values_of_row(medium.AudioPacketRecord, record, at, prefix=AUDIO)
    sample, gap, size = row["sample"], row["gap"], row["size"]
    if sample is None:
        return None
    if size is None:
        raise at.wrong("audio_size", "null", "a list")
    check_audio_packets({AUDIO + name: value for name, value in row.items()}, at)
    return medium.AudioPackets(sample=sample, offset=None if gap is None else medium.offsets_of(gap, size), size=size)
