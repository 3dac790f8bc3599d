"""`uniform` with fps takes the frames that qwen-vl-utils takes where rates are constant; tests/data/qwen has those."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import framedex
from tests.support.policies import Document, sample, video_of
from tests.support.policy_reference import Video

Item = dict[str, Any]
TAKEN: dict[str, Any] = json.loads((Path(__file__).resolve().parents[2] / "data" / "qwen" / "taken.json").read_text())


def policy_of(way: Document) -> Document:
    """Return the policy for arguments of qwen-vl-utils."""
    return {
        "policy": "uniform",
        "fps": way["fps"],
        "least_frames": way.get("min_frames", 4),
        "max_frames": way.get("max_frames", 768),
        "multiple": 2,
        "by": "number",
        "spread": "ends",
        "rounding": "half_even",
    }


def steady(frames: int, rate: str) -> Video:
    return video_of(np.arange(frames), frames, 1 / Fraction(rate))


def test_videos_of_a_constant_rate_give_the_frames_of_qwen_vl_utils() -> None:
    rows = TAKEN["lengths"]
    different = [
        row for row in rows if sample(policy_of(row["way"]), steady(row["frames"], row["rate"])) != [row["taken"]]
    ]
    assert len(rows) == 400
    assert different == []


MISJUDGED = ("h264_default.mp4", 8.0)  # torchcodec says 25.5 frames a second of 50 frames in 2 s
STEADY = [row for row in TAKEN["videos"] if row["video"] in ("h264_default.mp4", "hevc_open_gop.mp4")]
VARIABLE = [row for row in TAKEN["videos"] if row not in STEADY]


def named(row: Document) -> str:
    return f"{row['video']}-{row['way']['fps']}"


@pytest.fixture
def opened(medium: Callable[[str], Path], tmp_path: Path) -> Callable[[str, Document], Item]:
    """Returns a function that returns the first clip of one of the suite's media by a policy."""

    def first(name: str, policy: Document) -> Item:
        index = tmp_path / f"INDEX_{name}"
        if not index.exists():
            framedex.index(medium(name), index, workers=0, progress=False)
        return framedex.ClipDataset.from_index(index, policy, size=(32, 32))[0]

    return first


@pytest.mark.parametrize("row", STEADY, ids=named)
def test_files_of_a_constant_rate_give_the_frames_of_qwen_vl_utils_unless_it_misjudges_the_rate(
    row: Document, opened: Callable[[str, Document], Item]
) -> None:
    clip = opened(row["video"], policy_of(row["way"]))
    if (row["video"], row["way"]["fps"]) == MISJUDGED:
        assert len(row["taken"]) == 14
        assert len(clip["frame_index"]) == 16 == 2 * 8.0
    else:
        assert clip["frame_index"].tolist() == row["taken"]


@pytest.mark.parametrize("row", VARIABLE, ids=named)
def test_of_a_variable_rate_frames_by_time_are_closer_to_even_times_than_those_of_qwen_vl_utils(
    row: Document, opened: Callable[[str, Document], Item]
) -> None:
    policy = policy_of(row["way"])
    del policy["rounding"]
    by_time = opened(row["video"], policy | {"by": "time"})["seconds"]
    shown = opened(row["video"], {"policy": "stride", "stride": 1})["seconds"]
    theirs = shown[row["taken"]]
    assert farthest_from_even(by_time) < farthest_from_even(theirs) / 2
    if row["video"] == "h264_24_to_60.mp4":  # what docs/policies.md says
        assert (round(farthest_from_even(theirs), 2), round(farthest_from_even(by_time), 2)) == (0.28, 0.02)


def farthest_from_even(seconds: NDArray[np.float64]) -> float:
    """Return how far one of some times is from where it would be if they were evenly spread, in seconds."""
    return float(np.abs(seconds - np.linspace(seconds[0], seconds[-1], len(seconds))).max())
