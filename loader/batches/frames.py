"""Make batches of decoded frames: turn frames upright, transform and normalise them, order their axes, stack them.

This module also checks the arguments of ClipLoader, and joins the views of a clip.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Device, Last, Output, check_counts, check_normalize
from framedex.loader.batches.faults import ON_ERROR, DecodeClips, Fetched, OnError
from framedex.loader.pixels.options import Dtype, Layout, PixelOptions, check_transform, laid_out
from framedex.loader.routing.movie import Colour
from framedex.records.clip import ClipAudioPlan, ClipRecord
from framedex.records.columns import keys_of
from framedex.records.medium import ITEM_KEYS

Collate = Literal["error", "pad", "list"]
CLIP_KEYS = keys_of(ClipRecord)
# The padding of each array that has a value for each frame. `positions` is a key of movies.
PADDINGS = {key: column.padding for key, column in CLIP_KEYS.items() if column.dtype is not None} | {"positions": -1}


def collate_clips(items: list[dict[str, Any]], mode: Collate, as_lists: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return one dict of batched values from the dicts of several clips.

    Arrays are stacked along a new first axis. Numbers become an array. Other values become a list.

    Args:
        items: one dict per clip.
        mode: the treatment of different shapes. "error" raises FramedexError. "pad" pads at the end of each axis
            (frames with zeros, mask with False). "list" leaves all arrays of the batch in lists.
        as_lists: names whose values become a list, even if they are numbers or arrays.

    Raises:
        FramedexError: shapes differ, and `mode` is "error"; or clips do not have the same keys.
    """
    counts = Counter(name for item in items for name in item)
    some = {name: count for name, count in counts.items() if count < len(items)}
    if some:
        raise FramedexError(
            "clips of one batch do not have the same values",
            found=", ".join(f"{name} of {count} of {len(items)} clips" for name, count in some.items()),
            remedy="join datasets of one kind: all with audio, or all without; all with several views, or all without",
        )
    columns = {name: [item[name] for item in items] for name in items[0]}
    return {
        name: values if name in as_lists else _collate_column(name, values, mode) for name, values in columns.items()
    }


def _collate_column(name: str, values: list[Any], mode: Collate) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        if mode == "list":
            return values
        if len(values) == 1:
            return values[0][None]  # unlike np.stack, without a copy
        return np.stack(values) if have_one_shape(name, [v.shape for v in values], mode) else _pad(name, values)
    # Exact types: a subclass, such as an IntEnum, keeps its own meaning in a list.
    return np.array(values) if all(type(value) in (int, float, bool) for value in values) else values


def have_one_shape(name: str, shapes: list[tuple[int, ...]], mode: Collate) -> bool:
    """Return whether a batch's arrays can be stacked. Raises FramedexError if they differ and `mode` is "error"."""
    different = sorted(set(shapes))
    if len(different) > 1 and mode == "error":
        are_turned = name == "frames" and len({tuple(sorted(shape)) for shape in different}) == 1
        raise FramedexError(
            f"clips of one batch differ in the shape of {name!r}",
            found=", ".join(str(shape) for shape in different),
            remedy="portrait and landscape pictures meet: give size=(height, width) or a Framing with a size, make "
            "batches of one shape with BucketSampler, or leave out rotation='apply' if they are stored alike"
            if are_turned
            else "give size=(height, width), clips of equal length (of audio: --audio-rate, --audio-channels, "
            "--audio-seconds), or collate='pad' or 'list'",
        )
    return len(different) == 1


def greatest_shape(shapes: list[tuple[int, ...]]) -> list[int]:
    """Return the smallest shape into which all of these fit."""
    return [max(sizes) for sizes in zip(*shapes, strict=True)]


