"""Prompt texts for a clip, made from a template with the times of the frames and the user's columns."""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.words import check_choices
from framedex.errors import FramedexError

Origin = Literal["container", "clip"]
WIDE = re.compile(r"\d{4}")  # a format width of four or more digits, which would make a very long text
NEEDED = ("seconds", "mask", "frame_index")


def prompt_text(
    item: Mapping[str, Any],
    template: str,
    *,
    frame: str = "{seconds:.1f}s",
    separator: str = ", ",
    group: int = 1,
    origin: Origin = "container",
) -> str:
    """Fill a template with the times of a clip's frames and with the clip's columns. Return the text.

    `prompt_text(clip, "{count} frames, at {times}: {caption}")` returns "3 frames, at 0.0s, 0.5s, 1.0s: a cat" for an
    item whose column `caption` is "a cat".

    Args:
        item: An item of ClipDataset.
        template: A text with fields in the notation of `str.format`. `times` is the texts of all frames, joined by
            `separator`, and `count` is the number of these texts. `first` and `last` are the times in seconds of the
            first and last frame, if the clip has frames. Every other key of the item whose value is a single text or
            number is a field, too, such as `caption` or `uri`.
        frame: The template for one frame, with the fields `seconds`, `number` (which counts these texts from 1) and
            `frame_index`.
        separator: The text between the texts of two frames.
        group: The number of frames that share one text, such as 2 for models that join two frames into one patch. For a
            group, `seconds` is the mean of the times of its first and last frame, as in Qwen3-VL, and `frame_index` is
            the number of its first frame.
        origin: The zero of the times. With "container", times are the item's `seconds`, which follow the container's
            clock. With "clip", times count from the clip's earliest frame.

    Returns:
        The filled template. Padded frames are ignored. A group in which all frames are padded has no text.

    Raises:
        FramedexError: `template` or `frame` has an unknown field or is malformed, or another argument is not allowed.
    """
    for name, text in (("template", template), ("frame", frame), ("separator", separator)):
        if not isinstance(text, str):
            raise FramedexError(f"{name} must be a text", found=type(text).__name__)
    if not isinstance(group, int | np.integer) or group < 1:
        raise FramedexError("group must be a number of frames", found=repr(group), allowed="1 or more")
    check_choices(origin=(origin, get_args(Origin)))
    seconds, index = _group_frames(item, int(group), origin)
    texts = [
        _fill(frame, {"seconds": time, "number": number, "frame_index": shown}, "frame")
        for number, (time, shown) in enumerate(zip(seconds.mean(axis=1).tolist(), index.tolist(), strict=True), 1)
    ]
    fields = {name: value for name, value in item.items() if name not in ("first", "last") and _is_single(value)}
    fields |= {"times": separator.join(texts), "count": len(texts)}
    if len(seconds):
        fields |= {"first": float(seconds[0, 0]), "last": float(seconds[-1, 1])}
    return _fill(template, fields, "template")


def _group_frames(item: Mapping[str, Any], group: int, origin: Origin) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the times of the first and last frame of each group without padding, and the first frame's number.

    Returns:
        The times, float64 [groups, 2], and the frame numbers, int64 [groups]. Groups in which all frames are padded are
        left out.
    """
    seconds, mask, index = _frame_arrays(item)
    places = np.flatnonzero(mask)
    if origin == "clip" and len(places):
        seconds = seconds - seconds[places].min()
    first = np.flatnonzero(np.diff(places // group, prepend=-1))
    last = np.append(first[1:] - 1, len(places) - 1)[: len(first)]
    times = np.stack([seconds[places[first]], seconds[places[last]]], axis=1)
    return times.astype(np.float64), index[places[first]].astype(np.int64)


def _frame_arrays(item: Mapping[str, Any]) -> list[NDArray[Any]]:
    """Return `seconds`, `mask` and `frame_index` of one clip as arrays [F]. Raises FramedexError."""
    allowed = "an item of ClipDataset, with seconds, mask and frame_index of one clip"
    if not isinstance(item, Mapping) or any(name not in item for name in NEEDED):
        found = ", ".join(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
        raise FramedexError("item is not an item of a dataset", found=found[:200] or "nothing", allowed=allowed)
    try:
        arrays = [np.asarray(item[name]) for name in NEEDED]
    except (TypeError, RuntimeError) as error:  # numpy cannot read a tensor in GPU memory
        raise FramedexError("the item's values cannot be read", found=error, allowed=allowed) from None
    if arrays[0].ndim != 1 or len({array.shape for array in arrays}) != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(NEEDED, arrays, strict=True))
        raise FramedexError("item is not a single clip", found=shapes, allowed=allowed)
    return arrays


def _is_single(value: object) -> bool:
    """Return whether a value is a single text or number, and not an array or a collection."""
    is_collection = getattr(value, "ndim", 0) != 0 or isinstance(value, Sequence | Mapping | set)
    return isinstance(value, str) or not is_collection


class _Template(string.Formatter):
    """A formatter whose fields are plain names. Access to attributes or elements of values is forbidden."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        value = kwargs[field_name]
        return (value.item() if getattr(value, "ndim", None) == 0 else value), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if WIDE.search(format_spec):
            raise ValueError("a width of more than three digits")
        return format(value, format_spec)


def _fill(template: str, fields: Mapping[str, Any], name: str) -> str:
    """Return a filled template. Raises FramedexError if the template is malformed."""
    try:
        return _Template().vformat(template, (), fields)
    except KeyError as error:
        raise FramedexError(
            f"{name} has an unknown field",
            found=f"{{{error.args[0]}}}",
            allowed=", ".join(f"{{{field}}}" for field in fields),
        ) from None
    except (ValueError, TypeError) as error:
        raise FramedexError(f"{name} cannot be filled", found=f"{template!r}: {error}") from None
