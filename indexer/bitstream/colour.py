"""The colour part of video usability information, the same bits in H.264 (E.1.1) and HEVC (E.2.1)."""

from __future__ import annotations

from framedex.indexer.bitstream.bits import BitReader

EXTENDED_SAR = 255
UNSPECIFIED = 2  # code point of primaries, transfer characteristics and matrix that are not stated
NO_COLOUR = [0, UNSPECIFIED, UNSPECIFIED, UNSPECIFIED]


def parse_colour(bits: BitReader) -> list[int]:
    """Return [full range, primaries, transfer characteristics, matrix] from the beginning of vui_parameters()."""
    if bits.flag() and bits.u(8) == EXTENDED_SAR:
        bits.u(32)
    if bits.flag():
        bits.flag()
    if not bits.flag():
        return NO_COLOUR
    bits.u(3)
    full_range = bits.u(1)
    return [full_range, *((bits.u(8), bits.u(8), bits.u(8)) if bits.flag() else NO_COLOUR[1:])]
