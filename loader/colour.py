"""Making both decoders agree on colour: DALI converts everything with BT.601; this corrects what is something else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Luma weights (Kr, Kb) by matrix coefficients, ISO/IEC 23091-2 table 4. libswscale takes "not stated" (2) as BT.601.
LUMA_WEIGHTS = {
    1: (0.2126, 0.0722),  # BT.709
    2: (0.299, 0.114),
    5: (0.299, 0.114),  # BT.601, 625 lines
    6: (0.299, 0.114),  # BT.601, 525 lines
    7: (0.212, 0.087),  # SMPTE 240M
    9: (0.2627, 0.0593),  # BT.2020, non-constant luminance
}
DALI_MATRIX = 6  # what DALI 2.4's NVDEC path uses for every stream


def has_correction(color_matrix: int) -> bool:
    """Return whether pictures of this matrix can be corrected after DALI decoded them."""
    return color_matrix in LUMA_WEIGHTS


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


def correction(color_matrix: int) -> NDArray[np.float32]:
    """Return float32 [3, 3]: what turns DALI's RGB into the stream's. The range cancels out: both use the stream's."""
    if LUMA_WEIGHTS[color_matrix] == LUMA_WEIGHTS[DALI_MATRIX]:
        return np.eye(3, dtype=np.float32)
    return (rgb_from_ycc(color_matrix) @ np.linalg.inv(rgb_from_ycc(DALI_MATRIX))).astype(np.float32)
