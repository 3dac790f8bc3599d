"""Commands print the first ten failures, then the counts by kind and where all of them are."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from framedex import Index, query
from framedex.core.printing import FailureList
from tests.support.datasets import run, shard_clips


def test_few_failures_are_printed_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    failures = FailureList()
    for number in range(10):
        failures.add("odd", f"failed: {number}")
    failures.end("elsewhere")
    assert capsys.readouterr().out.splitlines() == [f"failed: {number}" for number in range(10)]


def test_of_many_failures_the_first_are_printed_and_all_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    failures = FailureList()
    for number in range(1215):
        failures.add("odd" if number % 3 else "stale", f"failed: {number}")
    failures.end("elsewhere")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [f"failed: {number}" for number in range(10)]
    assert lines[-1] == "… and 1,205 more. By kind: odd (810), stale (405). All of them: elsewhere"


def test_index_says_where_all_failures_are(tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    for number in range(13):
        (media / f"{number}.mp4").write_bytes(b"no video")
    lines = run("index", media, "--out", tmp_path / "I", code=3).output.splitlines()
    assert sum(line.startswith("failed: ") for line in lines) == 10
    (told,) = (line for line in lines if line.startswith("…"))
    found = re.fullmatch(
        r"… and 3 more\. By kind: not_media \(13\)\. All of them: framedex audit (\S+) --sql \"(.+)\"", told
    )
    assert found, told
    assert len(query(found[1], found[2])) == 13


def test_shard_says_where_all_failures_are(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [number]} for number in range(45, 62)]
    (tmp_path / "D.jsonl").write_text("".join(json.dumps(clip) + "\n" for clip in clips))
    output = run("shard", index.path, "--clips", tmp_path / "D.jsonl", "--out", tmp_path / "D", code=3).output
    lines = output.splitlines()
    assert sum(line.startswith("failed: ") for line in lines) == 10
    (told,) = (line for line in lines if line.startswith("…"))
    kinds = pq.read_table(tmp_path / "D" / "failures.parquet")["kind"].to_pylist()
    assert len(kinds) == 12
    assert told == f"… and 2 more. By kind: {kinds[0]} (12). All of them: {tmp_path / 'D' / 'failures.parquet'}"


def test_verify_says_how_to_see_all_failures(index: Index, all_media: Path, tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    shutil.copy(all_media / "h264_default.mp4", tmp_path / "media")
    run("index", tmp_path / "media", "--out", tmp_path / "I")
    clips = [{"uri": "h264_default.mp4", "frames": [number]} for number in range(14)]
    dataset = shard_clips(tmp_path / "I", tmp_path / "D", clips)
    (tmp_path / "media" / "h264_default.mp4").unlink()
    lines = run("verify", dataset, code=3).output.splitlines()
    assert sum(line.startswith("stale: ") for line in lines) == 10
    assert "… and 4 more. By kind: stale (14). All of them: --json prints a line for every clip" in lines
    every = run("verify", dataset, "--json", code=3).output.splitlines()
    assert len([line for line in every if line.startswith("{")]) == 14
