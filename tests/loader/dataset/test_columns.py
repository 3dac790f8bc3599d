"""`column`: a value of each clip, without reading the clips."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import framedex
from framedex import ClipDataset, FramedexError, MultiViewDataset
from framedex.core.arrays import column_as_numpy
from framedex.sharder.clips.fields import FIELDS, MEDIA_FIELDS
from tests.support.datasets import run, shard_clips
from tests.support.scenes import write_scenes

ROWS = [
    {"uri": "h264_default.mp4", "label": "walk", "score": 3, "day": "2024-05-01"},
    {"uri": "h264_default.mp4", "label": None, "score": 4},
    {"uri": "hevc_closed.mp4", "label": "run", "score": None, "flag": True},
    {"uri": "h264_vfr.mkv", "label": "walk", "score": 5, "flag": False},
]
POLICY = {"policy": "stride", "frames": 5, "stride": 4, "pad": "constant"}
VIEWS = {"policy": "fps", "fps": 5, "frames": 4}
VIEWS |= {"views": {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"}}  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def listed(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of media of which two rows mention one, and one row lacks values."""
    folder = tmp_path_factory.mktemp("listed")
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    paths = [medium(str(row["uri"])) for row in ROWS]
    run("index", folder / "list.jsonl", "--root", paths[0].parent, "--out", folder / "INDEX")
    framedex.shard(folder / "INDEX", folder / "D", policy=POLICY, progress=False)
    return folder


@pytest.fixture(params=["manifest", "from_index"])
def dataset(listed: Path, request: pytest.FixtureRequest) -> ClipDataset:
    """The clips of that index, both ways."""
    if request.param == "manifest":
        return ClipDataset(listed / "D")
    return ClipDataset.from_index(listed / "INDEX", POLICY)


def plain(values: np.ndarray) -> list[object]:
    """Return values with None for NaN."""
    return [None if value != value else value for value in values.tolist()]


def test_users_columns_are_those_of_the_items(dataset: ClipDataset) -> None:
    items = [dataset[number] for number in range(len(dataset))]
    assert len(items) > 8
    assert {name: plain(dataset.column(name)) for name in ("label", "score", "flag", "day")} == {
        name: [item[name] for item in items] for name in ("label", "score", "flag", "day")
    }
    assert dataset.column("label").tolist().count(None) > 0


def test_fields_of_media_are_those_of_the_clips(dataset: ClipDataset) -> None:
    clips = [dataset.clip(number) for number in range(len(dataset))]
    assert {name: dataset.column(name).tolist() for name in MEDIA_FIELDS} == {
        name: [getattr(clip.medium, name) for clip in clips] for name in MEDIA_FIELDS
    }
    media = [clip.medium for clip in clips]
    expected = [medium.duration_pts * medium.time_base_num / medium.time_base_den for medium in media]
    assert dataset.column("duration_seconds").tolist() == expected


def test_fields_of_frames_are_those_of_the_items(listed: Path) -> None:
    dataset = ClipDataset(listed / "D")
    items = [dataset[number] for number in range(len(dataset))]
    assert not all(item["mask"].all() for item in items)  # some clips are padded
    assert dataset.column("clip_id").tolist() == [item["clip_id"] for item in items]
    assert dataset.column("wanted_frames").tolist() == [len(item["mask"]) for item in items]
    assert dataset.column("begin_seconds").tolist() == [np.nanmin(item["seconds"]) for item in items]
    assert dataset.column("end_seconds").tolist() == [np.nanmax(item["seconds"]) for item in items]


def test_every_field_can_be_had_and_has_a_value_for_each_clip(listed: Path) -> None:
    dataset = ClipDataset(listed / "D")
    assert {len(dataset.column(name)) for name in FIELDS} == {len(dataset)}


def test_chosen_clips_have_their_own_values(listed: Path) -> None:
    where = {"label": "walk"}
    chosen = ClipDataset(listed / "D", where=where)
    planned = ClipDataset.from_index(listed / "INDEX", POLICY, where=where)
    assert set(chosen.column("label").tolist()) == {"walk"}
    assert set(chosen.column("uri").tolist()) == {"h264_default.mp4", "h264_vfr.mkv"}
    assert len(chosen.column("uri")) == len(chosen) < len(ClipDataset(listed / "D"))
    assert planned.column("uri").tolist() == chosen.column("uri").tolist()


def test_arrow_keeps_types_and_nulls(dataset: ClipDataset) -> None:
    score = dataset.column("score", as_arrow=True)
    assert score.type == pa.int64()
    assert score.null_count == int(np.isnan(dataset.column("score")).sum()) > 0


def test_an_unknown_column_names_a_close_one_and_all_there_are(dataset: ClipDataset) -> None:
    with pytest.raises(FramedexError, match=r"your columns: .*label.*clip_id(.|\n)*did you mean 'label'\?"):
        dataset.column("lable")


def test_what_only_planning_shows_is_refused(listed: Path) -> None:
    with pytest.raises(FramedexError, match="only planning the clips shows"):
        ClipDataset.from_index(listed / "INDEX", POLICY).column("wanted_frames")


def test_a_dataset_without_clips_has_empty_columns(listed: Path) -> None:
    shard_clips(listed / "INDEX", listed / "EMPTY", [{"uri": "h264_vfr.mkv", "frames": [10**6], "label": 1}], code=3)
    empty = ClipDataset(listed / "EMPTY")
    assert {name: len(empty.column(name)) for name in ("label", *FIELDS)} == dict.fromkeys(("label", *FIELDS), 0)


@pytest.mark.parametrize("on_disk", [True, False])
def test_clips_of_several_views_have_the_columns_of_their_items(tmp_path: Path, on_disk: bool) -> None:
    run("index", write_scenes(tmp_path / "MEDIA"), "--out", tmp_path / "INDEX")
    framedex.shard(tmp_path / "INDEX", tmp_path / "D", policy=VIEWS, progress=False)
    clips = ClipDataset(tmp_path / "D") if on_disk else ClipDataset.from_index(tmp_path / "INDEX", VIEWS)
    scenes = MultiViewDataset(clips)
    items = [scenes[number] for number in range(len(scenes))]
    assert len(items) == 9
    assert scenes.column("episode").tolist() == [item["episode"] for item in items]
    assert scenes.column("uri", view="wrist").tolist() == [item["uri"]["wrist"] or None for item in items]
    assert None in scenes.column("uri", view="wrist").tolist()
    with pytest.raises(FramedexError, match="there is no such view"):
        scenes.column("uri", view="back")


def test_numpy_types_are_as_documented() -> None:
    def numpy(values: list[object], kind: pa.DataType | None = None) -> np.ndarray:
        found = column_as_numpy(pa.chunked_array([values], kind), "x")
        assert found.flags.writeable
        return found

    assert numpy([1, 2], pa.int32()).dtype == np.int32
    assert numpy([1, None], pa.int64()).dtype == np.float64
    assert numpy([True, False]).dtype == np.bool_
    assert numpy([], pa.bool_()).dtype == np.bool_
    assert numpy([True, None]).tolist() == [True, None]
    assert numpy(["a", None]).tolist() == ["a", None]
    assert np.isnat(numpy([1, None], pa.timestamp("ms"))).tolist() == [False, True]
    assert column_as_numpy(pa.chunked_array([["b", None, "b"]]).dictionary_encode(), "x").tolist() == ["b", None, "b"]
    with pytest.raises(FramedexError, match="as_arrow=True"):
        numpy([2**60 + 1, None], pa.int64())
