"""A rerun tries failures again when something changed or `--retry` is given; a mistyped source is a usage error."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.make_video import encode, repeat
from framedex import Index
from tests.support.datasets import content, run
from tests.support.images import sequence

COUNTS = ("new", "changed", "retried", "unchanged", "failed")


@pytest.fixture
def videos(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """A folder with one good video, one broken one, an empty one, and a sequence of broken images."""
    folder = tmp_path / "videos"
    folder.mkdir()
    shutil.copy(medium("h264_single.mp4"), folder / "good.mp4")
    (folder / "broken.mp4").write_text("no video")
    (folder / "empty.mp4").write_bytes(b"")
    sequence(folder / "frames", 3)
    for image in (folder / "frames").iterdir():
        image.write_bytes(b"no image")
    return folder


def index(videos: Path, *options: object, code: int = 3) -> dict[str, Any]:
    words = ("index", videos, "--out", videos.parent / "INDEX", "--json", *options)
    return dict(json.loads(run(*words, code=code).output))


def counts(report: dict[str, Any]) -> tuple[int, ...]:
    return tuple(report[name] for name in COUNTS)


def test_unchanged_failures_are_told_of_and_not_tried_again(videos: Path) -> None:
    first = index(videos)
    assert counts(first) == (4, 0, 0, 0, 3)
    before = content(videos.parent / "INDEX")
    again = index(videos)
    assert counts(again) == (0, 0, 0, 4, 3)
    assert sorted(problem["uri"] for problem in again["problems"]) == ["broken.mp4", "empty.mp4", "frames"]
    assert sorted(again["problems"], key=str) == sorted(first["problems"], key=str)
    assert content(videos.parent / "INDEX") == before


def test_retry_tries_them_again_and_says_so(videos: Path) -> None:
    index(videos)
    assert counts(index(videos, "--retry")) == (0, 0, 3, 1, 3)
    said = run("index", videos, "--out", videos.parent / "INDEX", "--retry", code=3).output
    assert "0 files new, 0 changed, 3 retried, 0 gone, 1 unchanged" in said
    said = run("index", videos, "--out", videos.parent / "INDEX", "--retry", "--dry-run").output
    assert "would probe 3 media" in said
    assert "0 changed, 3 retried, 0 gone, 1 unchanged" in said


@pytest.mark.parametrize(
    ("options", "retried"),
    [
        (("--timeout", "500"), 3),
        (("--memory", "7"), 3),
        (("--depth", "packets"), 3),
        (("--streams", "all"), 3),
        (("--image-fps", "5"), 1),
        (("--workers", "1"), 0),
    ],
)
def test_other_options_try_again_what_failed(options: tuple[str, ...], retried: int, videos: Path) -> None:
    index(videos)
    first, second = index(videos, *options), index(videos, *options)
    # The timing of an image folder is part of its fingerprint, so another rate counts as a change.
    assert (first["retried"], first["changed"]) == ((0, 1) if "--image-fps" in options else (retried, 0))
    assert (second["retried"], second["changed"]) == (0, 0)


@pytest.mark.parametrize(
    "changed", ["framedex.indexer.runs.work.__version__", "framedex.indexer.runs.work.ffmpeg_version"]
)
def test_other_versions_try_again_what_failed(changed: str, videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(videos)
    monkeypatch.setattr(changed, "99" if changed.endswith("__") else lambda: "99")
    assert index(videos)["retried"] == 3


def test_a_mended_file_is_changed(videos: Path) -> None:
    index(videos)
    shutil.copy(videos / "good.mp4", videos / "broken.mp4")
    shutil.copy(videos / "good.mp4", videos / "empty.mp4")
    shutil.rmtree(videos / "frames")
    sequence(videos / "frames", 3)
    assert counts(index(videos, code=0)) == (0, 3, 0, 1, 0)
    assert counts(index(videos, code=0)) == (0, 0, 0, 4, 0)


def test_another_broken_file_is_changed(videos: Path) -> None:
    index(videos)
    (videos / "broken.mp4").write_text("no video, but longer")
    assert counts(index(videos)) == (0, 1, 0, 3, 3)


@pytest.fixture
def slow_mp4(tmp_path: Path) -> Path:
    """2,000 frames of 1920x1080, so few bytes that demuxing is fast. To decode them takes more than ten seconds."""
    short, long = tmp_path / "short.mp4", tmp_path / "long.mp4"
    encode(short, width=1920, height=1080, fps=20, count=20)
    repeat(short, long, 100)
    return long


def test_a_probe_that_died_is_not_tried_again_with_the_same_time(videos: Path, slow_mp4: Path) -> None:
    slow_mp4.rename(videos / "slow.mp4")
    words = ("--depth", "packets", "--verify", "--timeout", "0.001")
    first = index(videos, *words)
    kinds = {problem["uri"]: problem["error_kind"] for problem in first["problems"]}
    assert kinds["slow.mp4"] == "timeout"
    row = {row["uri"]: row for row in Index(videos.parent / "INDEX").videos.to_pylist()}["slow.mp4"]
    assert row["fingerprint"]
    assert "timeout 0.001" in row["tried"]
    again = index(videos, *words)
    assert (again["retried"], again["changed"]) == (0, 0)
    assert "slow.mp4" not in {problem["uri"] for problem in index(videos)["problems"]}, (
        "with more time it is tried again"
    )


def test_a_file_name_that_cannot_be_written_fails_once(tmp_path: Path, medium: Callable[[str], Path]) -> None:
    (tmp_path / "videos").mkdir()
    shutil.copy(medium("h264_single.mp4"), os.fsencode(tmp_path / "videos") + b"/\xff.mp4")
    assert counts(index(tmp_path / "videos")) == (1, 0, 0, 0, 1)
    assert counts(index(tmp_path / "videos")) == (0, 0, 0, 1, 1)


def test_a_mistyped_source_is_a_usage_error_that_writes_nothing(videos: Path) -> None:
    out = videos.parent / "INDEX"
    said = run("index", videos / "goood.mp4", "--out", out, code=2).output
    assert "a source does not exist" in said
    assert f"found:   {videos}/goood.mp4" in said
    assert f"did you mean '{videos}/good.mp4'?" in said
    assert not out.exists()
    said = run(
        "index", videos / "good.mp4", videos / "x.mp4", videos / "nofolder", "--out", out, "--dry-run", code=2
    ).output
    assert "2 sources do not exist" in said
    assert not out.exists()
    index(videos)
    before = content(out)
    run("index", videos / "good.mp4", videos / "x.mp4", "--out", out, code=2)
    assert content(out) == before


def test_a_source_that_the_index_knows_has_vanished(videos: Path) -> None:
    good, words = videos / "good.mp4", ("--out", videos.parent / "INDEX", "--json")
    run("index", good, *words)
    good.unlink()
    report = json.loads(run("index", good, *words, code=3).output)
    assert (report["failed"], report["changed"], report["problems"][0]["error_kind"]) == (1, 1, "missing")
    report = json.loads(run("index", good, *words, code=3).output)
    assert (report["failed"], report["unchanged"]) == (1, 1)


def test_what_a_list_names_and_is_not_there_stays_a_failure(videos: Path) -> None:
    (videos / "list.txt").write_text("good.mp4\nnone.mp4\n")
    report = json.loads(run("index", videos / "list.txt", "--out", videos.parent / "I", "--json", code=3).output)
    assert (report["ok"], report["failed"]) == (1, 1)
