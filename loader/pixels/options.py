"""How frames are decoded, and what they are like when they are delivered, as one checked record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.hints import check_choices
from framedex.core.memory import GIBIBYTE, usual_clip_bytes
from framedex.errors import DecodeError, FramedexError
from framedex.loader.pixels.cutouts import Draw, cutout_of
from framedex.loader.pixels.framing import Framing, framing_of
from framedex.loader.pixels.layouts import Layout, laid_out
from framedex.loader.pixels.transforms import Transform, check_transform, transformed
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.medium import Medium
from framedex.sharder.decoding.clip_audio import audio_bytes, audio_text
from framedex.sharder.decoding.cutout import Cutout
from framedex.sharder.decoding.deep import DEEP, decode_deep, decode_raw, raw_form
from framedex.sharder.decoding.video import RGB, Size, decode_rgb
from framedex.sharder.reading.sources import EncodedClip

Dtype = Literal["uint8", "uint16", "raw"]
MOST_SEED = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelOptions:
    """How frames are decoded, and what they are like when they are delivered.

    The fields have the names of ClipDataset's arguments, which explains them.

    Raises:
        FramedexError: a value is not allowed.
    """

    framing: Framing = field(default_factory=Framing)
    layout: Layout | None = None
    dtype: Dtype = "uint8"
    transform: Transform | None = None
    seed: int = 0
    threads: int = 1
    clip_bytes: int | None = None

    def __post_init__(self) -> None:
        check_choices(dtype=(self.dtype, get_args(Dtype)))
        if self.dtype == "raw" and self.framing.scales:
            raise FramedexError(
                "dtype='raw' delivers samples as they are stored, which cannot be scaled",
                found=repr(self.framing),
                allowed="crop, position and flip",
                remedy="dtype='uint16' can be scaled",
            )
        if self.layout is not None:
            check_choices(layout=(self.layout, get_args(Layout)))
        check_transform(self.transform)
        if type(self.seed) is not int or not 0 <= self.seed < MOST_SEED:
            raise FramedexError("seed is out of range", found=repr(self.seed), allowed="0 to 2**64 - 1")
        if self.clip_bytes is not None and (type(self.clip_bytes) is not int or self.clip_bytes < 1):
            raise FramedexError("clip_bytes is a number of bytes", found=repr(self.clip_bytes), allowed="1 or more")

    @classmethod
    def of(cls, size: Size | None = None, framing: Framing | None = None, **others: Any) -> PixelOptions:
        """Return the options that the arguments of a dataset mean. Raises FramedexError."""
        return cls(framing=framing_of(size, framing), **others)

    @property
    def axes(self) -> Layout:
        """The layout of frames: the one that was chosen, else that of torchvision if there is a transform."""
        return self.layout or ("FHWC" if self.transform is None else "FCHW")

    @property
    def is_plain(self) -> bool:
        """Whether frames are uint8 [F, H, W, 3], at most stretched to a size."""
        return self.framing.is_plain and self.axes == "FHWC" and self.dtype == "uint8" and self.transform is None

    def reframed(self, size: Size | None, framing: Framing | None) -> PixelOptions:
        """Return these options with another framing, if one of the arguments is given. Raises FramedexError."""
        return self if size is None and framing is None else replace(self, framing=framing_of(size, framing))

    def draw(self, clip: Clip, epoch: int) -> Draw:
        """Return where the random numbers of a clip come from. Views of one clip have the same ones."""
        name = clip.multiview_id or clip.clip_id
        return Draw(seed=self.seed, epoch=epoch, name=name)

    def cutout(self, size: Size, frames: int, draw: Draw) -> Cutout:
        """Return how the frames of a clip are scaled and cut. Called before a clip is decoded.

        Args:
            size: (height, width) of the pictures, upright if they are delivered so.
            frames: how many frames the clip has.
            draw: where random numbers come from.

        Raises:
            FramedexError: pictures of this size cannot be framed so.
        """
        try:
            return cutout_of(self.framing, size, frames, draw)
        except FramedexError as error:
            raise FramedexError(
                error.what, where=f"clip {draw.name}", found=error.found, allowed=error.allowed, remedy=error.remedy
            ) from None

    def check_memory(self, clip: Clip, cutout: Cutout | None, *, read_bytes: int = 0) -> None:
        """Raise DecodeError if a clip would take more memory than `clip_bytes`. Called before the clip is read.

        Args:
            clip: the clip, whose packets and audio count.
            cutout: how its frames are scaled and cut, or None if they are not decoded.
            read_bytes: how many bytes are read at once, if these are more than the packets.
        """
        packets = int(clip.recipe.packet_size.sum(dtype=np.int64))
        packets += sum(len(clip.medium.states[number]) for number in clip.recipe.run_state.tolist())
        parts = [(max(packets, read_bytes), "its packets")]
        if clip.audio is not None:
            parts.append((audio_bytes(clip), audio_text(clip.audio)))
        if cutout is not None:
            parts.append(self._frame_bytes(cutout, len(clip.frames)))
        self._check_parts(parts, clip.clip_id)

    def _frame_bytes(self, cutout: Cutout, frames: int) -> tuple[int, str]:
        height, width = cutout.size
        count = math.prod(cutout.leading) * frames
        size = count * height * width * RGB.channels * (1 if self.dtype == "uint8" else 2)
        return size, f"{count:,} frames of {width} × {height}"

    def _check_parts(self, parts: list[tuple[int, str]], name: str) -> None:
        need, most = sum(size for size, _ in parts), usual_clip_bytes() if self.clip_bytes is None else self.clip_bytes
        if need > most:
            raise DecodeError(
                "the clip would take too much memory",
                where=f"clip {name}",
                found=", ".join(f"{size / GIBIBYTE:,.2f} GiB for {what}" for size, what in parts),
                allowed=f"{most / GIBIBYTE:,.2f} GiB",
                remedy="size=(height, width) or framing= makes frames smaller, and clip_bytes= allows more",
            )

    def decoded(self, clip: Clip, encoded: EncodedClip, cutout: Cutout) -> NDArray[Any]:
        """Return a clip's frames, [F, H, W, C] or [crops, F, H, W, C]. Raises as `frames`."""
        if self.dtype == "uint8":
            return decode_rgb(clip, encoded, cutout=cutout, threads=self.threads)
        decode = decode_deep if self.dtype == "uint16" else decode_raw
        return decode(clip, encoded, cutout, threads=self.threads)

    def finished(self, frames: NDArray[Any], draw: Draw) -> Any:
        """Return decoded frames in their layout, transformed. Raises TransformError."""
        own = laid_out(frames, self.axes)
        return own if self.transform is None else transformed(own, self.transform, draw)

    def blank(self, medium: Medium, size: Size, frames: int, draw: Draw) -> NDArray[Any]:
        """Return the frames of a clip that consists of padding, before `finished`.

        Args:
            medium: a medium like that which it would show.
            size: (height, width) of the pictures that it would have.
            frames: how many there are.
            draw: where random numbers come from.
        """
        cutout = self.cutout(size, frames, draw)
        self._check_parts([self._frame_bytes(cutout, frames)], draw.name)
        form = {"uint8": RGB, "uint16": DEEP}.get(self.dtype) or raw_form(medium)
        return np.zeros((*cutout.leading, frames, *cutout.size, form.channels), form.type)
