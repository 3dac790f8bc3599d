"""Checks whether an image file is complete, from its bytes and without decoding it. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# In entropy-coded data, 0xFF is followed by 0x00 or a restart marker. Fill bytes may precede a marker (ITU-T T.81
# B.1.1).
JPEG_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])", re.DOTALL)
SOI, EOI, SOS, TEM = 0xD8, 0xD9, 0xDA, 0x01


def image_format(data: bytes) -> str | None:
    """Return the format of an image by its first bytes.

    Returns:
        `jpeg`, `png` or `webp`; `gif`, which is refused as such; None if it is no image.
    """
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == PNG_SIGNATURE:
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return "gif" if data[:6] in (b"GIF87a", b"GIF89a") else None


def jpeg_problem(data: bytes) -> str | None:
    """Return what is wrong with a JPEG's markers, or None.

    They must reach EOI; any bytes may follow it (ITU-T T.81 B.2).
    """
    at, scans = 2, 0
    whole = data.rstrip(b"\0").endswith(b"\xff\xd9")  # as nearly all files are: no need to search their scans
    while match := JPEG_MARKER.search(data, at):
        marker, at = match[1][0], match.end()
        if marker == EOI:
            return None if scans else "it ends before its first scan"
        if marker in (SOI, TEM):
            continue
        length = int.from_bytes(data[at : at + 2], "big")
        if length < 2:
            return f"the segment at byte {match.start()} has no length"
        scans += marker == SOS
        at += length
        if marker == SOS and at < len(data) and whole:
            return None
    return "it has no end marker"


def png_problem(data: bytes) -> str | None:
    """Return what is wrong with a PNG's chunks, or None.

    Each chunk must have its CRC, and IEND must be present (ISO/IEC 15948, 5).
    """
    at, view = len(PNG_SIGNATURE), memoryview(data)
    while at + 12 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(data):
            return f"it ends in the chunk at byte {at}"
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return f"the chunk at byte {at} has a wrong CRC"
        if kind == b"IEND":
            return None
        at = end + 4
    return "it has no IEND chunk"


def webp_problem(data: bytes) -> str | None:
    """Return what is missing from a WebP file, or None. Its RIFF chunk states its size (RFC 9649, 2.4)."""
    stated = int.from_bytes(data[4:8], "little") + 8
    return f"it states {stated} bytes, and has {len(data)}" if stated > len(data) else None


PROBLEMS: dict[str, Callable[[bytes], str | None]] = {
    "jpeg": jpeg_problem,
    "png": png_problem,
    "webp": webp_problem,
}
