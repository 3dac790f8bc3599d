"""Framing and the size of a clip's pictures → how they are scaled and cut, with draws that depend on the clip alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from framedex.errors import FramedexError
from framedex.loader.pixels.framing import RATIO, Framing, scaled_size
from framedex.sharder.decoding.cutout import Cutout, Window
from framedex.sharder.decoding.video import Size
from framedex.sharder.policies.sampling import below, draws

TRIES = 10  # of a random-resized crop, as in torchvision
MOST_PIXELS, MOST_SCALED_SIDE = 1 << 28, 1 << 15  # of a scaled picture; libswscale refuses larger ones
UNIT = 2.0**-53  # the distance of numbers that `uniform` returns


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Where random numbers of a clip come from.

    Attributes:
        seed: the seed of the dataset.
        epoch: the epoch.
        name: the name of the clip; views of one clip share a name.
    """

    seed: int
    epoch: int
    name: str

    def numbers(self, purpose: str, count: int) -> list[int]:
        """Return whole numbers from 0 to below 2**64."""
        found: list[int] = draws(self.seed, self.name, purpose, first=0, count=count, epoch=self.epoch).tolist()
        return found

    def uniform(self, purpose: str, count: int) -> list[float]:
        """Return numbers from 0 to below 1."""
        return [(number >> 11) * UNIT for number in self.numbers(purpose, count)]

    def up_to(self, purpose: str, *most: int) -> list[int]:
        """Return a whole number from 0 to each of the given ones, both included."""
        drawn = draws(self.seed, self.name, purpose, first=0, count=len(most), epoch=self.epoch)
        return [int(below(drawn[place : place + 1], limit + 1)[0]) for place, limit in enumerate(most)]


def cutout_of(framing: Framing, size: Size, frames: int, draw: Draw) -> Cutout:
    """Return how the frames of a clip are scaled and cut.

    Args:
        framing: the user's choice.
        size: (height, width) of the clip's pictures, turned upright if they are delivered so.
        frames: how many frames the clip has, padding included.
        draw: where random numbers come from.

    Raises:
        FramedexError: a crop is larger than the scaled picture, that picture would be too large, or the picture's
            proportions are not allowed.
    """
    found = _cutout(framing, size, frames, draw)
    height, width = found.scaled
    if framing.scales and (height * width > MOST_PIXELS or max(height, width) > MOST_SCALED_SIDE):
        raise FramedexError(
            "frames would be scaled to too many pixels",
            found=f"{width} × {height} of {size[1]} × {size[0]} (width × height)",
            allowed=f"{MOST_PIXELS:,} pixels, and sides of {MOST_SCALED_SIDE:,}",
            remedy="choose a smaller size, or a greater scale",
        )
    return found


def _cutout(framing: Framing, size: Size, frames: int, draw: Draw) -> Cutout:
    is_flipped = framing.flip > 0 and draw.uniform("flip", 1)[0] < framing.flip
    if framing.scale is not None:
        return _random_resized(framing, size, draw, is_flipped=is_flipped)
    scaled = scaled_size(framing, size, frames, short_side=_drawn_side(framing, draw))
    if framing.crop is not None:
        places = _places(framing, scaled, framing.crop, draw)
        windows = tuple(Window(top, left, mirrored != is_flipped) for top, left, mirrored in places)
        return Cutout(scaled=scaled, size=framing.crop, windows=windows, is_stacked=framing.crops is not None)
    shown = scaled if framing.size is None else framing.size
    return Cutout(scaled=scaled, size=shown, windows=(Window(*_middle(scaled, shown), is_flipped),))


def _drawn_side(framing: Framing, draw: Draw) -> int | None:
    """Return the length of the shorter side that is drawn for a clip, if it is drawn."""
    if not isinstance(framing.short_side, tuple):
        return None
    least, most = framing.short_side
    return least + draw.up_to("short side", most - least)[0]


def _middle(full: Size, part: Size) -> tuple[int, int]:
    """Return (top, left) of a part in the middle of a frame, as torchvision's `center_crop` and its padding have it."""
    top, left = (
        round((whole - side) / 2) if whole >= side else -((side - whole) // 2)
        for whole, side in zip(full, part, strict=True)
    )
    return top, left


def _places(framing: Framing, full: Size, part: Size, draw: Draw) -> list[tuple[int, int, bool]]:
    """Return (top, left, whether it is mirrored) of each crop. Raises FramedexError if the frame is too small."""
    down, right = full[0] - part[0], full[1] - part[1]
    if down < 0 or right < 0:
        raise FramedexError(
            "the crop is larger than the frame",
            found=f"a frame of {full[1]} × {full[0]} and a crop of {part[1]} × {part[0]} (width × height)",
            remedy="scale frames first, with short_side of at least the crop's longer side; or size=(height, width) "
            "with resize='crop' instead of crop",
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


def _random_resized(framing: Framing, size: Size, draw: Draw, *, is_flipped: bool) -> Cutout:
    """Return the cutout of a part of random area and proportions: that of the drawn part that `size` is made of."""
    assert framing.size is not None
    (top, left), part = _random_part(framing, size, draw)
    scaled = [round(full * out / own) for full, out, own in zip(size, framing.size, part, strict=True)]
    corner = [round(at * out / own) for at, out, own in zip((top, left), framing.size, part, strict=True)]
    place = [min(at, full - out) for at, full, out in zip(corner, scaled, framing.size, strict=True)]
    return Cutout(scaled=(scaled[0], scaled[1]), size=framing.size, windows=(Window(place[0], place[1], is_flipped),))


def _random_part(framing: Framing, size: Size, draw: Draw) -> tuple[tuple[int, int], Size]:
    """Return ((top, left), (height, width)) of a part of a picture, drawn as torchvision's RandomResizedCrop draws."""
    assert framing.scale is not None
    height, width = size
    ratio = RATIO if framing.ratio is None else framing.ratio
    numbers = draw.uniform("resized crop", 2 * TRIES)
    for share, shape in zip(numbers[::2], numbers[1::2], strict=True):
        area = height * width * (framing.scale[0] + (framing.scale[1] - framing.scale[0]) * share)
        proportion = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
        part = round(math.sqrt(area / proportion)), round(math.sqrt(area * proportion))
        if 0 < part[0] <= height and 0 < part[1] <= width:
            top, left = draw.up_to("place of the resized crop", height - part[0], width - part[1])
            return (top, left), part
    proportion = min(max(width / height, ratio[0]), ratio[1])
    part = min(height, max(1, round(width / proportion))), min(width, max(1, round(height * proportion)))
    return ((height - part[0]) // 2, (width - part[1]) // 2), part
