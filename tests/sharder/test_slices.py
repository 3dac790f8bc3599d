"""A dataset that is planned in slices has the bytes of one that is planned at once; what is missing is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framedex.sharder import slices
from framedex.sharder.writing import writer
from tests.support.datasets import content, run, write_clips
from tests.support.media import Medium
from tests.support.s3 import Bucket

NAMES = ("h264_open_gop.mp4", "h264_b_pyramid.mkv", "h264_audio.mp4", "hevc_radl.mp4", "h264_vfr.mp4")
POLICY = '{"policy": "windows", "frames": 3, "step": 1}'


@pytest.fixture
def index(medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slices, "MAX_FRAMES_A_GROUP", 100)  # two or three groups
    run("index", *(medium(name) for name in NAMES), "--out", tmp_path / "INDEX")
    return tmp_path / "INDEX"


def shard(index: Path, out: object, *options: object, code: int = 0) -> str:
    return str(run("shard", index, "--out", out, *options, code=code).output)


@pytest.mark.parametrize("how", ["policy", "clips"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_slices_give_the_bytes_of_one_run(index: Path, tmp_path: Path, how: str, count: int) -> None:
    asked: list[Any] = ["--policy", POLICY]
    if how == "clips":
        clips = [{"uri": name, "frames": [number, 3]} for number in range(40) for name in (*NAMES, "none.mp4")]
        asked = ["--clips", write_clips(tmp_path / "c.jsonl", clips), "--max-failures", 99]
    shard(index, tmp_path / "WHOLE", *asked)
    for number in reversed(range(count)):
        shard(index, tmp_path / "D", *asked, "--task", f"{number}/{count}")
    assert not (tmp_path / "D").exists()
    shard(index, tmp_path / "D", *asked, "--finish")
    assert content(tmp_path / "D") == content(tmp_path / "WHOLE")
    assert len(content(tmp_path / "D")) > 4
    assert not (tmp_path / "D.slices").exists()


def test_slices_that_are_missing_are_named_and_may_run_again(index: Path, tmp_path: Path) -> None:
    asked = ["--policy", POLICY]
    assert "there are no slices to finish" in shard(index, tmp_path / "D", *asked, "--finish", code=1)
    shard(index, tmp_path / "D", *asked, "--task", "0/2")
    assert "missing results of --task 1/2" in shard(index, tmp_path / "D", *asked, "--finish", code=1)
    said = shard(index, tmp_path / "D", *asked, "--task", "0/2")
    assert "taken up from an unfinished run" in said
    assert "another number of slices" in shard(index, tmp_path / "D", *asked, "--task", "1/3", code=1)
    other = ["--policy", '{"policy": "windows", "frames": 4}']
    assert "another index, policy and options" in shard(index, tmp_path / "D", *other, "--task", "1/2", code=1)
    assert "another index, policy and options" in shard(index, tmp_path / "D", *other, "--finish", code=1)
    shard(index, tmp_path / "D", *asked, "--task", "1/2")
    shard(index, tmp_path / "D", *asked, "--finish")
    assert "exact" in run("verify", tmp_path / "D", "--sample", "5").output


def test_a_finish_that_was_stopped_goes_on(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CLIPS_PER_PART", 32)
    asked = ["--policy", POLICY]
    shard(index, tmp_path / "WHOLE", *asked)
    shard(index, tmp_path / "D", *asked, "--task", "0/1")
    taken = writer.DatasetWriter.add_planned
    calls: list[int] = []

    def stopping(self: writer.DatasetWriter, planned: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        taken(self, planned)

    monkeypatch.setattr(writer.DatasetWriter, "add_planned", stopping)
    assert "interrupted" in shard(index, tmp_path / "D", *asked, "--finish", code=130)
    assert "taken up from an unfinished run" in shard(index, tmp_path / "D", *asked, "--finish")
    assert content(tmp_path / "D") == content(tmp_path / "WHOLE")


def test_slices_in_a_bucket(index: Path, tmp_path: Path, bucket: Bucket) -> None:
    asked = ["--policy", POLICY]
    shard(index, tmp_path / "WHOLE", *asked)
    for number in (1, 0):
        shard(index, f"{bucket.uri}/D", *asked, "--task", f"{number}/2")
    assert len(bucket.keys("D.slices/rows/")) >= 2
    shard(index, f"{bucket.uri}/D", *asked, "--finish")
    assert bucket.keys("D.slices") == []
    assert [key.removeprefix("D/") for key in bucket.keys("D/")] == sorted(content(tmp_path / "WHOLE"))
    assert bucket.get("D/clips/part-000000.parquet") == (tmp_path / "WHOLE/clips/part-000000.parquet").read_bytes()


def test_a_damaged_slice_is_named(index: Path, tmp_path: Path) -> None:
    shard(index, tmp_path / "D", "--policy", POLICY, "--task", "0/1")
    path = next((tmp_path / "D.slices/rows").iterdir())
    path.write_bytes(path.read_bytes()[:-50])
    assert "run the slice again" in shard(index, tmp_path / "D", "--policy", POLICY, "--finish", code=1)


def test_options_that_do_not_go_together_are_refused(index: Path, tmp_path: Path) -> None:
    said = shard(index, tmp_path / "D", "--policy", POLICY, "--task", "0/2", "--pack", "clips", code=2)
    assert "--task" in said
    assert "--pack" in said
    assert "--task has no effect with --finish" in shard(
        index, tmp_path / "D", "--policy", POLICY, "--task", "0/2", "--finish", code=2
    )
    assert "slices are 0/2 to 1/2" in shard(index, tmp_path / "D", "--policy", POLICY, "--task", "2/2", code=2)
