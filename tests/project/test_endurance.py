"""benchmarks/endurance.py: with small numbers, its CPU parts run and confirm what they are meant to show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.endurance_memory import verdict
from tests.support.depth import drawn, rounds

ROOT = Path(__file__).resolve().parents[2]
BATCHES = rounds("batches of a part of the endurance test")
Row = dict[str, Any]


def leaves_nothing_behind_and_is_right(row: Row) -> None:
    assert row["batches"] == BATCHES
    assert row["wrong_clips"] == 0 < row["checked_clips"]
    by = row["verdict"]["by"]
    assert all(by[name]["flat"] for name in ("workers_open_files", "threads", "workers_threads", "processes"))


def dali_cannot_open_a_movie_whose_buffer_was_used_again_under_no_copy_alone(row: Row) -> None:
    for no_copy in (False, True):
        for short_clip in ("kept", "overwritten", "freed"):
            facts = row[f"no_copy={no_copy}, {short_clip}"]
            if no_copy and short_clip == "overwritten":
                assert facts["reported_error"] == facts["tried"] > 0
            elif short_clip != "freed":
                assert facts["errors"] == facts["wrong"] == 0


def harms_no_other_clip_and_no_batch(row: Row) -> None:
    assert row["as_promised"], row


def zeros_are_failures(row: Row) -> None:
    harms_no_other_clip_and_no_batch(row)
    assert row["failures"]


def workers_are_killed(row: Row) -> None:
    harms_no_other_clip_and_no_batch(row)
    assert row["killed"] > 0


def vanished_media_are_stale(row: Row) -> None:
    harms_no_other_clip_and_no_batch(row)
    assert row["failures"]["stale"] > 0


# The parts that a CPU can run, and what each confirms.
PARTS = {
    "flat": leaves_nothing_behind_and_is_right,
    "decoders buffers": dali_cannot_open_a_movie_whose_buffer_was_used_again_under_no_copy_alone,
    "faults source, zeros, skip": zeros_are_failures,
    "faults killed, replace": workers_are_killed,
    "faults vanished, skip": vanished_media_are_stale,
}


@pytest.mark.parametrize("part", drawn("parts of the endurance test", PARTS, seed=2))
def test_a_part_ends_with_an_answer_that_is_right(part: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.endurance",
        "--home",
        tmp_path / "home",
        "--out",
        tmp_path / "out.json",
    ]
    command += ["--small", "--batches", BATCHES, "--workers", "2", "--limit", "600", "--exactly", part]
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT)
    (row,) = json.loads((tmp_path / "out.json").read_text())["parts"]
    assert row["part"] == part
    assert "reason" not in row
    PARTS[part](row)


def test_what_grows_is_not_flat() -> None:
    steady = [{"batch": 100.0 * n, "host_mib": 500.0 + n % 2, "open_files": 20.0} for n in range(1, 21)]
    assert verdict(steady)["flat"]
    leaking = [row | {"host_mib": 500 + 5 * row["batch"] / 100} for row in steady]
    assert not verdict(leaking)["flat"]
    assert not verdict([row | {"open_files": row["batch"] / 100} for row in steady])["by"]["open_files"]["flat"]
