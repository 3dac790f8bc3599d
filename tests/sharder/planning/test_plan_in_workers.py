"""Clips are planned in worker processes with the same bytes as in one process, even if a worker dies or a run ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from framedex import Index
from framedex.errors import PolicyError
from framedex.sharder import build, schema, slices
from framedex.sharder.planning import indexed_medium, steps, units
from framedex.sharder.writing import planned_rows, whole, writer
from tests.conftest import Truth
from tests.support.datasets import content, run, write_clips
from tests.support.media import RECIPES
from tests.support.policies import policy_of

POLICY = {"policy": "windows", "frames": 3, "step": 2, "last": "drop"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests' few clips fill several tasks, parts and checkpoints."""
    monkeypatch.setattr(slices, "TASKS_AT_FIRST", 1)
    monkeypatch.setattr(slices, "MAX_CLIPS_A_TASK", 70)
    monkeypatch.setattr(slices, "STEPS_AT_ONCE", 9)
    for module in (whole, writer):
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
    monkeypatch.setattr("framedex.sharder.planning.steps.REQUESTS_AT_ONCE", 7)
    monkeypatch.setattr(slices, "MAX_CLIPS_A_TASK", 14)
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

    file, out = policy_of(POLICY), tmp_path / "DATASET"
    with pytest.raises(EndedError):
        build.build_from_policy(index, out, file, replace(build.DEFAULTS, workers=2, on_progress=end))
    report = build.build_from_policy(index, out, file, replace(build.DEFAULTS, workers=then))
    assert 0 < report.resumed < report.clips
    whole = build.build_from_policy(index, tmp_path / "WHOLE", file, replace(build.DEFAULTS, workers=1))
    assert whole.clips == report.clips
    assert content(out) == content(tmp_path / "WHOLE")


def test_a_medium_with_very_many_frames_is_planned_here(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MAX_CLIPS_SENT", 45)
    test_a_policy_s_clips_are_the_same_bytes(index, tmp_path)


@dataclass(frozen=True, kw_only=True)
class Strange:
    """What a policy wants of a medium, at which every process dies but the one that is named, or an error comes.

    Attributes:
        home: The process that survives.
        error: What it raises instead.
    """

    inner: steps.Piece
    home: int
    error: Exception | None = None

    @property
    def weight(self) -> int:
        return self.inner.weight

    def items(self, media: indexed_medium.OpenMedia) -> steps.ReadGroup:
        if self.error is not None:
            raise self.error
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner.items(media)

    def alone(self) -> list[steps.Piece]:
        return [self]


def asked_of(index: Index, count: int) -> list[steps.Piece]:
    """Return what the policy wants of some media."""
    file = policy_of(POLICY)
    return list(steps.policy_pieces(units.units_of(index, file, steps.PIECE_FACTS), file.policy))[:count]


def planned(index: Index, asked: Iterable[steps.Piece]) -> list[planned_rows.PlannedRows]:
    how = slices.PlanningRun(
        index=index,
        options=indexed_medium.PlanningOptions(),
        schema=schema.CLIPS,
        workers=replace(build.DEFAULTS, workers=2).processes,
    )
    return list(slices.plan_in_workers(how, asked))


def media_of(rows: list[planned_rows.PlannedRows]) -> list[str]:
    """Return the media that clips use, in order."""
    return list(dict.fromkeys(medium["media_id"] for each in rows for medium in each.media))


def names(asked: list[steps.Piece]) -> list[str]:
    return [
        mention.media_id
        for piece in asked
        if isinstance(piece, steps.PolicyPiece)
        for unit in piece.units
        for mention in unit.mentions.values()
    ]


@pytest.fixture
def workers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers do all tasks, of several media each."""
    monkeypatch.setattr(slices, "TASKS_AT_FIRST", 0)
    monkeypatch.setattr(slices, "MAX_CLIPS_A_TASK", 200)


def test_a_process_that_dies_costs_the_clips_that_it_died_at(index: Index, workers_alone: None) -> None:
    asked = asked_of(index, 8)
    lost = asked[5]
    rows = planned(index, [*asked[:5], Strange(inner=lost, home=os.getpid()), *asked[6:]])
    assert media_of(rows) == names([*asked[:5], *asked[6:]])
    failures = [failure for each in rows for failure in each.failures]
    whole = planned(index, [lost])
    assert [failure.clip_id for failure in failures] == [
        identity for each in whole for identity in each.clips["clip_id"].to_pylist()
    ]
    assert len(failures) > 5
    assert {(failure.kind, failure.uri) for failure in failures} == {("crash", index.video(names([lost])[0])["uri"])}
    assert sum(len(each.is_clip) for each in rows) == sum(len(each.is_clip) for each in planned(index, asked))


@pytest.mark.parametrize("error", [PolicyError("no such column", remedy="name one"), OSError(5, "the disk is gone")])
def test_an_error_ends_the_plan_behind_what_came_before(index: Index, workers_alone: None, error: Exception) -> None:
    asked = asked_of(index, 8)
    rows = planned(index, [*asked[:5], Strange(inner=asked[5], home=0, error=error), *asked[6:]])
    assert media_of(rows) == names(asked[:5])
    assert [(type(each.error), str(each.error)) for each in rows if each.error is not None] == [
        (type(error), str(error))
    ]


def test_an_error_of_the_listing_does_not_overtake_what_came_before(index: Index, workers_alone: None) -> None:
    asked = asked_of(index, 5)

    def broken() -> Iterator[steps.Piece]:
        yield from asked
        raise PolicyError("the listing ends here")

    rows = planned(index, broken())
    assert media_of(rows) == names(asked)
    assert str(rows[-1].error) == "the listing ends here"
