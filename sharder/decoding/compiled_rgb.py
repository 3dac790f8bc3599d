"""Conversion of 8-bit 4:2:0 pictures to RGB without scaling, compiled by numba (extra `fast`).

The results equal those of libswscale with `rgb.CONVERSION` and centred chroma. Chroma is interpolated between the
nearest samples with weights of 1/4 and 3/4 in each direction. Values are rounded only once, at the end. libswscale does
not round before the end either, because its intermediate values have more bits than these weights need. Therefore both
implementations compute the same integers.

Importing this module imports numba, which takes about half a second.
"""

import functools

import av
import numba
import numpy as np
from numba import int32
from numpy.typing import NDArray

from framedex.indexer.containers import plane_rows

FORMATS = frozenset({"yuv420p", "yuvj420p"})
FULL_RANGE = 2  # AVCOL_RANGE_JPEG of libavutil
# For each code of matrix coefficients (ISO/IEC 23091-2 table 4, 2 means unspecified): the factors × 65536 for red
# from V, blue from U, green from U, and green from V, for chroma of limited range. The numbers are copied from
# `ff_yuv2rgb_coeffs` in libswscale.
CHROMA = {
    1: (117489, 138438, 13975, 34925),
    2: (104597, 132201, 25675, 53279),
    4: (104448, 132798, 24759, 53109),
    5: (104597, 132201, 25675, 53279),
    6: (104597, 132201, 25675, 53279),
    7: (117579, 136230, 16907, 35559),
    9: (110013, 140363, 12277, 42626),
}
MOST = (1 << 30) - 1  # value of white: 8 integer bits and 22 fractional bits


def takes(picture: av.VideoFrame, matrix: int) -> bool:
    """Return whether `rows` can convert a picture."""
    return (
        picture.format.name in FORMATS
        and matrix in CHROMA
        and picture.width % 2 == picture.height % 2 == 0
        and not picture.interlaced_frame
        and all(plane.line_size > 0 for plane in picture.planes)  # negative if a picture is stored upside down
    )


def rows(
    picture: av.VideoFrame, matrix: int, color_range: int, into: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Convert a picture to RGB, uint8 [H, 3 * W].

    Args:
        picture: A picture for which `takes` is true.
        matrix: The code of the matrix coefficients, a key of `CHROMA`.
        color_range: The value of libavutil's AVColorRange.
        into: uint8 [H, 3 * W], the array into which the result is written. If None, a new array is allocated.
    """
    height, width = picture.height, picture.width
    y, u, v = (plane_rows(plane, plane.height) for plane in picture.planes)
    rgb = np.empty((height, 3 * width), np.uint8) if into is None else into
    is_full = color_range == FULL_RANGE or picture.format.name == "yuvj420p"
    _convert(y, u, v, factors(matrix, full_range=is_full), rgb)
    return rgb


@functools.cache
def factors(matrix: int, *, full_range: bool) -> NDArray[np.int32]:
    """Return the factors of the conversion × 8192, as int32 [6].

    The array contains the factor of luma, the value of black / 16, and the factors of red from V, green from V, green
    from U, and blue from U.

    Args:
        matrix: The code of the matrix coefficients, a key of `CHROMA`.
        full_range: Whether samples have full range instead of limited range.
    """
    red_v, blue_u, green_u, green_v = CHROMA[matrix]
    luma, black = 1 << 16, 0
    if full_range:
        red_v, blue_u, green_u, green_v = (value * 224 // 255 for value in (red_v, blue_u, green_u, green_v))
    else:
        luma, black = (luma * 255) // 219, 16 << 16
    scaled = [luma << 13, black << 9, red_v << 13, -green_v << 13, -green_u << 13, blue_u << 13]
    return np.array([(value + (1 << 15)) >> 16 for value in scaled], np.int32)


@numba.njit(nogil=True, cache=True)
def _convert(y, u, v, factor, rgb):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Convert planes to RGB.

    Args:
        y: uint8 [H, W or more], the luma plane.
        u: uint8 [H / 2, W / 2 or more], a chroma plane.
        v: uint8 [H / 2, W / 2 or more], a chroma plane.
        factor: The result of `factors`.
        rgb: uint8 [H, 3 * W], the output.
    """
    height, width = rgb.shape[0], rgb.shape[1] // 3
    blend = np.empty(width // 2 + 2, np.int32)
    full_u, full_v = np.empty(width, np.int32), np.empty(width, np.int32)
    for row in range(height):
        near = row // 2
        far = max(near - 1, 0) if row % 2 == 0 else min(near + 1, height // 2 - 1)
        _upsample(u, near, far, blend, full_u)
        _upsample(v, near, far, blend, full_v)
        _pack(y, row, full_u, full_v, factor, rgb)


@numba.njit(nogil=True, cache=True)
def _upsample(plane, near, far, blend, full):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Interpolate a row of chroma at full width between two rows of a plane.

    Args:
        plane: uint8 [H / 2, W / 2 or more], the chroma plane.
        near: The number of the row with the weight 3/4.
        far: The number of the row with the weight 1/4.
        blend: int32 [W / 2 + 2], a buffer that is overwritten with the interpolation of the two rows, × 4. The first
            and last values are repeated.
        full: int32 [W], the output: chroma minus 128, × 512.
    """
    half = len(full) // 2
    for column in range(half):
        blend[column + 1] = int32(plane[near, column]) * int32(3) + int32(plane[far, column]) - int32(512)
    blend[0], blend[half + 1] = blend[1], blend[half]
    for column in range(half):
        here = blend[column + 1] * int32(3)
        full[2 * column] = int32(blend[column] + here) << 5
        full[2 * column + 1] = int32(blend[column + 2] + here) << 5


@numba.njit(nogil=True, cache=True)
def _pack(y, row, u, v, factor, rgb):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Convert one row to RGB.

    Args:
        y: uint8 [H, W or more], the luma plane.
        row: The number of the row.
        u: int32 [W], the row of chroma that `_upsample` wrote for U.
        v: int32 [W], the row of chroma that `_upsample` wrote for V.
        factor: The result of `factors`.
        rgb: uint8 [H, 3 * W], the output, in which the row is written.
    """
    luma, black, red_v, green_v, green_u, blue_u = factor
    for column in range(len(u)):
        grey = int32(int32((int32(y[row, column]) << 9) - black) * luma + int32(1 << 21))
        red = int32(grey + v[column] * red_v)
        green = int32(grey + v[column] * green_v + u[column] * green_u)
        blue = int32(grey + u[column] * blue_u)
        rgb[row, 3 * column] = min(max(red, int32(0)), int32(MOST)) >> 22
        rgb[row, 3 * column + 1] = min(max(green, int32(0)), int32(MOST)) >> 22
        rgb[row, 3 * column + 2] = min(max(blue, int32(0)), int32(MOST)) >> 22
