"""The packets of a medium: a row of `frames` in an index, and the same packets in memory, where they have offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import ColumnRule
from framedex.records.clip import NO_PTS
from framedex.records.columns import column, list_of
from framedex.records.medium import MOST_FRAMES, TIME

AUDIO = "audio_"  # prefix of the columns of audio packets
UNREAD = -1  # flags that were not read
SIZE = ColumnRule(least=0, most=MOST_FRAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketRecord:
    """A row of `frames` without audio: lists in decode order, an element for each packet.

    Attributes:
        pts: Presentation timestamp of each packet, in decode order; null on packets that present nothing.
        gap: How far behind the end of the packet before (the first: behind the beginning of the file) each packet's
            bytes begin; null where packets are not one range of the file each. Offset n is the sum of gaps 0 … n and
            sizes 0 … n - 1.
        size: How many bytes each packet has.
        flags: Bits: 1 closed start point; 2 open start point; 4 non-reference (no other packet needs it); 8 leading
            (decodable only from the start point before its own); 16 hidden (decoded, cut away by an edit list or by the
            end of a sequence); 32 skipped (decoders output nothing for it); 64 field-coded; 128 continues the picture
            of the packet before it (a second field); 256 in a damaged GOP; 512 reset (no decoder session may run over
            this start point); 1024 stated (the sample table calls it a start point, and it was not looked at: it may be
            an open one); 2048 carries parameter sets that differ from those in force (never left out); 4096 not
            reproducible (with 256: some frame of the GOP differs when it is reached as a clip reaches it). Null: not
            read (depth `tables`).
        slots: In AV1 and HEVC, bits 0 to 7 are the reference slots that the packet's frames use, as they are before the
            packet (slots of HEVC are numbered by the index, not by the stream); bits 8 to 15 are the slots that
            they refresh; bit 16 is set if both are known (if not, the packet may need every packet before it). Null:
            not read.
        start_state: For each start point in turn, which of `videos.states` a decoder must be given there; null: none of
            them needs any.
        md5: With --verify: MD5 over the native planes of each packet's picture, rows cropped to what is visible, then
            `{pixel format}{width}x{height}`; of an image, over the rows of its RGB bytes, then `rgb24{width}x{height}`;
            null where nothing is presented.
        path: The file of each loose image, relative to `videos.uri`.
        crc32: CRC-32 (ISO/IEC 8802-3) of each image's bytes.
    """

    pts: NDArray[np.int64] = column(
        list_of(pa.int64(), nullable=True), unit="time base", nullable=False, rule=TIME, padding=NO_PTS
    )
    gap: NDArray[np.int64] | None = column(list_of(pa.int64()), unit="bytes", rule=TIME)
    size: NDArray[np.int64] = column(list_of(pa.int32()), unit="bytes", nullable=False, rule=SIZE, dtype=np.int64)
    flags: NDArray[np.int32] = column(
        list_of(pa.int32(), nullable=True), nullable=False, rule=ColumnRule(least=0, most=8191), padding=UNREAD
    )
    slots: NDArray[np.int32] | None = column(list_of(pa.int32()), rule=ColumnRule(least=0, most=(1 << 17) - 1))
    start_state: NDArray[np.int32] | None = column(list_of(pa.int32()), rule=SIZE)
    md5: list[bytes | None] | None = column(list_of(pa.binary(16), nullable=True))
    path: list[str] | None = column(list_of(pa.string()))
    crc32: NDArray[np.int64] | None = column(list_of(pa.int64()), rule=ColumnRule(least=0, most=(1 << 32) - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPacketRecord:
    """The audio of a row of `frames`: columns with the prefix `audio_`.

    Attributes:
        sample: Position of each audio packet's first decoded sample on the grid of `videos.audio_first_sample`, in
            decode order; null without audio and where `videos.audio_problem` says why.
        gap: As `gap`, of audio packets; null where they are not one range of the file each.
        size: How many bytes each audio packet has.
    """

    sample: NDArray[np.int64] | None = column(list_of(pa.int64()), unit="samples", rule=TIME)
    gap: NDArray[np.int64] | None = column(list_of(pa.int64()), unit="bytes", rule=TIME)
    size: NDArray[np.int64] | None = column(list_of(pa.int32()), unit="bytes", rule=SIZE, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketColumns:
    """The packets of a medium in decode order, in columns of n packets.

    Attributes:
        pts: int64 [n]; masked elements are null.
        offset: int64 [n]. None: packets are not one byte range of the file each.
        size: int64 [n].
        flags: int32 [n]; masked elements are null.
        slots: int32 [n]. None: not read.
        start_state: int32 [starts].
        md5: with --verify: 16 bytes or None for each packet.
        crc32: int64 [n]; None for videos.
        path: n names of loose images; None for other media.
    """

    pts: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]
    flags: NDArray[np.int32]
    slots: NDArray[np.int32] | None = None
    start_state: NDArray[np.int32] | None = None
    md5: Sequence[bytes | None] | None = None
    crc32: NDArray[np.int64] | None = None
    path: Sequence[str] | None = None


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


def gaps_of(offset: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the `frames.gap` column, int64 [packets]: each packet's distance from the end of the packet before it."""
    ends = offset + size
    return offset - np.append(np.int64(0), ends[:-1])


def offsets_of(gap: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 [packets]: the offset at which each packet begins."""
    ends: NDArray[np.int64] = np.cumsum(gap + size)
    return ends - size
