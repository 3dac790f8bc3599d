"""LeRobot datasets as sources: the rows of the listing, and what is wrong with a dataset."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import Index, shard
from framedex.errors import SourceError
from framedex.indexer.sources.lerobot import read_lerobot
from tests.support.datasets import run

DATA = Path(__file__).parents[2] / "data/lerobot"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
FRAMES = "data/chunk-000/file-000.parquet"
TOP, WRIST = "observation.images.top", "observation.images.wrist"
POLICY = """
policy: around
frames: [0, 1]
range: {start: start_seconds, end: end_seconds, tolerance_seconds: 0.0001, frames: length}
"""


@pytest.fixture(params=["v3", "v21"])
def either(request: pytest.FixtureRequest) -> Path:
    """A dataset of each version."""
    return DATA / str(request.param)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A dataset of version 3 that a test may change."""
    return Path(shutil.copytree(DATA / "v3", tmp_path / "robot"))


def change(file: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Edit the rows of a Parquet file."""
    table = pq.read_table(file)
    pq.write_table(pa.Table.from_pylist(edit(table.to_pylist()), table.schema), file)


def failures(robot: Path, out: Path) -> list[dict[str, Any]]:
    """Index a dataset and plan its clips; return the failures, and check that other episodes have all of theirs."""
    run("index", f"lerobot:{robot}", "--out", out / "INDEX")
    (out / "policy.yaml").write_text(POLICY)
    shard(out / "INDEX", out / "D", policy=out / "policy.yaml")
    found: list[dict[str, Any]] = pq.read_table(out / "D/failures.parquet").to_pylist()
    clips = pq.read_table(next((out / "D/clips").iterdir()))
    counts = dict(zip(*np.unique(clips["episode_index"].to_numpy(), return_counts=True), strict=True))
    assert counts == {0: 34, 2: 18}  # frames × cameras; an error is in episode 1
    assert {row["kind"] for row in found} == {"row"}
    assert all(row["counts"] for row in found)
    return found


def test_each_episode_and_camera_is_a_row(either: Path, tmp_path: Path) -> None:
    run("index", f"lerobot:{either}", "--out", tmp_path / "INDEX")
    index = Index(tmp_path / "INDEX")
    rows = sorted(index.listing.to_pylist(), key=lambda row: (row["episode_index"], row["camera"]))
    assert [(row["episode_index"], row["camera"]) for row in rows] == [(e, c) for e in range(3) for c in (TOP, WRIST)]
    assert [row["length"] for row in rows] == [17, 17, 23, 23, 9, 9]
    assert [row["task"] for row in rows[::2]] == ["push the block", "lift the cup", "push the block"]
    assert [row["tasks"] for row in rows[1::2]] == [["push the block"], ["lift the cup"], ["push the block"]]
    for row in rows:
        assert round((row["end_seconds"] - row["start_seconds"]) * 10) == row["length"]
        table = pq.read_table(Path(index.root) / row["frame_table"]).slice(row["frame_row"], row["length"])
        assert set(table["episode_index"].to_pylist()) == {row["episode_index"]}
        assert table["frame_index"].to_pylist() == list(range(row["length"]))


def test_a_second_run_probes_nothing(either: Path, tmp_path: Path) -> None:
    run("index", f"lerobot:{either}", "--out", tmp_path / "INDEX")
    before = Index(tmp_path / "INDEX").listing
    again = run("index", f"lerobot:{either}", "--out", tmp_path / "INDEX", "--json")
    assert json.loads(again.output)["new"] == 0
    assert Index(tmp_path / "INDEX").listing.equals(before)


def test_an_episode_beyond_its_files_end_is_a_failure(copied: Path, tmp_path: Path) -> None:
    def beyond(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for camera in (TOP, WRIST):
            rows[1] |= {f"videos/{camera}/from_timestamp": 4.0, f"videos/{camera}/to_timestamp": 6.3}
        return rows

    change(copied / EPISODES, beyond)
    found = failures(copied, tmp_path)
    assert len(found) == 2
    assert "9 frames, in a video of 49" in found[0]["message"]


def test_a_table_of_another_length_is_a_failure(copied: Path, tmp_path: Path) -> None:
    change(copied / FRAMES, lambda rows: rows[:30] + rows[33:])
    found = failures(copied, tmp_path)
    assert len(found) == 2
    assert f"{FRAMES} has 20 frames of episode 1, but meta/episodes states 23" in found[0]["message"]


def test_frames_of_another_episode_in_between_are_a_failure(copied: Path, tmp_path: Path) -> None:
    change(copied / FRAMES, lambda rows: rows[:20] + rows[40:] + rows[20:40])
    assert "are not contiguous" in failures(copied, tmp_path)[0]["message"]


def test_a_task_that_is_not_listed_is_a_failure(copied: Path, tmp_path: Path) -> None:
    change(copied / FRAMES, lambda rows: [row | {"task_index": 7 if row["episode_index"] == 1 else 0} for row in rows])
    assert "have the task 7, which meta/tasks lacks" in failures(copied, tmp_path)[0]["message"]


def test_a_missing_table_is_a_failure_of_its_episodes(tmp_path: Path) -> None:
    robot = Path(shutil.copytree(DATA / "v21", tmp_path / "robot"))
    (robot / "data/chunk-000/episode_000001.parquet").unlink()
    found = failures(robot, tmp_path)
    assert "episode_000001.parquet cannot be read" in found[0]["message"]


def test_an_episode_may_lack_a_camera(copied: Path) -> None:
    missing = {f"videos/{WRIST}/{name}": None for name in ("chunk_index", "file_index")}
    change(copied / EPISODES, lambda rows: [row | (missing if row["episode_index"] == 1 else {}) for row in rows])
    found = [(item.columns["episode_index"], item.columns["camera"]) for item in read_lerobot(f"lerobot:{copied}")]
    assert found == [(0, TOP), (0, WRIST), (1, TOP), (2, TOP), (2, WRIST)]


def test_two_episodes_of_one_number_are_refused(copied: Path) -> None:
    change(copied / EPISODES, lambda rows: [row | {"episode_index": min(row["episode_index"], 1)} for row in rows])
    with pytest.raises(SourceError, match="two episodes have the same number"):
        list(read_lerobot(f"lerobot:{copied}"))


def test_several_tasks_of_an_episode_are_listed(copied: Path) -> None:
    change(copied / FRAMES, lambda rows: [row | {"task_index": row["frame_index"] % 2} for row in rows])
    item = next(iter(read_lerobot(f"lerobot:{copied}")))
    assert item.columns["task"] is None
    assert item.columns["tasks"] == ["push the block", "lift the cup"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda info: info | {"codebase_version": "v1.6"}, "the version of the dataset's format is not supported"),
        (lambda info: {"fps": 10}, "not a LeRobot dataset"),
        (
            lambda info: info | {"features": {"action": {"dtype": "float32"}}},
            "does not have a camera whose frames are stored as video",
        ),
        (lambda info: info | {"video_path": None}, "meta/ cannot be read"),
    ],
)
def test_a_wrong_description_stops_the_run(
    copied: Path, edit: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    file = copied / "meta/info.json"
    file.write_text(json.dumps(edit(json.loads(file.read_text()))))
    with pytest.raises(SourceError, match=message):
        list(read_lerobot(f"lerobot:{copied}"))


@pytest.mark.parametrize("name", ["meta/info.json", EPISODES, "meta/tasks.parquet"])
def test_a_missing_description_stops_the_run(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(SourceError, match=r"not a LeRobot dataset|cannot be read"):
        list(read_lerobot(f"lerobot:{copied}"))


@pytest.mark.parametrize("key", ["video_path", "data_path"])
@pytest.mark.parametrize(
    "named",
    [
        "/etc/passwd",
        "../{file_index}",
        "data/../../{file_index}",
        "http://127.0.0.1:9/{file_index}",
        "s3://bucket/{file_index}",
        "file:/etc/passwd",
        "file:///etc/passwd",
        "ftp://host/{file_index}",
    ],
)
def test_names_that_lead_out_of_the_folder_are_refused(copied: Path, key: str, named: str) -> None:
    file = copied / "meta/info.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: named}))
    with pytest.raises(SourceError, match="a path that leads out of the dataset") as refused:
        list(read_lerobot(f"lerobot:{copied}"))
    assert named.split("{")[0] in str(refused.value.found)


@pytest.mark.parametrize("key", ["video_path", "data_path"])
def test_an_old_dataset_leads_nowhere_either(tmp_path: Path, key: str) -> None:
    robot = Path(shutil.copytree(DATA / "v21", tmp_path / "robot"))
    file = robot / "meta/info.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: "../{episode_index:06d}.mp4"}))
    with pytest.raises(SourceError, match="a path that leads out of the dataset"):
        list(read_lerobot(f"lerobot:{robot}"))


@pytest.mark.parametrize(
    "template", ["{chunk_index.__class__}", "{chunk_index:99999999d}", "{file_index:{chunk_index}}", "{file_index!r}"]
)
def test_a_template_shows_numbers_and_cameras_alone(copied: Path, template: str) -> None:
    file = copied / "meta/info.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"data_path": template}))
    with pytest.raises(SourceError, match="a template for file names is not supported"):
        list(read_lerobot(f"lerobot:{copied}"))


def test_a_camera_whose_name_leads_out_is_refused(copied: Path) -> None:
    file, out = copied / "meta/info.json", "../../secret"
    text = file.read_text().replace(f'"{TOP}"', f'"{out}"')
    file.write_text(text)
    table = pq.read_table(copied / EPISODES)
    renamed = [name.replace(TOP, out) for name in table.column_names]
    pq.write_table(table.rename_columns(renamed), copied / EPISODES)
    with pytest.raises(SourceError, match="a path that leads out of the dataset"):
        list(read_lerobot(f"lerobot:{copied}"))


@pytest.mark.parametrize("linked", ["meta/info.json", "meta/tasks.parquet", "meta/episodes", EPISODES, FRAMES])
def test_links_lead_out_of_the_folder_only_if_they_are_to_be_followed(
    copied: Path, linked: str, tmp_path: Path
) -> None:
    expected = [(item.path, item.columns) for item in read_lerobot(f"lerobot:{copied}")]
    target = tmp_path / "elsewhere"
    (copied / linked).rename(target)
    (copied / linked).symlink_to(target)
    with pytest.raises(SourceError, match="a link leads out of the dataset's folder") as refused:
        list(read_lerobot(f"lerobot:{copied}"))
    assert "--follow-symlinks" in str(refused.value)
    followed = read_lerobot(f"lerobot:{copied}", follow_symlinks=True)
    assert [(item.path, item.columns) for item in followed] == expected
