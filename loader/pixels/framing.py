"""Framing: how frames are scaled when they are loaded, and which part of the scaled frames is delivered.

This includes the frame sizes of vision-language models, which are multiples of a patch size with a limited number of
pixels. The size of delivered frames is computed from the size of the pictures, without reading clips.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.sharder.clips.clip_source import StoredShapes
from framedex.sharder.decoding.cutout import Cutout, Window
from framedex.sharder.decoding.video import Size
from framedex.sharder.policies.sampling import below, draws

# These constants are from qwen-vl-utils 0.0.14. A token stands for `factor` × `factor` pixels.
MIN_TOKENS, MAX_TOKENS = 128, 768  # limits of the number of tokens per frame
# The maximum number of tokens of the model's input, and the share of it that a video may use.
MAX_TOKENS_OF_CLIP, SHARE_FOR_VIDEO = 128_000, 0.9
MIN_ROOM = 1.05  # the upper limit of pixels per frame is at least this many times `min_pixels`
MAX_RATIO = 200  # maximum of longer side / shorter side


@dataclass(frozen=True, slots=True, kw_only=True)
class SmartResize:
    """The frame sizes of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

    Both sides are rounded to multiples of `factor`, so proportions change slightly. The number of pixels of a frame has
    a lower and an upper limit. The upper limit decreases with the number of frames of a clip. The sizes equal those of
    `qwen_vl_utils.fetch_video` (0.0.14), except for long, thin pictures. That function scales such pictures to 0 rows.
    Here their shorter side becomes `factor`, and they may exceed the upper limit.

    Attributes:
        factor: The number of pixels of which both sides are multiples. It is the size of a patch times the number of
            patches that the model merges along each side: 28 for Qwen2-VL and Qwen2.5-VL, 32 for Qwen3-VL, and 14 for
            patches of 14 pixels that are not merged.
        min_pixels: The minimum number of pixels per frame. Defaults to 128 × factor².
        max_pixels: The maximum number of pixels per frame. Defaults to 768 × factor². The limit that is computed from
            `total_pixels` applies as well.
        total_pixels: The maximum number of pixels per clip, where `frames_merged` frames count as one frame. Defaults
            to 115,200 × factor². Long clips may exceed it, because each frame may have 1.05 × `min_pixels`.
        frames_merged: The number of consecutive frames that the model merges into one.

    Raises:
        FramedexError: A value is not allowed.
    """

    factor: int = 28
    min_pixels: int | None = None
    max_pixels: int | None = None
    total_pixels: int | None = None
    frames_merged: int = 2

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            is_default = value is None and name not in ("factor", "frames_merged")
            if not is_default and (type(value) is not int or value < 1):
                raise FramedexError(f"{name} is out of range", found=repr(value), allowed="1 or more")
        least, most = self.least_pixels, self.max_pixels
        if most is not None and most < least:
            raise FramedexError(
                "max_pixels is below min_pixels",
                found=most,
                allowed=f"{least} or more",
                remedy="also set min_pixels, which is 128 × factor² by default",
            )

    @property
    def least_pixels(self) -> int:
        """The minimum number of pixels per frame."""
        return MIN_TOKENS * self.factor**2 if self.min_pixels is None else self.min_pixels

    def most_pixels(self, frames: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64 [clips], the maximum number of pixels per frame for clips with the given numbers of frames."""
        area = self.factor**2
        total = MAX_TOKENS_OF_CLIP * area * SHARE_FOR_VIDEO if self.total_pixels is None else self.total_pixels
        limit = np.minimum(float(MAX_TOKENS * area), total / frames * self.frames_merged)
        limit = np.maximum(limit, int(self.least_pixels * MIN_ROOM))
        return limit if self.max_pixels is None else np.minimum(limit, self.max_pixels)


Sides = NDArray[np.int64]
Rotation = Literal["apply", "stored"]


