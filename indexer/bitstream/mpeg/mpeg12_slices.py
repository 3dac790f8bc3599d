"""The slices of MPEG-1 and MPEG-2 pictures: which rows of macroblocks they begin in (13818-2, 6.1.2 and 6.3.16)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PICTURE, LAST_SLICE = 0x00, 0xAF  # start codes
HIGHEST_OF_ONE_BYTE = 2800  # lines; the rows of higher pictures need slice_vertical_position_extension


def macroblock_rows(height: int, *, progressive: bool, field: bool) -> int:
    """Return how many rows of macroblocks a coded picture has.

    Args:
        height: of frames, in lines.
        progressive: whether the sequence has no interlaced frames.
        field: whether the picture is a single field.
    """
    rows = -(-height // 16) if progressive else -(-height // 32) * 2
    return rows // 2 if field else rows


def start_codes(data: bytes) -> NDArray[np.uint8]:
    """Return uint8 [found]: the byte behind each start code prefix, in order."""
    raw = np.frombuffer(data, np.uint8)
    if len(raw) < 4:
        return raw[:0]
    places = np.flatnonzero((raw[:-3] | raw[1:-2]) == 0)
    places = places[raw[places + 2] == 1]
    codes: NDArray[np.uint8] = raw[places + 3]
    return codes


def slices_fit(codes: NDArray[np.uint8], rows: int, *, every_row: bool) -> bool:
    """Return whether the slices of each picture begin at its first row, go down, and end within it.

    Decoders reject a slice beyond the last row, and then lose the picture, or the one before it.

    Args:
        codes: the start codes of a packet, as `start_codes` returns them.
        rows: of macroblocks in each of its pictures.
        every_row: a slice begins in every row, as in MPEG-2. A slice of MPEG-1 may cover several.
    """
    is_slice = (codes > PICTURE) & (codes <= LAST_SLICE)
    row = codes[is_slice].astype(np.int64)
    if not len(row):
        return True
    picture = np.cumsum(codes == PICTURE)[is_slice]
    step = np.diff(row)
    same = np.diff(picture) == 0
    first, last = np.append(True, ~same), np.append(~same, True)
    return bool(
        picture[0] > 0
        and (row[first] == 1).all()
        and (step[same] >= 0).all()
        and (row[last] <= rows).all()
        and (not every_row or ((row[last] == rows).all() and (step[same] <= 1).all()))
    )
