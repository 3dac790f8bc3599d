"""Compaction keeps the content of an index in fewer parts, and readers see all media at every moment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from framedex import Index
from framedex.errors import FormatError
from framedex.indexer.parts import part_pairs
from framedex.indexer.runs import merging
from tests.indexer.runs.test_killed import content
from tests.support.datasets import run

Medium = Callable[[str], Path]


@pytest.fixture
def worn(tmp_path: Path, medium: Medium, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of many parts, with media that were changed, removed or restored."""
    monkeypatch.setattr(part_pairs, "FILES_A_PART", 2)
    monkeypatch.setattr("framedex.indexer.runs.build.FILES_A_PART", 2)
    folder, out = tmp_path / "videos", tmp_path / "INDEX"
    folder.mkdir()

    def index() -> None:
        run("index", folder, "--out", out, "--max-failures", "1", "--retry")

    for number in range(9):
        shutil.copy(medium(("h264_default.mp4", "h264_audio.mkv")[number % 2]), folder / f"{number}.mp4")
    (folder / "broken.mp4").write_bytes(b"no video")
    index()
    (folder / "1.mp4").unlink()
    (folder / "2.mp4").unlink()
    shutil.copy(medium("hevc_closed.mp4"), folder / "3.mp4")
    index()
    shutil.copy(medium("h264_single.mp4"), folder / "2.mp4")
    index()
    return out


def test_a_compacted_index_says_the_same_in_the_same_order(worn: Path) -> None:
    before, order = content(worn), Index(worn).videos["uri"].to_pylist()
    generation, parts = Index(worn).generation, len(Index(worn).parts)
    assert parts > 6
    report = json.loads(run("index", "--compact", "--out", worn, "--json").output)
    assert report == {"parts_before": parts, "parts": 1, "media": 9, "dropped": 7, "unlisted": 1}
    assert content(worn) == before
    opened = Index(worn)
    assert opened.videos["uri"].to_pylist() == order
    assert opened.generation == generation + 1
    assert len(list((worn / "frames").iterdir())) == len(list((worn / "videos").iterdir())) == 1
    again = json.loads(run("index", "--compact", "--out", worn, "--json").output)
    assert (again["parts_before"], again["parts"], again["dropped"]) == (1, 1, 0)
    assert Index(worn).generation == generation + 1
    sources = worn.parent / "videos"
    report = json.loads(run("index", sources, "--out", worn, "--max-failures", "1", "--json").output)
    assert (report["new"], report["changed"], report["unchanged"]) == (0, 0, 9), (
        "it is known how the broken one was tried"
    )


def test_parts_and_row_groups_have_a_size(worn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(worn)
    monkeypatch.setattr(merging, "MEDIA_A_PART", 3)
    monkeypatch.setattr(merging.schema, "FRAMES_PER_ROW_GROUP", 60)
    merging.compact_index(worn)
    assert content(worn) == before
    assert len(Index(worn).parts) in (2, 3)


def test_a_reader_sees_every_medium_at_every_moment(worn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(worn)
    unlink = Path.unlink
    seen = []

    def look_then_unlink(path: Path, missing_ok: bool = False) -> None:
        seen.append(content(worn) == before)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", look_then_unlink)
    merging.compact_index(worn)
    assert len(seen) > 10
    assert all(seen)


def test_a_reader_that_was_open_says_what_happened(worn: Path) -> None:
    opened = Index(worn)
    merging.compact_index(worn)
    for read in (lambda: opened.videos, lambda: opened.packets(Index(worn).videos["media_id"][0].as_py())):
        with pytest.raises(FormatError, match="was compacted"):
            read()


def test_a_run_that_is_broken_off_loses_nothing(worn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(worn)
    unlink = Path.unlink
    for stop_at in (0, 1, 4, 7):
        monkeypatch.undo()
        left = [stop_at]

        def unlink_some(path: Path, missing_ok: bool = False, left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", unlink_some)
        with pytest.raises(KeyboardInterrupt):
            merging.compact_index(worn)
        assert content(worn) == before
    monkeypatch.undo()
    merging.compact_index(worn)
    assert content(worn) == before
    assert len(Index(worn).parts) == 1


def test_sources_and_compacting_exclude_each_other(tmp_path: Path) -> None:
    assert "does not allow a SOURCE" in run("index", "x", "--compact", "--out", tmp_path / "I", code=2).output
    assert "pass a SOURCE" in run("index", "--out", tmp_path / "I", code=2).output
    assert "is not a framedex index" in run("index", "--compact", "--out", tmp_path, code=1).output
