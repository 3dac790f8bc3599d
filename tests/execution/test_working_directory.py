"""Processes that framedex starts import nothing from the working directory, which may be a stranger's dataset."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running import ROOT

# Modules of Python's own that processes import when they start, and some that framedex imports.
NAMES = (
    "signal",
    "pickle",
    "struct",
    "selectors",
    "copyreg",
    "reprlib",
    "framedex",
    "av",
    "numpy",
    "pyarrow",
    "duckdb",
)


@pytest.fixture
def hostile(tmp_path: Path, medium: Callable[[str], Path]) -> Path:
    """A folder with a video, a policy, and modules that leave a file behind if they are imported."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "v.mp4").write_bytes(medium("h264_default.mp4").read_bytes())
    (folder / "p.yaml").write_text("policy: stride\nstride: 10\nframes: 4\n")
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n")
    return folder


def run(folder: Path, *words: str) -> str:
    """Run `framedex WORDS` in a folder as the installed command does, which does not import from it either."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "framedex", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_in_a_folder_with_modules_do_not_import_them(hostile: Path, tmp_path: Path) -> None:
    run(hostile, "index", "v.mp4", "--out", "I", "--workers", "1")
    run(hostile, "shard", "I", "--policy", "p.yaml", "--out", "D", "--pack", "clips", "--workers", "1")
    run(hostile, "verify", "D", "--workers", "1")
    assert run(hostile, "audit", "I", "--sql", "SELECT count(*) AS n FROM videos").split()[-1] == "1"
    run(hostile, "bench", "D", "--workers", "1", "--epochs", "1", "--warm-up", "0")
    assert not (tmp_path / "imported").exists()


def test_a_browser_in_such_a_folder_does_not_import_them(hostile: Path, tmp_path: Path) -> None:
    run(hostile, "index", "v.mp4", "--out", "I", "--workers", "0")
    command = [sys.executable, "-P", "-u", "-m", "framedex", "inspect", "I", "--serve"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=hostile, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "http://127.0.0.1" in process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)  # the checks run in a process of their own meanwhile
        process.send_signal(signal.SIGTERM)
    assert not (tmp_path / "imported").exists()
