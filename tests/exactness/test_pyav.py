"""Differences between versions of PyAV, and the FFmpeg versions that an index records."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import pytest

from framedex import ClipDataset, Index
from framedex.core.pyav import ffmpeg_version, fraction_of, other_major_versions
from framedex.indexer.containers import open_container
from tests.support.datasets import run, write_clips


@dataclass
class Ratio:
    """A ratio as PyAV 19 represents it."""

    numerator: int
    denominator: int

    def __bool__(self) -> bool:
        return self.numerator != 0


def test_what_ffmpeg_does_not_know_is_none_in_every_version() -> None:
    assert fraction_of(None) is None
    assert fraction_of(Ratio(0, 1)) is None
    assert fraction_of(Ratio(0, 0)) is None
    assert fraction_of(Ratio(1, 0)) is None
    assert fraction_of(Fraction(0)) is None
    assert fraction_of(Ratio(30000, 1001)) == fraction_of(Fraction(30000, 1001)) == Fraction(30000, 1001)


def test_metadata_that_is_no_utf8_is_no_obstacle(medium: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "latin.mp4"
    with av.open(str(medium("h264_default.mp4"))) as source, av.open(str(path), "w") as out:
        out.metadata["title"] = "XXXXXXXX"
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    content = path.read_bytes()
    assert b"XXXXXXXX" in content
    path.write_bytes(content.replace(b"XXXXXXXX", b"caf\xe9\xff\xfe\xe9\xe8"))
    run("index", path, "--out", tmp_path / "INDEX", "--depth", "packets")
    assert Index(tmp_path / "INDEX").videos["status"].to_pylist() == ["ok"]
    with open_container(str(path)) as container:
        assert container.metadata["title"].startswith("caf")


def test_versions_are_compared_by_their_major_one() -> None:
    own = ffmpeg_version()
    major = int(own.split(".")[0])
    assert other_major_versions([own, f"{major}.99.1", f"n{major}.0"]) == []
    assert other_major_versions(["7.1", own, f"{major + 1}.0"]) == ["7.1", f"{major + 1}.0"]


@pytest.fixture
def index(tmp_path: Path, medium: Callable[[str], Path]) -> Path:
    """An index of one video. The folder `videos` beside it contains the video."""
    (tmp_path / "videos").mkdir()
    shutil.copy(medium("h264_default.mp4"), tmp_path / "videos")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    return tmp_path / "INDEX"


def probed_by(path: Path, version: str) -> None:
    """Change the FFmpeg version that an index or a dataset records."""
    header, key = (
        (path / "index.json", "ffmpeg") if (path / "index.json").exists() else (path / "dataset.json", "index_ffmpeg")
    )
    content = json.loads(header.read_text())
    assert content[key] == [ffmpeg_version()]
    header.write_text(json.dumps(content | {key: [version]}))


def shard(index: Path, out: Path) -> Path:
    clips = write_clips(out.with_suffix(".jsonl"), [{"uri": "h264_default.mp4", "frames": [0, 3]}])
    run("shard", index, "--clips", clips, "--out", out)
    return out


def test_an_index_remembers_every_ffmpeg_that_probed_its_media(index: Path, medium: Callable[[str], Path]) -> None:
    probed_by(index, "7.1")
    run("index", index.parent / "videos", "--out", index)
    assert Index(index).ffmpeg == ["7.1"]  # nothing was probed
    shutil.copy(medium("h264_vfr.mkv"), index.parent / "videos")
    run("index", index.parent / "videos", "--out", index)
    assert Index(index).ffmpeg == sorted(["7.1", ffmpeg_version()])


def test_slices_remember_it_too(tmp_path: Path, index: Path) -> None:
    out = tmp_path / "SLICED"
    run("index", tmp_path / "videos", "--out", out, "--task", "0/1")
    run("index", tmp_path / "videos", "--out", out, "--finish")
    assert Index(out).ffmpeg == [ffmpeg_version()]


def test_loading_under_another_major_version_says_so_once(
    index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "framedex")
    dataset = shard(index, tmp_path / "SAME")
    ClipDataset(dataset)[0]
    assert caplog.records == []
    probed_by(index, "7.1.2")
    other = shard(index, tmp_path / "OTHER")
    for _ in range(3):
        ClipDataset(other)[0]
    [record] = caplog.records
    assert "OTHER was indexed with FFmpeg 7.1.2" in record.getMessage()
    assert f"FFmpeg {ffmpeg_version()} decodes it now" in record.getMessage()
    caplog.clear()
    ClipDataset.from_index(index, {"policy": "frames", "frames": [0, 2]})
    assert ["INDEX was indexed with FFmpeg 7.1.2" in record.getMessage() for record in caplog.records] == [True]
