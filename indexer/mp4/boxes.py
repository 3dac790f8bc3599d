"""Boxes of an ISO BMFF file (ISO/IEC 14496-12 4.2), and detection of files that are cut off.

Boxes are read from a file or from bytes that were read before. Some containers state where they end, so that headers
alone show whether a file is cut off.
"""

import struct
from collections.abc import Callable, Iterator

MAX_BOXES = 1_000_000  # at the top level, where a fragment has two boxes
MAX_CHILDREN = 100_000  # a box with more children is an attack, not a video
SEGMENT_ID = 0x18538067  # Matroska's Segment (RFC 9559 5.1)
# ISO/IEC 13818-1; M2TS has 4 bytes before each packet, DVB-ASI 16 bytes after it.
TS_SYNC, TS_PACKET_SIZES = 0x47, (188, 192, 204)
FLV_TAG_HEADER = 11  # bytes; Adobe FLV 10.1 E.4.1

Read = Callable[[int, int], bytes]  # (offset, length) → that many bytes of the file, or fewer at its end
Span = tuple[int, int]  # start and end of a box's payload, half-open
Box = tuple[bytes, int, int]  # four-character type, start and end of the payload (ISO/IEC 14496-12 4.2)


class TruncatedError(ValueError):
    """A box or element claims bytes past the end of the file."""


class UntrustedTables(ValueError):  # noqa: N818 - the name states the reason for a refusal
    """The sample tables are malformed, or only a demuxer knows their exact meaning."""


def iter_boxes(read: Read, start: int, end: int) -> Iterator[Box]:
    """Yield (type, payload start, payload end) of at most MAX_BOXES boxes between two offsets of a file.

    Raises:
        TruncatedError: if a box does not fit, or the file ends within a header.
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
            return  # like players, ignore padding or garbage after the last box
        if start + size > end:
            raise TruncatedError(
                f"box {kind.decode('latin-1')!r} at byte {start} ends at {start + size}, past the end at {end}"
            )
        yield kind, payload, start + size
        start += size


def read_exactly(read: Read, offset: int, length: int) -> bytes:
    """Return `length` bytes of a file. Raises TruncatedError if the file ends before."""
    data = read(offset, length)
    if len(data) != length:
        raise TruncatedError(f"the file has {len(data)} of {length} bytes at byte {offset}")
    return data


def child_boxes(data: bytes, start: int, end: int) -> list[Box]:
    """Return (type, payload start, payload end) of the boxes inside data[start:end].

    Raises:
        UntrustedTables: if a box does not fit into its parent, or there are more than MAX_CHILDREN.
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
            break  # QuickTime ends some lists with four zero bytes; demuxers stop here, too
        if start + size > end:
            kind = data[start + 4 : start + 8].decode("latin-1")
            raise UntrustedTables(f"box {kind!r} of {size} bytes does not fit the {end - start} left in its parent")
        found.append((data[start + 4 : start + 8], payload, start + size))
        if len(found) > MAX_CHILDREN:
            raise UntrustedTables(f"a box holds more than {MAX_CHILDREN} others")
        start += size
    return found


def mp4_ending(read: Read, size: int) -> str | None:
    """Return a message if a box claims bytes past the end of the file, or None."""
    try:
        for _ in iter_boxes(read, 0, size):
            pass
    except TruncatedError as error:
        return str(error)
    return None


def matroska_ending(read: Read, size: int) -> str | None:
    """Return how the Segment element (RFC 9559 5.1) exceeds the file, or None. An unknown size (live) is accepted."""
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
                return f"the Segment claims {payload + claimed} bytes, the file has {size}"
            return None
        at = payload + claimed
    return None


def _vint_length(first: bytes) -> int:
    """Return the length in bytes of the EBML number that begins with `first` (RFC 8794 4), 0 if there is none."""
    return 9 - first[0].bit_length() if first and first[0] else 0


def avi_ending(read: Read, size: int) -> str | None:
    """Return how the list of packets exceeds the file, or None.

    A size of 0 or all ones is accepted: recorders that were stopped leave such a size.
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
            return f"the movi list ends at {end}, past the end at {size}" if stated and end > size + 1 else None
        at += 8 + length + length % 2
    return None


def flv_ending(read: Read, size: int) -> str | None:
    """Return a message if the last tag is incomplete, or None if it agrees with the size that must follow it."""
    if size < FLV_TAG_HEADER + 4:
        return None
    length = int.from_bytes(read(size - 4, 4), "big")
    stated = int.from_bytes(read(size - 4 - length + 1, 3), "big") if length < size - 4 else -1
    is_whole = length >= FLV_TAG_HEADER and stated == length - FLV_TAG_HEADER
    return None if is_whole else "the last tag is incomplete"


def transport_stream_ending(read: Read, size: int) -> str | None:
    """Return how many bytes an incomplete last packet has, or None if whole packets fill the file."""
    head = read(0, 5 * max(TS_PACKET_SIZES))
    for length in TS_PACKET_SIZES:
        lead = 4 if length == 192 else 0
        if len(head) > lead + 3 * length and all(head[lead + length * n] == TS_SYNC for n in range(4)):
            return f"the last packet has {size % length} of {length} bytes" if size % length else None
    return None


ENDINGS = {
    "mp4": mp4_ending,
    "matroska": matroska_ending,
    "avi": avi_ending,
    "flv": flv_ending,
    "mpegts": transport_stream_ending,
}
