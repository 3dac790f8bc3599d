"""If a folder becomes read-only while a run writes into it, the error names it, and a rerun writes the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.datasets import run, write_clips
from tests.support.running import environment

# Root can write to a folder without write permission. The command runs without this capability (capabilities(7)).
WITHOUT_POWER = """
import ctypes, os, runpy, sys, threading
CAP_DAC_OVERRIDE, VERSION_3 = 1, 0x20080522
libc, header, held = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, held)
held[0] &= ~(1 << CAP_DAC_OVERRIDE)
assert libc.capset(header, held) == 0
"""
# The folder becomes read-only right before the first file whose name starts with `begins` is written there.
CLOSING = """
folder, begins = sys.argv[1], sys.argv[2]
plain = os.replace
def replace(source, target, **more):
    if os.path.basename(target).startswith(begins):
        for path, _, _ in os.walk(folder):
            os.chmod(path, 0o555)
    return plain(source, target, **more)
os.replace = replace
del sys.argv[1:3]
runpy.run_module("framedex", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def videos(medium: Callable[[str], Path], tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with a video; make all folders here writable again afterwards."""
    (tmp_path / "videos").mkdir()
    shutil.copy(medium("h264_single.mp4"), tmp_path / "videos" / "a.mp4")
    yield tmp_path / "videos"
    for path, _, _ in os.walk(tmp_path):
        os.chmod(path, 0o755)


def closing(folder: Path, begins: str, *arguments: object) -> str:
    """Run `framedex ARGUMENTS` while a folder becomes read-only; return stderr, which must not contain a traceback."""
    command = [sys.executable, "-c", WITHOUT_POWER + CLOSING, str(folder), begins, *map(str, arguments)]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert found.returncode == 1, (found.stdout, found.stderr)
    assert "Traceback" not in found.stderr
    assert "Permission denied" in found.stderr
    return found.stderr


@pytest.mark.parametrize("begins", ["part-", "index.json", "listing"])
def test_an_index_that_becomes_read_only_is_named_and_a_rerun_finishes_it(
    begins: str, videos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "INDEX"
    out.mkdir()
    assert "INDEX" in closing(out, begins, "index", videos, "--out", out, "--workers", 1)
    for path, _, _ in os.walk(out):
        os.chmod(path, 0o755)
    assert json.loads(run("index", videos, "--out", out, "--json").output)["failed"] == 0


@pytest.mark.parametrize("begins", ["part-", "dataset.json"])
def test_a_dataset_whose_place_becomes_read_only_is_named_and_a_rerun_finishes_it(
    begins: str, videos: Path, tmp_path: Path
) -> None:
    run("index", videos, "--out", tmp_path / "INDEX")
    clips = write_clips(tmp_path / "clips.jsonl", [{"uri": "a.mp4", "frames": [0]}])
    place = tmp_path / "place"
    place.mkdir()
    ask = ("shard", tmp_path / "INDEX", "--clips", clips, "--out", place / "D")
    assert "place" in closing(place, begins, *ask)
    for path, _, _ in os.walk(place):
        os.chmod(path, 0o755)
    assert json.loads(run(*ask, "--json").output)["clips"] == 1
    assert "1 exact" in run("verify", place / "D").output
