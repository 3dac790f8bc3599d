"""With workers=0, this process does what workers do: the same bytes, the same failures, and no process is started."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import framedex
from framedex.errors import FramedexError
from tests.support.datasets import content
from tests.support.depth import drawn
from tests.support.running import outcomes

NAMES = ("h264_default.mp4", "h264_vfr.mkv", "hevc_open_gop.mp4")
POLICY = {"policy": "stride", "stride": 3, "frames": 4}


@pytest.fixture
def videos(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a folder of three videos and a damaged one."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(medium(name), folder / name)
    (folder / "broken.mp4").write_bytes(medium(NAMES[0]).read_bytes()[:900])
    return folder


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a process is started."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)


@pytest.mark.parametrize(
    "packing",
    drawn(
        "few long cases",
        [{}, {"pack": "clips"}, {"pack": "images"}, {"pack": "needed"}, {"pack": "clips", "encode": "h264"}],
        seed=1,
    ),
)
def test_the_bytes_are_those_of_processes(
    packing: dict[str, str], videos: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    framedex.index(videos, tmp_path / "I2", workers=2, progress=False)
    framedex.shard(tmp_path / "I2", tmp_path / "D2", policy=POLICY, workers=2, progress=False, **packing)  # type: ignore[arg-type]
    request.getfixturevalue("no_process")
    niceness = os.nice(0)
    report = framedex.index(videos, tmp_path / "I0", workers=0, progress=False)
    assert (report.ok, report.failed) == (3, 1)
    framedex.shard(tmp_path / "I0", tmp_path / "D0", policy=POLICY, workers=0, progress=False, **packing)  # type: ignore[arg-type]
    assert content(tmp_path / "I0") == content(tmp_path / "I2")
    assert content(tmp_path / "D0") == content(tmp_path / "D2")
    assert framedex.verify(tmp_path / "D0", workers=0, progress=False).is_exact
    assert os.nice(0) == niceness, "this process keeps its priority"


def fail_at(number: int) -> int:
    """Return a number, or raise what each number stands for."""
    errors = {1: FramedexError("refused"), 2: MemoryError(), 3: TypeError("a bug")}
    if number in errors:
        raise errors[number]
    return number


@pytest.mark.usefixtures("no_process")
def test_outcomes_are_those_of_processes() -> None:
    found = outcomes(fail_at, range(6), workers=0, timeout_seconds=1.0, passes=lambda item: item == 5)
    assert [outcome.result for outcome in found] == [0, None, None, None, 4, None]
    assert [outcome.kind for outcome in found] == [None, "error", "memory", "internal_error", None, None]


def test_a_cluster_needs_workers(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(FramedexError, match="too few workers for the engine 'ray'"):
        framedex.index(videos, tmp_path / "I", workers=0, engine="ray")
