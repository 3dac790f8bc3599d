"""PNG (ISO/IEC 15948): pictures of indexed colours that rely on the palette of one before them."""

from __future__ import annotations

from framedex.indexer.bitstream.tables import TableScanner, Uses

SIGNATURE = b"\x89PNG\r\n\x1a\n"
INDEXED = 3  # colour type, 11.2.2
COLOUR_TYPE = 9  # its place in IHDR


class PngScanner(TableScanner):
    """Scans PNG pictures. FFmpeg's decoder keeps a palette until another one comes."""

    @staticmethod
    def uses(data: bytes) -> Uses:
        """Return whether a picture brings a palette, and whether it lacks one."""
        found = Uses()
        at, colour_type = len(SIGNATURE), 0
        while at + 8 <= len(data):
            size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
            if kind == b"IHDR":
                colour_type = data[at + 8 + COLOUR_TYPE] if at + 8 + COLOUR_TYPE < len(data) else 0
            elif kind == b"PLTE":
                found.brings.add(kind)
            elif kind == b"IDAT":
                break
            at += 12 + size
        if colour_type == INDEXED:
            found.use(b"PLTE")
        return found
