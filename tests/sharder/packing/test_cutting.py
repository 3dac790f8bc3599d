"""Tiny files are planned and cut in worker processes with the same steps as in one process, even if a worker dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import Index
from framedex.errors import FramedexError
from framedex.execution.engine import Calls, Outcome, alone_if_lost
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import Clip, WantedClip
from framedex.sharder.clips.samples import PlannedStep, Step
from framedex.sharder.packing import pack
from framedex.sharder.planning.indexed_medium import PlanningOptions
from tests.conftest import Truth
from tests.support.datasets import content, run, write_clips
from tests.support.media import RECIPES
from tests.support.running import outcomes

OPTIONS = pack.ClipFileOptions(planning=PlanningOptions(one_stream="all"))


def wanted(name: str, *frames: int) -> WantedClip:
    """Return a clip of these frames."""
    return WantedClip(
        clip_id=name, frames=np.array(frames), mask=np.ones(len(frames), np.bool_), columns={}, asked_in="line 1"
    )


def said(steps: list[Any]) -> list[tuple[str | None, int, list[int]]]:
    """Return the content of each step: the clip, the plan's progress, and the sizes of its members."""
    return [(step.outcome.clip_id, step.done, [len(member) for member in step.members]) for step in steps]


@pytest.fixture
def task(index: Index, monkeypatch: pytest.MonkeyPatch) -> pack.CuttingTask:
    """Return a task with clips of two media, one of which cannot be planned, and a clip known to be impossible."""
    monkeypatch.setattr(os, "nice", int)  # this process keeps its priority when it does the work of a worker
    first, second = index.videos["media_id"].to_pylist()[:2]
    return pack.CuttingTask(
        index=index.path,
        options=OPTIONS,
        sent=[
            pack.SentItem(media_id=first, wanted=wanted("a", 3, 9), done=1),
            pack.SentItem(media_id=first, wanted=wanted("past the end", 10**6), done=1),
            PlannedStep(outcome=Failure(clip_id="no medium", uri="x", kind="request", message=""), done=2),
            pack.SentItem(media_id=second, wanted=wanted("b", 5), done=3),
        ],
    )


def test_tasks_of_any_size_give_the_same_bytes_as_one_process(
    index: Index, truth: Callable[[str], Truth], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    clips = [
        {"uri": name, "frames": rng.integers(0, len(truth(name).md5), 5).tolist(), "clip_id": f"{name}-{number}"}
        for number in range(4)
        for name in rng.permutation(sorted(RECIPES)).tolist()
    ]
    clips[3]["frames"] = [10**6]
    path = write_clips(tmp_path / "clips.jsonl", clips)
    command = ["shard", index.path, "--clips", path, "--pack", "clips", "--max-failures", len(clips), "--out"]
    run(*command, tmp_path / "A", "--workers", 1)
    monkeypatch.setattr(pack, "CLIPS_A_TASK", 5)
    monkeypatch.setattr(pack, "TASKS_AT_FIRST", 1)
    run(*command, tmp_path / "B", "--workers", 2)
    assert len(content(tmp_path / "A")) > 5
    assert content(tmp_path / "A") == content(tmp_path / "B")


def test_what_a_dead_worker_was_at_is_made_again_clip_by_clip(task: pack.CuttingTask) -> None:
    lost: Outcome[pack.CuttingTask, list[Step]] = Outcome(item=task, kind="crash", message="the worker process died")
    calls = Calls(function=pack.cut, items=[], timeout_seconds=60)
    steps = [step for each in alone_if_lost(lost, calls, pack._divided) for step in pack._steps(each)]
    assert said(steps) == said(pack.cut(task))
    assert [isinstance(step.outcome, Clip) for step in steps] == [True, False, False, True]


def test_a_clip_that_kills_its_worker_alone_is_a_failure(index: Index, task: pack.CuttingTask) -> None:
    item = pack.SentItem(media_id=index.videos["media_id"][0].as_py(), wanted=wanted("a", 3), done=1)
    lonely = pack.CuttingTask(index=index.path, options=OPTIONS, sent=[item])
    [step] = pack._steps(Outcome(item=lonely, kind="crash", message="the worker process died (exit code -11)"))
    assert isinstance(step.outcome, Failure)
    assert step.outcome.kind == "crash"
    assert step.outcome.uri == index.video(item.media_id)["uri"]
    assert step.outcome.counts


def test_a_small_plan_starts_no_process(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise FramedexError("a process was started")

    monkeypatch.setattr("pebble.ProcessPool.schedule", refuse)
    clips = [{"uri": name, "frames": [0, 2], "clip_id": name} for name in sorted(RECIPES)]
    path = write_clips(tmp_path / "clips.jsonl", clips)
    run(
        *("shard", index.path, "--clips", path, "--out", tmp_path / "D"),
        *("--pack", "clips", "--workers", 2, "--max-failures", 1),  # one recipe cannot be cut
    )
    assert (tmp_path / "D" / "dataset.json").exists()


def test_items_that_pass_keep_their_turn_and_have_no_result() -> None:
    found = outcomes(abs, [-1, 2, -3, 4], passes=lambda item: item > 0)
    assert [(outcome.item, outcome.result, outcome.kind) for outcome in found] == [
        (-1, 1, None),
        (2, None, None),
        (-3, 3, None),
        (4, None, None),
    ]
