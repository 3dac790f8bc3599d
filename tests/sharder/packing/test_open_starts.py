"""Tiny files of HEVC that go on over an open start point hold what its picture order count depends on."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import av
import pytest

from tests.support.datasets import run, write_clips
from tests.support.planned import encode

# With 8 bits for order counts, half a cycle is 128 pictures: fewer than from one start point to the next.
OPTIONS = "log-level=none:pools=1:keyint=150:min-keyint=150:scenecut=0:open-gop=1"


@pytest.mark.parametrize("pack", ["clips", "needed"])
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_frames_on_both_sides_of_an_open_start_come_in_order(tmp_path: Path, pack: str, suffix: str) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    encode(
        videos / f"open.{suffix}",
        "libx265",
        {"preset": "ultrafast", "x265-params": OPTIONS},
        pix_fmt="yuv420p",
        size=(176, 144),
        frames=170,
    )
    run("index", videos, "--out", tmp_path / "INDEX")
    wanted = [[2, 151], [0, 149, 150, 160], [100, 148, 153], [5, 169]]
    clips = [{"uri": f"open.{suffix}", "frames": frames} for frames in wanted]
    path = write_clips(tmp_path / "clips.jsonl", clips)
    run("shard", tmp_path / "INDEX", "--clips", path, "--out", tmp_path / "D", "--pack", pack)
    assert "4 exact" in run("verify", tmp_path / "D").output
    tars = sorted((tmp_path / "D").glob("shards/*.tar"))
    assert bool(tars) == (pack == "clips" or suffix == "ts")
    for tar in tars:
        with tarfile.open(tar) as opened:
            files = [opened.extractfile(member) for member in opened if member.name.endswith(".mp4")]
            contents = [file.read() for file in files if file is not None]
        assert len(contents) == 4
        for content in contents:
            with av.open(io.BytesIO(content)) as container:
                times = [frame.pts for frame in container.decode(video=0)]
            assert len(times) > 1
            assert times == sorted(times)