def smart_sizes(rule: SmartResize, heights: Sides, widths: Sides, frames: Sides) -> tuple[Sides, Sides]:
    """Return (heights, widths), int64 [clips] each, to which `SmartResize` scales the frames of clips.

    Args:
        rule: The user's limits.
        heights, widths: int64 [clips], the sizes of the pictures.
        frames: int64 [clips], the number of frames of each clip, including padding.

    Raises:
        FramedexError: The longer side of a picture is more than 200 times as long as the shorter side.
    """
    longer, shorter = np.maximum(heights, widths), np.minimum(heights, widths)
    too_thin = np.flatnonzero(longer > MAX_RATIO * shorter)
    if len(too_thin):
        first = too_thin[0]
        raise FramedexError(
            "smart_resize does not support these proportions",
            found=f"{widths[first]} × {heights[first]}",
            allowed=f"a longer side of at most {MAX_RATIO} times the shorter one",
        )
    factor, least, most = rule.factor, rule.least_pixels, rule.most_pixels(frames)
    # `rint` rounds halves to even, as Python's `round` does in qwen-vl-utils.
    sides = [np.maximum(factor, np.rint(side / factor) * factor) for side in (heights, widths)]
    area, pixels = sides[0] * sides[1], heights * widths
    is_large, is_small = area > most, (area < least) & (area <= most)
    down, up = np.sqrt(pixels / most), np.sqrt(least / pixels)
    found = []
    for side, rounded in zip((heights, widths), sides, strict=True):
        smaller = np.maximum(factor, np.floor(side / down / factor) * factor)
        larger = np.ceil(side * up / factor) * factor
        found.append(np.where(is_large, smaller, np.where(is_small, larger, rounded)).astype(np.int64))
    return found[0], found[1]


