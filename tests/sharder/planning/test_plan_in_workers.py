"""Clips are planned in worker processes with the same bytes as in one process, even if a worker dies or a run ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex.errors import PolicyError
from framedex.execution.local_pool import run_local
from framedex.indexer.parts.index import Index
from framedex.sharder import plan_in_workers
from framedex.sharder.build import DEFAULTS, build_from_policy
from framedex.sharder.clips.clip import Failure
from framedex.sharder.packing.cutting import Making
from framedex.sharder.plan_in_workers import planned_in_workers
from framedex.sharder.planning.asked import Asked, AskedOfMedium, Media, asked_by_policy
from framedex.sharder.planning.batches import Round
from framedex.sharder.policies.reading import make_policy
from framedex.sharder.schema import CLIPS
from framedex.sharder.writing import tables, writer
from tests.conftest import Truth
from tests.sharder.packing.test_pack_killed import content
from tests.support.datasets import run, write_clips
from tests.support.media import RECIPES

MAKING = Making(keep_damaged=False, pack=None, audio=None, audio_format="flac")
POLICY = {"policy": "windows", "frames": 3, "step": 2, "last": "drop"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests' few clips fill several tasks, parts and checkpoints."""
    monkeypatch.setattr(plan_in_workers, "TASKS_AT_FIRST", 1)
    monkeypatch.setattr(plan_in_workers, "MOST_CLIPS_A_TASK", 70)
    monkeypatch.setattr(plan_in_workers, "STEPS_AT_ONCE", 9)
    for module in (tables, writer):
        monkeypatch.setattr(module, "CLIPS_PER_PART", 23)


def test_a_policy_s_clips_are_the_same_bytes(index: Index, tmp_path: Path) -> None:
    command = ["shard", index.path, "--policy", str(POLICY), "--out"]
    run(*command, tmp_path / "A", "--workers", 1)
    run(*command, tmp_path / "B", "--workers", 3)
    assert len(list((tmp_path / "A/clips").iterdir())) > 10
    assert content(tmp_path / "A") == content(tmp_path / "B")


def test_explicit_clips_are_the_same_bytes(
    index: Index, truth: Callable[[str], Truth], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framedex.sharder.planning.asked.REQUESTS_AT_ONCE", 7)
    monkeypatch.setattr(plan_in_workers, "MOST_CLIPS_A_TASK", 14)
    rng = np.random.default_rng(5)
    clips = [
        {"uri": name, "frames": rng.integers(0, len(truth(name).md5), 5).tolist(), "mine": number}
        for number in range(3)
        for name in rng.permutation(sorted(RECIPES)).tolist()
    ]
    clips[3]["frames"], clips[20]["uri"] = [10**6], "nowhere.mp4"
    path = write_clips(tmp_path / "clips.jsonl", clips)
    command = ["shard", index.path, "--clips", path, "--max-failures", 2, "--out"]
    run(*command, tmp_path / "A", "--workers", 1)
    run(*command, tmp_path / "B", "--workers", 2)
    assert len(content(tmp_path / "A")) > 5
    assert content(tmp_path / "A") == content(tmp_path / "B")


def test_failures_count_towards_checkpoints_as_in_one_process(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FAILURES_PER_CHECKPOINT", 2)
    lines = [{"uri": uri, "frames": [0 if n % 3 else 10**6]} for n, uri in enumerate(sorted(RECIPES))]
    path = write_clips(tmp_path / "clips.jsonl", lines)
    command = ["shard", index.path, "--clips", path, "--max-failures", len(lines), "--out"]
    run(*command, tmp_path / "A", "--workers", 1)
    run(*command, tmp_path / "B", "--workers", 2)
    assert len(list((tmp_path / "A/clips").iterdir())) >= 5
    assert content(tmp_path / "A") == content(tmp_path / "B")


@pytest.mark.parametrize("then", [1, 2])
def test_a_run_that_ended_goes_on_with_any_number_of_workers(index: Index, tmp_path: Path, then: int) -> None:
    class EndedError(Exception):
        pass

    def end(done: int, total: int) -> None:
        if done > 0.6 * total:
            raise EndedError

    file, out = make_policy(POLICY, where="test"), tmp_path / "DATASET"
    with pytest.raises(EndedError):
        build_from_policy(index, out, file, replace(DEFAULTS, workers=2, on_progress=end))
    report = build_from_policy(index, out, file, replace(DEFAULTS, workers=then))
    assert 0 < report.resumed < report.clips
    whole = build_from_policy(index, tmp_path / "WHOLE", file, replace(DEFAULTS, workers=1))
    assert whole.clips == report.clips
    assert content(out) == content(tmp_path / "WHOLE")


def test_a_medium_with_very_many_frames_is_planned_here(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_in_workers, "MOST_CLIPS_SENT", 45)
    test_a_policy_s_clips_are_the_same_bytes(index, tmp_path)


@dataclass(frozen=True)
class Strange:
    """Something asked for that ends its process, or the run.

    Attributes:
        error: What it raises; None if it kills its process.
    """

    number: int
    error: Exception | None
    weight: int = 100

    def round(self, media: Media) -> Round:
        if self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError
        raise self.error

    def alone(self) -> list[Asked]:
        return [self]

    def failed(self, kind: str, message: str, traceback: str | None) -> Failure:
        return Failure(clip_id="strange", uri="strange.mp4", kind=kind, message=message, traceback=traceback)


def planned(index: Index, strange: Strange) -> tuple[list[str | None], list[Any]]:
    """Plan some media with something strange among them; return the media that clips use, and all rows."""
    asked = list(asked_by_policy(index, make_policy(POLICY, where="test")))[:8]
    asked.insert(5, strange)
    rows = list(planned_in_workers(index, MAKING, asked, CLIPS, done=0, workers=2, engine=run_local))
    return [medium["media_id"] for each in rows for medium in each.media], rows


def names(index: Index, count: int) -> list[str]:
    asked = list(asked_by_policy(index, make_policy(POLICY, where="test")))[:count]
    return [piece.mentioned.video["media_id"] for piece in asked if isinstance(piece, AskedOfMedium)]


def test_a_process_that_dies_costs_what_it_died_at_alone(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_in_workers, "TASKS_AT_FIRST", 0)
    monkeypatch.setattr(plan_in_workers, "MOST_CLIPS_A_TASK", 400)  # several media share its task
    media, rows = planned(index, Strange(number=6, error=None, weight=1))
    assert list(dict.fromkeys(media)) == names(index, 8)
    (failure,) = [failure for each in rows for failure in each.failures if failure.clip_id == "strange"]
    assert (failure.kind, failure.uri) == ("crash", "strange.mp4")


def test_an_error_ends_the_plan_behind_what_came_before(index: Index) -> None:
    media, rows = planned(index, Strange(number=6, error=PolicyError("no such column", remedy="name one")))
    assert list(dict.fromkeys(media)) == names(index, 5)
    errors = [each.error for each in rows if each.error is not None]
    assert [str(error) for error in errors] == [str(PolicyError("no such column", remedy="name one"))]
    assert errors[0].remedy == "name one"
