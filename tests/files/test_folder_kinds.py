"""An error about a folder that is no index and no dataset says what the folder is, and what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import framedex
from framedex.errors import FormatError
from tests.support.datasets import run


def test_a_folder_of_videos_is_named_as_such(medium: Callable[[str], Path], tmp_path: Path) -> None:
    videos = tmp_path / "videos" / "walk"
    videos.mkdir(parents=True)
    shutil.copy(medium("h264_default.mp4"), videos / "a.MP4")
    for folder in (videos, videos.parent):
        remedy = f"this is a folder of videos: run `framedex index {folder} --out INDEX` first"
        assert remedy in run("shard", folder, "--policy", "fps", "--out", tmp_path / "D", code=1).output
        assert remedy in run("audit", folder, code=1).output
        with pytest.raises(FormatError, match="this is a folder of videos"):
            framedex.ClipDataset(folder)


def test_an_index_and_a_dataset_are_told_apart(medium: Callable[[str], Path], tmp_path: Path) -> None:
    framedex.index(medium("h264_default.mp4"), tmp_path / "INDEX", workers=0, progress=False)
    framedex.shard(
        tmp_path / "INDEX", tmp_path / "D", policy={"policy": "stride", "stride": 9}, workers=0, progress=False
    )
    with pytest.raises(FormatError, match=r"this is an index: make a dataset of it by `framedex shard`"):
        framedex.ClipDataset(tmp_path / "INDEX")
    with pytest.raises(FormatError, match="this is a dataset: pass the index"):
        framedex.ClipDataset.from_index(tmp_path / "D", {"policy": "stride", "stride": 9})


def test_other_folders_and_what_is_missing_are_to_be_checked(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    for path in (tmp_path / "notes", tmp_path / "missing"):
        with pytest.raises(FormatError, match="check the path, or create the index or dataset again"):
            framedex.ClipDataset(path)
