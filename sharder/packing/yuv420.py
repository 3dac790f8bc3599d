"""RGB to 8-bit planes of 4:2:0, by integers alone: the same samples on every machine and with every version of FFmpeg.

The matrix is that of BT.601 and the range is the limited one. Both decoders of the loader convert exactly this back to
RGB without a correction. Chroma lies in the middle of the four pixels that share it, where the loader takes it from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MATRIX, RANGE_NAME = 6, "limited"  # SMPTE 170M, BT.601 (ISO/IEC 23091-2 table 4)
SHIFT = 16
LUMA_ZERO, CHROMA_ZERO = 16, 128
KR, KB = 0.299, 0.114
LUMA_STEPS, CHROMA_STEPS = 219 / 255, 224 / 255  # of limited range, ITU-T H.273 8.3
PIXELS = 4  # that share a chroma sample


def _fixed(weights: tuple[float, float, float], scale: float) -> tuple[int, int, int]:
    red, green, blue = (round(weight * scale * (1 << SHIFT)) for weight in weights)
    return red, green, blue


LUMA = _fixed((KR, 1 - KR - KB, KB), LUMA_STEPS)
BLUE = _fixed((-KR, KR + KB - 1, 1 - KB), CHROMA_STEPS / (2 * (1 - KB)) / PIXELS)
RED = _fixed((1 - KR, KR + KB - 1, -KB), CHROMA_STEPS / (2 * (1 - KR)) / PIXELS)


def planes_of(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return uint8 [3 * H / 2, W]: the three planes of a picture one after another, as PyAV takes `yuv420p`.

    Args:
        rgb: uint8 [H, W, 3]; H and W are even.
    """
    height, width = rgb.shape[:2]
    wide = rgb.astype(np.int32)
    shared = wide.reshape(height // 2, 2, width // 2, 2, 3).sum(axis=(1, 3), dtype=np.int32)
    planes = (_samples(wide, LUMA, LUMA_ZERO), _samples(shared, BLUE, CHROMA_ZERO), _samples(shared, RED, CHROMA_ZERO))
    return np.concatenate([plane.ravel() for plane in planes]).reshape(height * 3 // 2, width)


def _samples(rgb: NDArray[np.int32], weights: tuple[int, int, int], zero: int) -> NDArray[np.uint8]:
    red, green, blue = weights
    total = red * rgb[..., 0] + green * rgb[..., 1] + blue * rgb[..., 2]
    return ((total + (zero << SHIFT) + (1 << (SHIFT - 1))) >> SHIFT).astype(np.uint8)
