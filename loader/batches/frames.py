"""Make batches of decoded frames: rotate, transform and normalise frames, permute their axes, and stack them.

This module also contains the options of ClipLoader with their checks, and functions that join the views of a clip.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Device, Last, Output, check_counts, check_normalize
from framedex.loader.batches.faults import ON_ERROR, DecodeClips, Fetched, LoaderReport, OnError
from framedex.loader.pixels.framing import Framing
from framedex.loader.pixels.options import Layout, PixelOptions, check_transform, laid_out
from framedex.loader.routing.movie import Colour
from framedex.records.clip import ClipAudioPlan, ClipRecord
from framedex.records.columns import keys_of
from framedex.records.medium import ITEM_KEYS
from framedex.sharder.decoding.video import Dtype

Collate = Literal["error", "pad", "list"]
CLIP_KEYS = keys_of(ClipRecord)
# The padding value of each array with one value per frame. Items of decode="movie" have the array `positions`.
PADDINGS = {key: column.padding for key, column in CLIP_KEYS.items() if column.dtype is not None} | {"positions": -1}


def collate_clips(items: list[dict[str, Any]], mode: Collate, as_lists: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Collate the items of several clips into one dict.

    Arrays are stacked along a new first axis. Numbers become an array. Other values become a list.

    Args:
        items: One item (dict) per clip.
        mode: The treatment of arrays with different shapes. "error" raises FramedexError. "pad" pads arrays at the end
            of each axis (frames with zeros, `mask` with False). With "list", all arrays of the batch become lists of
            arrays.
        as_lists: The keys whose values become a list, even if they are numbers or arrays.

    Raises:
        FramedexError: Shapes differ and `mode` is "error", or the items do not have the same keys.
    """
    counts = Counter(name for item in items for name in item)
    some = {name: count for name, count in counts.items() if count < len(items)}
    if some:
        raise FramedexError(
            "the clips of a batch do not have the same keys",
            found=", ".join(f"{name} in {count} of {len(items)} clips" for name, count in some.items()),
            remedy="join only datasets of the same kind, with or without audio, and with or without several views",
        )
    columns = {name: [item[name] for item in items] for name in items[0]}
    return {name: own if name in as_lists else _collate_column(name, own, mode) for name, own in columns.items()}


def _collate_column(name: str, values: list[Any], mode: Collate) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        if mode == "list":
            return values
        if len(values) == 1:
            return values[0][None]  # np.stack would make a copy
        return np.stack(values) if have_one_shape(name, [v.shape for v in values], mode) else _pad(name, values)
    # Values of a subclass, such as an IntEnum, stay in a list and keep their type.
    return np.array(values) if all(type(value) in (int, float, bool) for value in values) else values


def have_one_shape(name: str, shapes: list[tuple[int, ...]], mode: Collate) -> bool:
    """Return whether all shapes are equal. Raise FramedexError if shapes differ and `mode` is "error"."""
    different = sorted(set(shapes))
    if len(different) > 1 and mode == "error":
        are_turned = name == "frames" and len({tuple(sorted(shape)) for shape in different}) == 1
        raise FramedexError(
            f"the clips of a batch differ in the shape of {name!r}",
            found=", ".join(str(shape) for shape in different),
            remedy="the batch has portrait and landscape pictures: give size=(height, width) or a Framing with a size, "
            "make batches of one shape with BucketSampler, or use rotation='stored' if all are stored with one shape"
            if are_turned
            else "give size=(height, width), clips of equal length (of audio: --audio-rate, --audio-channels, "
            "--audio-seconds), or collate='pad' or 'list'",
        )
    return len(different) == 1


def greatest_shape(shapes: list[tuple[int, ...]]) -> list[int]:
    """Return the smallest shape into which arrays of all given shapes fit."""
    return [max(sizes) for sizes in zip(*shapes, strict=True)]


