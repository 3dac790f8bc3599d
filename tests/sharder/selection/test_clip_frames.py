"""Explicit clips: padding that is written, and what happens to places outside of a video."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

import framedex
from framedex.errors import PolicyError
from framedex.sharder.selection.explicit_clips import OUTSIDE, ExplicitClip, Outside, frames_of
from tests.support.datasets import run
from tests.support.policies import timeline

TEN = timeline([10] * 10)  # a frame every 0.1 s, from 0.07 s to 1.07 s


def taken(option: Outside, /, **clip: Any) -> tuple[list[int], list[bool]]:
    frames, mask = frames_of(ExplicitClip(line=1, clip_id="c", uri="a.mp4", **clip), TEN, "nearest", option)
    return frames.tolist(), mask.tolist()


@pytest.mark.parametrize("outside", OUTSIDE)
def test_places_without_a_value_are_padding_whatever_happens_outside(outside: Outside) -> None:
    assert taken(outside, frames=[None, 3, None, 9]) == ([-1, 3, -1, 9], [False, True, False, True])
    half = Fraction("0.47")
    assert taken(outside, seconds=[None, half, None]) == ([-1, 4, -1], [False, True, False])


def test_numbers_outside_are_padded_shown_by_the_last_frame_or_left_out() -> None:
    frames = [8, 9, 10, None, 700, 0]
    assert taken("pad", frames=frames) == ([8, 9, -1, -1, -1, 0], [True, True, False, False, False, True])
    assert taken("edge", frames=frames) == ([8, 9, 9, -1, 9, 0], [True, True, False, False, False, True])
    assert taken("drop", frames=frames) == ([8, 9, -1, 0], [True, True, False, True])
    with pytest.raises(
        PolicyError,
        match=r"(?s)a frame number is outside of the video.*found:   10.*allowed: 0 to 9.*pad, edge or drop",
    ):
        taken("error", frames=frames)


def test_times_outside_are_padded_shown_by_the_nearest_frame_or_left_out() -> None:
    seconds = [Fraction(-5), Fraction("1.06"), Fraction("1.07"), Fraction(0)]
    assert taken("pad", seconds=seconds) == ([-1, 9, -1, 0], [False, True, False, True])
    assert taken("edge", seconds=seconds) == ([0, 9, 9, 0], [False, True, False, True])
    assert taken("drop", seconds=seconds) == ([9, 0], [True, True])
    with pytest.raises(PolicyError, match=r"(?s)a time is outside of the video.*-5 s.*0 to below 1.07 s"):
        taken("error", seconds=seconds)


@pytest.mark.parametrize("outside", ["pad", "edge", "drop"])
def test_a_clip_without_any_frame_of_the_video_is_not_made(outside: Outside) -> None:
    with pytest.raises(PolicyError, match="no frame of the clip is in the video"):
        taken(outside, frames=[10, None, 11])
    with pytest.raises(PolicyError, match="consists only of padding"):
        taken(outside, seconds=[None])


def test_a_clip_decides_before_the_option_does() -> None:
    assert taken("error", frames=[9, 10], outside="edge") == ([9, 9], [True, False])
    with pytest.raises(PolicyError, match="a frame number is outside of the video"):
        taken("pad", frames=[9, 10], outside="error")


def test_datasets_have_what_their_clips_say_about_places_outside(medium: Callable[[str], Path], tmp_path: Path) -> None:
    source = medium("h264_default.mp4")
    run("index", source, "--out", tmp_path / "INDEX")
    last = framedex.ClipDataset.from_index(tmp_path / "INDEX", {"policy": "stride", "stride": 1})[0]
    count = len(last["frame_index"])
    lines = [
        {"uri": str(source), "frames": [count - 1, count, None], "clip_id": "edge"},
        {"uri": str(source), "frames": [0, count], "outside": "drop", "clip_id": "drop"},
        {"uri": str(source), "seconds": [0.2, 1e6], "outside": "error", "clip_id": "error"},
    ]
    clips = tmp_path / "clips.jsonl"
    clips.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for out, way in (("BY_COMMAND", "command"), ("BY_FUNCTION", "function")):
        if way == "command":
            run("shard", tmp_path / "INDEX", "--clips", clips, "--outside", "edge", "--out", tmp_path / out, code=3)
        else:
            framedex.shard(tmp_path / "INDEX", tmp_path / out, clips=lines, outside="edge", workers=0, progress=False)
    made = [framedex.ClipDataset(tmp_path / out) for out in ("BY_COMMAND", "BY_FUNCTION")]
    assert [len(dataset) for dataset in made] == [2, 2]
    edge, drop = made[0][0], made[0][1]
    assert edge["frame_index"].tolist() == [count - 1, count - 1, -1]
    assert edge["mask"].tolist() == [True, False, False]
    assert np.array_equal(edge["frames"][1], last["frames"][-1])
    assert not edge["frames"][2].any()
    assert drop["frame_index"].tolist() == [0]
    assert made[1][0]["frame_index"].tolist() == edge["frame_index"].tolist()
    failures = pq.read_table(tmp_path / "BY_COMMAND" / "failures.parquet").to_pylist()
    assert [(row["clip_id"], row["kind"], row["counts"]) for row in failures] == [("error", "request", True)]
    assert yaml.safe_load((tmp_path / "BY_COMMAND" / "policy.yaml").read_text())["outside"] == "edge"


def test_an_unknown_value_of_outside_stops_the_run(medium: Callable[[str], Path], tmp_path: Path) -> None:
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    clips = [{"uri": "a.mp4", "frames": [0], "outside": "wrap"}]
    with pytest.raises(PolicyError, match=r"(?s)unknown value of outside.*wrap.*error, pad, edge, drop"):
        framedex.shard(tmp_path / "INDEX", tmp_path / "D", clips=clips, workers=0, progress=False)
    assert not (tmp_path / "D").exists()
