"""Files that a search of folders skips are counted and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from framedex.indexer.sources.discover import is_other, other_files
from tests.support.datasets import run


@pytest.fixture
def folder(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a folder with one video and files with other endings."""
    folder = tmp_path / "videos"
    (folder / "notes").mkdir(parents=True)
    shutil.copy(medium("h264_single.mp4"), folder / "a.mp4")
    for name in ("b.TXT", "a.txt", "notes/c.txt", "README", "d.mp3", ".hidden.txt", "timestamps.txt"):
        (folder / name).write_text("x")
    return folder


def test_files_of_other_endings_are_counted_and_named(folder: Path, tmp_path: Path) -> None:
    said = run("index", folder, "--out", tmp_path / "INDEX").output
    assert (
        f"skipped 5 files for their extensions (3 .txt, such as {folder}/a.txt; "
        f"1 without an extension, such as {folder}/README; "
        f"1 .mp3, such as {folder}/d.mp3); to index videos among them, pass the videos"
    ) in said
    assert "1 indexed, 0 refused, 0 failed" in said


def test_json_and_a_dry_run_name_them_too(folder: Path, tmp_path: Path) -> None:
    others = [
        {"ending": ".txt", "count": 3, "example": f"{folder}/a.txt"},
        {"ending": "", "count": 1, "example": f"{folder}/README"},
        {"ending": ".mp3", "count": 1, "example": f"{folder}/d.mp3"},
    ]
    words = ("index", folder, "--out", tmp_path / "INDEX")
    assert json.loads(run(*words, "--dry-run", "--json").output)["others"] == others
    assert "skipped 5 files" in run(*words, "--dry-run").output
    assert json.loads(run(*words, "--json").output)["others"] == others


def test_the_index_itself_is_no_skipped_file(folder: Path) -> None:
    words = ("index", folder, "--out", folder / "INDEX")
    first, second = (json.loads(run(*words, "--json").output)["others"] for _ in range(2))
    assert [some["ending"] for some in first] == [".txt", "", ".mp3"]
    assert second == first


def test_what_is_named_is_not_skipped(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "a.mp4", folder / "e.odd")
    report = json.loads(run("index", folder / "a.mp4", folder / "e.odd", "--out", tmp_path / "I", "--json").output)
    assert (report["ok"], report["others"]) == (2, [])


def test_one_file_is_told_of_in_the_singular(folder: Path, tmp_path: Path) -> None:
    said = run("index", folder / "notes", folder / "a.mp4", "--out", tmp_path / "INDEX", code=1).output
    assert "the folder contains neither videos nor images" in said
    shutil.copy(folder / "a.mp4", folder / "notes" / "a.mp4")
    said = run("index", folder / "notes", "--out", tmp_path / "INDEX").output
    assert (
        f"skipped 1 file for its extension (1 .txt, such as {folder}/notes/c.txt); to index videos among them" in said
    )


def test_endings_are_alike_in_any_case_and_the_most_frequent_comes_first() -> None:
    found = other_files(["/v/b.XYZ", "/v/a.xyz", "/v/c.abc"])
    assert [(some.ending, some.count, some.example) for some in found] == [
        (".xyz", 2, "/v/a.xyz"),
        (".abc", 1, "/v/c.abc"),
    ]
    assert [name for name in ("a.mp4", "a.JPG", "a.tar", "a.txt", "a") if is_other(name)] == ["a.txt", "a"]
