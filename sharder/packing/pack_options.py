"""Define the options of clips that are stored as images or encoded again, and encode images with Pillow.

The options include the size of the stored frames. At most one of `short_side`, `size` and `box` may be given.
"""

import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framedex.core.words import check_choices
from framedex.errors import DecodeError, PolicyError
from framedex.indexer.probing.image_facts import resize_rgb
from framedex.records.clip import Recipe
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.decoding.video import Size, decode_unique, encoded_images
from framedex.sharder.reading import EncodedClip

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)

EncodeCodec = Literal["h264", "hevc", "av1"]
EVEN = 2  # 4:2:0 has one chroma sample per 2 × 2 pixels, so width and height are multiples of 2
# Default constant rate factor of each codec, chosen by measurements (benchmarks/encoded_shards.py).
DEFAULT_CRF: dict[EncodeCodec, int] = {"h264": 23, "hevc": 23, "av1": 30}
# Maximum constant rate factor of each codec. The minimum is 1: at 0, x264 is lossless and needs another profile than
# High.
MAX_CRF: dict[EncodeCodec, int] = {"h264": 51, "hevc": 51, "av1": 63}
ENCODE_CODECS: tuple[EncodeCodec, ...] = tuple(DEFAULT_CRF)
MAX_WEBP_SIDE = 16_383  # maximum width and height of a WebP image in pixels (RFC 9649 2.5)

