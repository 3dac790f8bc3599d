"""The options for decoding and delivering frames, and functions that call the user's transform."""

from __future__ import annotations

import contextlib
import math
import pickle
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.limits import GIBIBYTE, usual_clip_bytes
from framedex.core.words import check_choices
from framedex.errors import DecodeError, FramedexError, TransformError
from framedex.loader.order.order import PICTURES
from framedex.loader.pixels.framing import (
    Draw,
    Framing,
    Rotation,
    cutout_of,
    delivered_sizes,
    framing_of,
    picture_sizes,
)
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.clips.clip_source import StoredShapes
from framedex.sharder.clips.together import JoinedClips
from framedex.sharder.decoding.audio import audio_bytes, audio_text
from framedex.sharder.decoding.cutout import Cutout
from framedex.sharder.decoding.video import DEEP, RGB, Dtype, Size, decode_frames, raw_form
from framedex.sharder.reading import EncodedClip

Layout = Literal["FHWC", "FCHW", "CFHW"]
# The index of the axis of channels, by layout. Indices are negative, because frames may have an additional first axis
# of crops.
CHANNEL_AXIS: dict[Layout, int] = {"FHWC": -1, "FCHW": -3, "CFHW": -4}


def laid_out(frames: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return decoded frames, […, F, H, W, C], in another layout, as a contiguous array."""
    return frames if layout == "FHWC" else np.ascontiguousarray(np.moveaxis(frames, -1, CHANNEL_AXIS[layout]))


Transform = Callable[[Any], Any]


def transformed(frames: NDArray[Any], transform: Transform, draw: Draw) -> Any:
    """Call a transform with a clip's frames, and return the transform's result.

    Args:
        frames: The frames in the layout that the transform expects. They are passed as a torch tensor if torch is
            installed.
        transform: The user's function.
        draw: The source of the seed for the global generators of Python, numpy and torch during the call.

    Raises:
        TransformError: The transform raises an exception.
    """
    torch = _torch()
    with _seeded(draw):
        try:
            return transform(frames if torch is None else torch.from_numpy(frames))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise TransformError(
                f"the transform fails on clip {draw.name}",
                found=f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})",
                remedy=f"its argument was {frames.dtype} of shape {frames.shape}; layout= sets the order of the axes",
            ) from error


def sendable(value: Any) -> Any:
    """Return the result of a transform in a form that can be sent to other processes. Tensors become numpy arrays.

    Raises:
        TransformError: The result is a tensor of a type that numpy does not have.
    """
    torch = _torch()
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    try:
        return value.detach().cpu().contiguous().numpy()
    except TypeError as error:
        raise TransformError(
            "ClipLoader collates frames as numpy arrays, which cannot have this type",
            found=str(value.dtype),
            remedy="let the transform return float32 or float16, and convert the batches",
        ) from error


def check_transform(transform: object, *, workers: int = 0) -> None:
    """Raise FramedexError if a transform cannot be called, or if it cannot be sent to worker processes."""
    if transform is not None and not callable(transform):
        raise FramedexError("transform must be a function of a clip's frames", found=repr(transform)[:80])
    if transform is None or not workers:
        return
    try:
        pickle.dumps(transform)
    except Exception as error:
        raise FramedexError(
            "the transform cannot be sent to worker processes",
            found=f"{type(error).__name__}: {error}",
            remedy="define it with def at the top of a module, not inside a function or as lambda; or num_workers=0",
        ) from error


def _torch() -> Any:
    """Return torch, or None if it is not installed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    return torch


@contextlib.contextmanager
def _seeded(draw: Draw) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch (on the CPU), and restore their states afterwards."""
    (number,) = draw.numbers("transform", 1)
    torch = _torch()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        random.seed(number)
        np.random.seed(number >> 32)  # the seed of numpy's global generator has 32 bits
        if torch is not None:
            torch.default_generator.manual_seed(number)  # `torch.manual_seed` would also seed GPUs
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelOptions:
    """The options for decoding and delivering frames.

    Each field has the name of an argument of ClipDataset, which documents it.

    Raises:
        FramedexError: A value is not allowed.
    """

    framing: Framing = field(default_factory=Framing)
    layout: Layout | None = None
    dtype: Dtype = "uint8"
    transform: Transform | None = None
    seed: int = 0
    threads: int = 1
    clip_bytes: int | None = None
    rotation: Rotation = "apply"

    def __post_init__(self) -> None:
        check_choices(dtype=(self.dtype, get_args(Dtype)), rotation=(self.rotation, get_args(Rotation)))
        if self.dtype == "raw" and self.framing.scales:
            raise FramedexError(
                "dtype='raw' delivers samples as they are stored, which cannot be scaled",
                found=repr(self.framing),
                allowed="crop, position and flip",
                remedy="use dtype='uint16', whose frames can be scaled",
            )
        if self.layout is not None:
            check_choices(layout=(self.layout, get_args(Layout)))
        check_transform(self.transform)
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise FramedexError("seed is out of range", found=repr(self.seed), allowed="0 to 2**64 - 1")
        if self.clip_bytes is not None and (type(self.clip_bytes) is not int or self.clip_bytes < 1):
            raise FramedexError(
                "clip_bytes must be a number of bytes", found=repr(self.clip_bytes), allowed="1 or more"
            )

    @classmethod
    def of(
        cls, size: Size | None = None, framing: Framing | None = None, rotation: Rotation | None = None, **others: Any
    ) -> PixelOptions:
        """Return the options that correspond to the arguments of ClipDataset. Raises FramedexError."""
        return cls(framing=framing_of(size, framing), rotation=rotation or "apply", **others)

    @property
    def axes(self) -> Layout:
        """The layout of frames. Defaults to torchvision's layout if there is a transform, and to FHWC otherwise."""
        return self.layout or ("FHWC" if self.transform is None else "FCHW")

    @property
    def is_plain(self) -> bool:
        """Whether frames are delivered as uint8 [F, H, W, 3] without any change except stretching to a size."""
        return self.framing.is_plain and self.axes == "FHWC" and self.dtype == "uint8" and self.transform is None

    def changed(self, size: Size | None, framing: Framing | None, rotation: Rotation | None) -> PixelOptions:
        """Return a copy of these options in which the given arguments replace the old values. Raises FramedexError."""
        own = self.framing if size is None and framing is None else framing_of(size, framing)
        return replace(self, framing=own, rotation=rotation or self.rotation)

    @property
    def picture_facts(self) -> dict[str, Any]:
        """The options that a loader's state records, as plain values. A run with other values gets other pictures."""
        sizes = self.framing.sizes
        return {
            "rotation": self.rotation,
            "aspect": self.framing.aspect if self.framing.keeps_proportions else "stored",
            "sizes": sizes and list(map(list, sizes)),
        }

    def shapes(self, stored: StoredShapes) -> NDArray[np.int64]:
        """Return int64 [clips, 3]: the frames, the height and the width of clips as they are delivered.

        Raises:
            FramedexError: The framing does not support the proportions of a picture.
        """
        heights, widths = picture_sizes(self.framing, stored, self.rotation)
        return np.stack([stored.frames, *delivered_sizes(self.framing, heights, widths, stored.frames)], axis=1)

    def draw(self, clip: Clip, epoch: int) -> Draw:
        """Return the source of a clip's random numbers. All views of a clip get the same numbers."""
        return Draw(seed=self.seed, epoch=epoch, name=clip.multiview_id or clip.clip_id)

    def cutout(self, medium: Medium, frames: int, draw: Draw) -> Cutout:
        """Return the scaling, rotation and cropping of a clip's frames. This is called before the clip is decoded.

        Args:
            medium: The clip's medium.
            frames: The number of frames of the clip.
            draw: The source of random numbers.

        Raises:
            FramedexError: The framing cannot be applied to pictures of this size.
        """
        heights, widths = picture_sizes(self.framing, StoredShapes.of(medium, frames), self.rotation)
        shown, turns = (int(heights[0]), int(widths[0])), 0 if self.rotation == "stored" else medium.turns
        try:
            cutout = cutout_of(self.framing, shown, frames, draw)
            return cutout.of_stored(shown, (medium.height, medium.width), turns)
        except FramedexError as error:
            raise FramedexError(
                error.what, where=f"clip {draw.name}", found=error.found, allowed=error.allowed, remedy=error.remedy
            ) from None

    def check_memory(self, clip: Clip, cutout: Cutout | None, *, read_bytes: int = 0) -> None:
        """Raise DecodeError if a clip would take more memory than `clip_bytes`. This is called before the clip is read.

        Args:
            clip: The clip. The memory includes its packets, audio and decoded frames.
            cutout: The scaling and cropping of the clip's frames. None if they are not decoded.
            read_bytes: The number of bytes that are read at once. It may exceed the size of the packets.
        """
        parts = [(max(self._packet_bytes(clip), read_bytes), "its packets")]
        if clip.audio is not None:
            parts.append((audio_bytes(clip), audio_text(clip.audio)))
        if cutout is not None:
            parts.append(self._frame_part(cutout, len(clip.frames)))
        self._check_parts(parts, clip.clip_id)

    def fit_together(self, group: JoinedClips, cutouts: Sequence[Cutout]) -> bool:
        """Return whether clips that are decoded together take no more memory than `clip_bytes` allows for one clip."""
        need = self._packet_bytes(group.whole)
        for clip, cutout in zip(group.clips, cutouts, strict=True):
            need += self.frame_bytes(cutout, len(clip.frames))
            need += 0 if clip.audio is None else audio_bytes(clip)
        return need <= self._most_bytes

    @staticmethod
    def _packet_bytes(clip: Clip) -> int:
        """Return the number of bytes of a clip's packets and of the states of its runs."""
        states = sum(len(clip.medium.states[number]) for number in clip.recipe.run_state.tolist())
        return int(clip.recipe.packet_size.sum(dtype=np.int64)) + states

    @property
    def _most_bytes(self) -> int:
        return usual_clip_bytes() if self.clip_bytes is None else self.clip_bytes

    def frame_bytes(self, cutout: Cutout, frames: int) -> int:
        """Return the number of bytes of a clip's decoded frames."""
        samples = math.prod((*cutout.leading, frames, *cutout.size, RGB.channels))
        return samples * (1 if self.dtype == "uint8" else 2)

    def _frame_part(self, cutout: Cutout, frames: int) -> tuple[int, str]:
        height, width = cutout.size
        count = math.prod(cutout.leading) * frames
        return self.frame_bytes(cutout, frames), f"{count:,} frames of {width} × {height}"

    def _check_parts(self, parts: list[tuple[int, str]], name: str) -> None:
        need, most = sum(size for size, _ in parts), self._most_bytes
        if need > most:
            raise DecodeError(
                "the clip would take too much memory",
                where=f"clip {name}",
                found=", ".join(f"{size / GIBIBYTE:,.2f} GiB for {what}" for size, what in parts),
                allowed=f"{most / GIBIBYTE:,.2f} GiB",
                remedy="size=(height, width) or framing= makes frames smaller, and clip_bytes= allows more",
            )

    def decoded(self, clip: Clip, encoded: EncodedClip, cutout: Cutout) -> NDArray[Any]:
        """Decode a clip's frames, [F, H, W, C] or [crops, F, H, W, C]. Raises DecodeError."""
        return decode_frames(clip, encoded, cutout, dtype=self.dtype, threads=self.threads)

    def finished(self, frames: NDArray[Any], draw: Draw) -> Any:
        """Apply the layout and the transform to decoded frames, and return the result. Raises TransformError."""
        own = laid_out(frames, self.axes)
        return own if self.transform is None else transformed(own, self.transform, draw)

    def blank(self, medium: Medium, frames: int, draw: Draw) -> NDArray[Any]:
        """Return the frames of a clip that consists of padding. `finished` must still be applied to them.

        Args:
            medium: A medium with pictures of the same format and size.
            frames: The number of frames.
            draw: The source of random numbers.
        """
        cutout = self.cutout(medium, frames, draw)
        self._check_parts([self._frame_part(cutout, frames)], draw.name)
        form = {"uint8": RGB, "uint16": DEEP}.get(self.dtype) or raw_form(medium)
        return np.zeros((*cutout.leading, frames, *cutout.size, form.channels), form.type)


# The options that a state without the key stands for: versions before it delivered pictures as they are stored.
STORED_PICTURES = {"rotation": "stored", "aspect": "stored", "sizes": None}


def without_pictures(state: Any, own: list[dict[str, Any]], reader: str) -> Any:
    """Check the options for pictures in a loaded state, and return the state without these options.

    Args:
        state: The user's argument, of any type.
        own: The `picture_facts` of each dataset of the loader, or a single one if all are equal.
        reader: The name of the loader's class.

    Raises:
        FramedexError: The state was saved by a loader with other options for pictures.
    """
    if not isinstance(state, Mapping):
        return state
    found = state.get(PICTURES, [STORED_PICTURES])
    if found != own:
        origin = "" if PICTURES in state else " (assumed: a state of a sampler or an earlier version lacks them)"
        raise FramedexError(
            "the state belongs to pictures that are turned or scaled in another way",
            found=_pictures_text(found) + origin,
            allowed=_pictures_text(own),
            remedy=f"to continue, give {reader} or its datasets the values that were found; "
            "aspect and sizes are arguments of Framing",
        )
    return {name: value for name, value in state.items() if name != PICTURES}


def _pictures_text(facts: Any) -> str:
    """Return the options for pictures in the form of arguments, as a text. If they are malformed, return their repr."""
    try:
        return "; ".join(", ".join(f"{name}={value!r}" for name, value in one.items()) for one in facts)
    except (AttributeError, TypeError):
        return repr(facts)[:80]