Resize = Literal["stretch", "fit", "crop"]
Position = Literal["center", "random", "three", "five", "ten"]
Aspect = Literal["display", "stored"]
CROPS: dict[str, int] = {"three": 3, "five": 5, "ten": 10}  # the number of crops by position
RATIO = (3 / 4, 4 / 3)  # torchvision's default for random-resized crops
SIZES = ("size", "sizes", "short_side", "long_side", "smart_resize")  # at most one of these arguments may be given
MAX_SIDE = 1 << 16  # pixels


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Framing:
    """How frames are scaled, and which part of the scaled frames is delivered.

    If only `size` is set, frames are stretched, so that their proportions change (`resize="stretch"`). All other
    options keep proportions. Frames are scaled first and cropped afterwards. All frames and all views of a clip are
    cropped and mirrored in the same way. Random values depend only on the dataset's seed, the epoch and the clip's
    name, not on workers, ranks or the device.

    Attributes:
        size: (height, width) of the delivered frames.
        sizes: Several sizes (height, width), in place of `size`. Each clip gets the size whose proportions (width /
            height) are nearest to the proportions of its pictures. Nearness is measured by the ratio of the two
            proportions. If two sizes are equally near, the clip gets the first of them.
        resize: How frames are brought to the size that `size` or `sizes` sets. "stretch" scales width and height
            independently, which changes proportions. "fit" scales the frame until it fits into the size, and pads it
            with zeros on two opposite sides. "crop" scales the frame until it covers the size, and cuts off two
            opposite sides.
        short_side: The length in pixels to which the shorter side is scaled. The longer side is scaled by the same
            factor, and rounded down as in torchvision. With (least, most), a length from least to most, both included,
            is drawn at random for each clip. This requires `crop`, because clips would otherwise differ in size.
        long_side: The length in pixels to which the longer side is scaled. The shorter side is scaled by the same
            factor, and rounded down.
        smart_resize: Sizes for vision-language models, which depend on the clip's proportions and length.
        crop: (height, width) of a crop of the scaled frames. If no option above sets a size, frames are not scaled, and
            the crop is cut out before frames are converted to RGB.
        position: The position of `crop`. "center" is the middle, and "random" is drawn for each clip. "three" stands
            for three crops, at both ends and in the middle of the longer side. "five" stands for crops at the corners
            and in the center, and "ten" for these five crops and their mirror images. If there are several crops,
            frames have an additional first axis: [crops, F, …].
        scale: The (least, most) share of the frame's area that a random-resized crop has, such as (0.08, 1.0). Such a
            crop is a random part of the frame that is scaled to `size`. If None, there are no random-resized crops.
        ratio: The (least, most) ratio of width to height of a random-resized crop. Defaults to (3/4, 4/3).
        flip: The probability that a clip is mirrored left to right.
        aspect: The proportions of pictures that are scaled. "display" keeps the proportions that players show, which
            depend on the shape of samples (`sample_aspect_ratio`). "stored" treats all samples as squares.

    Raises:
        FramedexError: A value is not allowed, or values contradict each other.
    """

    size: Size | None = None
    sizes: Sequence[Size] | None = None
    resize: Resize = "stretch"
    short_side: int | tuple[int, int] | None = None
    long_side: int | None = None
    smart_resize: SmartResize | None = None
    crop: Size | None = None
    position: Position = "center"
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] | None = None
    flip: float = 0.0
    aspect: Aspect = "display"

    def __post_init__(self) -> None:
        for name in ("size", "short_side", "crop", "scale", "ratio"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check_choices(
            resize=(self.resize, get_args(Resize)),
            position=(self.position, get_args(Position)),
            aspect=(self.aspect, get_args(Aspect)),
        )
        if isinstance(self.sizes, list | tuple):
            own = tuple(tuple(size) if isinstance(size, list) else size for size in self.sizes)
            object.__setattr__(self, "sizes", own)
            for size in own:
                _check_size("each of sizes", size)
        if self.sizes is not None and not (isinstance(self.sizes, tuple) and self.sizes and None not in self.sizes):
            raise FramedexError(
                "sizes must be a list of at least one (height, width)",
                found=repr(self.sizes),
                allowed="such as [(480, 832), (832, 480)]",
            )
        _check_size("size", self.size)
        _check_size("crop", self.crop)
        self._check_sides()
        self._check_together()
        for name, most in (("scale", 1.0), ("ratio", float("inf"))):
            value = getattr(self, name)
            if value is not None and not _is_range(value, most):
                allowed = "(least, most), above 0" + ("" if most == float("inf") else f" and at most {most:g}")
                raise FramedexError(f"{name} is out of range", found=repr(value), allowed=allowed)
        if type(self.flip) not in (int, float) or not 0 <= self.flip <= 1:
            raise FramedexError("flip must be a probability", found=repr(self.flip), allowed="0 to 1")

    def _check_sides(self) -> None:
        side = self.short_side
        ends = side if isinstance(side, tuple) else (1, 1) if side is None else (side, side)
        if len(ends) != 2 or not all(map(_is_side, ends)) or ends[0] > ends[1]:
            allowed = None if isinstance(side, tuple) else "1 or more"
            raise FramedexError(
                "short_side must be a number of pixels, or (least, most)", found=repr(side), allowed=allowed
            )
        if self.long_side is not None and not _is_side(self.long_side):
            raise FramedexError("long_side must be a number of pixels", found=repr(self.long_side), allowed="1 or more")
        if self.smart_resize is not None and not isinstance(self.smart_resize, SmartResize):
            raise FramedexError(
                "smart_resize must be a SmartResize",
                found=repr(self.smart_resize),
                allowed="such as framedex.SmartResize(factor=28)",
            )

    def _check_together(self) -> None:
        given = [name for name in SIZES if getattr(self, name) is not None]
        if len(given) > 1:
            raise FramedexError(
                "several arguments set the size of frames", found=", ".join(given), allowed="one of them"
            )
        sized = self.size is not None or self.sizes is not None
        if self.resize != "stretch" and (not sized or self.crop is not None):
            raise FramedexError(f"resize={self.resize!r} needs size or sizes, and cannot be combined with crop")
        if self.sizes is not None and self.crop is not None:
            raise FramedexError(
                "sizes and crop cannot be combined",
                found=f"crop={self.crop!r}",
                remedy="to crop frames to one of the sizes, use resize='crop' instead",
            )
        if self.position != "center" and self.crop is None:
            raise FramedexError(f"position={self.position!r} needs crop=(height, width)")
        if isinstance(self.short_side, tuple) and self.crop is None:
            raise FramedexError(
                "a short_side that is drawn at random needs crop=(height, width)",
                found=repr(self.short_side),
                remedy="give crop, too, because clips would differ in size without it",
            )
        if self.scale is not None and (not sized or self.crop is not None or self.resize != "stretch"):
            raise FramedexError(
                "scale (for random-resized crops) needs size or sizes, and cannot be combined with crop or resize",
                allowed="such as Framing(size=(224, 224), scale=(0.08, 1.0))",
            )
        if self.ratio is not None and self.scale is None:
            raise FramedexError(
                "ratio is allowed only for random-resized crops", remedy="also give scale, such as scale=(0.08, 1.0)"
            )

    def __repr__(self) -> str:
        """Return a constructor call with the arguments that differ from their defaults."""
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        shown = [f"{name}={value!r}" for name, value, default in values if value != default]
        return f"Framing({', '.join(shown)})"

    @property
    def scales(self) -> bool:
        """Whether any option scales frames."""
        return any(getattr(self, name) is not None for name in SIZES)

    @property
    def keeps_proportions(self) -> bool:
        """Whether the way of scaling depends on the proportions of pictures. Only stretching to a size does not."""
        is_stretched = self.size is not None and self.resize == "stretch" and self.scale is None
        return self.scales and not is_stretched

    @property
    def shows_aspects(self) -> bool:
        """Whether pictures are scaled to the proportions that players show."""
        return self.keeps_proportions and self.aspect == "display"

    @property
    def needs_aspects(self) -> bool:
        """Whether sizes of delivered frames depend on the shape of samples."""
        return self.shows_aspects and self.fixed_size is None

    @property
    def crops(self) -> int | None:
        """The number of crops per clip, or None if frames do not have an axis of crops."""
        return CROPS.get(self.position)

    @property
    def is_plain(self) -> bool:
        """Whether frames stay as they are, or are only stretched to a size."""
        return self == Framing(size=self.size, aspect=self.aspect)

    @property
    def fixed_size(self) -> Size | None:
        """(height, width) of all delivered frames, or None if the size may differ between clips."""
        return self.crop or self.size


def framing_of(size: Size | None, framing: Framing | None) -> Framing:
    """Return `framing`, or a Framing that stretches to `size`. Raises FramedexError if both arguments are given."""
    if framing is None:
        return Framing(size=size)
    if not isinstance(framing, Framing):
        raise FramedexError(
            "framing must be a Framing", found=repr(framing), allowed="such as framedex.Framing(short_side=256)"
        )
    if size is not None:
        raise FramedexError(
            "size and framing both set the size of frames", remedy="give only framing=Framing(size=…, resize=…)"
        )
    return framing


def _check_size(name: str, size: object) -> None:
    if size is not None and (not isinstance(size, tuple) or len(size) != 2 or not all(_is_side(side) for side in size)):
        raise FramedexError(
            f"{name} must be (height, width)", found=repr(size), allowed=f"whole numbers, 1 to {MAX_SIDE}"
        )


def _is_side(side: object) -> bool:
    return type(side) is int and 1 <= side <= MAX_SIDE


def _is_range(value: Any, most: float) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(type(end) in (int, float) for end in value)
    return is_pair and 0 < value[0] <= value[1] <= most and math.isfinite(value[1])


def picture_sizes(framing: Framing, shapes: StoredShapes, rotation: Rotation) -> tuple[Sides, Sides]:
    """Return (heights, widths), int64 [clips] each, of pictures before scaling, turned as `rotation` requests.

    If the framing keeps the proportions that players show, samples that are not square are taken into account. As in
    players, the picture then keeps its height, and its width is changed and rounded, before the picture is turned.
    """
    heights, widths = shapes.heights, shapes.widths
    if framing.shows_aspects:
        widths = np.maximum(1, np.rint(widths * shapes.aspects)).astype(np.int64)
    if rotation == "stored":
        return heights, widths
    lies = shapes.turns % 2 == 1
    return np.where(lies, widths, heights), np.where(lies, heights, widths)


def delivered_sizes(framing: Framing, heights: Sides, widths: Sides, frames: Sides) -> tuple[Sides, Sides]:
    """Return (heights, widths), int64 [clips] each, of the frames that are delivered.

    Args:
        framing: The user's framing.
        heights, widths: int64 [clips], the sizes of the pictures (`picture_sizes`).
        frames: int64 [clips], the number of frames of each clip, with padding.

    Raises:
        FramedexError: `smart_resize` does not support the proportions of a picture.
    """
    if framing.fixed_size is not None:
        height, width = framing.fixed_size
        return np.full_like(heights, height), np.full_like(widths, width)
    if framing.sizes is not None:
        return _nearest_sizes(framing.sizes, heights, widths)
    return scaled_sizes(framing, heights, widths, frames)


def _nearest_sizes(sizes: Sequence[Size], heights: Sides, widths: Sides) -> tuple[Sides, Sides]:
    """Return (heights, widths), int64 [clips] each: for each picture, the size with the nearest proportions."""
    given = np.array(sizes, np.int64)
    away = np.abs(np.log(heights / widths)[:, None] - np.log(given[:, 0] / given[:, 1]))
    chosen = given[np.argmin(away, axis=1)]
    return chosen[:, 0], chosen[:, 1]


def scaled_sizes(
    framing: Framing, heights: Sides, widths: Sides, frames: Sides, *, short_side: int | None = None
) -> tuple[Sides, Sides]:
    """Return (heights, widths), int64 [clips] each, to which whole frames are scaled before cropping.

    Args:
        framing: The user's framing. It must not have random-resized crops.
        heights, widths, frames: See `delivered_sizes`.
        short_side: The length that was drawn at random, if `framing.short_side` is a range.

    Raises:
        FramedexError: See `delivered_sizes`.
    """
    if framing.smart_resize is not None:
        return smart_sizes(framing.smart_resize, heights, widths, frames)
    if framing.size is not None:
        height, width = (np.full_like(heights, side) for side in framing.size)
        if framing.resize == "stretch":
            return height, width
        is_wider = widths * height > heights * width
        keeps_width = is_wider if framing.resize == "fit" else ~is_wider
        return (
            np.where(keeps_width, np.maximum(1, _rounded(heights * width, widths)), height),
            np.where(keeps_width, width, np.maximum(1, _rounded(widths * height, heights))),
        )
    side = short_side or framing.short_side or framing.long_side
    if side is None:
        return heights, widths
    assert isinstance(side, int)  # if `framing.short_side` is a range, the caller passes the drawn length
    reference = np.maximum(heights, widths) if framing.long_side is not None else np.minimum(heights, widths)
    return np.maximum(1, heights * side // reference), np.maximum(1, widths * side // reference)


def _rounded(numerator: Sides, denominator: Sides) -> Sides:
    """Return the quotients of two integer arrays, rounded to the nearest integer. Halves are rounded up."""
    return (2 * numerator + denominator) // (2 * denominator)


TRIES = 10  # number of attempts to draw a random-resized crop that fits into the frame, as in torchvision
MAX_PIXELS, MAX_SCALED_SIDE = 1 << 28, 1 << 15  # largest area and side in pixels to which libswscale scales pictures
UNIT = 2.0**-53  # float64 has a precision of 53 bits, so all multiples of this number from 0 to 1 are exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The source of a clip's random numbers.

    Attributes:
        seed: The seed of the dataset.
        epoch: The epoch.
        name: The name of the clip. The views of one clip have the same name.
    """

    seed: int
    epoch: int
    name: str

    def numbers(self, purpose: str, count: int) -> list[int]:
        """Return `count` random integers, from 0 to 2**64 - 1."""
        found: list[int] = draws(self.seed, self.name, purpose, first=0, count=count, epoch=self.epoch).tolist()
        return found

    def uniform(self, purpose: str, count: int) -> list[float]:
        """Return `count` random numbers, at least 0 and less than 1."""
        return [(number >> 11) * UNIT for number in self.numbers(purpose, count)]

    def up_to(self, purpose: str, *most: int) -> list[int]:
        """Return one random integer for each limit, from 0 up to and including the limit."""
        drawn = draws(self.seed, self.name, purpose, first=0, count=len(most), epoch=self.epoch)
        return [int(below(drawn[place : place + 1], limit + 1)[0]) for place, limit in enumerate(most)]


def cutout_of(framing: Framing, size: Size, frames: int, draw: Draw) -> Cutout:
    """Return the scaling and cropping of a clip's frames.

    Args:
        framing: The user's framing.
        size: (height, width) of the clip's pictures as they are shown (`picture_sizes`).
        frames: The number of frames of the clip, with padding.
        draw: The source of random numbers.

    Returns:
        The cutout of pictures as they are shown. `Cutout.of_stored` converts it to stored pictures.

    Raises:
        FramedexError: A crop is larger than the scaled picture, the scaled picture would be too large, or the picture's
            proportions are not supported.
    """
    if framing.sizes is not None:
        heights, widths = _nearest_sizes(framing.sizes, np.array([size[0]]), np.array([size[1]]))
        framing = replace(framing, sizes=None, size=(int(heights[0]), int(widths[0])))
    found = _cutout(framing, size, frames, draw)
    height, width = found.scaled
    if framing.scales and (height * width > MAX_PIXELS or max(height, width) > MAX_SCALED_SIDE):
        raise FramedexError(
            "frames would be scaled to too many pixels",
            found=f"{width} × {height}, from pictures of {size[1]} × {size[0]} (width × height)",
            allowed=f"at most {MAX_PIXELS:,} pixels, and sides of at most {MAX_SCALED_SIDE:,} pixels",
            remedy="choose a smaller size, or a greater scale",
        )
    return found


def _cutout(framing: Framing, size: Size, frames: int, draw: Draw) -> Cutout:
    is_flipped = framing.flip > 0 and draw.uniform("flip", 1)[0] < framing.flip
    if framing.scale is not None and framing.size is not None:
        part = _random_part(framing.scale, framing.ratio or RATIO, size, draw)
        return Cutout(scaled=framing.size, size=framing.size, windows=(Window(0, 0, is_flipped),), part=part)
    drawn = None
    if isinstance(framing.short_side, tuple):
        least, most = framing.short_side
        drawn = least + draw.up_to("short side", most - least)[0]
    one = [np.array([value], np.int64) for value in (*size, frames)]
    heights, widths = scaled_sizes(framing, one[0], one[1], one[2], short_side=drawn)
    scaled = int(heights[0]), int(widths[0])
    if framing.crop is not None:
        places = _places(framing, scaled, framing.crop, draw)
        windows = tuple(Window(top, left, mirrored != is_flipped) for top, left, mirrored in places)
        return Cutout(scaled=scaled, size=framing.crop, windows=windows, is_stacked=framing.crops is not None)
    shown = scaled if framing.size is None else framing.size
    return Cutout(scaled=scaled, size=shown, windows=(Window(*_middle(scaled, shown), is_flipped),))


def _middle(full: Size, part: Size) -> tuple[int, int]:
    """Return (top, left) of a centered part of a frame, rounded as torchvision's `center_crop` does.

    If the part is larger than the frame, top and left are negative. Their absolute values are the numbers of rows and
    columns of padding before the frame.
    """
    top, left = (
        round((whole - side) / 2) if whole >= side else -((side - whole) // 2)
        for whole, side in zip(full, part, strict=True)
    )
    return top, left


def _places(framing: Framing, full: Size, part: Size, draw: Draw) -> list[tuple[int, int, bool]]:
    """Return (top, left, is_mirrored) for each crop. Raises FramedexError if the frame is smaller than the crop."""
    down, right = full[0] - part[0], full[1] - part[1]
    if down < 0 or right < 0:
        raise FramedexError(
            "the crop is larger than the frame",
            found=f"a frame of {full[1]} × {full[0]} and a crop of {part[1]} × {part[0]} (width × height)",
            remedy="also scale frames, with a short_side of at least the crop's longer side; or instead of crop, use "
            "size=(height, width) with resize='crop'",
        )
    top, left = _middle(full, part)
    if framing.position == "random":
        return [(*draw.up_to("crop", down, right), False)]  # type: ignore[list-item]
    if framing.position == "center":
        return [(top, left, False)]
    if framing.position == "three":
        along = [(0, left), (top, left), (down, left)] if full[0] > full[1] else [(top, 0), (top, left), (top, right)]
        return [(*place, False) for place in along]
    five = [(0, 0), (0, right), (down, 0), (down, right), (top, left)]  # as in torchvision
    plain = [(*place, False) for place in five]
    return plain if framing.position == "five" else plain + [(y, right - x, True) for y, x in five]


def _random_part(
    scale: tuple[float, float], ratio: tuple[float, float], size: Size, draw: Draw
) -> tuple[tuple[int, int], Size]:
    """Choose a part of a picture at random, as torchvision's RandomResizedCrop does.

    Returns:
        ((top, left), (height, width)) of the part.
    """
    height, width = size
    numbers = draw.uniform("resized crop", 2 * TRIES)
    for share, shape in zip(numbers[::2], numbers[1::2], strict=True):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * share)
        proportion = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
        part = round(math.sqrt(area / proportion)), round(math.sqrt(area * proportion))
        if 0 < part[0] <= height and 0 < part[1] <= width:
            top, left = draw.up_to("place of the resized crop", height - part[0], width - part[1])
            return (top, left), part
    # All attempts failed. As in torchvision, take the largest centered part with an allowed ratio.
    proportion = min(max(width / height, ratio[0]), ratio[1])
    part = min(height, max(1, round(width / proportion))), min(width, max(1, round(height * proportion)))
    return ((height - part[0]) // 2, (width - part[1]) // 2), part
