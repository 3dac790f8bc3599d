"""A run in slices, in any order, interrupted or not, writes the parts of a single run; problems are reported."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from framedex import Index
from framedex.indexer.parts import part_pairs
from tests.support.datasets import content, run
from tests.support.images import tar_of
from tests.support.running import environment

Medium = Callable[[str], Path]
SLICES = 3


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a part to the rows of four files."""
    monkeypatch.setattr(part_pairs, "FILES_A_PART", 4)
    monkeypatch.setattr("framedex.indexer.runs.build.FILES_A_PART", 4)


@pytest.fixture
def sources(tmp_path: Path, medium: Medium) -> Path:
    """Return a folder of 21 videos, one of them broken, and of a tar with two sequences of images."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for number in range(20):
        name = ("h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4")[number % 3]
        shutil.copy(medium(name), folder / f"{number:02d}{Path(name).suffix}")
    (folder / "broken.mp4").write_bytes(b"no video")
    image = tmp_path / "one.png"
    from PIL import Image

    Image.new("RGB", (32, 16)).save(image)
    tar_of(folder / "z.tar", [(f"{name}/{number}.png", image.read_bytes()) for name in "ab" for number in range(3)])
    return folder


def task(sources: Path, number: int, *options: str, code: int = 0) -> str:
    out = sources.parent / "SLICED"
    return run(
        "index", sources, "--out", out, "--max-failures", "1", "--task", f"{number}/{SLICES}", *options, code=code
    ).output


def finish(sources: Path, *options: str, code: int = 0) -> str:
    out = sources.parent / "SLICED"
    return run("index", sources, "--out", out, "--max-failures", "1", "--finish", *options, code=code).output


def whole(sources: Path) -> dict[str, str]:
    out = sources.parent / "WHOLE"
    run("index", sources, "--out", out, "--max-failures", "1")
    return content(out)


def test_slices_in_any_order_write_the_bytes_of_one_run(sources: Path) -> None:
    for number in (2, 0, 1):
        task(sources, number)
    report = json.loads(finish(sources, "--json"))
    assert content(sources.parent / "SLICED") == whole(sources)
    assert (report["ok"], report["failed"], report["new"]) == (22, 1, 22)
    members = [row["member"] for row in Index(sources.parent / "SLICED").videos.to_pylist() if row["uri"] == "z.tar"]
    assert members == ["a", "b"]


def test_slices_of_a_changed_tree_write_the_bytes_of_one_run(sources: Path, medium: Medium) -> None:
    for out in ("WHOLE", "SLICED"):
        run("index", sources, "--out", sources.parent / out, "--max-failures", "1")
    (sources / "03.mp4").unlink()
    for number in range(30, 38):
        shutil.copy(medium("h264_single.mp4"), sources / f"{number}.mp4")
    for number in (1, 2, 0):
        task(sources, number)
    report = json.loads(finish(sources, "--json"))
    assert (report["new"], report["changed"], report["gone"], report["unchanged"]) == (8, 0, 1, 21)
    assert content(sources.parent / "SLICED") == whole(sources)


def test_a_missing_slice_is_named_and_a_slice_that_is_run_again_does_the_rest(sources: Path) -> None:
    task(sources, 0)
    task(sources, 2)
    output = finish(sources, code=1)
    assert "2 of 6 parts are missing" in output
    assert "--task 1/3" in output
    assert "--task 0/3" not in output
    out = sources.parent / "SLICED"
    assert "cannot" not in task(sources, 1)
    before = content(out)
    again = sorted((out / "videos").iterdir())[3]  # of slice 0
    again.unlink()
    assert "1 of 6 parts" in finish(sources, code=1)
    task(sources, 0)
    assert content(out) == before
    finish(sources)
    assert content(out) == whole(sources)
    assert "this run is finished" in finish(sources)
    assert content(out) == whole(sources)


def test_a_slice_that_is_killed_leaves_no_part_behind_that_is_not_whole(sources: Path) -> None:
    driver = sources.parent / "driver.py"
    driver.write_text(
        "import sys\nfrom framedex.cli import main\n"
        "from framedex.indexer.parts import part_pairs\nfrom framedex.indexer.runs import build\n"
        "part_pairs.FILES_A_PART = build.FILES_A_PART = 4\nif __name__ == '__main__':\n    main(sys.argv[1:])\n"
    )
    chance = random.Random(1)
    out = sources.parent / "SLICED"
    for number in range(SLICES):
        command = [sys.executable, driver, "index", sources, "--out", out, "--task", f"{number}/{SLICES}"]
        command += ["--max-failures", "1"]
        for _ in range(2):
            process = subprocess.Popen([str(word) for word in command], env=environment(), stdout=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may have finished
                process.wait(chance.uniform(0.3, 1.2))
            process.kill()
            process.wait()
        assert subprocess.run([str(word) for word in command], env=environment(), capture_output=True).returncode == 0
    finish(sources)
    assert content(out) == whole(sources)


def test_slices_that_have_not_the_same_work_are_refused(sources: Path, medium: Medium) -> None:
    task(sources, 0)
    out = sources.parent / "SLICED"
    assert "the same number of slices" in run("index", sources, "--out", out, "--task", "1/4", code=1).output
    assert "the same sources and options" in task(sources, 1, "--depth", "packets", code=1)
    shutil.copy(medium("h264_single.mp4"), sources / "late.mp4")
    assert "the same sources and options" in task(sources, 1, code=1)
    assert "being written in slices" in run("index", sources, "--out", out, code=1).output
    assert "being written in slices" in run("index", "--compact", "--out", out, code=1).output
    (out / "slices.json").unlink()
    run("index", sources, "--out", out, "--max-failures", "1")
    assert len(Index(out).videos) == 24


def test_a_slice_is_not_finished_by_itself(tmp_path: Path) -> None:
    output = run("index", tmp_path, "--out", tmp_path / "I", "--task", "0/3", "--finish", code=2).output
    assert "run --finish after all slices are done" in output
    assert "write 0/8 for the first of eight slices" in run("index", "x", "--out", "I", "--task", "8/8", code=2).output


@pytest.mark.parametrize("text", ["3/3", "-1/3", "x/3", "1", "0/0", ""])
def test_a_slice_that_is_none_is_refused(text: str) -> None:
    refusal = run("index", "x", "--out", "I", f"--task={text}", code=2).output
    assert "--task" in refusal
