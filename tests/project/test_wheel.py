"""The wheel contains what the tree contains: no module or query is missing, and nothing else is added."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("indexer", "sharder", "loader", "auditor")  # at the top of the tree, and in framedex/ of the wheel


def tracked() -> list[str]:
    """Return the tracked files and the new files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_symlink() or (ROOT / name).is_file()]


def packaged(name: str) -> str | None:
    """Return the path in the wheel of a file in the tree; None if the wheel does not contain it."""
    stage = name.split("/")[0]
    if stage in (*STAGES, "configs"):
        return f"framedex/{name}"
    if name.startswith("benchmarks/bench/"):
        return name.replace("benchmarks", "framedex", 1)
    return name if stage == "framedex" and not (ROOT / name).is_symlink() else None


@pytest.mark.slow
def test_the_wheel_holds_the_trees_files_and_no_others(tmp_path: Path) -> None:
    names = tracked()
    for name in names:
        target = tmp_path / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(tmp_path / "tree"),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("framedex-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        expected = {place: name for name in names if (place := packaged(name)) is not None}
        assert found == set(expected)
        assert len(found) > 300
        for place, name in expected.items():
            assert archive.read(place) == (ROOT / name).read_bytes(), place
