"""Read the metadata of an image file without decoding it, and decode its pixels to RGB.

Whether a file is complete is determined from its markers, chunks or stated size, without decoding. Pixels of all modes
are converted to RGB by the rules of `rgb_of`.
"""

import contextlib
import hashlib
import io
import re
import warnings
import zlib
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framedex.errors import MediaError
from framedex.indexer.bitstream.base import UNSPECIFIED
from framedex.indexer.facts import StreamFacts

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# A JPEG marker. An 0xFF byte in entropy-coded data does not match, because 0x00 or the code of a restart marker follows
# it. Fill bytes 0xFF may precede a marker (ITU-T T.81 B.1.1).
JPEG_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])", re.DOTALL)
SOI, EOI, SOS, TEM = 0xD8, 0xD9, 0xDA, 0x01


def image_format(data: bytes) -> str | None:
    """Return the format of an image, recognised by its first bytes.

    Returns:
        `jpeg`, `png`, `webp` or `gif`. None for other data.
    """
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == PNG_SIGNATURE:
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return "gif" if data[:6] in (b"GIF87a", b"GIF89a") else None


def jpeg_problem(data: bytes) -> str | None:
    """Return a description of the first error in a JPEG's markers, or None if there is no error.

    The markers must include an EOI marker. Any bytes may follow the EOI marker (ITU-T T.81 B.2).
    """
    at, scans = 2, 0
    whole = data.rstrip(b"\0").endswith(b"\xff\xd9")  # if True, the pixel data is not searched for EOI
    while match := JPEG_MARKER.search(data, at):
        marker, at = match[1][0], match.end()
        if marker == EOI:
            return None if scans else "it ends before its first scan"
        if marker in (SOI, TEM):
            continue
        length = int.from_bytes(data[at : at + 2], "big")
        if length < 2:
            return f"the segment at byte {match.start()} has no length"
        scans += marker == SOS
        at += length
        if marker == SOS and at < len(data) and whole:
            return None
    return "it has no end marker"


def png_problem(data: bytes) -> str | None:
    """Return a description of the first error in a PNG's chunks, or None if there is no error.

    The CRC of each chunk must be correct, and the last chunk must be IEND (ISO/IEC 15948, 5).
    """
    at, view = len(PNG_SIGNATURE), memoryview(data)
    while at + 12 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(data):
            return f"it ends in the chunk at byte {at}"
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return f"the chunk at byte {at} has a wrong CRC"
        if kind == b"IEND":
            return None
        at = end + 4
    return "it has no IEND chunk"


def webp_problem(data: bytes) -> str | None:
    """Return an error message if a WebP file is truncated, or None if the file is complete.

    The RIFF header states the size of the file (RFC 9649, 2.4).
    """
    stated = int.from_bytes(data[4:8], "little") + 8
    return f"its header states {stated} bytes, but it has {len(data)}" if stated > len(data) else None


PROBLEMS: dict[str, Callable[[bytes], str | None]] = {
    "jpeg": jpeg_problem,
    "png": png_problem,
    "webp": webp_problem,
}


FORMATS = ("JPEG", "PNG", "WEBP")
# The Pillow modes of images that Pillow converts to RGB. Pillow drops alpha.
AS_PILLOW_CONVERTS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX"})
# Formats with several still pictures in one file. An MPO file is a JPEG followed by further JPEGs, such as the preview,
# depth map or gain map of a phone's photograph.
STILLS_TOGETHER = frozenset({"MPO"})
SIXTEEN_BIT_GREY = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})


def rgb_of(data: bytes) -> NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: an image as stored, without applying its EXIF orientation or colour profile.

    Alpha is dropped. Grey images and images with palettes are expanded to RGB. If samples have 16 bits, the high 8 bits
    are kept. If a JPEG file holds several pictures (CIPA DC-007), the first picture is returned.

    Raises:
        ValueError: These rules do not cover the image. The message states why.
        OSError: The data is not a complete JPEG, PNG or WebP file.
    """
    with _pillow_errors(_broken):
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    with image:
        check_covered(image)
        with _pillow_errors(_broken):
            if image.mode in SIXTEEN_BIT_GREY:
                grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
                return np.repeat(grey[:, :, None], 3, axis=2)
            if lacks_palette(image):
                raise OSError("its palette is missing")
            image.load()
            image.info.pop("transparency", None)  # not needed, and Pillow warns about palettes with transparency
            return np.asarray(image.convert("RGB"))


@contextlib.contextmanager
def _pillow_errors(wrap: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise `wrap(error)` in place of any error but MemoryError.

    All exceptions are caught, because Pillow's parsers raise many kinds of them for broken files.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise wrap(error) from error


def _broken(error: Exception) -> Exception:
    if isinstance(error, Image.DecompressionBombError):
        return ValueError(str(error))
    message = re.sub(r" ?<[^>]* at 0x[0-9a-f]+>", "", str(error))  # without memory addresses, which vary between runs
    return OSError(f"is not a whole image: {message or type(error).__name__}")


def check_covered(image: Image.Image) -> None:
    """Raise ValueError for an image that the rules of `rgb_of` do not cover."""
    if getattr(image, "n_frames", 1) > 1 and image.format not in STILLS_TOGETHER:
        raise ValueError("is an animation")
    if image.mode not in AS_PILLOW_CONVERTS | SIXTEEN_BIT_GREY:
        raise ValueError(f"has samples of the unsupported mode {image.mode}")


def lacks_palette(image: Image.Image) -> bool:
    """Return whether an image's samples are palette indices, but the palette is missing."""
    return image.mode in ("P", "PA") and image.palette is None


