"""`prompt_text` says at which times the frames of a clip are, as prompts of vision-language models want it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framedex
from framedex.errors import FramedexError

ITEM: dict[str, Any] = {
    "seconds": np.array([10.0, 10.5, np.nan, 11.04, 12.0]),
    "mask": np.array([True, True, False, True, True]),
    "frame_index": np.array([0, 15, -1, 31, 60]),
    "caption": "a {cat}",
    "label": np.int64(3),
    "frames": np.zeros((5, 2, 2, 3), np.uint8),
}


def test_real_frames_have_their_times_and_padding_has_none() -> None:
    assert framedex.prompt_text(ITEM, "{count}: {times}") == "4: 10.0s, 10.5s, 11.0s, 12.0s"
    assert (
        framedex.prompt_text(ITEM, "{times}", frame="<{seconds:.2f}>", separator="") == "<10.00><10.50><11.04><12.00>"
    )
    assert framedex.prompt_text(ITEM, "{times}", frame="{number}/{frame_index}") == "1/0, 2/15, 3/31, 4/60"


def test_columns_and_the_ends_are_fields_and_their_braces_stay_as_they_are() -> None:
    text = framedex.prompt_text(ITEM, "{caption} ({label}), {first:.1f} to {last:.1f} s", origin="clip")
    assert text == "a {cat} (3), 0.0 to 2.0 s"


def test_a_group_has_the_mean_of_its_first_and_last_time() -> None:
    assert framedex.prompt_text(ITEM, "{times}", frame="{seconds:.2f}", group=2) == "10.25, 11.04, 12.00"
    assert framedex.prompt_text(ITEM, "{times}", frame="{seconds:.2f}", group=9) == "11.00"
    assert framedex.prompt_text(ITEM, "{times}", frame="{seconds:.2f}", group=3, origin="clip") == "0.25, 1.52"


def test_a_clip_of_padding_alone_has_no_times() -> None:
    item = ITEM | {"mask": np.zeros(5, np.bool_)}
    assert framedex.prompt_text(item, "{count} [{times}]", origin="clip") == "0 []"


def test_times_are_those_of_the_frames_of_a_dataset(medium: Callable[[str], Path], tmp_path: Path) -> None:
    framedex.index(medium("h264_late_start.mkv"), tmp_path / "INDEX", workers=0, progress=False)
    item = framedex.ClipDataset.from_index(tmp_path / "INDEX", {"policy": "fps", "fps": 2}, size=(32, 32))[0]
    assert framedex.prompt_text(item, "{times}") == "10.0s, 10.5s, 11.0s, 11.5s"
    assert framedex.prompt_text(item, "{times}", origin="clip") == "0.0s, 0.5s, 1.0s, 1.5s"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"template": "{captoin}"}, r"template has an unknown field\n.*\{captoin\}\n.*\{caption\}"),
        ({"template": "{caption.__class__}"}, "template has an unknown field"),
        ({"template": "{}"}, "template has an unknown field"),
        ({"template": "{times"}, "template cannot be filled"),
        ({"template": "{label:{width}}"}, r"template has an unknown field\n.*\{width\}"),
        ({"template": "{caption:{caption.__class__}}"}, "template has an unknown field"),
        ({"template": "{label:>99999999}"}, "more than three digits"),
        ({"template": "", "separator": 3}, "separator must be a text"),
        ({"template": "", "frame": "{second}"}, r"frame has an unknown field\n.*\{second\}\n.*\{seconds\}"),
        ({"template": "", "frame": "{seconds:d}"}, "frame cannot be filled"),
        ({"template": "", "group": 0}, "group must be a number of frames"),
        ({"template": "", "origin": "video"}, "unknown origin"),
    ],
)
def test_mistakes_are_named_with_what_is_allowed(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(FramedexError, match=says):
        framedex.prompt_text(ITEM, **arguments)


def test_names_of_columns_are_taken_as_they_are() -> None:
    item = ITEM | {"a.b": 3, "a": "xyz", "a[0]": True, "count": "mine", "first": "mine"}
    assert framedex.prompt_text(item, "{a.b} {a[0]} {a} {count}") == "3 True xyz 4"
    with pytest.raises(FramedexError, match="unknown field"):
        framedex.prompt_text(item | {"mask": np.zeros(5, np.bool_)}, "{first}")


def test_times_from_the_clip_count_from_its_earliest_frame() -> None:
    item = {"seconds": [2.0, 1.5, 3.0], "mask": [True] * 3, "frame_index": [4, 3, 6]}
    assert framedex.prompt_text(item, "{times}", origin="clip") == "0.5s, 0.0s, 1.5s"


def test_what_is_no_item_is_refused() -> None:
    with pytest.raises(FramedexError, match="item is not an item of a dataset"):
        framedex.prompt_text({"seconds": [0.0]}, "{times}")
    with pytest.raises(FramedexError, match="item is not an item of a dataset"):
        framedex.prompt_text([ITEM], "{times}")  # type: ignore[arg-type]
    batch = {name: np.stack([ITEM[name]] * 2) for name in ("seconds", "mask", "frame_index")}
    with pytest.raises(FramedexError, match="item is not a single clip"):
        framedex.prompt_text(batch, "{times}")
    with pytest.raises(FramedexError, match=r"item is not a single clip\n.*mask \(2,\)"):
        framedex.prompt_text(ITEM | {"mask": np.ones(2, np.bool_)}, "{times}")
