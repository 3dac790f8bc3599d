"""Sizes for vision-language models: those of qwen-vl-utils, in one call for many clips."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from framedex import Framing, SmartResize
from framedex.errors import FramedexError
from framedex.loader.pixels.framing import delivered_sizes, smart_sizes

TABLE = Path(__file__).parents[2] / "data" / "smart_resize.csv"  # by tests/support/smart_resize_table.py


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def rows() -> list[dict[str, int | None]]:
    with TABLE.open(encoding="utf-8") as file:
        assert next(file) == "# qwen-vl-utils 0.0.14, fetch_video\n"
        return [{name: int(value) if value else None for name, value in row.items()} for row in csv.DictReader(file)]


def test_sizes_are_those_of_qwen_vl_utils() -> None:
    table = rows()
    differ = []
    for row in table:
        rule = SmartResize(
            factor=2 * (row["patch"] or 0),
            min_pixels=row["min_pixels"],
            max_pixels=row["max_pixels"],
            total_pixels=row["total_pixels"],
        )
        height, width, frames = (column(row[name] or 0) for name in ("height", "width", "frames"))
        heights, widths = smart_sizes(rule, height, width, frames)
        if (int(heights[0]), int(widths[0])) != (row["resized_height"], row["resized_width"]):
            differ.append((row, heights, widths))
    assert len(table) > 400
    assert differ == []


def test_many_clips_have_the_sizes_of_each_by_itself() -> None:
    rng = np.random.default_rng(1)
    heights, widths, frames = (rng.integers(20, 2000, 1000) for _ in range(3))
    rule = SmartResize(factor=28, min_pixels=50_000, max_pixels=300_000, total_pixels=40_000_000)
    found = np.stack(delivered_sizes(Framing(smart_resize=rule), heights, widths, frames))
    alone = [
        np.concatenate(smart_sizes(rule, heights[n : n + 1], widths[n : n + 1], frames[n : n + 1])) for n in range(1000)
    ]
    assert np.array_equal(found, np.array(alone).T)
    assert not (found % 28).any()


def test_halves_are_rounded_to_even() -> None:
    rule = SmartResize(factor=28, min_pixels=1, max_pixels=10**9, total_pixels=10**12)
    heights, widths = smart_sizes(rule, column(70, 98, 126), column(280, 280, 280), column(2, 2, 2))
    assert (heights.tolist(), widths.tolist()) == ([56, 112, 112], [280, 280, 280])  # 2.5, 3.5 and 4.5 times 28


def test_thin_pictures_keep_a_row_of_patches_and_thinner_ones_are_refused() -> None:
    rule = SmartResize(factor=28, min_pixels=784, max_pixels=28 * 28 * 4)
    heights, widths = smart_sizes(rule, column(20), column(20 * 200), column(2))
    assert heights.tolist() == [28]
    assert widths.tolist() == [28 * 28]
    with pytest.raises(FramedexError, match="proportions") as raised:
        smart_sizes(rule, column(500, 20), column(500, 20 * 200 + 1), column(2, 2))
    assert raised.value.found == "4001 × 20"


@pytest.mark.parametrize(
    "wrong",
    [{"factor": 0}, {"factor": 28.0}, {"factor": None}, {"min_pixels": 0}, {"max_pixels": 100}, {"frames_merged": 0}],
)
def test_wrong_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(FramedexError):
        SmartResize(**wrong)  # type: ignore[arg-type]
