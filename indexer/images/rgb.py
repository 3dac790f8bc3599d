"""Converts one image file's bytes to RGB, by rules that do not depend on the file's own mode."""

from __future__ import annotations

import hashlib
import io
import re

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP")
AS_PILLOW_CONVERTS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX"})  # alpha is dropped
# A JPEG followed by others: previews, depth or gain maps of phones' photographs.
STILLS_TOGETHER = frozenset({"MPO"})
SIXTEEN_BIT_GREY = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})


def rgb_of(data: bytes) -> NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: an image as stored; its EXIF orientation and colour profile are not applied.

    Alpha is dropped. Grey and palettes are expanded to RGB. Of 16 bits per sample, the high 8 are kept. If one JPEG
    file holds several pictures (CIPA DC-007), the first one counts.

    Raises:
        ValueError: with the reason, if there is no such rule for the image.
        OSError: if the data is not a whole JPEG, PNG or WebP.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow's parsers raise almost anything for broken files
        raise _broken(error) from error
    with image:
        check_covered(image)
        try:
            if image.mode in SIXTEEN_BIT_GREY:
                grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
                return np.repeat(grey[:, :, None], 3, axis=2)
            if lacks_palette(image):
                raise OSError("its palette is missing")
            image.load()
            image.info.pop("transparency", None)  # dropped as all alpha is; Pillow warns of palettes that have some
            return np.asarray(image.convert("RGB"))
        except MemoryError:
            raise
        except Exception as error:
            raise _broken(error) from error


def _broken(error: Exception) -> OSError:
    said = re.sub(r" ?<[^>]* at 0x[0-9a-f]+>", "", str(error))  # an address differs from run to run
    return OSError(f"is no whole image: {said or type(error).__name__}")


def check_covered(image: Image.Image) -> None:
    """Raise ValueError for an image whose RGB is not defined here."""
    if getattr(image, "n_frames", 1) > 1 and image.format not in STILLS_TOGETHER:
        raise ValueError("is an animation")
    if image.mode not in AS_PILLOW_CONVERTS | SIXTEEN_BIT_GREY:
        raise ValueError(f"has samples of mode {image.mode}")


def lacks_palette(image: Image.Image) -> bool:
    """Return whether an image's samples are indices of a palette that is missing."""
    return image.mode in ("P", "PA") and image.palette is None


def resize_rgb(rgb: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return uint8 [height, width, 3], scaled with a triangle filter.

    The filter is as wide as the reduction, so that nothing aliases.
    """
    if rgb.shape[:2] == (height, width):
        return rgb
    return np.asarray(Image.fromarray(rgb).resize((width, height), Image.Resampling.BILINEAR))


def rgb_md5(rgb: NDArray[np.uint8]) -> str:
    """Return 32 hex digits: MD5 over the rows of an RGB picture, then `rgb24{width}x{height}`."""
    height, width, _ = rgb.shape
    return hashlib.md5(np.ascontiguousarray(rgb).tobytes() + f"rgb24{width}x{height}".encode()).hexdigest()
