"""An index on a disk that becomes full: an error with a remedy, and the same command goes on when there is room."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import framedex
from framedex import Index
from framedex.errors import OutputError
from tests.support.datasets import run
from tests.support.media import Medium
from tests.support.running import environment

FILES = 300


@pytest.fixture
def media(tmp_path: Path, medium: Medium) -> Path:
    """More files than one part of an index has."""
    folder = tmp_path / "media"
    folder.mkdir()
    for number in range(FILES):
        os.link(shutil.copy(medium("h264_single.mp4"), tmp_path / "one.mp4"), folder / f"{number:03}.mp4")
    return folder


def limited() -> None:
    """Let no file become longer than 20 kB, as the shell's `ulimit -f` does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_the_command_says_what_to_do_and_goes_on(media: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "framedex", "index", str(media), "--out", str(tmp_path / "I"), "--workers", "1"]
    found = subprocess.run(
        words,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1, found.stderr
    assert "the index cannot be written completely" in found.stderr
    assert "free disk space and run the same command again" in found.stderr
    assert "bug" not in found.stderr
    assert "Traceback" not in found.stderr
    assert f"{FILES} indexed" in run("index", media, "--out", tmp_path / "I").output
    assert len(Index(tmp_path / "I")) == FILES


def test_what_was_written_before_is_kept(media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = os.replace
    parts = []

    def full(source: Any, target: Any, **how: Any) -> None:
        if "videos" in str(target):
            parts.append(target)
            if len(parts) > 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target, **how)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        framedex.index(media, tmp_path / "I", workers=0, progress=False)
    monkeypatch.undo()
    assert len(Index(tmp_path / "I")) == 256
    assert len(parts) == 2
    assert framedex.index(media, tmp_path / "I", workers=0, progress=False).new == FILES - 256


def test_a_run_that_is_finished_says_so(media: Path, tmp_path: Path) -> None:
    slices = ["index", media, "--out", tmp_path / "I"]
    run(*slices, "--task", "0/2")
    run(*slices, "--task", "1/2")
    run(*slices, "--finish")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "I").rglob("*")}
    for late in (["--task", "0/2"], ["--task", "3/7"], ["--finish"]):
        assert f"this run is finished: {FILES} files unchanged, nothing was written" in run(*slices, *late).output
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "I").rglob("*")} == before
    shutil.copy(media / "000.mp4", media / "new.mp4")
    run(*slices, "--task", "0/1")
    assert "1 files new" in run(*slices, "--finish").output
    assert len(Index(tmp_path / "I")) == FILES + 1


@pytest.mark.parametrize("options", [[], ["--pack", "clips"], ["--workers", 2]])
def test_a_dataset_that_is_finished_says_so(options: list[object], media: Path, tmp_path: Path) -> None:
    framedex.index(media / "000.mp4", tmp_path / "I", workers=0, progress=False)
    command = ["shard", tmp_path / "I", "--policy", "uniform", "--out", tmp_path / "D", *options]
    first = run(*command).output
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "D").rglob("*")}
    again = run(*command).output
    assert again == first.replace(" →", ", finished before, nothing was written →")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "D").rglob("*")} == before
    other = ["shard", tmp_path / "I", "--policy", "keyframes", "--out", tmp_path / "D", *options]
    assert "already has a dataset" in run(*other, code=1).output
    run(*other, "--overwrite")


def test_a_slice_after_finish_writes_nothing(media: Path, tmp_path: Path) -> None:
    framedex.index(media / "000.mp4", tmp_path / "I", workers=0, progress=False)
    command = ["shard", tmp_path / "I", "--policy", "uniform", "--out", tmp_path / "D"]
    run(*command, "--task", "0/1")
    run(*command, "--finish")
    for late in (["--task", "0/1"], ["--task", "4/9"], ["--finish"]):
        assert "finished before, nothing was written" in run(*command, *late).output
    assert not (tmp_path / "D.slices").exists()
