"""Fixtures: an index and a dataset with hostile names, their report, and an index of ten thousand videos."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.audit_data import write_many_videos
from tests.support.audit_reports import HOSTILE, ROWS, Report, rename_media, written
from tests.support.datasets import run, shard_clips


@pytest.fixture(scope="package")
def videos(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of several kinds, some with hostile names, and one file that is not a video."""
    folder = tmp_path_factory.mktemp("report") / "videos"
    for source, name in zip(("h264_default.mp4", "h264_vfr.mkv", "h264_open_gop.mp4"), HOSTILE, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(medium(source), folder / name)
    for source in ("h264_one_gop.mp4", "h264_yuv444.mp4", "h264_single.mp4"):
        shutil.copy(medium(source), folder / source)
    shutil.copy(medium("h264_vfr.mkv"), folder / "copy.mkv")
    (folder / "none.mp4").write_bytes(b"not a video")
    return folder


@pytest.fixture(scope="package")
def index(videos: Path) -> Path:
    out = videos.parent / "INDEX"
    run("index", videos, "--out", out, "--depth", "packets", code=3)
    return out


@pytest.fixture(scope="package")
def report(index: Path) -> Report:
    out = index.parent / "report.html"
    return out, *written(index, out)


@pytest.fixture(scope="package")
def dataset(index: Path) -> Path:
    clips = [
        {"uri": "h264_one_gop.mp4", "frames": [80, 85, 89], "clip_id": HOSTILE[0], "label": "dance", "split": "train"},
        {"uri": "h264_one_gop.mp4", "frames": [5, -1, -1], "clip_id": "padded", "label": HOSTILE[1], "split": "test"},
        {"uri": "h264_yuv444.mp4", "frames": [1, 2, 3], "clip_id": "plain", "label": "dance", "split": "test"},
    ]
    return shard_clips(index, index.parent / "D", clips)


@pytest.fixture(scope="package")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 10 000 videos. Their names have 59 characters, most of them a hash that no other name shares."""
    out = tmp_path_factory.mktemp("many") / "INDEX"
    write_many_videos(out, ROWS, kinds=300)
    rename_media(out, lambda n: f"cameras/{n % 40:02d}/{hashlib.sha256(str(n).encode()).hexdigest()[:44]}.mp4")
    return out
