"""PNG (ISO/IEC 15948): indexed-colour pictures that rely on the palette of an earlier picture."""

from __future__ import annotations

from framedex.indexer.bitstream.intra.tables import TableScanner, Uses

SIGNATURE = b"\x89PNG\r\n\x1a\n"
INDEXED = bytes([3])  # colour type, 11.2.2
COLOUR_TYPE = 9  # its place in IHDR
MOST_PALETTE_BYTES = 3 * 256


class PngScanner(TableScanner):
    """Scans PNG pictures. FFmpeg's decoder keeps a palette until another one comes."""

    @staticmethod
    def uses(data: bytes) -> Uses:
        """Return whether a picture carries a palette, and whether it lacks one."""
        found, is_indexed = Uses(doubtful=True), False
        at = len(SIGNATURE)
        while at + 8 <= len(data):
            size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
            if kind == b"IHDR":
                is_indexed = data[at + 8 + COLOUR_TYPE : at + 9 + COLOUR_TYPE] == INDEXED
            elif kind == b"PLTE" and size % 3 == 0 and size <= MOST_PALETTE_BYTES:
                found.brings.add(kind)  # a palette after IDAT serves the pictures after this one
            elif kind == b"IDAT" and is_indexed:
                found.use(b"PLTE")
            elif kind == b"IEND":
                found.doubtful = at + 12 + size > len(data)
                break
            at += 12 + size
        return found
