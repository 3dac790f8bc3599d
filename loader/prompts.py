"""Text about a clip for a prompt: the times of its frames, and the user's columns."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError

Origin = Literal["container", "clip"]


def prompt_text(
    item: Mapping[str, Any],
    template: str,
    *,
    frame: str = "{seconds:.1f}s",
    separator: str = ", ",
    group: int = 1,
    origin: Origin = "container",
) -> str:
    """Return a template filled with the times of a clip's frames, and with the clip's columns.

    `prompt_text(clip, "{count} frames, at {times}: {caption}")` gives "3 frames, at 0.0s, 0.5s, 1.0s: a cat", for an
    item with a column `caption`.

    Args:
        item: An item of ClipDataset.
        template: A text with fields in the notation of `str.format`: `times`, the texts of all frames; `count`, how
            many there are; `first` and `last`, their first and last time in seconds; and every key of the item whose
            value is a text or a number, such as `caption` or `uri`.
        frame: The text of each frame, with the fields `seconds`, `number` (from 1) and `frame_index`.
        separator: What stands between these texts.
        group: How many frames share one text, such as 2 for models that join two frames into one patch. Its `seconds`
            is the mean of the first and the last frame's time, as Qwen3-VL has it; `frame_index` is the first one's.
        origin: Whether times are those of the container's clock, as in the item, or count from the clip's first frame.

    Returns:
        The text. Padded frames are left out, and a group of padded frames has no text.

    Raises:
        FramedexError: A template has an unknown field or another mistake, or an argument is not allowed.
    """
    if type(group) is not int or group < 1:
        raise FramedexError("group is a number of frames", found=repr(group), allowed="1 or more")
    if origin not in get_args(Origin):
        raise FramedexError("unknown origin", found=repr(origin), allowed=", ".join(map(repr, get_args(Origin))))
    seconds, index = _real(item, group)
    seconds = seconds - seconds[0, 0] if origin == "clip" and len(seconds) else seconds
    times = (seconds[:, 0] + seconds[:, 1]) / 2
    numbered = enumerate(zip(times.tolist(), index.tolist(), strict=True), 1)
    texts = [
        _filled(frame, {"seconds": time, "number": number, "frame_index": shown}, "frame")
        for number, (time, shown) in numbered
    ]
    fields: dict[str, Any] = {name: value for name, value in item.items() if _is_plain(value)}
    fields |= {"times": separator.join(texts), "count": len(texts)}
    if len(seconds):
        fields |= {"first": float(seconds[0, 0]), "last": float(seconds[-1, 1])}
    return _filled(template, fields, "template")


def _real(item: Mapping[str, Any], group: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the times of the first and last real frame of each group that has any, and the number of the first.

    Returns:
        float64 [groups, 2] and int64 [groups].
    """
    try:
        seconds, mask, index = (np.asarray(item[name]) for name in ("seconds", "mask", "frame_index"))
    except KeyError as error:
        found = ", ".join(map(str, item))
        raise FramedexError(f"the item has no {error}", found=found, allowed="an item of ClipDataset") from None
    if seconds.ndim != 1:
        raise FramedexError(
            "this is not one clip", found=f"seconds of the shape {seconds.shape}", allowed="an item of ClipDataset"
        )
    places = np.flatnonzero(mask)
    groups = places // group
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    last = np.append(first[1:] - 1, len(places) - 1)[: len(first)]
    return np.stack([seconds[places[first]], seconds[places[last]]], axis=1), index[places[first]].astype(np.int64)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | np.integer | np.floating) or value is None


def _filled(template: str, fields: Mapping[str, Any], name: str) -> str:
    """Return a filled template. Raises FramedexError for a mistake in it."""
    try:
        wanted = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        if unknown := sorted(wanted - fields.keys()):
            raise FramedexError(
                f"{name} has an unknown field",
                found=", ".join(f"{{{field}}}" for field in unknown),
                allowed=", ".join(f"{{{field}}}" for field in fields),
            )
        return template.format_map(fields)
    except (ValueError, TypeError, LookupError) as error:
        raise FramedexError(f"{name} cannot be filled", found=f"{template!r}: {error}") from None
