"""Convert decoded pictures to RGB with libswscale, by the same rule for all pictures of all decoders.

The matrix coefficients and the range of the medium are used. If they are unspecified, BT.601 and limited range are
used. Chroma is interpolated. A chroma sample is assumed to be located at the centre of the pixels that share it,
because DALI supports no other location. (MPEG's default location is half a luma sample further left.)

If numba is installed, compiled code (`compiled_rgb`) converts pictures of common formats that are not scaled, after the
process has converted COMPILED_FROM pixels. The first picture of each kind is converted by both implementations. If the
results differ, libswscale converts all pictures of this kind.
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
# Flags for exact interpolation of chroma and exact rounding. With libswscale's defaults, pixels are wrong by up to 3
# levels, and the PSNR on test patterns is only 25 dB.
CONVERSION = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND
# With the flags of CONVERSION, libswscale writes packed RGB one sample at a time, but planar RGB with vector
# instructions. For unscaled 720p, writing planes and packing them afterwards takes half the time of writing packed RGB.
# The samples are the same, except if pictures are enlarged or have 4:1:0 chroma. In these cases, up to 0.3 % of the
# samples differ by one level.
PLANES, PACKED = "gbrp", "rgb24"
DEEP_PLANES, DEEP_PACKED = "gbrp16le", "rgb48le"
MOST = (1 << 16) - 1  # value of white in 16 bits
FULL_RANGE = 2  # AVCOL_RANGE_JPEG of libavutil
MAX_KEPT = 16  # maximum number of converters that all threads keep in total; each has buffers of a few pictures
# The number of pixels (about 110 frames of 720p) for which compiled code saves half a second of CPU time. Importing
# numba takes half a second, too.
COMPILED_FROM = 100_000_000
LOG = logging.getLogger("framedex.decoding")


class RgbConverter:
    """A converter from the pictures of one stream to RGB.

    The medium's matrix coefficients and range take precedence over the values of decoded pictures, because FFmpeg's
    HEVC decoder drops values that only the container states.

    Args:
        matrix: The code of the medium's matrix coefficients.
        color_range: The medium's value of libavutil's AVColorRange, 0 if it is unspecified.
        threads: The number of libswscale's threads.
    """

    def __init__(self, matrix: int = UNSPECIFIED, color_range: int = 0, *, threads: int = 1) -> None:
        self._matrix, self._range, self._threads = matrix, color_range, threads
        self._reformatter, self._packer = VideoReformatter(), VideoReformatter()
        self._parameters = PictureFilter("setparams")
        self._agrees: dict[tuple[object, ...], bool] = {}  # {kind of picture: whether compiled code equals libswscale}

    def rows(
        self, picture: av.VideoFrame, height: int, width: int, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Convert a picture to RGB and scale it. Return uint8 [height, 3 * width].

        Args:
            picture: The picture.
            height: The height of the result.
            width: The width of the result.
            into: uint8 [height, 3 * width]. If compiled code converts the picture, it may write the result into this
                array and return the array.

        Raises:
            OSError: libswscale does not support the matrix coefficients.
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
        """Convert a picture to RGB by libswscale and scale it. Return uint8 [height, 3 * width]."""
        rgb = self._packed(picture, height, width, planes=PLANES, packed=PACKED)
        return plane_rows(rgb.planes[0], height)[:, : 3 * width]

    def _packed(self, picture: av.VideoFrame, height: int, width: int, *, planes: str, packed: str) -> av.VideoFrame:
        """Convert a picture to planar RGB, and then to packed RGB.

        Args:
            picture: The picture.
            height: The height of the result.
            width: The width of the result.
            planes: The planar pixel format.
            packed: The packed pixel format of the result.

        Raises:
            OSError: libswscale does not support the matrix coefficients.
        """
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
        """Convert a picture to RGB of 16 bits and scale it. Return uint16 [height, width, 3], in which white is 65535.

        libswscale multiplies 8-bit values by 256, so white becomes 65280. This method scales the values so that white
        is 65535. For 8-bit RGB, libswscale's conversion to 16 bits is inexact, so this method multiplies by 257.

        Raises:
            OSError: libswscale does not support the matrix coefficients.
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
        """Convert a picture to RGB without scaling. Return uint8 [H, W, 3].

        Raises:
            OSError: libswscale does not support the matrix coefficients.
        """
        rows = self.rows(picture, picture.height, picture.width)
        return np.ascontiguousarray(rows).reshape(picture.height, picture.width, 3)


def white_of(pixel_format: av.VideoFormat, *, is_full: bool) -> int:
    """Return the value of white in libswscale's 16-bit RGB for pictures of a pixel format.

    Args:
        pixel_format: The pixel format.
        is_full: Whether samples have full range instead of limited range.
    """
    bits = bits_of(pixel_format.name)
    if pixel_format.is_rgb or bits > 16:
        return MOST
    is_grey = len(pixel_format.components) <= 2  # libswscale treats grey formats as full range
    if is_grey or is_full or pixel_format.name.startswith("yuvj"):
        return ((1 << bits) - 1) << (16 - bits)
    return 255 << 8


_pixels = 0  # approximate number of pixels that this process has converted without scaling (not synchronized)


def _compiled_by_now(pixels: int) -> ModuleType | None:
    """Return the compiled conversion if this process has converted at least COMPILED_FROM pixels, else None.

    Args:
        pixels: The number of pixels that are about to be converted. They are added to the process's count.
    """
    global _pixels
    compiled = _compiled() if _pixels >= COMPILED_FROM else None
    _pixels += pixels
    return compiled


@functools.cache
def _compiled() -> ModuleType | None:
    """Return the module of the compiled conversion, or None if numba (extra `fast`) is missing or unusable."""
    try:
        from framedex.sharder.decoding import compiled_rgb
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return None
    except (ImportError, RuntimeError) as error:  # numba does not support this NumPy, or has no folder for its cache
        LOG.warning("pictures are converted more slowly, because numba cannot be used: %s", error)
        return None
    return compiled_rgb


def kept_converter(matrix: int, color_range: int, threads: int) -> RgbConverter:
    """Return the calling thread's converter for the given parameters of `RgbConverter`.

    A converter is kept between clips, because its setup takes as long as the conversion of a few pictures.
    """
    return _kept(threading.get_ident(), matrix, color_range, threads)


def _new_cache() -> Callable[[int, int, int, int], RgbConverter]:
    @functools.lru_cache(MAX_KEPT)
    def kept(thread: int, matrix: int, color_range: int, threads: int) -> RgbConverter:
        keep_freed_memory()
        return RgbConverter(matrix, color_range, threads=threads)

    return kept


def _leave_to_parent() -> None:
    """Give a forked process a new cache of converters.

    A forked process lacks the threads of the parent's converters. Freeing one of these converters in the forked process
    would wait for the threads forever.
    """
    global _kept
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # prevents the release of the converters, even at exit
    _kept = _new_cache()


_kept = _new_cache()
os.register_at_fork(after_in_child=_leave_to_parent)
