"""How a file should end, for containers whose structure says it: is something cut off? Reads a few hundred bytes."""

from __future__ import annotations

import struct
from typing import BinaryIO

TS_SYNC, TS_PACKET_SIZES = 0x47, (188, 192, 204)  # ISO/IEC 13818-1; M2TS has 4 bytes before, DVB-ASI 16 behind
FLV_TAG_HEADER = 11  # bytes; Adobe FLV 10.1 E.4.1


def avi_ending(file: BinaryIO, size: int) -> str | None:
    """Return what the first RIFF chunk misses, or None. Recorders that were stopped leave 0 there, which says nothing."""
    head = file.read(8)
    if len(head) < 8 or head[:4] != b"RIFF":
        return None
    claimed = 8 + struct.unpack("<I", head[4:])[0]
    return f"the RIFF chunk ends at {claimed}, past the end at {size}" if claimed > size + 1 else None


def flv_ending(file: BinaryIO, size: int) -> str | None:
    """Return how the last tag contradicts the size that must follow it, or None."""
    if size < FLV_TAG_HEADER + 4:
        return None
    file.seek(size - 4)
    length = int.from_bytes(file.read(4), "big")
    begin = size - 4 - length
    if length >= FLV_TAG_HEADER and begin > 0:
        file.seek(begin)
        if int.from_bytes(file.read(4)[1:], "big") + FLV_TAG_HEADER == length:
            return None
    return "the last tag is incomplete"


def transport_stream_ending(file: BinaryIO, size: int) -> str | None:
    """Return how much of a last packet there is, or None where packets fill the file."""
    head = file.read(5 * max(TS_PACKET_SIZES))
    for length in TS_PACKET_SIZES:
        lead = 4 if length == 192 else 0
        if len(head) > lead + 3 * length and all(head[lead + length * n] == TS_SYNC for n in range(4)):
            return f"the last packet has {size % length} of {length} bytes" if size % length else None
    return None


ENDINGS = {"avi": avi_ending, "flv": flv_ending, "mpegts": transport_stream_ending}
