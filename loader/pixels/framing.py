"""Framing: to which size frames are scaled when they are loaded, and which part of them is delivered."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from framedex.core.hints import check_choices
from framedex.errors import FramedexError
from framedex.loader.pixels.smart_resize import SmartResize
from framedex.sharder.decoding.video import Size

Resize = Literal["stretch", "fit", "crop"]
Position = Literal["center", "random", "three", "five", "ten"]
CROPS: dict[str, int] = {"three": 3, "five": 5, "ten": 10}  # crops of a clip, by position
RATIO = (3 / 4, 4 / 3)  # of random-resized crops, as in torchvision
SIZES = ("size", "short_side", "long_side", "smart_resize")  # at most one is given
MOST_SIDE = 1 << 16  # pixels


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Framing:
    """To which size frames are scaled, and which part of them is delivered.

    `size` alone changes proportions (`resize="stretch"`); all other ways keep them. Frames are scaled first, whole, and
    cut then. All frames of a clip, and all views of a clip of several views, are cut and mirrored in the same way.
    Random draws depend only on the seed of the dataset, the epoch and the clip's name, not on workers, ranks or the
    device.

    Attributes:
        size: (height, width) of the delivered frames.
        resize: how `size` is reached. "stretch" scales both sides, and changes proportions. "fit" scales until the
            frame fits in, and fills the rest with zeros on both sides. "crop" scales until the frame covers the size,
            and cuts off what stands out on both sides.
        short_side: pixels of the shorter side. The longer one follows, rounded down as in torchvision. (least, most) is
            drawn at random from that range for each clip, both ends included; it needs `crop`.
        long_side: pixels of the longer side. The shorter one follows, rounded down.
        smart_resize: sizes for vision-language models, by the clip's own proportions and length.
        crop: (height, width) that is cut out of the scaled frames. Without any of the sizes above, it is cut out of the
            frames as they are stored, before they are converted to RGB.
        position: where `crop` is cut. "center". "random": at a place that is drawn for each clip. "three": at both ends
            and in the middle of the longer side. "five": in the corners and in the center. "ten": "five", and the same
            mirrored. The last three give an axis of the crops in front of the frames: [crops, F, …].
        scale: (least, most) share of the area of a random-resized crop, such as (0.08, 1.0): a part of the frame is
            drawn, which becomes `size`.
        ratio: (least, most) ratio of width to height of that part. None: (3/4, 4/3).
        flip: probability that a clip is mirrored left to right.

    Raises:
        FramedexError: a value is not allowed, or values contradict each other.
    """

    size: Size | None = None
    resize: Resize = "stretch"
    short_side: int | tuple[int, int] | None = None
    long_side: int | None = None
    smart_resize: SmartResize | None = None
    crop: Size | None = None
    position: Position = "center"
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] | None = None
    flip: float = 0.0

    def __post_init__(self) -> None:
        for name in ("size", "short_side", "crop", "scale", "ratio"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check_choices(resize=(self.resize, get_args(Resize)), position=(self.position, get_args(Position)))
        _check_size("size", self.size)
        _check_size("crop", self.crop)
        self._check_sides()
        self._check_together()
        self._check_ranges()

    def _check_sides(self) -> None:
        side = self.short_side
        if isinstance(side, tuple | list):
            if len(side) != 2 or not all(map(_is_side, side)) or side[0] > side[1]:
                raise FramedexError("short_side is a number of pixels, or (least, most)", found=repr(side))
        elif side is not None and not _is_side(side):
            raise FramedexError(
                "short_side is a number of pixels, or (least, most)", found=repr(side), allowed="1 or more"
            )
        if self.long_side is not None and not _is_side(self.long_side):
            raise FramedexError("long_side is a number of pixels", found=repr(self.long_side), allowed="1 or more")
        if self.smart_resize is not None and not isinstance(self.smart_resize, SmartResize):
            raise FramedexError(
                "smart_resize is a SmartResize", found=repr(self.smart_resize), remedy="framedex.SmartResize(factor=28)"
            )

    def _check_together(self) -> None:
        given = [name for name in SIZES if getattr(self, name) is not None]
        if len(given) > 1:
            raise FramedexError("several arguments say how large frames become", found=", ".join(given), allowed="one")
        if self.resize != "stretch" and (self.size is None or self.crop is not None):
            raise FramedexError(f"resize={self.resize!r} needs size=(height, width), and has no crop")
        if self.position != "center" and self.crop is None:
            raise FramedexError(f"position={self.position!r} needs crop=(height, width)")
        if self.is_drawn_side and self.crop is None:
            raise FramedexError(
                "a short_side that is drawn at random needs crop=(height, width)",
                found=repr(self.short_side),
                remedy="clips would differ in size without it",
            )
        if self.scale is not None and (self.size is None or self.crop is not None or self.resize != "stretch"):
            raise FramedexError(
                "scale is for random-resized crops, which need size=(height, width), and neither crop nor resize",
                remedy="Framing(size=(224, 224), scale=(0.08, 1.0))",
            )
        if self.ratio is not None and self.scale is None:
            raise FramedexError("ratio is for random-resized crops, which need scale", remedy="scale=(0.08, 1.0)")

    def _check_ranges(self) -> None:
        for name, most in (("scale", 1.0), ("ratio", float("inf"))):
            value = getattr(self, name)
            if value is not None and not _is_range(value, most):
                allowed = "(least, most), above 0" + ("" if most == float("inf") else f" and at most {most:g}")
                raise FramedexError(f"{name} is out of range", found=repr(value), allowed=allowed)
        if type(self.flip) not in (int, float) or not 0 <= self.flip <= 1:
            raise FramedexError("flip is a probability", found=repr(self.flip), allowed="0 to 1")

    def __repr__(self) -> str:
        """Return the arguments that differ from their defaults."""
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        shown = [f"{name}={value!r}" for name, value, default in values if value != default]
        return f"Framing({', '.join(shown)})"

    @property
    def is_drawn_side(self) -> bool:
        """Whether the length of the shorter side is drawn for each clip."""
        return isinstance(self.short_side, tuple)

    @property
    def scales(self) -> bool:
        """Whether frames are scaled at all."""
        return any(getattr(self, name) is not None for name in SIZES)

    @property
    def crops(self) -> int | None:
        """How many crops each clip has. None: there is no axis of the crops."""
        return CROPS.get(self.position)

    @property
    def is_plain(self) -> bool:
        """Whether frames are at most stretched to a size: nothing is cut, filled or drawn."""
        return self == Framing(size=self.size)

    @property
    def fixed_size(self) -> Size | None:
        """(height, width) of all delivered frames. None: clips differ."""
        return self.crop if self.crop is not None else self.size


def framing_of(size: Size | None, framing: Framing | None) -> Framing:
    """Return the framing that the arguments `size` and `framing` mean. Raises FramedexError if both are given."""
    if framing is None:
        return Framing(size=size)
    if not isinstance(framing, Framing):
        raise FramedexError("framing is a Framing", found=repr(framing), remedy="framedex.Framing(short_side=256)")
    if size is not None:
        raise FramedexError(
            "size and framing both say how large frames become", remedy="framing=Framing(size=…, resize=…)"
        )
    return framing


def _check_size(name: str, size: object) -> None:
    if size is not None and (not isinstance(size, tuple) or len(size) != 2 or not all(_is_side(side) for side in size)):
        raise FramedexError(f"{name} is (height, width), whole numbers above zero", found=repr(size))


def _is_side(side: object) -> bool:
    return type(side) is int and 1 <= side <= MOST_SIDE


def _is_range(value: object, most: float) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(type(end) in (int, float) for end in value)
        and 0 < value[0] <= value[1] <= most
        and math.isfinite(value[1])
    )
