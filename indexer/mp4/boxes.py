"""Parsing of ISO BMFF boxes (ISO/IEC 14496-12 4.2), and detection of truncated files.

Boxes are parsed from a file or from a byte string in memory. Several container formats store the size of the file or
of its main element in headers. These headers alone show whether such a file is truncated.
"""

import collections
import struct
from collections.abc import Iterator

from framedex.storage.reader import Read

MAX_BOXES = 1_000_000  # maximum number of boxes at the top level of a file; each fragment has two of them
MAX_CHILDREN = 100_000  # maximum number of child boxes; a box with more is an attack, not a video
SEGMENT_ID = 0x18538067  # element ID of Matroska's Segment (RFC 9559 5.1)
# Sync byte and packet sizes of MPEG transport streams (ISO/IEC 13818-1). An M2TS packet has 4 more bytes at its front,
# a DVB-ASI packet 16 more bytes at its end.
TS_SYNC, TS_PACKET_SIZES = 0x47, (188, 192, 204)
FLV_TAG_HEADER = 11  # size of an FLV tag header in bytes (Adobe FLV 10.1 E.4.1)

Span = tuple[int, int]  # start and end of a box's payload, half-open
Box = tuple[bytes, int, int]  # four-character type, start and end of the payload (ISO/IEC 14496-12 4.2)


class TruncatedError(ValueError):
    """The size of a box or element exceeds the file."""


class UntrustedTables(ValueError):  # noqa: N818 - the name states the reason for a refusal
    """The sample tables are malformed, or it is uncertain how demuxers interpret them."""


def iter_boxes(read: Read, start: int, end: int) -> Iterator[Box]:
    """Yield (type, payload start, payload end) for each box from offset `start` to offset `end` of a file.

    At most MAX_BOXES boxes are yielded.

    Raises:
        TruncatedError: if a box extends past `end`, or the file ends within a box header.
    """
    for _ in range(MAX_BOXES):
        if start + 8 > end:
            return
        size, kind = struct.unpack(">I4s", read_exactly(read, start, 8))
        payload = start + 8
        if size == 1:
            size, payload = int.from_bytes(read_exactly(read, payload, 8), "big"), start + 16
        elif size == 0:
            size = end - start
        if size < payload - start:
            return  # padding or garbage after the last box, which players ignore, too
        if start + size > end:
            raise TruncatedError(
                f"box {kind.decode('latin-1')!r} at byte {start} ends at byte {start + size}, past the end at {end}"
            )
        yield kind, payload, start + size
        start += size


def read_exactly(read: Read, offset: int, length: int) -> bytes:
    """Return `length` bytes of a file from `offset` on. Raises TruncatedError if the file has fewer bytes there."""
    data = read(offset, length)
    if len(data) != length:
        raise TruncatedError(f"the file has only {len(data)} of the {length} bytes that begin at byte {offset}")
    return data


def child_boxes(data: bytes, start: int, end: int) -> list[Box]:
    """Return (type, payload start, payload end) for each box in data[start:end].

    Raises:
        UntrustedTables: if a box extends past its parent, or the parent has more than MAX_CHILDREN boxes.
    """
    found: list[Box] = []
    while start + 8 <= end:
        size = int.from_bytes(data[start : start + 4], "big")
        payload = start + 8
        if size == 1:
            payload = start + 16
            size = int.from_bytes(data[start + 8 : payload], "big")
        elif size == 0:
            size = end - start
        if size < payload - start:
            break  # the four zero bytes with which QuickTime ends some lists; demuxers end the list here, too
        if start + size > end:
            kind = data[start + 4 : start + 8].decode("latin-1")
            raise UntrustedTables(f"box {kind!r} has {size} bytes, but only {end - start} are left in its parent")
        found.append((data[start + 4 : start + 8], payload, start + size))
        if len(found) > MAX_CHILDREN:
            raise UntrustedTables(f"a box has more than {MAX_CHILDREN} child boxes")
        start += size
    return found


def mp4_ending(read: Read, size: int) -> str | None:
    """Return an error message if a box of an MP4 file extends past the end of the file, or None otherwise."""
    try:
        collections.deque(iter_boxes(read, 0, size), maxlen=0)  # reads every box
    except TruncatedError as error:
        return str(error)
    return None


def matroska_ending(read: Read, size: int) -> str | None:
    """Return an error message if the Segment element (RFC 9559 5.1) exceeds the file, or None otherwise.

    A Segment of unknown size, as in live streams, is accepted.
    """
    at = 0
    for _ in range(16):
        head = read(at, 16)
        id_length = _vint_length(head[:1])
        size_length = _vint_length(head[id_length : id_length + 1])
        if not id_length or not size_length:
            return None
        identifier = int.from_bytes(head[:id_length], "big")
        mask = (1 << 7 * size_length) - 1
        claimed = int.from_bytes(head[id_length : id_length + size_length], "big") & mask
        payload = at + id_length + size_length
        if identifier == SEGMENT_ID:
            if claimed != mask and payload + claimed > size:
                return f"the Segment ends at byte {payload + claimed}, but the file has {size} bytes"
            return None
        at = payload + claimed
    return None


def _vint_length(first: bytes) -> int:
    """Return the length in bytes of the EBML number whose first byte is `first` (RFC 8794 4), or 0 if it is invalid."""
    return 9 - first[0].bit_length() if first and first[0] else 0


def avi_ending(read: Read, size: int) -> str | None:
    """Return an error message if the `movi` list of an AVI file exceeds the file, or None otherwise.

    A list size of 0, or with all bits set, is accepted. Recorders that were interrupted leave such sizes.
    """
    at = 12
    for _ in range(64):
        head = read(at, 12)
        if len(head) < 12:
            return None
        length = int.from_bytes(head[4:8], "little")
        if head[:4] == b"LIST" and head[8:12] == b"movi":
            end = at + 8 + length
            stated = 0 < length < 0xFFFFFFF0
            return f"the movi list ends at byte {end}, past the end at {size}" if stated and end > size + 1 else None
        at += 8 + length + length % 2
    return None


def flv_ending(read: Read, size: int) -> str | None:
    """Return an error message if the last tag of an FLV file is incomplete, or None otherwise.

    A tag is complete if its size agrees with the PreviousTagSize field that follows it.
    """
    if size < FLV_TAG_HEADER + 4:
        return None
    length = int.from_bytes(read(size - 4, 4), "big")
    stated = int.from_bytes(read(size - 4 - length + 1, 3), "big") if length < size - 4 else -1
    is_whole = length >= FLV_TAG_HEADER and stated == length - FLV_TAG_HEADER
    return None if is_whole else "the last tag is incomplete"


def transport_stream_ending(read: Read, size: int) -> str | None:
    """Return an error message if the last packet of a transport stream is incomplete, or None otherwise."""
    head = read(0, 5 * max(TS_PACKET_SIZES))
    for length in TS_PACKET_SIZES:
        lead = 4 if length == 192 else 0
        if len(head) > lead + 3 * length and all(head[lead + length * n] == TS_SYNC for n in range(4)):
            return f"the last packet has only {size % length} of {length} bytes" if size % length else None
    return None


ENDINGS = {
    "mp4": mp4_ending,
    "matroska": matroska_ending,
    "avi": avi_ending,
    "flv": flv_ending,
    "mpegts": transport_stream_ending,
}
