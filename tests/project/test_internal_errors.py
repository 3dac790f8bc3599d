"""A bug in framedex is not reported as a broken video: it is distinguished, reported, never skipped, and isolated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, ClipLoader, Index
from framedex.errors import InternalError
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.reading import SourceFiles
from tests.support.datasets import run, write_clips
from tests.support.images import encoded, write
from tests.support.running import ROOT, outcomes

NAMES = ("h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4")
BROKEN = "h264_vfr.mkv"

# Code that every new process runs first: it plants a bug in framedex. {place} is the function with the bug. It fails if
# the text of {about} contains {name}.
PLANTED = """
import {module} as module
real = {place}
def broken(*arguments, **others):
    if {name!r} in str({about}):
        raise TypeError("planted: got an unexpected keyword argument")
    return real(*arguments, **others)
{place} = broken
"""


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold_workers: None) -> Callable[..., None]:
    """Return a function that plants a bug in every process started from now on."""

    def plant(**what: str) -> None:
        folder = tmp_path / "planted"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(PLANTED.format(**{"name": BROKEN, "about": "arguments"} | what))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))

    return plant


@pytest.fixture
def videos(tmp_path: Path, medium: Callable[[str], Path]) -> Path:
    """Return a folder of three videos."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(medium(name), folder / name)
    return folder


def clips_of(tmp_path: Path) -> Path:
    clips = [{"uri": name, "frames": [first, first + 3]} for name in NAMES for first in (0, 5)]
    return write_clips(tmp_path / "clips.jsonl", clips)


