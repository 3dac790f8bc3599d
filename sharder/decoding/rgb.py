"""Convert decoded pictures to RGB with libswscale, by one rule for every picture and decoder.

The medium's matrix and range decide; if they are not stated, BT.601 and the limited range apply. Chroma is
interpolated, and assumed to lie in the middle of the pixels that share it. DALI supports no other location (MPEG's own
is half a luma sample to the left).

If numba is installed, compiled code (`compiled_rgb`) converts pictures of ordinary formats at their own size, once a
process has converted COMPILED_FROM pixels. The first picture of each kind is converted by both. If the results differ,
libswscale converts all pictures of this kind.
"""

import ctypes
import functools
import logging
import os
import threading
from collections.abc import Callable
from types import ModuleType

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from framedex.core.limits import keep_freed_memory
from framedex.indexer.containers import plane_rows
from framedex.sharder.clips.clip import bits_of
from framedex.sharder.decoding.cutout import PictureFilter

UNSPECIFIED = 2  # the code for unknown matrix coefficients, ISO/IEC 23091-2 table 4
# Chroma interpolation and rounding: libswscale's defaults are up to 3 levels off, and 25 dB on test patterns.
CONVERSION = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND
# With these flags, libswscale writes packed RGB one sample at a time, but planes with vectors. Writing planes and
# packing them afterwards takes half of the time for 720p at its own size. The samples are the same, except where
# pictures are enlarged or have 4:1:0 chroma: there, up to 0.3 % differ, by one level.
PLANES, PACKED = "gbrp", "rgb24"
DEEP_PLANES, DEEP_PACKED = "gbrp16le", "rgb48le"
MOST = (1 << 16) - 1  # white in 16 bits
FULL_RANGE = 2  # AVCOL_RANGE_JPEG of libavutil
MAX_KEPT = 16  # converters that are kept for all threads together, each with buffers of a few pictures
# Importing numba takes half a second of CPU. Compiled code saves that on so many pixels, some 110 frames of 720p.
COMPILED_FROM = 100_000_000
LOG = logging.getLogger("framedex.decoding")


