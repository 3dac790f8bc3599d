"""`audit --files`: it finds files and tars that changed or vanished, and no others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.support.audited import found, sound_row, write_rows
from tests.support.datasets import run, shard_clips
from tests.support.images import sequence
from tests.support.media import Medium


def test_files_that_changed_or_vanished(medium: Medium, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4"):
        shutil.copy(medium(name), videos / name)
    sequence(videos / "stills")
    sequence(videos / "more")
    index = tmp_path / "INDEX"
    run("index", videos, "--out", index)
    assert not found(index, "--check", "changed", "--check", "vanished")
    os.utime(videos / "hevc_closed.mp4")  # a new modification time alone is not a change
    (videos / "h264_vfr.mkv").unlink()
    content = bytearray((videos / "h264_default.mp4").read_bytes())
    content[len(content) // 2] ^= 1
    (videos / "h264_default.mp4").write_bytes(content)
    next(iter(sorted((videos / "more").iterdir()))).unlink()
    shutil.rmtree(videos / "stills")
    unasked = json.loads(run("audit", index, "--json").stdout)["unasked"]
    assert {"changed": "--files", "vanished": "--files"}.items() <= unasked.items()
    findings = found(index, "--files")
    assert [example["uri"] for example in findings["vanished"]["examples"]] == ["h264_vfr.mkv", "stills"]
    changed = {example["uri"]: example["found"] for example in findings["changed"]["examples"]}
    assert changed.keys() == {"h264_default.mp4", "more"}
    assert changed["h264_default.mp4"] == "other content"
    moved = tmp_path / "moved"
    videos.rename(moved)
    assert found(index, "--check", "vanished")["vanished"]["count"] == 5
    assert found(index, "--check", "vanished", "--root", moved)["vanished"]["count"] == 2


def test_loose_images_are_told_by_their_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sequence(tmp_path / "images" / name)
    run("index", tmp_path / "images", "--out", tmp_path / "INDEX")
    first, second, *_ = sorted((tmp_path / "images" / "a").iterdir())
    os.utime(first)  # a new modification time alone is not a change
    (tmp_path / "images" / "a" / "zz.png").symlink_to("nowhere")
    assert not found(tmp_path / "INDEX", "--check", "changed", "--check", "vanished")
    status = first.stat()
    first.write_bytes(second.read_bytes().ljust(status.st_size, b"\0")[: status.st_size])
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = found(tmp_path / "INDEX", "--check", "changed")["changed"]["examples"]
    assert [(row["uri"], row["found"]) for row in changed] == [("a", f"{first.name} has other content")]


def test_sequences_that_could_not_be_read_are_not_called_gone(tmp_path: Path) -> None:
    folder = sequence(tmp_path / "images" / "broken")
    for image in folder.iterdir():
        image.write_bytes(b"no image at all")
    sequence(tmp_path / "images" / "whole")
    run("index", tmp_path / "images", "--out", tmp_path / "INDEX", code=3)
    assert not found(tmp_path / "INDEX", "--check", "changed", "--check", "vanished")


def test_what_was_an_object_is_told_by_its_size(medium: Medium, tmp_path: Path) -> None:
    row = sound_row(1) | {"uri": "video.mp4", "fingerprint": 'etag "abc"', "size_bytes": 5}
    index = write_rows(tmp_path / "INDEX", [row])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "video.mp4").write_bytes(b"12345")
    assert not found(index, "--check", "changed", "--check", "vanished", "--root", tmp_path / "here")
    (tmp_path / "here" / "video.mp4").write_bytes(b"1234")
    assert found(index, "--check", "changed", "--root", tmp_path / "here")["changed"]["count"] == 1


def test_tars_are_held_against_the_manifest(medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    clips = [{"uri": "h264_default.mp4", "clip_id": f"c{n}", "frames": [n, n + 1]} for n in range(6)]
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "DS", clips, "--pack", "clips", "--shard-size", "20kB")
    first, second, *_ = sorted((dataset / "shards").glob("*.tar"))
    assert not found(dataset).keys() & {"missing_tars", "changed_tars", "orphaned_tars"}
    shutil.copy(first, dataset / "shards" / "zz-000099.tar")
    content = bytearray(first.read_bytes())
    content[600] ^= 1
    first.write_bytes(content)
    second.unlink()
    findings = found(dataset)
    assert [row["name"] for row in findings["missing_tars"]["examples"]] == [f"shards/{second.name}"]
    assert [row["name"] for row in findings["orphaned_tars"]["examples"]] == ["shards/zz-000099.tar"]
    assert "changed_tars" not in findings  # its size is unchanged
    assert [row["name"] for row in found(dataset, "--files")["changed_tars"]["examples"]] == [f"shards/{first.name}"]
    first.write_bytes(content[:-512])
    assert found(dataset)["changed_tars"]["examples"][0]["found"] == f"{len(content) - 512} bytes"


def test_sources_of_packed_clips_are_not_missed(medium: Medium, tmp_path: Path) -> None:
    video = tmp_path / "video.mp4"
    shutil.copy(medium("h264_default.mp4"), video)
    run("index", video, "--out", tmp_path / "INDEX")
    clips = [{"uri": "video.mp4", "clip_id": "c", "frames": [1, 2]}]
    packed = shard_clips(tmp_path / "INDEX", tmp_path / "PACKED", clips, "--pack", "clips")
    paper = shard_clips(tmp_path / "INDEX", tmp_path / "PAPER", clips)
    video.unlink()
    assert "vanished" not in found(packed, "--files")
    assert found(paper, "--files")["vanished"]["count"] == 1
