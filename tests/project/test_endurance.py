"""benchmarks/endurance.py: with small numbers, its CPU parts run and confirm what they are meant to show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.endurance_memory import verdict
from tests.support.depth import rounds

ROOT = Path(__file__).resolve().parents[2]
BATCHES = rounds("batches of the endurance test")
PARTS = ("flat", "decoders buffers", "faults source, zeros, skip", "faults killed, replace", "faults vanished, skip")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The result rows of the parts that a CPU can run, by name of the part."""
    folder = tmp_path_factory.mktemp("endurance")
    command: list[object] = [
        sys.executable,
        "-m",
        "benchmarks.endurance",
        "--home",
        folder / "home",
        "--out",
        folder / "out.json",
    ]
    command += ["--small", "--batches", BATCHES, "--workers", "2", "--limit", "600"]
    for part in PARTS:
        command += ["--exactly", part]
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT)
    found = json.loads((folder / "out.json").read_text())["parts"]
    return {row["part"]: row for row in found}


def test_every_part_ends_with_an_answer(rows: dict[str, dict[str, Any]]) -> None:
    assert set(rows) == set(PARTS)
    assert not {name: row for name, row in rows.items() if "reason" in row}


def test_batches_leave_no_files_threads_or_processes_behind_and_are_right(rows: dict[str, dict[str, Any]]) -> None:
    flat = rows["flat"]
    assert flat["batches"] == BATCHES
    assert flat["wrong_clips"] == 0 < flat["checked_clips"]
    by = flat["verdict"]["by"]
    assert all(by[name]["flat"] for name in ("workers_open_files", "threads", "workers_threads", "processes"))


def test_faults_harm_no_other_clip_and_no_batch(rows: dict[str, dict[str, Any]]) -> None:
    for name, row in rows.items():
        if name.startswith("faults"):
            assert row["as_promised"], row
    assert rows["faults source, zeros, skip"]["failures"]
    assert rows["faults killed, replace"]["killed"] > 0
    assert rows["faults vanished, skip"]["failures"]["stale"] > 0


def test_dali_cannot_open_a_movie_whose_buffer_was_used_again_under_no_copy_alone(
    rows: dict[str, dict[str, Any]],
) -> None:
    row = rows["decoders buffers"]
    for no_copy in (False, True):
        for fate in ("kept", "overwritten", "freed"):
            facts = row[f"no_copy={no_copy}, {fate}"]
            if no_copy and fate == "overwritten":
                assert facts["reported_error"] == facts["tried"] > 0
            elif fate != "freed":
                assert facts["errors"] == facts["wrong"] == 0


def test_what_grows_is_not_flat() -> None:
    steady = [{"batch": 100.0 * n, "host_mib": 500.0 + n % 2, "open_files": 20.0} for n in range(1, 21)]
    assert verdict(steady)["flat"]
    leaking = [row | {"host_mib": 500 + 5 * row["batch"] / 100} for row in steady]
    assert not verdict(leaking)["flat"]
    assert not verdict([row | {"open_files": row["batch"] / 100} for row in steady])["by"]["open_files"]["flat"]