def resize_rgb(rgb: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return an RGB picture scaled with a triangle filter, as uint8 [height, width, 3].

    When the picture is reduced, the filter is widened by the factor of the reduction, which prevents aliasing.
    """
    if rgb.shape[:2] == (height, width):
        return rgb
    return np.asarray(Image.fromarray(rgb).resize((width, height), Image.Resampling.BILINEAR))


def rgb_md5(rgb: NDArray[np.uint8]) -> str:
    """Return the MD5 of an RGB picture's bytes followed by the text `rgb24{width}x{height}`, as 32 hex digits."""
    height, width, _ = rgb.shape
    return hashlib.md5(np.ascontiguousarray(rgb).tobytes() + f"rgb24{width}x{height}".encode()).hexdigest()


CODECS = {"jpeg": "mjpeg", "png": "png", "webp": "webp"}
# FFmpeg's pixel format for each Pillow mode.
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
# FFmpeg's pixel formats of PNGs with 16 bits per sample, by Pillow mode. Pillow reads only the high 8 bits of each
# sample.
DEEP_PIXEL_FORMATS = {"LA": "ya16be", "RGB": "rgb48be", "RGBA": "rgba64be"}
ORIENTATION = 274  # number of the EXIF tag Orientation (EXIF 2.3, 4.6.4)
# Counterclockwise rotation in degrees for each value of Orientation. None for those that also mirror the image.
ROTATIONS = {2: None, 3: 180, 4: None, 5: None, 6: -90, 7: None, 8: 90}
BT601, RGB_MATRIX = 5, 0  # code points of colour metadata (ISO/IEC 23091-2)


class BrokenImageError(Exception):
    """An image is damaged and cannot be decoded. The message states why."""


def facts_of(data: bytes) -> tuple[StreamFacts, int | None, str | None]:
    """Return (metadata, rotation as from `_rotation`, description of the damage or None) of an image file.

    The format is determined from the file's bytes, not from the file's name.

    Raises:
        BrokenImageError: The metadata cannot be read.
        MediaError: The rules of `rgb_of` do not cover the image.
    """
    if not data:
        raise BrokenImageError("the file is empty")
    kind = image_format(data)
    if kind == "gif":
        raise MediaError("image_format", "is a GIF, which can be indexed only as a video", refused=True)
    if kind is None:
        raise BrokenImageError("it is not a JPEG, PNG or WebP file")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with _pillow_errors(_broken_header):
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        with image:
            mode, width, height, rotation = image.mode, image.width, image.height, _rotation(image)
            try:
                check_covered(image)
            except ValueError as error:
                raise MediaError("image_format", str(error), refused=True) from error
            if lacks_palette(image):
                raise BrokenImageError("its palette is missing")
    coded_as_rgb = kind == "png" or data[12:16] == b"VP8L"
    stream = StreamFacts(
        codec=CODECS[kind],
        pixel_format=_pixel_format(kind, mode, data),
        width=width,
        height=height,
        color_range="limited" if kind == "webp" and not coded_as_rgb else "full",
        color_matrix=RGB_MATRIX if coded_as_rgb else BT601,
        color_primaries=UNSPECIFIED,
        color_transfer=UNSPECIFIED,
        time_base_num=None,
        time_base_den=None,
        reorder_depth=0,
    )
    return stream, rotation, PROBLEMS[kind](data)


def _broken_header(error: Exception) -> BrokenImageError:
    is_bomb = isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError)
    return BrokenImageError(str(error) if is_bomb else "its header is broken")


def _pixel_format(kind: str, mode: str, data: bytes) -> str:
    if mode.startswith("I;16"):
        return "gray16be"
    is_deep = kind == "png" and data[24] == 16  # IHDR's bit depth: ISO/IEC 15948, 11.2.2
    return DEEP_PIXEL_FORMATS[mode] if is_deep else PIXEL_FORMATS[mode]


def _rotation(image: Image.Image) -> int | None:
    """Return the counterclockwise rotation in degrees that an image's EXIF orientation states. The default is 0.

    None if the orientation also mirrors the image.
    """
    if "exif" not in image.info:  # EXIF data after the pixels of a PNG is ignored: reading it would decode the pixels
        return 0
    try:
        return ROTATIONS.get(image.getexif().get(ORIENTATION, 1), 0)
    except MemoryError:
        raise
    except Exception:  # broken EXIF data is ignored, because pixels do not depend on it
        return 0


def pixels_md5(data: bytes) -> bytes:
    """Return the MD5 of an image's RGB pixels, as in `frames.md5`. Raises BrokenImageError on damage."""
    try:
        return bytes.fromhex(rgb_md5(rgb_of(data)))
    except (OSError, ValueError) as error:
        raise BrokenImageError(f"it does not decode: {error}") from error
