"""Videos in a tar give the rows and the frames that the same videos give as files."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import Index, index
from tests.support.datasets import run, write_clips
from tests.support.depth import drawn
from tests.support.images import Row, rows

NOT_ALIKE = {"media_id", "uri", "member", "member_offset", "member_bytes", "sidecars", "probed_by", "tried"}
NOT_ALIKE |= {"size_bytes", "mtime_ns", "fingerprint"}
NO_VIDEOS = {"README.md", "anim.webp", "frame_md5.py", "hls.m3u8", "manifest.json"}
WAYS: list[dict[str, Any]] = [{}, {"depth": "packets"}, {"verify": True}, {"prove": 2}]
SKIPPED = {"audio_only.mp4": "failed", "zero_byte.mp4": "failed"}


def tar_up(path: Path, files: list[Path]) -> Path:
    """Write a tar of files, whose names are shifted by a folder; return its path."""
    with tarfile.open(path, "w") as tar:
        for file in files:
            tar.add(file.resolve(), arcname=f"deep/{file.name}")
    return path


def index_of(out: Path, *sources: Path, **options: Any) -> Index:
    index(sources, out, workers=0, progress=False, **options)
    return Index(out)


def by_name(index: Index) -> dict[str, Row]:
    return {Path(row["member"] or row["uri"]).name: row for row in rows(index).values()}


@pytest.mark.slow
@pytest.mark.parametrize("options", drawn("ways to index all hazards", WAYS, seed=11), ids=str)
def test_every_hazard_in_a_tar_has_the_facts_that_it_has_as_a_file(
    corpus: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    files = [path for path in sorted(corpus.iterdir()) if path.name not in NO_VIDEOS and path.is_file()]
    alone = index_of(tmp_path / "ALONE", *files, **options)
    inside = index_of(tmp_path / "INSIDE", tar_up(tmp_path / "t.tar", files), **options)
    found, compared = by_name(inside), 0
    for name, row in by_name(alone).items():
        other = found.pop(name)
        if name in SKIPPED:
            assert row["status"] == SKIPPED[name]
            continue
        assert {key for key in row if row[key] != other[key]} <= NOT_ALIKE, name
        if row["status"] != "ok":
            continue
        ours, theirs = inside.packets(other["media_id"]), alone.packets(row["media_id"])
        for column in ("pts", "size", "flags", "read"):
            assert np.array_equal(getattr(ours, column), getattr(theirs, column)), (name, column)
        assert (ours.offset is None) == (theirs.offset is None), name
        if ours.offset is not None and theirs.offset is not None:
            assert np.array_equal(ours.offset, theirs.offset + other["member_offset"]), name
        compared += 1
    assert not found
    assert compared >= 130


@pytest.mark.parametrize("pack", [None, "needed", "clips", "images"])
def test_clips_of_a_tar_are_those_that_the_tar_itself_gives(corpus: Path, tmp_path: Path, pack: str | None) -> None:
    """`verify` finds each video by its name in the tar, and decodes it from its beginning."""
    files = [corpus / name for name in ("audio_interleaved.ts", "h264_opengop.mp4", "vfr_random.mp4", "av1.ivf")]
    tar = tar_up(tmp_path / "t.tar", files)
    run("index", tar, "--out", tmp_path / "INDEX", "--depth", "packets")
    clips = [
        {"uri": f"t.tar/deep/{file.name}", "frames": frames} for file in files for frames in ([0, 7, 3], [20, 21, 2])
    ]
    shard = ["shard", tmp_path / "INDEX", "--clips", write_clips(tmp_path / "c.jsonl", clips), "--out", tmp_path / "D"]
    if pack is None:
        said = run(*shard, code=3).output
        assert "t.tar/deep/audio_interleaved.ts: line 1: the medium's packets are not byte ranges" in said
    else:
        run(*shard, "--pack", pack)
    said = run("verify", tmp_path / "D", "--json").stdout
    verdicts = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [one["verdict"] for one in verdicts] == ["exact"] * (6 if pack is None else 8)
    assert {one["uri"] for one in verdicts} <= {clip["uri"] for clip in clips}
