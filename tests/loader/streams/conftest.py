"""Packed datasets of a few small videos, with several tars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.datasets import run
from tests.support.streams import pack

NAMES = ("h264_default.mp4", "h264_vfr.mkv", "h264_audio.mp4", "hevc_open_gop.mp4", "h264_bt709.mp4")
POLICY = "policy: stride\nstride: 1\nframes: 3\nlast: pad\n"


@pytest.fixture(scope="session")
def small_index(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a few videos."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "videos").mkdir()
    for name in NAMES:
        (folder / "videos" / name).symlink_to(medium(name))
    run("index", folder / "videos", "--out", folder / "INDEX", "--follow-symlinks")
    return folder / "INDEX"


@pytest.fixture(scope="session")
def packed(small_index: Path) -> Path:
    """Clips of these videos in several tars (`--pack clips`)."""
    return pack(small_index, small_index.parent / "CLIPS", POLICY, "--pack", "clips", "--shard-size", "60KB")


@pytest.fixture(scope="session")
def packed_images(small_index: Path) -> Path:
    """The same clips as images (`--pack images`)."""
    options = ("--pack", "images", "--shard-size", "200KB")
    return pack(small_index, small_index.parent / "IMAGES", POLICY, *options)