def test_a_bug_in_probing_is_no_failed_video(
    videos: Path, tmp_path: Path, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context():
        plant(module="av", place="module.open")
        result = run("index", videos, "--out", tmp_path / "INDEX", "--workers", 2, "--max-failures", 100, code=1)
    last = result.stdout.splitlines()[-1]
    assert last.startswith("2 indexed, 0 refused, 0 failed, 1 internal error of framedex (a bug: please report it")
    assert "Traceback" not in result.output
    rows = {row["uri"]: row for row in Index(tmp_path / "INDEX").videos.to_pylist()}
    assert [rows[name]["status"] for name in NAMES] == ["ok", "failed", "ok"]
    row = rows[BROKEN]
    assert row["error_kind"] == "internal_error"
    assert "TypeError: planted" in row["error_message"]
    assert "in open_container" in row["error_traceback"]
    assert row["error_traceback"].rstrip().endswith("TypeError: planted: got an unexpected keyword argument")


def test_verbosely_the_traceback_of_a_bug_is_shown(
    videos: Path, tmp_path: Path, plant: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    plant(module="av", place="module.open")
    caplog.set_level("INFO", "framedex")
    run("-v", "index", videos, "--out", tmp_path / "INDEX", code=1)
    [shown] = [record.getMessage() for record in caplog.records if "Traceback" in record.getMessage()]
    assert BROKEN in shown
    assert "in open_container" in shown


def test_media_that_met_a_bug_are_probed_again_and_nothing_else_is(
    videos: Path, tmp_path: Path, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context():
        plant(module="av", place="module.open")
        run("index", videos, "--out", tmp_path / "INDEX", "--workers", 2, code=1)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    result = run("index", videos, "--out", tmp_path / "INDEX")
    assert "1 indexed, 0 refused, 0 failed; 0 files new, 0 changed, 1 retried, 0 gone, 2 unchanged" in result.stdout
    assert set(Index(tmp_path / "INDEX").videos["status"].to_pylist()) == {"ok"}


def test_sharding_an_index_says_that_a_bug_left_media_out(
    videos: Path, tmp_path: Path, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context():
        plant(module="av", place="module.open")
        run("index", videos, "--out", tmp_path / "INDEX", "--workers", 2, code=1)
    result = run("shard", tmp_path / "INDEX", "--policy", ROOT / "configs" / "segments.yaml", "--out", tmp_path / "D")
    assert "1 unusable medium skipped (1 internal error of framedex (a bug: please report it" in result.stdout


@pytest.mark.parametrize("options", [(), ("--pack", "clips", "--workers", 1), ("--pack", "clips", "--workers", 2)])
def test_a_bug_in_planning_costs_the_clips_that_meet_it_and_ends_with_1(
    videos: Path,
    tmp_path: Path,
    plant: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[object, ...],
) -> None:
    run("index", videos, "--out", tmp_path / "INDEX")
    real = IndexedMedium.clip

    def broken(medium: IndexedMedium, *wanted: Any) -> Any:
        return _broken() if medium.medium.uri == BROKEN else real(medium, *wanted)

    plant(
        module="framedex.sharder.planning.indexed_medium",
        place="module.IndexedMedium.clip",
        about="arguments[0].medium.uri",
    )
    monkeypatch.setattr(IndexedMedium, "clip", broken)
    result = run(
        "shard", tmp_path / "INDEX", "--clips", clips_of(tmp_path), "--out", tmp_path / "D", "--max-failures", 100,
        *options, code=1,
    )  # fmt: skip
    assert (
        "4 clips (8 frames) from 2 media, 0 failed, 2 internal errors of framedex (a bug: please report"
        in result.stdout
    )
    rows = pq.read_table(tmp_path / "D" / "failures.parquet").to_pylist()
    assert {(row["uri"], row["kind"], row["counts"]) for row in rows} == {(BROKEN, "internal_error", True)}
    assert all("TypeError: planted" in row["traceback"] for row in rows)
    assert len(ClipDataset(tmp_path / "D", root=videos)) == 4


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("pack", "function"), [("images", "image_files"), ("clips --encode h264", "encode_clip")], ids=["images", "encode"]
)
def test_a_bug_in_encoding_is_no_undecodable_clip(
    videos: Path, tmp_path: Path, plant: Callable[..., None], pack: str, function: str, workers: int
) -> None:
    run("index", videos, "--out", tmp_path / "INDEX")
    plant(
        module="framedex.sharder.packing.pack",
        place=f"module.{function}",
        about="arguments[0].medium.uri",
    )
    result = run(
        "shard", tmp_path / "INDEX", "--clips", clips_of(tmp_path), "--out", tmp_path / "D", "--max-failures", 100,
        "--pack", *pack.split(), "--workers", workers, code=1,
    )  # fmt: skip
    assert "4 clips (8 frames) from 2 media, 0 failed, 2 internal errors of framedex" in result.stdout


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("on_error", ["skip", "replace", "raise"])
def test_a_loader_never_skips_a_bug(
    videos: Path,
    tmp_path: Path,
    plant: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
    on_error: Any,
) -> None:
    run("index", videos, "--out", tmp_path / "INDEX")
    run("shard", tmp_path / "INDEX", "--clips", clips_of(tmp_path), "--out", tmp_path / "D")
    if num_workers:
        plant(module="framedex.loader.pixels.options", place="module.decode_frames", about="arguments[0].medium.uri")
    else:
        monkeypatch.setattr("framedex.loader.pixels.options.decode_frames", _broken)
    loader = ClipLoader(
        ClipDataset(tmp_path / "D", root=videos),
        batch_size=3,
        on_error=on_error,
        num_workers=num_workers,
        output="numpy",
        size=(32, 32),
    )
    with pytest.raises(InternalError, match="framedex itself failed: TypeError: planted") as raised:
        list(loader)
    loader.close()
    assert "in _fetch" in raised.value.traceback
    assert raised.value.traceback in raised.value.__notes__


def _broken(*arguments: object, **others: object) -> NoReturn:
    raise TypeError("planted")


def test_a_bug_in_verifying_is_no_undecodable_clip(videos: Path, tmp_path: Path, plant: Callable[..., None]) -> None:
    run("index", videos, "--out", tmp_path / "INDEX")
    run("shard", tmp_path / "INDEX", "--clips", clips_of(tmp_path), "--out", tmp_path / "D")
    plant(module="framedex.loader.verification.verify", place="module._truth", about="arguments[0].uri")
    result = run("verify", tmp_path / "D", "--workers", 2, "--max-failures", 100, code=1)
    assert "4 exact, 2 internal errors of framedex (a bug: please report them" in result.stdout


def test_a_bug_anywhere_in_a_command_ends_it_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, videos: Path
) -> None:
    monkeypatch.setattr("framedex.indexer.cli.build_index", _broken)
    result = run("index", videos, "--out", tmp_path / "INDEX", code=1)
    assert "in _broken" in result.stderr
    assert "error: framedex itself failed: TypeError: planted" in result.stderr
    assert "please report it" in result.stderr


class UnpicklableError(Exception):
    """Takes two arguments, of which an exception stores one."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _raise_what_no_pickle_keeps(item: str) -> str:
    if item == "bug":
        raise UnpicklableError("kind", "message")
    return item


def test_a_bug_whose_exception_cannot_be_pickled_costs_one_item() -> None:
    found = outcomes(_raise_what_no_pickle_keeps, ["a", "bug", "b", "c"])
    assert [outcome.kind for outcome in found] == [None, "internal_error", None, None]
    assert "UnpicklableError: message" in str(found[1].message)
    assert "in _raise_what_no_pickle_keeps" in str(found[1].traceback)


def test_a_bug_in_reading_a_clip_for_images_costs_its_clips(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("index", videos, "--out", tmp_path / "INDEX")
    real = SourceFiles.read

    def broken(sources: SourceFiles, clip: Any) -> Any:
        return _broken() if BROKEN in str(clip.source.path) else real(sources, clip)

    monkeypatch.setattr(SourceFiles, "read", broken)
    result = run(
        "shard", tmp_path / "INDEX", "--clips", clips_of(tmp_path), "--out", tmp_path / "D", "--pack", "images", code=1
    )
    assert "4 clips (8 frames) from 2 media, 0 failed, 2 internal errors of framedex" in result.stdout


def test_what_a_user_asks_for_or_has_damaged_is_no_bug(videos: Path, tmp_path: Path) -> None:
    run("index", videos, "--out", tmp_path / "INDEX")
    run("shard", tmp_path / "INDEX", "--clips", clips_of(tmp_path), "--out", tmp_path / "D")
    loader = ClipLoader(ClipDataset(tmp_path / "D", root=videos), sampler=[0, 99], output="numpy", collate="list")
    with pytest.raises(IndexError, match="the sampler asks for clip 99, but the dataset has 6 clips"):
        list(loader)
    run("index", write(tmp_path / "wide", {"0.png": encoded(size=(20_000, 1))}), "--out", tmp_path / "WIDE")
    (tmp_path / "wide.jsonl").write_text('{"uri": ".", "frames": [0]}\n')
    webp = ("--pack", "images", "--image-format", "webp")
    result = run("shard", tmp_path / "WIDE", "--clips", tmp_path / "wide.jsonl", "--out", tmp_path / "W", *webp, code=1)
    assert "too large for WebP" in result.output
    assert "framedex itself" not in result.output
    (part,) = (tmp_path / "INDEX" / "videos").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:-20])
    result = run("shard", tmp_path / "INDEX", "--clips", clips_of(tmp_path), "--out", tmp_path / "E", code=1)
    assert "a part of the index is damaged" in result.stderr
    assert "framedex itself" not in result.stderr
