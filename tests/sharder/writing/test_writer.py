"""The dataset writer: an unfinished dataset never looks finished, written parts stay, and a rerun completes it."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index
from framedex.errors import OutputError
from framedex.records.clip import Failure
from framedex.sharder.writing.writer import DatasetWriter
from tests.support.datasets import run, shard_clips, write_clips

CLIPS = [{"uri": "h264_vfr.mp4", "frames": [number % 50], "note": number} for number in range(50)] + [
    {"uri": "hevc_open_gop.mp4", "frames": [number]} for number in range(30)
]


class KilledError(Exception):
    """Stands for anything that ends a run."""


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, except the log, which has dates, by relative path."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != "log.jsonl"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framedex.sharder.writing.writer.CLIPS_PER_PART", 7)


@pytest.fixture
def killed(index: Index, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The clips file of a run that was killed at its 61st clip."""
    clips = write_clips(tmp_path / "clips.jsonl", CLIPS)
    add, numbers = DatasetWriter.add, itertools.count()

    def add_until(self: DatasetWriter, *arguments: Any) -> None:
        if next(numbers) == 60:
            raise KilledError
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DatasetWriter, "add", add_until)
        run("shard", index.path, "--clips", clips, "--out", tmp_path / "D", code=1)
    return clips


def test_an_interrupted_run_leaves_nothing_that_looks_finished(killed: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in tmp_path.iterdir()) == ["D.unfinished", "clips.jsonl"]
    assert not (tmp_path / "D.unfinished/dataset.json").exists()


def test_a_rerun_takes_up_what_is_there_and_ends_byte_for_byte_as_one_run(
    index: Index, killed: Path, tmp_path: Path
) -> None:
    kept = files(tmp_path / "D.unfinished/clips")
    assert len(kept) == 8  # 56 of 60 clips, in parts of 7
    output = run("shard", index.path, "--clips", killed, "--out", tmp_path / "D").output
    assert "56 clips taken up from an unfinished run" in output
    run("shard", index.path, "--clips", killed, "--out", tmp_path / "ONCE")
    assert files(tmp_path / "D") == files(tmp_path / "ONCE")
    assert kept.items() <= files(tmp_path / "D/clips").items()
    assert len(ClipDataset(tmp_path / "D")) == len(CLIPS)


def test_an_unfinished_dataset_of_another_plan_is_in_the_way_until_told_otherwise(
    index: Index, killed: Path, tmp_path: Path
) -> None:
    others = write_clips(tmp_path / "others.jsonl", CLIPS[:3])
    before = files(tmp_path / "D.unfinished")
    refused = run("shard", index.path, "--clips", others, "--out", tmp_path / "D", code=1)
    assert "an unfinished dataset of a run with another index, policy or options" in refused.output
    assert files(tmp_path / "D.unfinished") == before
    run("shard", index.path, "--clips", others, "--out", tmp_path / "D", "--overwrite")
    assert len(ClipDataset(tmp_path / "D")) == 3
    assert not (tmp_path / "D.unfinished").exists()


def test_a_torn_last_line_of_progress_costs_one_checkpoint(index: Index, killed: Path, tmp_path: Path) -> None:
    progress = tmp_path / "D.unfinished/progress.jsonl"
    progress.write_bytes(progress.read_bytes()[:-20])
    output = run("shard", index.path, "--clips", killed, "--out", tmp_path / "D").output
    assert "49 clips taken up" in output
    run("shard", index.path, "--clips", killed, "--out", tmp_path / "ONCE")
    assert files(tmp_path / "D") == files(tmp_path / "ONCE")


def test_failures_are_counted_once_over_a_rerun(index: Index, tmp_path: Path, small_parts: None) -> None:
    job = {"name": "a job"}
    failure = Failure(clip_id="x", uri="gone.mp4", kind="request", message="no such medium")
    with (
        contextlib.suppress(KilledError),
        DatasetWriter(tmp_path / "D", job=job, user_schema=pa.schema([]), overwrite=False) as writer,
    ):
        writer.fail(failure)
        writer._checkpoint()
        writer.fail(failure)
        raise KilledError
    with DatasetWriter(tmp_path / "D", job=job, user_schema=pa.schema([]), overwrite=False) as writer:
        assert writer.done == 1
        writer.fail(failure)
        report = writer.commit(index=index, resolved={}, facts={"pack": None})
    assert report.failed == 2
    assert pq.read_table(tmp_path / "D/failures.parquet")["clip_id"].to_pylist() == ["x", "x"]


def test_a_run_that_ends_before_its_first_checkpoint_leaves_nothing(index: Index, tmp_path: Path) -> None:
    with (
        pytest.raises(KilledError),
        DatasetWriter(tmp_path / "D", job={}, user_schema=pa.schema([]), overwrite=False),
    ):
        raise KilledError
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_a_checkpoint_is_written_keeps_it(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = write_clips(tmp_path / "clips.jsonl", CLIPS)
    command = ("shard", index.path, "--clips", clips, "--out")
    wait, interrupts = Future.exception, iter([KeyboardInterrupt])

    def interrupted(self: Future[None], timeout: float | None = None) -> BaseException | None:
        for interrupt in interrupts:
            raise interrupt
        return wait(self, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(Future, "exception", interrupted)
        run(*command, tmp_path / "D", code=130)
    assert (tmp_path / "D.unfinished/progress.jsonl").read_text().count("\n") == 1
    assert f"{len(CLIPS)} clips taken up" in run(*command, tmp_path / "D").output
    run(*command, tmp_path / "ONCE")
    assert files(tmp_path / "D") == files(tmp_path / "ONCE")


def test_what_appears_at_the_output_during_a_run_is_spared(index: Index, tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "D", job={}, user_schema=pa.schema([]), overwrite=False) as writer:
        (tmp_path / "D").mkdir()
        (tmp_path / "D/checkpoint.bin").write_text("hours")
        with pytest.raises(OutputError):
            writer.commit(index=index, resolved={}, facts={"pack": None})
    assert (tmp_path / "D/checkpoint.bin").read_text() == "hours"


def test_two_writers_of_one_dataset_never_mix(index: Index, tmp_path: Path) -> None:
    first = DatasetWriter(tmp_path / "D", job={}, user_schema=pa.schema([]), overwrite=False)
    second = DatasetWriter(tmp_path / "D", job={}, user_schema=pa.schema([]), overwrite=False)
    with first, pytest.raises(OutputError, match="another run"), second:
        pass


def test_the_same_plan_gives_the_same_bytes(index: Index, tmp_path: Path) -> None:
    once, again = (shard_clips(index.path, tmp_path / name, CLIPS) for name in ("once", "again"))
    assert files(once).keys() == files(again).keys()
    assert [name for name, content in files(once).items() if files(again)[name] != content] == []
