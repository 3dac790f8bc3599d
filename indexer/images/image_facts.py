"""The facts that one image file states, read without decoding it, and the hash of its pixels."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

from PIL import Image

from framedex.errors import MediaError
from framedex.indexer.images.image_endings import PROBLEMS, image_format
from framedex.indexer.images.rgb import FORMATS, check_covered, lacks_palette, rgb_md5, rgb_of

CODECS = {"jpeg": "mjpeg", "png": "png", "webp": "webp"}
# FFmpeg's names for what Pillow's modes hold; of PNG with 16 bits a sample, Pillow reads the high 8.
PIXEL_FORMATS = {
    "1": "monob",
    "L": "gray",
    "LA": "ya8",
    "P": "pal8",
    "PA": "pal8",
    "RGB": "rgb24",
    "RGBA": "rgba",
    "RGBX": "rgb0",
}
DEEP_PIXEL_FORMATS = {"LA": "ya16be", "RGB": "rgb48be", "RGBA": "rgba64be"}
ORIENTATION = 274  # EXIF 2.3, 4.6.4
# Counterclockwise; what EXIF mirrors besides is not said. EXIF 2.3, 4.6.4, Orientation.
ROTATIONS = {3: 180, 4: 180, 5: -90, 6: -90, 7: 90, 8: 90}
BT601, RGB_MATRIX = 5, 0


class BrokenImageError(Exception):
    """One image cannot be decoded as it is; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """An image's columns of `videos`, and `problem`: what is broken or cut off in it, or None."""

    codec: str
    pixel_format: str
    width: int
    height: int
    color_range: str
    color_matrix: int
    problem: str | None


def facts_of(data: bytes) -> ImageFacts:
    """Return the facts of an image file by its content, whatever it is named.

    Raises BrokenImageError where they are not available, MediaError for an image whose RGB is not defined here.
    """
    if not data:
        raise BrokenImageError("the file is empty")
    kind = image_format(data)
    if kind == "gif":
        raise MediaError("image_format", "is a GIF; its palettes and animation are those of a video", refused=True)
    if kind is None:
        raise BrokenImageError("it is no JPEG, PNG or WebP")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise BrokenImageError(str(error)) from error
        except MemoryError:
            raise
        except Exception as error:  # Pillow's parsers raise whatever broken files lead them to
            raise BrokenImageError("its header is broken") from error
        with image:
            mode, width, height = image.mode, image.width, image.height
            try:
                check_covered(image)
            except ValueError as error:
                raise MediaError("image_format", str(error), refused=True) from error
            if lacks_palette(image):
                raise BrokenImageError("its palette is missing")
    coded_as_rgb = kind == "png" or data[12:16] == b"VP8L"
    return ImageFacts(
        codec=CODECS[kind],
        pixel_format=_pixel_format(kind, mode, data),
        width=width,
        height=height,
        color_range="limited" if kind == "webp" and not coded_as_rgb else "full",
        color_matrix=RGB_MATRIX if coded_as_rgb else BT601,
        problem=PROBLEMS[kind](data),
    )


def _pixel_format(kind: str, mode: str, data: bytes) -> str:
    if mode.startswith("I;16"):
        return "gray16be"
    if kind == "png" and data[24] == 16:  # IHDR's bit depth: ISO/IEC 15948, 11.2.2
        return DEEP_PIXEL_FORMATS[mode]
    return PIXEL_FORMATS[mode]


def rotation_of(data: bytes) -> int:
    """Return the counterclockwise rotation in degrees that an image's EXIF orientation asks for, or 0."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if "exif" not in image.info:  # PNG: anything behind the pixels would cost their decoding
                return 0
            return ROTATIONS.get(image.getexif().get(ORIENTATION, 1), 0)
    except MemoryError:
        raise
    except Exception:  # EXIF of any brokenness; it is a hint alone
        return 0


def pixels_md5(data: bytes) -> bytes:
    """Return the MD5 of an image's RGB, as in `frames.md5`. Raises BrokenImageError where it does not decode."""
    try:
        return bytes.fromhex(rgb_md5(rgb_of(data)))
    except (OSError, ValueError) as error:
        raise BrokenImageError(f"it does not decode: {error}") from error