def _pad(name: str, values: list[NDArray[Any]]) -> NDArray[Any]:
    """Pad arrays of different shapes at the end of their axes, and stack them."""
    shape = greatest_shape([value.shape for value in values])
    batch = np.full((len(values), *shape), PADDINGS.get(name, 0), dtype=np.result_type(*values))
    for row, value in zip(batch, values, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return batch


NAME_KEY = "view_name"  # joined items lack this key, because the names of views are the keys of their dicts
# Keys that have a separate value for each view. The values of all other keys come from the leading view.
PER_VIEW = ITEM_KEYS - {"multiview_id", NAME_KEY}
Item = dict[str, Any]


class JoinsViews(Protocol):
    """Interface of an object that joins the views of items into batches.

    Attributes:
        views: The names of the views.
        count: The number of items.
    """

    views: list[str]
    count: int

    def numbers(self, number: int) -> dict[str, int]:
        """Return the clip number of each view that item `number` has."""

    def blank(self, view: str, leading: Fetched) -> Fetched:
        """Return a clip that consists of padding, for a missing view of an item."""

    def join(self, of_view: dict[str, Item], shared: Item) -> Item:
        """Return one batch from the values of each view and the values that all views share."""


def per_view(item: Item) -> Item:
    """Return the entries of an item that differ between views."""
    return {key: value for key, value in item.items() if key in PER_VIEW}


def common(item: Item) -> Item:
    """Return the entries of an item that all views of the clip share."""
    return {key: value for key, value in item.items() if key not in PER_VIEW and key != NAME_KEY}


def joined(views: Mapping[str, Item], shared: Item, *, axis: int | None) -> Item:
    """Join the values of several views into one item, or into one batch.

    Args:
        views: The values of each view, in the order of the views.
        shared: The values that all views share.
        axis: The position of the new axis for the views: 0 for an item, 1 for a batch. If None, arrays are not stacked,
            and values become dicts {view: value}.

    Raises:
        FramedexError: `axis` is given, and the arrays of the views differ in shape.
    """
    found: Item = {}
    for key in next(iter(views.values())):
        own = {view: item[key] for view, item in views.items()}
        found[key] = own if axis is None else _stacked(key, own, axis)
    return found | shared


def _stacked(key: str, own: Mapping[str, Any], axis: int) -> Any:
    """Return the values of several views as one array, or as a list if they are texts or lists."""
    values = list(own.values())
    if isinstance(values[0], list):  # the lists of a batch have one value for each clip
        return [list(of_clip) for of_clip in zip(*values, strict=True)]
    if not hasattr(values[0], "shape"):
        return values if isinstance(values[0], str) else np.array(values)
    if len({tuple(value.shape) for value in values}) > 1:
        raise FramedexError(
            f"views differ in the shape of {key!r}",
            found=", ".join(f"{view}: {tuple(value.shape)}" for view, value in own.items()),
            remedy="give size=(height, width), or stack=False for dicts {view: value}",
        )
    if isinstance(values[0], np.ndarray):
        return np.stack(values, axis)
    import torch  # other values are torch tensors

    return torch.stack(values, axis)


def blank(example: Item, frames: int, audio: ClipAudioPlan | None) -> Item:
    """Return an item without pictures for a missing view, with arrays of padding and empty names.

    Args:
        example: The item of another view, without pictures.
        frames: The number of frames of the missing view.
        audio: The audio of an example clip of the missing view. None if clips of this view have no audio.
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


# If only a GPU decodes, the minimum number of clips that are in progress, so that groups of clips fill two calls of a
# decoder with 32 movies each. There are fewer clips if pictures are larger than 224x224, and at most BATCHES_ON_GPU
# batches. On an H200, 128 clips gave 714 clips/s, and 512 clips gave 963 (340x256, 16 consecutive frames, groups of 8).
CLIPS_ON_GPU, PIXELS_ON_GPU, BATCHES_ON_GPU = 512, 512 * 224 * 224, 128
# With workers, the number of batches that may wait in the trainer's process while the batches after them are made.
ARRIVED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The options of ClipLoader for decoding clips and making batches.

    Fields that are not described here are ClipLoader's arguments with the same names.

    Attributes:
        pixels: The options for frames. If datasets are joined, these are the options of the first dataset. The options
            of the other datasets differ only in framing.
        framings: The distinct framings of the datasets.
        group_size: The number of clips that are decoded together.
        share_memory: The maximum number of bytes of memory for batches that have not begun, whose first clips were
            decoded.

    Raises:
        FramedexError: A value is not allowed, or two values contradict each other.
    """

    pixels: PixelOptions
    framings: Sequence[Framing]
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
    group_size: int = 1
    share_memory: int = 0

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
            raise FramedexError(
                "decode='gpu' delivers frames on the GPU, so it needs device='gpu'",
                found="device='cpu'",
                remedy="use device='gpu', or decode='cpu'",
            )
        if self.device == "gpu" and self.output == "numpy":
            raise FramedexError(
                "device='gpu' delivers torch tensors, so it needs output='torch'",
                found="output='numpy'",
                remedy="use output='torch', or device='cpu'",
            )

    @property
    def ahead(self) -> int:
        """The number of batches that the loader begins before it delivers the first batch.

        Normally, two clips per worker are in progress. If a GPU and workers both decode, six clips are in progress,
        because a worker decodes a clip only if the GPU has enough other clips to decode in the meantime. But if frames
        keep their stored size, only two are in progress, because six clips per worker would take too much memory.
        If clips are decoded together, two groups per worker are in progress. If only a GPU decodes them, to a fixed
        size, at least `CLIPS_ON_GPU` clips are, because a decoder takes many movies in one call.
        """
        if not self.num_workers:
            return 0 if self.device == "cpu" else self.prefetch
        is_small = all(framing.scales or framing.crop is not None for framing in self.framings)
        clips = 6 if self.device == "gpu" and self.decode == "auto" and is_small else 2
        clips *= self.num_workers
        if self.group_size > 1 and is_small:
            clips = max(clips, 2 * self.num_workers * self.group_size, self._clips_on_gpu)
        return ARRIVED + max(self.prefetch, -(-clips // self.batch_size))  # rounded up

    @property
    def _clips_on_gpu(self) -> int:
        """The minimum number of clips that are in progress so that their groups fill the decoders of a GPU."""
        sizes = [framing.fixed_size for framing in self.framings]
        if self.decode != "gpu" or None in sizes:
            return 0
        pixels = max(height * width for height, width in filter(None, sizes))
        return min(CLIPS_ON_GPU, PIXELS_ON_GPU // pixels, BATCHES_ON_GPU * self.batch_size)


Normalize = tuple[tuple[float, float, float], tuple[float, float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Options for the steps after decoding that make a batch of frames and audio.

    Attributes:
        transform: A function of DALI operations on each clip's frames. None if there is no transform.
        audio_transform: A function of DALI operations on each clip's audio. None if there is no audio transform.
        normalize: (mean, std) for RGB in 0…1, which makes frames float32. None if frames are not normalised.
        layout: The order of the axes of the delivered frames.
        collate: The treatment of clips that differ in shape.
        dtype: The type of the samples of decoded frames, as for ClipDataset.
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
        """Return (scale, offset), float32 [3] each, for normalised = value × scale + offset."""
        mean, std = np.array(self.normalize, np.float64)
        white = np.iinfo(self.dtype).max  # `check_pixels` excludes dtype="raw", whose white level is unknown
        return (1 / (white * std)).astype(np.float32), (-mean / std).astype(np.float32)


def finished_clip(frames: NDArray[Any], finish: Finish) -> NDArray[Any]:
    """Return the frames of a clip, […, F, H, W, C], normalized and in the wanted layout."""
    if finish.normalize is not None:
        scale, offset = finish.scale_and_offset()
        frames = np.multiply(frames, scale, dtype=np.float32)
        frames += offset
    return laid_out(frames, finish.layout)


def check_pixels(options: LoaderOptions, finish: Finish, *, has_layout: bool) -> None:
    """Raise FramedexError if the options of ClipLoader cannot be combined with the dataset's transform or framing.

    Args:
        options: The options for decoding, which include the dataset's transform and framing.
        finish: The options for the steps after decoding.
        has_layout: Whether the user gave ClipLoader a layout.
    """
    stacked = [framing for framing in options.framings if framing.crops]
    if finish.transform is not None and stacked:
        raise FramedexError(
            "ClipLoader's transform accepts frames of a single crop only (FHWC)",
            found=f"framing with position={stacked[0].position!r}",
            remedy="leave out the transform, or pass it to ClipDataset instead",
        )
    if len({framing.crops for framing in options.framings}) > 1 and finish.collate != "list":
        raise FramedexError(
            "the joined datasets have framings with different numbers of crops, whose frames do not fit into one array",
            found=", ".join(f"position={framing.position!r}" for framing in options.framings),
            remedy="use collate='list', or framings with the same position",
        )
    if finish.transform is not None and finish.dtype != "uint8":
        raise FramedexError("ClipLoader's transform accepts 8-bit frames only", found=f"dtype={finish.dtype!r}")
    if finish.normalize is not None and finish.dtype == "raw":
        raise FramedexError("normalize needs RGB frames", found="dtype='raw'", remedy="use dtype='uint16'")
    if options.pixels.transform is None:
        return
    if options.device == "gpu":
        raise FramedexError(
            "a dataset's transform runs in workers, which also decode the clips, so a GPU would have nothing to decode",
            found="device='gpu' and a dataset with a transform",
            remedy="use device='cpu' and move batches to the GPU, apply the transform to batches on the GPU instead, "
            "or pass a transform of DALI operations to ClipLoader",
        )
    given = {"transform": finish.transform is not None, "normalize": finish.normalize is not None, "layout": has_layout}
    twice = [name for name, is_given in given.items() if is_given]
    if twice:
        raise FramedexError(
            "frames are delivered as the dataset's transform returns them, so ClipLoader cannot change them",
            found=f"{', '.join(twice)} of ClipLoader",
            remedy="do this in the dataset's transform, whose argument has the layout of the dataset",
        )
    check_transform(options.pixels.transform, workers=options.num_workers)


class Runs(Protocol):
    """Interface of an object that runs a user's function of DALI operations."""

    def run(self, clips: Sequence[Any]) -> Any:
        """Return the function's result for each clip. Raises RuntimeError if the function fails."""


class CopiesToHost(Protocol):
    """Interface of an object that copies tensors of a GPU to the host."""

    def copy(self, pairs: list[tuple[Any, NDArray[Any]]]) -> None:
        """Copy each tensor into an array with as many bytes, and wait until all copies are complete."""


class AtOnce(NamedTuple):
    """The number of movies that a decoder takes in one call.

    Attributes:
        fewest: If fewer movies are waiting, the decoder waits a short time for more.
        most: The maximum number.
        most_bytes: The maximum size of the pictures before they are scaled, in bytes. A single movie may be larger.
    """

    fewest: int
    most: int
    most_bytes: int


class Frames:
    """The last stage of ClipLoader, which makes batches of decoded frames on the CPU. Subclasses also have decoders.

    Args:
        finish: The options for the steps after decoding.
        transformer: An object that runs the transform of `finish`. None if there is no transform.
        audio: An object that runs the audio transform of `finish`. None if there is no audio transform.

    Attributes:
        decoders: The functions that decode clips on the device, one for each decoding thread. A function may occur
            several times. Empty if workers decode all clips.
        at_once: The number of movies that a decoder takes in one call. Clips that are decoded together have one movie,
            and a clip of images counts as a movie.
    """

    decoders: Sequence[DecodeClips] = ()
    at_once = AtOnce(fewest=1, most=1, most_bytes=0)

    def __init__(self, finish: Finish, *, transformer: Runs | None = None, audio: Runs | None = None) -> None:
        self._finish, self._transformer, self._audio = finish, transformer, audio

    def given(self, clip: Fetched) -> Any:
        """Return the frames of a clip that a worker decoded, uint8 [F, H, W, 3], on the device."""
        return clip.frames

    def kept(self, distinct: list[Any], clips: list[Fetched], places: list[tuple[int, int]]) -> list[Any]:
        """Return the frames of clips from frames that a decoder has decoded, and whose memory it will use again.

        Args:
            distinct: The distinct frames of each clip, uint8 [unique, H, W, 3], on the device of the decoder.
            clips: The clips.
            places: The key of each clip's batch, and the index of the clip in the batch.
        """
        raise NotImplementedError  # there are no decoders

    def host_copies(self) -> CopiesToHost | None:
        """Return an object that copies frames from the device of the decoders to the host. None without decoders."""
        return None

    def decode_alone(self, clip: Fetched) -> Any:
        """Return the frames of a single clip on the device of the decoder. Raises RuntimeError if the decoder fails."""
        with self.working():
            (frames,) = self.decoders[0](
                [clip], LoaderReport(), lambda distinct, _: self.kept(distinct, [clip], [(0, 0)])
            )
        return frames

    def finish(self, frames: list[Any]) -> Any:
        """Return the delivered frames of a batch, after the transform, normalisation, layout and collation.

        Args:
            frames: The decoded frames of each clip.

        Raises:
            RuntimeError: A transform fails.
            FramedexError: The frames of the clips differ in shape.
        """
        if self._transformer is not None:
            output = self._transformer.run(frames)
            frames = [np.array(output[number]) for number in range(len(frames))]
        items = [{"frames": finished_clip(clip, self._finish)} for clip in frames]
        return collate_clips(items, self._finish.collate)["frames"]

    def sound(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch's transformed audio, and remove the audio from the items.

        If there is no audio transform, return an empty dict, and leave the items unchanged.
        """
        if self._audio is None:
            return {}
        output = self._audio.run([item.pop("audio") for item in items])
        clips = [{"audio": np.array(output[number])} for number in range(len(items))]
        return collate_clips(clips, self._finish.collate)

    def working(self) -> AbstractContextManager[Any]:
        """Return the context manager in which a thread must call the other methods. On the CPU, it has no effect."""
        return contextlib.nullcontext()

    def made(self, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        """Return a function that waits until a batch is complete on the device, and returns the batch."""
        return lambda: content

    def memory_left(self, error: BaseException) -> str | None:
        """If an error means that the GPU's memory is full, return a text with the free memory. Otherwise, return None.

        On the CPU, always return None, so that a MemoryError reaches the caller unchanged.
        """
        return None