class RgbConverter:
    """A converter of the pictures of one stream, one after the other.

    It uses the medium's values instead of those that the decoder reports with a picture, because FFmpeg's HEVC decoder
    forgets values that only the container states.

    Args:
        matrix: The medium's matrix coefficients.
        color_range: A number of libavutil's AVColorRange, 0 if it is not stated.
        threads: The number of libswscale's threads.
    """

    def __init__(self, matrix: int = UNSPECIFIED, color_range: int = 0, *, threads: int = 1) -> None:
        self._matrix, self._range, self._threads = matrix, color_range, threads
        self._reformatter, self._packer = VideoReformatter(), VideoReformatter()
        self._parameters = PictureFilter("setparams")
        self._agrees: dict[tuple[object, ...], bool] = {}  # by kind of picture, whether compiled code gives the same

    def rows(
        self, picture: av.VideoFrame, height: int, width: int, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Return a picture's RGB, scaled, as uint8 [height, 3 * width].

        Args:
            picture: The picture.
            height: Height of the result.
            width: Width of the result.
            into: An array of that shape in which compiled code puts the result, which is then this array.

        Raises:
            OSError: libswscale does not know the matrix.
        """
        compiled = _compiled_by_now(height * width) if (picture.height, picture.width) == (height, width) else None
        matrix = picture.colorspace if self._matrix == UNSPECIFIED else self._matrix
        if compiled is None or not compiled.takes(picture, matrix):
            return self._scaled(picture, height, width)
        color_range = self._range or picture.color_range
        kind = (height, width, picture.format.name, matrix, color_range)
        agrees = self._agrees.get(kind)
        if agrees is False:
            return self._scaled(picture, height, width)
        rows: NDArray[np.uint8] = compiled.rows(picture, matrix, color_range, into)
        if agrees is None:
            expected = self._scaled(picture, height, width)
            self._agrees[kind] = np.array_equal(rows, expected)
            return expected
        return rows

    def _scaled(self, picture: av.VideoFrame, height: int, width: int) -> NDArray[np.uint8]:
        """Return a picture's RGB by libswscale, shaped as by `rows`."""
        rgb = self._packed(picture, height, width, planes=PLANES, packed=PACKED)
        return plane_rows(rgb.planes[0], height)[:, : 3 * width]

    def _packed(self, picture: av.VideoFrame, height: int, width: int, *, planes: str, packed: str) -> av.VideoFrame:
        """Return a picture of packed RGB, converted by way of planes. Raises OSError as `rows` does."""
        shape = picture.format
        if not (shape.is_rgb or shape.chroma_width(16) == shape.chroma_height(16) == 16):
            picture = self._parameters.filtered(picture, "chroma_location=center")
        if self._matrix != UNSPECIFIED:
            picture.colorspace = self._matrix
        if self._range:
            picture.color_range = self._range
        layout = packed if picture.format.is_rgb else planes
        rgb = self._reformatter.reformat(
            picture, width, height, layout, interpolation=CONVERSION, threads=self._threads
        )
        return self._packer.reformat(rgb, format=packed, threads=1) if layout == planes else rgb

    def deep(self, picture: av.VideoFrame, height: int, width: int) -> NDArray[np.uint16]:
        """Return a picture's RGB of 16 bits, scaled, as uint16 [height, width, 3]: white is 65535.

        libswscale multiplies levels of 8 bits by 256, so that its white is too dark; this scales them. From RGB of 8
        bits, libswscale is inexact, so 16 bits are computed here.

        Raises:
            OSError: libswscale does not know the matrix.
        """
        if (picture.format.is_rgb or picture.format.has_palette) and bits_of(picture.format.name) == 8:
            return self._scaled(picture, height, width).reshape(height, width, 3).astype(np.uint16) * 257
        is_full = FULL_RANGE in (self._range, self._range or picture.color_range)
        rgb = self._packed(picture, height, width, planes=DEEP_PLANES, packed=DEEP_PACKED)
        samples = plane_rows(rgb.planes[0], height)[:, : 6 * width].view("<u2").reshape(height, width, 3)
        white = white_of(picture.format, is_full=is_full)
        if white == MOST:
            return samples
        return np.minimum((samples.astype(np.uint32) * MOST + white // 2) // white, MOST).astype(np.uint16)

    def picture(self, picture: av.VideoFrame) -> NDArray[np.uint8]:
        """Return uint8 [H, W, 3]: a picture's RGB at its own size. Raises OSError as `rows` does."""
        rows = self.rows(picture, picture.height, picture.width)
        return np.ascontiguousarray(rows).reshape(picture.height, picture.width, 3)


def white_of(pixel_format: av.VideoFormat, *, is_full: bool) -> int:
    """Return the value of white in libswscale's RGB of 16 bits."""
    bits = bits_of(pixel_format.name)
    if pixel_format.is_rgb or bits > 16:
        return MOST
    is_grey = len(pixel_format.components) <= 2  # libswscale reads grey as full range
    if is_grey or is_full or pixel_format.name.startswith("yuvj"):
        return ((1 << bits) - 1) << (16 - bits)
    return 255 << 8


_pixels = 0  # that this process has converted at their own size; threads may miscount a little


def _compiled_by_now(pixels: int) -> ModuleType | None:
    """Return the compiled conversion if this process has converted COMPILED_FROM pixels. Count these as converted."""
    global _pixels
    compiled = _compiled() if _pixels >= COMPILED_FROM else None
    _pixels += pixels
    return compiled


@functools.cache
def _compiled() -> ModuleType | None:
    """Return the compiled conversion, or None without numba (extra `fast`)."""
    try:
        from framedex.sharder.decoding import compiled_rgb
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return None
    except (ImportError, RuntimeError) as error:  # numba rejects this numpy, or finds no folder for what it compiled
        LOG.warning("pictures are converted more slowly, because numba cannot be used: %s", error)
        return None
    return compiled_rgb


def kept_converter(matrix: int, color_range: int, threads: int) -> RgbConverter:
    """Return the calling thread's converter, which is kept between clips: its setup takes as long as a few pictures."""
    return _kept(threading.get_ident(), matrix, color_range, threads)


def _new_cache() -> Callable[[int, int, int, int], RgbConverter]:
    @functools.lru_cache(MAX_KEPT)
    def kept(thread: int, matrix: int, color_range: int, threads: int) -> RgbConverter:
        keep_freed_memory()
        return RgbConverter(matrix, color_range, threads=threads)

    return kept


def _leave_to_parent() -> None:
    """Start a forked process without converters.

    libswscale's threads are missing there, and freeing a converter would wait for them.
    """
    global _kept
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # never freed, not even when the process ends
    _kept = _new_cache()


_kept = _new_cache()
os.register_at_fork(after_in_child=_leave_to_parent)