ImageFormat = Literal["jpeg", "png", "webp"]
FORMATS: dict[ImageFormat, str] = {"jpeg": "jpg", "png": "png", "webp": "webp"}  # file name extension of each format
CODECS: dict[ImageFormat, str] = {"jpeg": "mjpeg", "png": "png", "webp": "webp"}  # FFmpeg's codec name of each format


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """Options of encoded clips: codec, quality and frame size.

    At most one of `short_side`, `size` and `box` may be given. Without any of them, frames keep the size of the medium.
    Computed widths and heights are rounded to the nearest even number; an odd integer is rounded down.

    Attributes:
        codec: The codec: "h264", "hevc" or "av1".
        crf: The encoder's constant rate factor. A lower value gives better quality and larger files. If None, the
            default of the codec: 23 for H.264 and HEVC, 30 for AV1.
        short_side: The maximum length of the shorter side in pixels. Smaller frames are not enlarged.
        size: The exact (height, width) in pixels.
        box: The maximum length of the longer side in pixels. Smaller frames are not enlarged.

    Raises:
        PolicyError: A value is not allowed.
    """

    codec: EncodeCodec = "h264"
    crf: int | None = None
    short_side: int | None = None
    size: Size | None = None
    box: int | None = None

    def __post_init__(self) -> None:
        check_choices(PolicyError, codec=(self.codec, ENCODE_CODECS))
        if self.crf is not None and (type(self.crf) is not int or not 1 <= self.crf <= MAX_CRF[self.codec]):
            raise PolicyError(
                f"the crf of {self.codec} must be an integer in a range",
                found=repr(self.crf),
                allowed=f"1 to {MAX_CRF[self.codec]}",
            )
        _check_limits(self)
        if self.size is not None and any(side % EVEN for side in self.size):
            raise PolicyError(
                "the height and width of encoded pictures must be even, because their chroma is 4:2:0",
                found="{}x{}".format(*self.size),
                remedy="give an even height and width",
            )

    @property
    def quality(self) -> int:
        """The constant rate factor: `crf`, or the default of the codec."""
        return DEFAULT_CRF[self.codec] if self.crf is None else self.crf

    def stored_size(self, height: int, width: int) -> Size:
        """Return the (height, width) to which a frame of the given size is scaled before it is encoded."""
        return _limited_size(self, height, width, _even)

    def facts(self) -> dict[str, Any]:
        """Return the options as dataset.json records them."""
        return asdict(self) | {"crf": self.quality}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """Options of clips that are stored as images: format, quality and frame size.

    At most one of `short_side`, `size` and `box` may be given. Without any of them, frames keep the size of the medium.

    Attributes:
        format: The image format: "jpeg", "png" or "webp".
        quality: The quality of JPEG and WebP, from 1 to 100.
        short_side: The maximum length of the shorter side in pixels. Smaller frames are not enlarged.
        size: The exact (height, width) in pixels.
        box: The maximum length of the longer side in pixels. Smaller frames are not enlarged.

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
        _check_limits(self)

    def stored_size(self, height: int, width: int) -> Size:
        """Return the (height, width) to which a frame of the given size is scaled before it is stored."""
        return _limited_size(self, height, width, lambda side: max(1, round(side)))


def _check_limits(options: ImageOptions | EncodeOptions) -> None:
    """Raise PolicyError if a side is not a positive integer, or if several of the three size options are given."""
    short_side, size, box = options.short_side, options.size, options.box
    if size is not None and (not isinstance(size, tuple | list) or len(size) != 2):
        raise PolicyError("a size must be (height, width)", found=repr(size))
    given = [side for side in (short_side, box, *(size or ())) if side is not None]
    wrong = [side for side in given if type(side) is not int or side < 1]
    if wrong:
        raise PolicyError(
            "the height and width of pictures, and their limits, must be positive integers", found=repr(wrong[0])
        )
    if sum(value is not None for value in (short_side, size, box)) > 1:
        raise PolicyError("at most one of short_side, size and box may be given")


def _limited_size(
    options: ImageOptions | EncodeOptions, height: int, width: int, round_side: Callable[[Fraction], int]
) -> Size:
    """Return the (height, width) of a frame after scaling. Only `size` can enlarge a frame."""
    if options.size is not None:
        return options.size
    longer = options.box is not None
    limit, side = (options.box, max(height, width)) if longer else (options.short_side, min(height, width))
    factor = Fraction(1) if limit is None else min(Fraction(1), Fraction(limit, side))
    return round_side(height * factor), round_side(width * factor)


def _even(side: Fraction) -> int:
    """Round a side to the nearest even number, at least 2. An odd integer is rounded down, so that it does not grow."""
    return max(EVEN, EVEN * math.ceil(side / EVEN - Fraction(1, 2)))


def recoded_medium(medium: Medium, options: ImageOptions | EncodeOptions, **properties: Any) -> Medium:
    """Return a copy of a medium whose properties describe its recoded clips instead of the source.

    Properties that only the source's stream can have, such as hidden pictures, are reset.
    """
    height, width = options.stored_size(medium.height, medium.width)
    aspect = medium.sample_aspect_ratio
    if options.size is not None:  # pictures are stretched to `size`, which changes the shape of a pixel
        aspect = medium.aspect * (medium.width * height) / (medium.height * width)
    return replace(
        medium,
        width=width,
        height=height,
        sample_aspect_ratio=aspect,
        bits_per_coded_sample=None,
        states=[b""],
        inband_parameter_sets=False,
        inner_start_codes=False,
        varying_shape=False,
        max_ref_frames=None,
        field_coded=False,
        hidden_unordered=False,
        **properties,
    )


def recoded_recipe(
    kind: type[AnyRecipe],
    size: NDArray[np.int64],
    rank: NDArray[np.int32],
    position: NDArray[np.int32],
    **fields: Any,
) -> AnyRecipe:
    """Return the recipe of recoded packets. The packets are contiguous and are decoded in one run.

    Args:
        kind: The class of the recipe.
        size: int64 [packets], the size of each packet in bytes.
        rank: int32 [packets], the presentation rank of each packet.
        position: int32 [wanted], the rank of each wanted frame, -1 for padding.
        fields: The other fields of the recipe.
    """
    start = np.zeros(1, np.int32)
    return kind(
        packet_size=size.astype(np.int32),
        packet_rank=rank,
        position=position,
        run_first=start,
        run_open=np.zeros(1, np.bool_),
        run_state=start,
        **fields,
    )


def encode_image(rgb: NDArray[np.uint8], options: ImageOptions) -> bytes:
    """Scale a picture, uint8 [H, W, 3] RGB, to the stored size, and return it as the bytes of an image file.

    Raises:
        DecodeError: The picture is too large for the format.
    """
    picture = Image.fromarray(resize_rgb(rgb, *options.stored_size(*rgb.shape[:2])))
    file = io.BytesIO()
    if options.format == "jpeg":
        picture.save(file, "JPEG", quality=options.quality, subsampling="4:2:0")
    elif options.format == "webp":
        if max(picture.size) > MAX_WEBP_SIDE:
            raise DecodeError(
                "a picture is too large for WebP",
                found=f"{picture.width}×{picture.height}",
                allowed=f"at most {MAX_WEBP_SIDE} pixels per side",
                remedy="pass --image-format jpeg or png, or choose a smaller size",
            )
        picture.save(file, "WEBP", quality=options.quality, method=4)
    else:
        picture.save(file, "PNG")
    return file.getvalue()


def as_they_are(medium: Medium, options: ImageOptions) -> bool:
    """Return whether a medium consists of images, and the options change neither their size nor their format.

    Such images are copied byte for byte.
    """
    size = medium.height, medium.width
    return medium.kind == IMAGES and options.stored_size(*size) == size and medium.codec == CODECS[options.format]


def unique_ranks(clip: Clip) -> NDArray[np.int64]:
    """Return int64 [unique]: the ranks of the wanted frames without repeats, in order of first appearance."""
    ranks, first = np.unique(clip.recipe.position, return_index=True)
    ordered = ranks[np.argsort(first)].astype(np.int64)
    return ordered[ordered >= 0]


def in_first_order(clip: Clip, files: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Return the image files of a clip in the order in which the clip first shows them.

    Args:
        clip: The clip.
        files: (rank, image file) of each wanted picture, in any order.

    Raises:
        DecodeError: A file is missing.
    """
    found, ranks = dict(files), unique_ranks(clip).tolist()
    if len(found) != len(ranks):
        raise DecodeError(f"clip {clip.clip_id}: {len(found)} of {len(ranks)} frames were decoded")
    return [found[rank] for rank in ranks]


def image_files(clip: Clip, encoded: EncodedClip, options: ImageOptions) -> Iterator[tuple[int, bytes]]:
    """Yield (rank, image file) once for each wanted picture of a clip. Raises DecodeError."""
    if as_they_are(clip.medium, options):
        return encoded_images(clip, encoded)
    return ((rank, encode_image(rgb, options)) for rank, rgb in decode_unique(clip, encoded))