def _pad(name: str, values: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of different shapes stacked, each padded at the end of its axes."""
    shape = greatest_shape([value.shape for value in values])
    batch = np.full((len(values), *shape), PADDINGS.get(name, 0), dtype=np.result_type(*values))
    for row, value in zip(batch, values, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return batch


NAME_KEY = "view_name"  # not an entry of joined items, whose dicts by view have the names as keys
# Each view keeps its own values of these keys. All other keys are shared, with the values of the leading view.
PER_VIEW = ITEM_KEYS - {"multiview_id", NAME_KEY}
Item = dict[str, Any]


class JoinsViews(Protocol):
    """Joins the views of items into batches.

    Attributes:
        views: names of the views.
        count: number of the items.
    """

    views: list[str]
    count: int

    def numbers(self, number: int) -> dict[str, int]:
        """Return the numbers of the clips of each view that an item has."""

    def blank(self, view: str, leading: Fetched) -> Fetched:
        """Return a clip of padding alone, for a view that an item lacks."""

    def join(self, of_view: dict[str, Item], shared: Item) -> Item:
        """Return one batch of the views' own values and of their common values."""


def per_view(item: Item) -> Item:
    """Return the values of an item that belong to its view alone."""
    return {key: value for key, value in item.items() if key in PER_VIEW}


def common(item: Item) -> Item:
    """Return the values of an item that all views of the clip share."""
    return {key: value for key, value in item.items() if key not in PER_VIEW and key != NAME_KEY}


def joined(views: Mapping[str, Item], shared: Item, *, axis: int | None) -> Item:
    """Join the values of several views into one item, or into one batch.

    Args:
        views: each view's own values, in the order of the views.
        shared: their common values.
        axis: the place of the new axis of views in arrays: 0 in an item, 1 in a batch. If None, values become dicts by
            view.

    Raises:
        FramedexError: `axis` is given, and the arrays of the views differ in shape.
    """
    found: Item = {}
    for key in next(iter(views.values())):
        own = {view: item[key] for view, item in views.items()}
        found[key] = own if axis is None else _stacked(key, own, axis)
    return found | shared


def _stacked(key: str, own: Mapping[str, Any], axis: int) -> Any:
    """Return the values of several views as one array, or as lists of the views' values."""
    values = list(own.values())
    if isinstance(values[0], list):  # of a batch, with one value for each clip
        return [list(of_clip) for of_clip in zip(*values, strict=True)]
    if not hasattr(values[0], "shape"):
        return values if isinstance(values[0], str) else np.array(values)
    if len({tuple(value.shape) for value in values}) > 1:
        raise FramedexError(
            f"views differ in the shape of {key!r}",
            found=", ".join(f"{view}: {tuple(value.shape)}" for view, value in own.items()),
            remedy="give size=(height, width), or stack=False for a dict by view",
        )
    if isinstance(values[0], np.ndarray):
        return np.stack(values, axis)
    import torch  # the values are its tensors

    return torch.stack(values, axis)


def blank(example: Item, frames: int, audio: ClipAudioPlan | None) -> Item:
    """Return an item for a view that a clip lacks: arrays of padding, and empty names.

    Args:
        example: the item of another view, without pictures.
        frames: number of the view's frames.
        audio: the audio of a clip of the view. If None, clips are silent.
    """
    found = dict(example)
    for key in PADDINGS.keys() & example.keys():
        found[key] = np.full(frames, PADDINGS[key], example[key].dtype)
    found |= dict.fromkeys({"clip_id", "uri"} & example.keys(), "")
    if audio is not None:
        count = example["audio"].shape[1]
        samples = count if audio.rate == example["audio_rate"] else round(count / example["audio_rate"] * audio.rate)
        found |= {
            "audio": np.zeros((audio.channels, samples), np.float32),
            "audio_mask": np.zeros(samples, np.bool_),
            "audio_rate": audio.rate,
        }
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """How clips are decoded, and how batches are made of them.

    The fields have the names of ClipLoader's arguments, and their meanings.

    Raises:
        FramedexError: a value is not allowed, or two values contradict each other.
    """

    pixels: PixelOptions
    device: Device
    device_id: int
    decode: Decode
    colour: Colour
    num_workers: int
    batch_size: int
    prefetch: int
    last: Last
    collate: Collate
    on_error: OnError
    output: Output

    def __post_init__(self) -> None:
        check_choices(
            decode=(self.decode, get_args(Decode)),
            colour=(self.colour, get_args(Colour)),
            last=(self.last, get_args(Last)),
            collate=(self.collate, get_args(Collate)),
            on_error=(self.on_error, ON_ERROR),
            output=(self.output, get_args(Output)),
        )
        check_counts(num_workers=(self.num_workers, 0), threads=(self.pixels.threads, 1))
        check_counts(batch_size=(self.batch_size, 1), prefetch=(self.prefetch, 0))
        if self.device == "cpu" and self.decode == "gpu":
            raise FramedexError("decode='gpu' delivers frames on the GPU", remedy="device='gpu', or decode='cpu'")
        if self.device == "gpu" and self.output == "numpy":
            raise FramedexError("frames on a GPU are torch tensors", remedy="output='torch', or device='cpu'")

    @property
    def ahead(self) -> int:
        """How many batches begin before the loader delivers the first one.

        Each worker has two clips in progress. If a GPU decodes together with workers, each has six, because a worker
        decodes a clip only if the GPU has enough other clips to decode in the meantime. Clips whose frames keep their
        stored size have two, because six would take too much of the GPU's memory.
        """
        if self.device == "cpu" and not self.num_workers:
            return 0
        is_small = self.pixels.framing.scales or self.pixels.framing.crop is not None
        clips = 6 if self.device == "gpu" and self.decode == "auto" and is_small else 2
        return max(self.prefetch, -(-clips * self.num_workers // self.batch_size))  # rounded up


Normalize = tuple[tuple[float, float, float], tuple[float, float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How decoded frames and audio are finished for a batch.

    Attributes:
        transform: a function of DALI operations on each clip's frames.
        audio_transform: a function of DALI operations on each clip's sound.
        normalize: (mean, std) for RGB in 0…1. It makes frames float32.
        layout: the layout of the delivered frames.
        collate: the treatment of clips that differ in shape.
        dtype: the type of decoded frames.
    """

    transform: Callable[[Any], Any] | None
    audio_transform: Callable[[Any], Any] | None
    normalize: Normalize | None
    layout: Layout
    collate: Collate
    dtype: Dtype = "uint8"

    def __post_init__(self) -> None:
        check_choices(layout=(self.layout, get_args(Layout)))
        check_normalize(self.normalize)

    def scale_and_offset(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (scale, offset), float32 [3] each: normalised = value × scale + offset."""
        mean, std = np.array(self.normalize, np.float64)
        white = np.iinfo(self.dtype).max  # `check_pixels` refuses raw samples, because their white is unknown
        return (1 / (white * std)).astype(np.float32), (-mean / std).astype(np.float32)


def check_pixels(options: LoaderOptions, finish: Finish, *, has_layout: bool) -> None:
    """Raise FramedexError if the dataset's transform or framing contradicts the options of ClipLoader.

    Args:
        options: how clips are decoded.
        finish: how batches are finished.
        has_layout: whether ClipLoader was given a layout.
    """
    if finish.transform is not None and options.pixels.framing.crops:
        raise FramedexError(
            "ClipLoader's transform takes the frames of a single crop, FHWC",
            found=f"framing with position={options.pixels.framing.position!r}",
            remedy="leave out the transform, or give ClipDataset a transform of its own",
        )
    if finish.transform is not None and finish.dtype != "uint8":
        raise FramedexError("ClipLoader's transform takes frames of 8 bits", found=f"dtype={finish.dtype!r}")
    if finish.normalize is not None and finish.dtype == "raw":
        raise FramedexError("normalize is for RGB in 0…1", found="dtype='raw'", remedy="dtype='uint16'")
    if options.pixels.transform is None:
        return
    if options.device == "gpu":
        raise FramedexError(
            "workers decode the clips for the dataset's transform, so that a GPU has nothing to decode",
            found="device='gpu' and a dataset with a transform",
            remedy="device='cpu', and move batches to the GPU; or apply the transform to batches on the GPU; or pass a "
            "transform of DALI operations to ClipLoader",
        )
    given = {"transform": finish.transform is not None, "normalize": finish.normalize is not None, "layout": has_layout}
    twice = [name for name, is_given in given.items() if is_given]
    if twice:
        raise FramedexError(
            "frames are delivered as the dataset's transform returns them",
            found=f"{', '.join(twice)} of ClipLoader",
            remedy="do this in the dataset's transform, which gets frames in the layout of the dataset",
        )
    check_transform(options.pixels.transform, workers=options.num_workers)


class Runs(Protocol):
    """A runner of the user's function of DALI operations."""

    def run(self, clips: Sequence[Any]) -> Any:
        """Return the function's result for each clip. Raises RuntimeError."""


class Frames:
    """Makes batches of frames that workers decoded. Its subclass for a GPU also decodes clips there.

    Args:
        finish: how frames and audio are finished.
        transformer: runs the transform of `finish`. If None, frames are not transformed.
        audio: runs the audio transform of `finish`. If None, audio is not transformed.

    Attributes:
        decoders: functions that decode clips on the device, one for each thread. They may be the same.
        at_once: how many clips a decoder takes at once: the fewest that are worth waiting for, and the most.
    """

    decoders: Sequence[DecodeClips] = ()
    at_once: tuple[int, int] = (1, 1)

    def __init__(self, finish: Finish, *, transformer: Runs | None = None, audio: Runs | None = None) -> None:
        self._finish, self._transformer, self._audio = finish, transformer, audio

    def given(self, clip: Fetched) -> Any:
        """Return the frames that a worker decoded, uint8 [F, H, W, 3], on the device."""
        return clip.frames

    def finish(self, frames: list[Any]) -> Any:
        """Return a batch's frames as delivered.

        Raises:
            RuntimeError: a transform fails.
            FramedexError: shapes do not fit together.
        """
        if self._transformer is not None:
            output = self._transformer.run(frames)
            frames = [np.array(output[number]) for number in range(len(frames))]
        return collate_clips([{"frames": self._finish_clip(clip)} for clip in frames], self._finish.collate)["frames"]

    def _finish_clip(self, frames: NDArray[Any]) -> NDArray[Any]:
        if self._finish.normalize is not None:
            scale, offset = self._finish.scale_and_offset()
            frames = np.multiply(frames, scale, dtype=np.float32)
            frames += offset
        return laid_out(frames, self._finish.layout)

    def sound(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Transform a batch's audio and remove it from the items. Return an empty dict without a transform."""
        if self._audio is None:
            return {}
        output = self._audio.run([item.pop("audio") for item in items])
        return collate_clips(
            [{"audio": np.array(output[number])} for number in range(len(items))], self._finish.collate
        )

    def working(self) -> AbstractContextManager[Any]:
        """Return the context in which a thread calls the other methods. On the CPU, it does nothing."""
        return contextlib.nullcontext()

    def made(self, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        """Return a function that returns a finished batch. It waits for work that is in progress on a GPU."""
        return lambda: content

    def memory_left(self, error: BaseException) -> str | None:
        """Return the free memory of the device as a text, if an error means that the memory is full, else None.

        On the CPU, return None: a MemoryError reaches the caller unchanged.
        """
        return None
