"""Fixtures: an index and datasets of one video, which a test may change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import framedex
from tests.support.datasets import shard_clips


@pytest.fixture(scope="package")
def one_of_each(tmp_path_factory: pytest.TempPathFactory, medium: Callable[[str], Path]) -> Path:
    """An index of one video, a dataset of one clip, and the same in a tar."""
    folder = tmp_path_factory.mktemp("made")
    framedex.index(medium("h264_default.mp4"), folder / "INDEX", workers=0, progress=False)
    clips = [{"uri": "h264_default.mp4", "frames": [0, 1, 2]}]
    shard_clips(folder / "INDEX", folder / "D", clips)
    shard_clips(folder / "INDEX", folder / "TARS", clips, "--pack", "clips")
    return folder


@pytest.fixture
def own(one_of_each: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(one_of_each, tmp_path / "own", symlinks=True))
