"""An index follows its sources: new, changed and gone media are counted, and gone media have no row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from framedex import Index
from tests.support.datasets import run
from tests.support.images import sequence

Medium = Callable[[str], Path]


@pytest.fixture
def sources(tmp_path: Path, medium: Medium) -> Path:
    """A folder with four videos, one of them in a subfolder, and a sequence of images."""
    folder = tmp_path / "videos"
    (folder / "inner").mkdir(parents=True)
    for name in ("a.mp4", "b.mp4", "c.mp4", "inner/d.mp4"):
        shutil.copy(medium("h264_default.mp4"), folder / name)
    sequence(folder / "frames", 5)
    return folder


def index(sources: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """Index a folder and return the command's report."""
    output = run("index", sources, "--out", sources.parent / "INDEX", "--json", *options, code=code).output
    return dict(json.loads(output))


def counts(report: dict[str, Any]) -> tuple[int, ...]:
    return tuple(report[name] for name in ("new", "changed", "gone", "unchanged"))


def uris(sources: Path) -> set[str]:
    return set(Index(sources.parent / "INDEX").videos["uri"].to_pylist())


def test_new_changed_and_gone_files_are_counted_and_those_gone_have_no_row(sources: Path, medium: Medium) -> None:
    assert counts(index(sources)) == (5, 0, 0, 0)
    assert counts(index(sources)) == (0, 0, 0, 5)
    (sources / "a.mp4").unlink()
    shutil.rmtree(sources / "inner")
    shutil.rmtree(sources / "frames")
    shutil.copy(medium("hevc_closed.mp4"), sources / "b.mp4")
    shutil.copy(medium("h264_vfr.mkv"), sources / "e.mkv")
    output = run("index", sources, "--out", sources.parent / "INDEX", "--dry-run").output
    assert "gone: a.mp4\ngone: frames\ngone: inner/d.mp4\n" in output
    assert "would probe 2 media" in output
    assert "1 changed, 3 gone, 1 unchanged" in output
    assert uris(sources) == {"a.mp4", "b.mp4", "c.mp4", "inner/d.mp4", "frames"}
    assert counts(index(sources)) == (1, 1, 3, 1)
    assert uris(sources) == {"b.mp4", "c.mp4", "e.mkv"}
    opened = Index(sources.parent / "INDEX")
    assert opened.unusable == 0
    assert {row["uri"]: row["codec"] for row in opened.videos.to_pylist()}["b.mp4"] == "hevc"
    assert counts(index(sources)) == (0, 0, 0, 3), "what is gone is told once"
    shutil.copy(medium("h264_default.mp4"), sources / "a.mp4")
    assert counts(index(sources)) == (1, 0, 0, 3)
    assert uris(sources) == {"a.mp4", "b.mp4", "c.mp4", "e.mkv"}


def test_what_lies_outside_of_the_folders_that_a_run_searches_stays(sources: Path) -> None:
    index(sources)
    (sources / "a.mp4").unlink()
    root, out = ("--root", str(sources)), sources.parent / "INDEX"
    report = json.loads(run("index", sources / "inner", *root, "--out", out, "--json").output)
    assert counts(report) == (0, 0, 0, 1)
    report = json.loads(run("index", sources / "b.mp4", *root, "--out", out, "--json").output)
    assert counts(report) == (0, 0, 0, 1)
    assert "a.mp4" in uris(sources)


def test_a_dataset_of_an_index_leaves_out_what_is_gone(sources: Path) -> None:
    index(sources)
    (sources / "a.mp4").unlink()
    index(sources)
    (sources.parent / "p.yaml").write_text("policy: stride\nstride: 10\nframes: 2\n")
    run("shard", sources.parent / "INDEX", "--policy", sources.parent / "p.yaml", "--out", sources.parent / "D")
    media = pq.read_table(sources.parent / "D" / "media")["uri"].to_pylist()
    assert sorted(media) == ["b.mp4", "c.mp4", "frames", "inner/d.mp4"]


def test_a_generation_is_a_run_that_wrote_something_and_datasets_record_it(sources: Path) -> None:
    generations = []
    for change in (None, None, "a.mp4", None):
        if change is not None:
            (sources / change).unlink()
        index(sources)
        generations.append(Index(sources.parent / "INDEX").generation)
    assert generations == [1, 1, 2, 2]
    (sources.parent / "p.yaml").write_text("policy: stride\nstride: 10\nframes: 2\n")
    run("shard", sources.parent / "INDEX", "--policy", sources.parent / "p.yaml", "--out", sources.parent / "D")
    assert json.loads((sources.parent / "D" / "dataset.json").read_text())["index_generation"] == 2
