"""A dataset without clips is an error that says why, and leaves nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import framedex
from framedex import ClipDataset
from framedex.errors import NoClipsError
from tests.support.datasets import run, write_clips
from tests.support.media import Medium
from tests.support.s3 import Bucket

LONG: dict[str, Any] = {"policy": "windows", "frames": 10_000, "step": 10_000, "last": "drop", "short": "skip"}
RIGHT: dict[str, Any] = {"policy": "uniform", "frames": 2}


@pytest.fixture
def short(tmp_path: Path, medium: Medium) -> Path:
    """An index of one short video."""
    shutil.copy(medium("h264_default.mp4"), tmp_path)
    framedex.index(tmp_path / "h264_default.mp4", tmp_path / "I", workers=0, progress=False)
    return tmp_path / "I"


@pytest.fixture
def unusable(tmp_path: Path) -> Path:
    """An index of a file that is not a video."""
    (tmp_path / "broken.mp4").write_bytes(b"not a video" * 100)
    framedex.index(tmp_path / "broken.mp4", tmp_path / "U", workers=0, progress=False)
    return tmp_path / "U"


@pytest.mark.parametrize("options", [[], ["--pack", "clips"], ["--workers", 2]])
def test_the_command_says_why_and_leaves_nothing(options: list[object], short: Path, tmp_path: Path) -> None:
    policy = "\n".join(f"{name}: {value}" for name, value in LONG.items())
    before = set(tmp_path.iterdir())
    said = run("shard", short, "--policy", policy, "--out", tmp_path / "D", *options, code=1).output
    assert "there would be no clips" in said
    assert "1 × short, such as h264_default.mp4: " in said
    assert set(tmp_path.iterdir()) == before
    run("shard", short, "--policy", "uniform", "--out", tmp_path / "D", *options)


def test_python_says_why_for_policies_and_clips(short: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"workers": 0, "progress": False}
    with pytest.raises(NoClipsError, match="1 × short"):
        framedex.shard(short, tmp_path / "D", policy=LONG, **how)
    with pytest.raises(NoClipsError, match="1 × short"):
        ClipDataset.from_index(short, LONG)
    clips = [{"uri": "h264_default.mp4", "frames": [10_000]}, {"uri": "other.mp4", "frames": [0]}]
    with pytest.raises(NoClipsError, match="2 × request, such as h264_default"):
        framedex.shard(short, tmp_path / "D", clips=clips, **how)
    with pytest.raises(NoClipsError, match="there would be no clips"):
        framedex.shard(short, tmp_path / "D", clips=[], **how)
    assert not (tmp_path / "D").exists()
    assert framedex.shard(short, tmp_path / "D", policy=RIGHT, **how).clips == 1


def test_an_index_without_usable_media_is_named_as_the_reason(unusable: Path, tmp_path: Path) -> None:
    said = "1 medium, none of which is usable: 1 failed (not_media); broken.mp4: not a video"
    with pytest.raises(NoClipsError) as caught:
        ClipDataset.from_index(unusable, RIGHT)
    assert said in str(caught.value)
    assert said in run("shard", unusable, "--policy", "uniform", "--out", tmp_path / "D", code=1).output
    assert not (tmp_path / "D").exists()


def test_an_existing_dataset_stays(short: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"workers": 0, "progress": False, "overwrite": True}
    framedex.shard(short, tmp_path / "D", policy=RIGHT, **how)
    with pytest.raises(NoClipsError):
        framedex.shard(short, tmp_path / "D", policy=LONG, **how)
    assert len(ClipDataset(tmp_path / "D")) == 1


def test_slices_and_buckets_are_cleared(short: Path, bucket: Bucket, tmp_path: Path) -> None:
    policy = ["--policy", "\n".join(f"{name}: {value}" for name, value in LONG.items())]
    run("shard", short, *policy, "--out", tmp_path / "D", "--task", "0/1")
    run("shard", short, *policy, "--out", tmp_path / "D", "--finish", code=1)
    assert not list(tmp_path.glob("D*"))
    run("shard", short, *policy, "--out", f"{bucket.uri}/D", "--scratch", tmp_path / "s", code=1)
    assert bucket.keys("D/") == []
    run("shard", short, "--policy", "uniform", "--out", f"{bucket.uri}/D", "--scratch", tmp_path / "s")
    assert len(ClipDataset(f"{bucket.uri}/D", allow_remote=True)) == 1


def test_clips_of_which_one_is_made_are_no_error(short: Path, tmp_path: Path) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [10_000]}, {"uri": "h264_default.mp4", "frames": [0]}]
    run("shard", short, "--clips", write_clips(tmp_path / "c.jsonl", clips), "--out", tmp_path / "D", code=3)
    assert len(ClipDataset(tmp_path / "D")) == 1
