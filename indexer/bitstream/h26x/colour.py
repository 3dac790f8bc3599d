"""The colour part of video usability information, which is the same in H.264 (E.1.1) and HEVC (E.2.1)."""

from __future__ import annotations

from collections.abc import Iterable

from framedex.indexer.bitstream.base.bits import BitReader
from framedex.indexer.bitstream.base.pictures import BitstreamError

EXTENDED_SAR = 255
NOT_STATED = -1  # in place of the full range flag
UNSPECIFIED = 2  # code point of primaries, transfer characteristics and matrix that are not stated
NO_COLOUR = [NOT_STATED, UNSPECIFIED, UNSPECIFIED, UNSPECIFIED]


def parse_colour(bits: BitReader) -> list[int]:
    """Read vui_parameters() from its beginning up to the colour description, and return that.

    Returns:
        [full range or NOT_STATED, primaries, transfer characteristics, matrix].
    """
    if bits.flag() and bits.u(8) == EXTENDED_SAR:
        bits.u(32)
    if bits.flag():
        bits.flag()
    if not bits.flag():
        return NO_COLOUR
    bits.u(3)
    full_range = bits.u(1)
    return [full_range, *((bits.u(8), bits.u(8), bits.u(8)) if bits.flag() else NO_COLOUR[1:])]


def check_colours(shapes: Iterable[tuple[int, ...]]) -> None:
    """Raise BitstreamError if sequences state different colours.

    FFmpeg's decoders keep a colour until another one is stated, so a picture's colour depends on where decoding began.

    Args:
        shapes: shapes of the sequences, which end with their colours.
    """
    if len({shape[-len(NO_COLOUR) :] for shape in shapes}) > 1:
        raise BitstreamError("colour_change", "the colour that the stream states changes")
