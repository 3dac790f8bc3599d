"""Makes both decoders agree on colour: DALI converts everything with BT.601, and this corrects all other streams.

The rule for both decoders is that the medium's matrix and range decide. A stream that states no matrix has that of
BT.601, whatever its size. A stream that states no range has the limited one, as in libswscale. HDR is converted by its
matrix alone.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from framedex.sharder.clips.medium import Medium

Colour = Literal["close", "exact"]

# Luma weights (Kr, Kb) by matrix coefficients, ISO/IEC 23091-2 table 4. libswscale takes "not stated" (2) as BT.601.
LUMA_WEIGHTS = {
    1: (0.2126, 0.0722),  # BT.709
    2: (0.299, 0.114),
    4: (0.30, 0.11),  # United States FCC Title 47
    5: (0.299, 0.114),  # BT.601, 625 lines
    6: (0.299, 0.114),  # BT.601, 525 lines
    7: (0.212, 0.087),  # SMPTE 240M
    9: (0.2627, 0.0593),  # BT.2020, non-constant luminance
}
DALI_MATRIX = 6  # the matrix that DALI 2.4's NVDEC path uses for every stream
FULL_RANGE_FORMATS = ("yuvj420p",)
DEEP_FORMATS = ("yuv420p10le",)
# DALI requests 8 bits from NVDEC. Samples of 10 bits are rounded, halves up, which loses this much of 0, 1/4, 1/2 and
# 3/4 on average. (From means measured on an H200 with DALI 2.4; tests/contract/test_gpu_colour.py measures them again.)
LOST_OF_DEEP = -0.125
BLACK = 16  # of limited range, 8 bits, ITU-T H.273 8.3
EXPANSION = np.diag([255 / 219, 255 / 224, 255 / 224])  # of limited range to full range
NO_CORRECTION = np.eye(3, 4, dtype=np.float32)
# The codecs whose header can be rewritten to say full range (`nvdec_headers`).
REWRITABLE = ("h264", "hevc")


def has_correction(color_matrix: int) -> bool:
    """Return whether pictures of this matrix can be corrected after DALI has decoded them."""
    return color_matrix in LUMA_WEIGHTS


def is_like_dali(color_matrix: int) -> bool:
    """Return whether this matrix is the one that DALI uses."""
    return LUMA_WEIGHTS.get(color_matrix) == LUMA_WEIGHTS[DALI_MATRIX]


def has_full_range(medium: Medium) -> bool:
    """Return whether a medium's samples use the full range, 0 to 255."""
    return medium.color_range == "full" or medium.pixel_format in FULL_RANGE_FORMATS


def is_deep(medium: Medium) -> bool:
    """Return whether a medium's samples have more than 8 bits."""
    return medium.pixel_format in DEEP_FORMATS


def colour_obstacle(medium: Medium, colour: Colour = "close") -> str | None:
    """Return why DALI's pictures of a medium cannot be corrected well enough, or None if they can.

    Args:
        medium: the medium.
        colour: "close" requires 40 dB PSNR against the right conversion on natural pictures, 30 dB on saturated test
            patterns, and 2 levels on flat unsaturated patches. "exact" requires 1 level, which is rounding: only 8 bits
            of BT.601 reach that.
    """
    if not has_correction(medium.color_matrix):
        return f"colour matrix {medium.color_matrix}"
    if medium.codec not in REWRITABLE and has_full_range(medium):
        return "full range that DALI is not known to see"
    if is_like_dali(medium.color_matrix):
        return "colours of more than 8 bits" if colour == "exact" and is_deep(medium) else None
    if colour == "exact":
        return "colours that DALI clips"
    # DALI's BT.601 conversion clips saturated colours of another matrix: 25 dB on test patterns. Samples of limited
    # range have some room left if the header says that they have full range.
    if has_full_range(medium) or medium.codec not in REWRITABLE:
        return "saturated colours that DALI clips"
    return None


def rgb_from_ycc(color_matrix: int) -> NDArray[np.float64]:
    """Return float64 [3, 3]: RGB from (Y, Cb, Cr), Y in 0…1 and Cb, Cr in -0.5…0.5 (ITU-T H.273 8.3)."""
    red, blue = LUMA_WEIGHTS[color_matrix]
    green = 1 - red - blue
    return np.array(
        [
            [1, 0, 2 * (1 - red)],
            [1, -2 * blue * (1 - blue) / green, -2 * red * (1 - red) / green],
            [1, 2 * (1 - blue), 0],
        ]
    )


def correction(color_matrix: int, *, full_range: bool, said_full: bool, deep: bool = False) -> NDArray[np.float32]:
    """Return float32 [3, 4]: the affine map of RGB in 0…255 that turns DALI's pictures into the stream's.

    Args:
        color_matrix: the stream's matrix, ISO/IEC 23091-2 table 4.
        full_range: whether the stream's samples have full range.
        said_full: whether the movie's header says full range, whatever the stream's range is.
        deep: whether samples have 10 bits, of which DALI sees 8.
    """
    to_rgb, to_dali = rgb_from_ycc(color_matrix), rgb_from_ycc(DALI_MATRIX)
    if not full_range:
        to_rgb = to_rgb @ EXPANSION
    if not said_full:
        to_dali = to_dali @ EXPANSION
    zero = np.array([0 if full_range else BLACK, 0, 0])
    dali_zero = np.array([0 if said_full else BLACK, 0, 0])
    matrix = to_rgb @ np.linalg.inv(to_dali)
    # From DALI's RGB to samples, which lost precision, and from these to RGB.
    offset = to_rgb @ (dali_zero + (LOST_OF_DEEP if deep else 0) - zero)
    return np.column_stack([matrix, offset]).astype(np.float32)
