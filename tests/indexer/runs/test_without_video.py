"""Files without a video stream are skipped if a search found them, and fail if the user named them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.support.datasets import run


def write_sound(path: Path) -> Path:
    """Write a file that has only an audio stream."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=48_000)
        for number in range(10):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 48_000, number * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.fixture
def folder(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """A folder with one video and two audio-only files."""
    folder = tmp_path / "videos"
    folder.mkdir()
    shutil.copy(medium("h264_single.mp4"), folder / "a.mp4")
    write_sound(folder / "sound.mp4")
    write_sound(folder / "sound.mkv")
    return folder


def index(*sources: object, out: Path, code: int = 0) -> dict[str, Any]:
    return dict(json.loads(run("index", *sources, "--out", out, "--json", code=code).output))


def told(report: dict[str, Any]) -> tuple[int, ...]:
    return tuple(report[name] for name in ("ok", "refused", "failed", "without_video", "unchanged"))


def test_a_search_skips_them_and_counts_them_apart(folder: Path, tmp_path: Path) -> None:
    said = run("index", folder, "--out", tmp_path / "I").output
    assert "skipped 2 files without a video stream (sound.mkv, sound.mp4)" in said
    assert "1 indexed, 0 refused, 0 failed; 3 files new" in said
    again = index(folder, out=tmp_path / "I")
    assert told(again) == (0, 0, 0, 2, 3)
    assert again["problems"] == []
    assert sorted(again["without_video_examples"]) == ["sound.mkv", "sound.mp4"]


def test_a_pattern_is_a_search_too(folder: Path, tmp_path: Path) -> None:
    assert told(index(folder / "*.mkv", out=tmp_path / "I")) == (0, 0, 0, 1, 0)


def test_what_is_named_fails(folder: Path, tmp_path: Path) -> None:
    (folder / "list.txt").write_text("sound.mp4\n")
    (folder / "rows.csv").write_text("uri,label\nsound.mkv,1\n")
    for number, source in enumerate(("sound.mp4", "list.txt", "rows.csv")):
        report = index(folder / source, out=tmp_path / f"I{number}", code=3)
        assert told(report) == (0, 0, 1, 0, 0)
        assert report["problems"][0]["error_kind"] == "no_video"


def test_naming_a_file_outdoes_finding_it_and_the_other_way_round(folder: Path, tmp_path: Path) -> None:
    for sources in ((folder, folder / "sound.mp4"), (folder / "sound.mp4", folder)):
        out = tmp_path / f"{len(str(sources[0]))}"
        assert told(index(*sources, out=out, code=3)) == (1, 0, 1, 1, 0)
    out = tmp_path / "I"
    words = ("--root", folder)
    assert told(index(folder, *words, out=out)) == (1, 0, 0, 2, 0)
    named = index(folder / "sound.mp4", *words, out=out, code=3)
    assert (told(named), named["retried"]) == ((0, 0, 1, 0, 0), 1)
    found = index(folder, *words, out=out)
    assert (told(found), found["retried"]) == ((0, 0, 0, 2, 2), 1)


def test_neither_audits_nor_sharding_complain(folder: Path, tmp_path: Path) -> None:
    run("index", folder, "--out", tmp_path / "I")
    findings = json.loads(run("audit", tmp_path / "I", "--json").stdout)["findings"]
    assert not {"refused", "failed"} & {finding["check"] for finding in findings}
    (tmp_path / "p.yaml").write_text("policy: uniform\nframes: 1\n")
    said = run("shard", tmp_path / "I", "--policy", tmp_path / "p.yaml", "--out", tmp_path / "D").output
    assert "1 clip (1 frame) from 1 medium, 0 failed →" in said


def test_an_audit_counts_them_apart_too(folder: Path, tmp_path: Path) -> None:
    run("index", folder, "--out", tmp_path / "I")
    summary = json.loads(run("audit", tmp_path / "I", "--json").output)["summary"]
    (totals,) = summary["totals"]
    assert [totals[name] for name in ("media", "usable", "refused", "failed", "without_video")] == [3, 1, 0, 0, 2]
    assert not summary.get("failures")
