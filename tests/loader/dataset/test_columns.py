"""`column`: a value of each clip, without reading the clips."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset, ClipStream, FramedexError, MultiViewDataset
from framedex.core.column_rules import column_as_numpy
from framedex.errors import FormatError
from framedex.sharder.clips.clip_source import FIELD_NAMES, MEDIA_FIELDS
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
    framedex.shard(folder / "INDEX", folder / "D", policy=POLICY, workers=0, progress=False)
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
    assert {name: dataset.column(name, as_arrow=True).to_pylist() for name in MEDIA_FIELDS} == {
        name: [getattr(clip.medium, name) for clip in clips] for name in MEDIA_FIELDS
    }
    media = [clip.medium for clip in clips]
    expected = [medium.duration_pts * medium.time_base_num / medium.time_base_den for medium in media]
    assert dataset.column("duration_seconds").tolist() == expected


def test_fields_of_frames_are_those_of_the_items(dataset: ClipDataset) -> None:
    items = [dataset[number] for number in range(len(dataset))]
    assert not all(item["mask"].all() for item in items)  # some clips are padded
    assert dataset.column("clip_id").tolist() == [item["clip_id"] for item in items]
    assert dataset.column("wanted_frames").tolist() == [len(item["mask"]) for item in items]
    assert dataset.column("begin_seconds").tolist() == [np.nanmin(item["seconds"]) for item in items]
    assert dataset.column("end_seconds").tolist() == [np.nanmax(item["seconds"]) for item in items]


def test_every_field_can_be_had_and_has_a_value_for_each_clip(dataset: ClipDataset) -> None:
    assert {len(dataset.column(name)) for name in FIELD_NAMES} == {len(dataset)}


def test_chosen_clips_have_their_own_values(listed: Path) -> None:
    where = {"label": "walk"}
    chosen = ClipDataset(listed / "D", where=where)
    planned = ClipDataset.from_index(listed / "INDEX", POLICY, where=where)
    assert set(chosen.column("label").tolist()) == {"walk"}
    assert set(chosen.column("uri").tolist()) == {"h264_default.mp4", "h264_vfr.mkv"}
    assert len(chosen.column("uri")) == len(chosen) < len(ClipDataset(listed / "D"))
    assert planned.column("uri").tolist() == chosen.column("uri").tolist()


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3)])
def test_numbers_are_chosen_as_numbers(listed: Path, value: object) -> None:
    assert set(ClipDataset(listed / "D", where={"score": value}).column("score").tolist()) == {3}
    assert set(ClipDataset.from_index(listed / "INDEX", POLICY, where={"score": value}).column("score")) == {3}


@pytest.mark.parametrize("value", [3.5, 2**70, -(2**70), 1e300, float("nan"), float("inf")])
def test_a_number_that_no_clip_has_is_refused_with_those_that_there_are(listed: Path, value: object) -> None:
    with pytest.raises(FramedexError, match=r"no clip has this value(.|\n)*score: .*3 \("):
        ClipDataset(listed / "D", where={"score": value})
    with pytest.raises(FramedexError, match=r"no clip has this value(.|\n)*score: .*3 \("):
        ClipDataset.from_index(listed / "INDEX", POLICY, where={"score": value})


@pytest.mark.parametrize(
    "where",
    [
        {"codec": "hevc"},
        {"codec": ["hevc", "av1"]},
        {"uri": ("hevc_closed.mp4", "h264_vfr.mkv"), "label": "walk"},
        "codec != 'h264'",
        "frame_rate < 24 and label is not None",
        "duration_seconds > 0 and not (label == 'walk')",
        "label in ['run'] or score >= 4",
        "end_seconds - begin_seconds < 0.5",
        "wanted_frames == 5 and begin_seconds > 1",
    ],
)
def test_clips_are_chosen_by_own_columns_and_those_of_clips_and_media(listed: Path, where: Any) -> None:
    whole = ClipDataset(listed / "D")
    table = pa.table({name: whole.column(name, as_arrow=True) for name in ("label", "score", *FIELD_NAMES)})
    if isinstance(where, str):
        text = where.replace("!=", "<>").replace("==", "=").replace("[", "(").replace("]", ")").replace("None", "NULL")
    else:
        lists = {name: value if isinstance(value, list | tuple) else [value] for name, value in where.items()}
        text = " AND ".join(f"{name} IN ({', '.join(map(repr, values))})" for name, values in lists.items())
    expected = duckdb.from_arrow(table).filter(text).project("clip_id").fetchall()
    assert 0 < len(expected) < len(whole)
    for chosen in (
        ClipDataset(listed / "D", where=where),
        ClipDataset.from_index(listed / "INDEX", POLICY, where=where),
    ):
        assert [chosen.clip(number).clip_id for number in range(len(chosen))] == [name for (name,) in expected]


def test_a_clip_is_chosen_by_its_name(listed: Path) -> None:
    whole = ClipDataset(listed / "D")
    name = whole.clip(3).clip_id
    for chosen in (
        ClipDataset(listed / "D", where={"clip_id": name}),
        ClipDataset.from_index(listed / "INDEX", POLICY, where={"clip_id": name}),
    ):
        assert [chosen.clip(number).clip_id for number in range(len(chosen))] == [name]


@pytest.mark.parametrize("where", [{"codecs": "h264"}, "codecs == 'h264'"])
def test_a_column_that_does_not_exist_is_an_error_with_near_names(listed: Path, where: Any) -> None:
    for open_dataset in (
        lambda: ClipDataset(listed / "D", where=where),
        lambda: ClipDataset.from_index(listed / "INDEX", POLICY, where=where),
    ):
        with pytest.raises(FramedexError, match=r"no such column(.|\n)*did you mean 'codec'"):
            open_dataset()


@pytest.mark.parametrize(("where", "said"), [("codec ==", "cannot be parsed"), ("codec == 'x'", "no clip has")])
def test_an_expression_that_is_wrong_or_keeps_no_clip_is_an_error(listed: Path, where: str, said: str) -> None:
    with pytest.raises(FramedexError, match=said):
        ClipDataset(listed / "D", where=where)
    with pytest.raises(FramedexError, match=said):
        ClipDataset.from_index(listed / "INDEX", POLICY, where=where)


def test_an_expression_without_columns_holds_for_all_clips_or_for_none(listed: Path) -> None:
    assert len(ClipDataset(listed / "D", where="1 == 1")) == len(ClipDataset(listed / "D"))
    with pytest.raises(FramedexError, match="no clip has"):
        ClipDataset(listed / "D", where="1 == 2")


def test_a_misspelt_argument_is_an_error_of_the_function_that_was_called(listed: Path) -> None:
    with pytest.raises(
        TypeError, match=r"from_index\(\) got an unexpected keyword argument 'sise'; did you mean 'size'"
    ):
        ClipDataset.from_index(listed / "INDEX", POLICY, sise=(8, 8))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"ClipStream\(\) got an unexpected keyword argument 'transforms'"):
        ClipStream(listed / "D", transforms=None)  # type: ignore[call-arg]


def test_a_resized_dataset_keeps_its_threads(listed: Path) -> None:
    assert ClipDataset(listed / "D", threads=3).resized((8, 8)).threads == 3


def test_a_choice_or_a_name_of_a_wrong_type_says_what_is_allowed(listed: Path) -> None:
    with pytest.raises(FramedexError, match=r"found:\s+3\n\s+allowed:\s+such as"):
        ClipDataset(listed / "D", where=3)  # type: ignore[arg-type]
    with pytest.raises(FramedexError, match=r"cannot be compared with(.|\n)*allowed:\s+values of type string"):
        ClipDataset(listed / "D", where={"label": 3})
    with pytest.raises(FramedexError, match=r"name of a column must be a text(.|\n)*found:\s+3"):
        ClipDataset(listed / "D").column(3)  # type: ignore[call-overload]


def test_arrow_keeps_types_and_nulls(dataset: ClipDataset) -> None:
    score = dataset.column("score", as_arrow=True)
    assert score.type == pa.int64()
    assert score.null_count == int(np.isnan(dataset.column("score")).sum()) > 0


def test_an_unknown_column_names_a_close_one_and_all_there_are(dataset: ClipDataset) -> None:
    with pytest.raises(FramedexError, match=r"your columns: .*label.*clip_id(.|\n)*did you mean 'label'\?"):
        dataset.column("lable")


@pytest.mark.parametrize("on_disk", [True, False])
def test_clips_of_several_views_have_the_columns_of_their_items(tmp_path: Path, on_disk: bool) -> None:
    run("index", write_scenes(tmp_path / "MEDIA"), "--out", tmp_path / "INDEX")
    framedex.shard(tmp_path / "INDEX", tmp_path / "D", policy=VIEWS, workers=0, progress=False)
    clips = ClipDataset(tmp_path / "D") if on_disk else ClipDataset.from_index(tmp_path / "INDEX", VIEWS)
    scenes = MultiViewDataset(clips)
    items = [scenes[number] for number in range(len(scenes))]
    assert len(items) == 9
    assert scenes.column("episode").tolist() == [item["episode"] for item in items]
    assert scenes.column("uri", view="wrist").tolist() == [item["uri"]["wrist"] or None for item in items]
    assert None in scenes.column("uri", view="wrist").tolist()
    with pytest.raises(FramedexError, match="there is no such view"):
        scenes.column("uri", view="back")


def test_datasets_of_earlier_versions_have_the_same_columns(listed: Path, tmp_path: Path) -> None:
    shutil.copytree(listed / "D", tmp_path / "D")
    header = json.loads((tmp_path / "D/dataset.json").read_text())
    assert set(header.pop("columns")) == {"label", "score", "flag", "day"}
    (tmp_path / "D/dataset.json").write_text(json.dumps(header | {"schema_version": "3.4"}))
    (tmp_path / "D/fields.parquet").unlink()
    (tmp_path / "D/columns.parquet").unlink()
    older, newer = ClipDataset(tmp_path / "D"), ClipDataset(listed / "D")
    names = [*newer.columns, *FIELD_NAMES]
    assert [older.column(name, as_arrow=True).to_pylist() for name in names] == [
        newer.column(name, as_arrow=True).to_pylist() for name in names
    ]
    assert [older.column(name, as_arrow=True).type for name in names] == [
        newer.column(name, as_arrow=True).type for name in names
    ]
    assert older.places("medium").tolist() == newer.places("medium").tolist()


@pytest.mark.parametrize("name", ["columns.parquet", "fields.parquet"])
def test_a_file_of_columns_that_is_missing_or_too_short_is_damage(listed: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(listed / "D", tmp_path / "D")
    column = {"columns.parquet": "label", "fields.parquet": "uri"}[name]
    table = pq.ParquetFile(tmp_path / "D" / name).read()
    pq.write_table(table.slice(1), tmp_path / "D" / name)
    with pytest.raises(FormatError, match="does not belong to the dataset"):
        ClipDataset(tmp_path / "D").column(column)
    (tmp_path / "D" / name).unlink()
    with pytest.raises(FormatError, match=name):
        ClipDataset(tmp_path / "D").column(column)


def test_columns_of_lists_and_names_of_fields_are_the_users_own(listed: Path, tmp_path: Path) -> None:
    clips = [
        {"uri": "h264_vfr.mkv", "frames": [0], "boxes": [[1, 2]], "width": "wide", "kind": [5]},
        {"uri": "h264_vfr.mkv", "frames": [1], "boxes": [], "width": "narrow", "kind": [6, 7]},
    ]
    dataset = ClipDataset(shard_clips(listed / "INDEX", tmp_path / "D", clips))
    assert dataset.column("width").tolist() == ["wide", "narrow"]
    assert dataset.column("boxes", as_arrow=True).to_pylist() == [[[1, 2]], []]
    assert dataset.column("kind", as_arrow=True).to_pylist() == [[5], [6, 7]]
    assert dataset.column("height").tolist() == [144, 144]


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
