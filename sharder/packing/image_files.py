"""Frames stored as images: their sizes, and encoding with Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framedex.core.words import check_choices
from framedex.errors import DecodeError, PolicyError
from framedex.indexer.images.image_facts import resize_rgb
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.decoding.video import Size, decode_unique
from framedex.sharder.packing.encode_options import check_limits, reduction
from framedex.sharder.reading.sources import EncodedClip

LARGEST_WEBP = 16_383  # pixels per side (RFC 9649 2.5)

ImageFormat = Literal["jpeg", "png", "webp"]
FORMATS: dict[ImageFormat, str] = {"jpeg": "jpg", "png": "png", "webp": "webp"}  # with the extensions of file names
CODECS: dict[ImageFormat, str] = {"jpeg": "mjpeg", "png": "png", "webp": "webp"}  # as FFmpeg names them


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """How frames are stored.

    At most one of `short_side`, `size` and `box` may be given; without any, frames keep the medium's own size.

    Attributes:
        quality: 1 to 100, for JPEG and WebP.
        short_side: Greatest length of the shorter side. Nothing is enlarged.
        size: Exact (height, width).
        box: Greatest length of the longer side. Nothing is enlarged.

    Raises:
        PolicyError: A value is not allowed.
    """

    format: ImageFormat = "jpeg"
    quality: int = 90
    short_side: int | None = None
    size: Size | None = None
    box: int | None = None

    def __post_init__(self) -> None:
        check_choices(PolicyError, format=(self.format, FORMATS))
        if not 1 <= self.quality <= 100:
            raise PolicyError("quality is out of range", found=self.quality, allowed="1 to 100")
        check_limits(self.short_side, self.size, self.box)

    def stored_size(self, height: int, width: int) -> Size:
        """Return (height, width) in which a frame of this size is stored."""
        if self.size is not None:
            return self.size
        factor = reduction(height, width, short_side=self.short_side, box=self.box)
        return max(1, round(height * factor)), max(1, round(width * factor))


def encode_image(rgb: NDArray[np.uint8], options: ImageOptions) -> bytes:
    """Return a picture, uint8 [H, W, 3] RGB, as an image file of the stored size.

    Raises:
        DecodeError: The picture is too large for the format.
    """
    picture = Image.fromarray(resize_rgb(rgb, *options.stored_size(*rgb.shape[:2])))
    file = io.BytesIO()
    if options.format == "jpeg":
        picture.save(file, "JPEG", quality=options.quality, subsampling="4:2:0")
    elif options.format == "webp":
        if max(picture.size) > LARGEST_WEBP:
            raise DecodeError(
                "a picture is too large for WebP",
                found=f"{picture.width}×{picture.height}",
                allowed=f"{LARGEST_WEBP} pixels a side",
                remedy="--image-format jpeg or png, or a smaller size",
            )
        picture.save(file, "WEBP", quality=options.quality, method=4)
    else:
        picture.save(file, "PNG")
    return file.getvalue()


def as_they_are(medium: Medium, options: ImageOptions | None) -> bool:
    """Return whether a medium's images are stored byte for byte: there are no options, or they change nothing."""
    if medium.kind != IMAGES:
        return False
    unchanged = options is None or options.stored_size(medium.height, medium.width) == (medium.height, medium.width)
    return unchanged and (options is None or medium.codec == CODECS[options.format])


def unique_ranks(clip: Clip) -> NDArray[np.int64]:
    """Return int64 [unique]: the ranks of wanted frames in order of first appearance."""
    ranks, first = np.unique(clip.recipe.position, return_index=True)
    ordered = ranks[np.argsort(first)].astype(np.int64)
    return ordered[ordered >= 0]


def image_files(clip: Clip, encoded: EncodedClip, options: ImageOptions | None) -> list[bytes]:
    """Return an image file for every frame that a clip wants, in order of first appearance. Raises DecodeError."""
    ranks = unique_ranks(clip).tolist()
    if as_they_are(clip.medium, options):
        edges = encoded.packet_first.tolist()
        packet_of = {rank: packet for packet, rank in enumerate(clip.recipe.packet_rank.tolist())}
        return [encoded.payload[edges[packet_of[rank]] : edges[packet_of[rank] + 1]].tobytes() for rank in ranks]
    assert options is not None  # otherwise images are stored byte for byte
    found = {rank: encode_image(rgb, options) for rank, rgb in decode_unique(clip, encoded)}
    if len(found) != len(ranks):
        raise DecodeError(f"clip {clip.clip_id}: {len(found)} of {len(ranks)} frames were decoded")
    return [found[rank] for rank in ranks]
