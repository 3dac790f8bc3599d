"""`labels`: numbers for the values of a column, the same for all splits and readers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import framedex
from framedex import ClipDataset, ClipLoader, ClipStream, FramedexError, MultiViewDataset
from framedex.errors import FormatError
from tests.support.datasets import run, shard_clips, write_clips
from tests.support.scenes import write_scenes

NAMES = ["h264_default.mp4", "hevc_closed.mp4", "h264_vfr.mkv"]
POLICY = {"policy": "uniform", "frames": 2}
ROWS = [("walk", "train", 7), ("run", "train", 5), ("jump", "val", 7)]
NUMBERS = {"jump": 0, "run": 1, "walk": 2}

pytestmark = pytest.mark.filterwarnings("ignore:.*split .* has no clip")


def write_index(folder: Path, medium: Callable[[str], Path], rows: list[dict[str, Any]]) -> Path:
    """Index a listing of NAMES with further columns."""
    listed = [{"uri": name} | row for name, row in zip(NAMES, rows, strict=True)]
    write_clips(folder / "list.jsonl", listed)
    paths = [medium(name) for name in NAMES]
    run("index", folder / "list.jsonl", "--root", paths[0].parent, "--out", folder / "INDEX")
    return folder / "INDEX"


@pytest.fixture(scope="module")
def folder(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index and two datasets of three labelled videos; RECORDED records its labels."""
    folder = tmp_path_factory.mktemp("labels")
    rows = [{"label": label, "split": split, "code": code} for label, split, code in ROWS]
    write_index(folder, medium, rows)
    run("shard", folder / "INDEX", "--policy", json.dumps(POLICY), "--out", folder / "PLAIN")
    options = ["--pack", "clips", "--labels", "label"]
    run("shard", folder / "INDEX", "--policy", json.dumps(POLICY), "--out", folder / "RECORDED", *options)
    return folder


def labelled(folder: Path, kind: str, **options: Any) -> ClipDataset:
    """Return the clips with sorted labels, as one of three kinds of dataset."""
    if kind == "from_index":
        return ClipDataset.from_index(folder / "INDEX", POLICY, labels="label", **options)
    return ClipDataset(folder / kind, **({"labels": "label"} if kind == "PLAIN" else {}), **options)


KINDS = ["PLAIN", "RECORDED", "from_index"]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_sorted_values_in_every_split(folder: Path, kind: str) -> None:
    train, val = (labelled(folder, kind, where={"split": split}) for split in ("train", "val"))
    assert train.classes == val.classes == ["jump", "run", "walk"]
    assert {item["label_name"]: item["label"] for item in (train[0], train[1], val[0])} == NUMBERS
    assert len(val) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_those_of_the_items(folder: Path, kind: str) -> None:
    dataset = labelled(folder, kind)
    items = [dataset[number] for number in range(3)]
    assert dataset.column("label").tolist() == [item["label"] for item in items]
    assert dataset.column("label").dtype == np.int64
    assert dataset.column("label_name").tolist() == [item["label_name"] for item in items]
    assert dataset.column("label", as_arrow=True).to_pylist() == [item["label"] for item in items]
    assert set(dataset.columns) == {"label", "split", "code", "label_name"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_have_tensors_of_numbers(folder: Path, kind: str, workers: int) -> None:
    dataset = pickle.loads(pickle.dumps(labelled(folder, kind, size=(32, 32))))
    own = next(iter(ClipLoader(dataset, batch_size=3, num_workers=workers)))
    theirs = next(iter(torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=workers)))
    assert own["label"].dtype == theirs["label"].dtype == torch.int64
    assert own["label"].tolist() == theirs["label"].tolist() == [NUMBERS[name] for name in own["label_name"]]


def test_streams_have_the_same_numbers(folder: Path) -> None:
    assert {item["label_name"]: item["label"] for item in ClipStream(folder / "RECORDED")} == NUMBERS
    own = ClipStream(folder / "RECORDED", labels={"walk": 0, "run": 0, "jump": 1})
    assert {item["label_name"]: item["label"] for item in own} == {"walk": 0, "run": 0, "jump": 1}
    assert "label_name" in own.columns
    assert (own.classes, own.label_column) == (["walk", "jump"], "label")
    assert ClipStream(folder / "RECORDED").classes == ["jump", "run", "walk"]
    run("shard", folder / "INDEX", "--policy", json.dumps(POLICY), "--out", folder / "PACKED", "--pack", "clips")
    with pytest.raises(FramedexError, match=r"no labels(.|\n)*ClipStream\(…, labels='label'\)"):
        _ = ClipStream(folder / "PACKED").classes


def test_given_numbers_replace_recorded_ones_and_may_be_shared(folder: Path) -> None:
    dataset = ClipDataset(folder / "RECORDED", labels={"walk": 0, "run": 0, "jump": 1})
    assert {item["label_name"]: item["label"] for item in dataset} == {"walk": 0, "run": 0, "jump": 1}
    assert dataset.classes == ["walk", "jump"]


def test_another_column_may_have_the_labels_and_hold_numbers(folder: Path) -> None:
    dataset = ClipDataset(folder / "RECORDED", labels={"code": {7: 0, 5: 1}})
    by_name = {item["label"]: (item["code"], item["code_name"]) for item in dataset}
    assert by_name == {"walk": (0, 7), "run": (1, 5), "jump": (0, 7)}
    assert ClipDataset(folder / "PLAIN", labels="code").classes == ["5", "7"]


def test_python_records_labels_too(folder: Path, tmp_path: Path) -> None:
    numbers = {"walk": 0, "jump": 1, "run": 2}
    framedex.shard(folder / "INDEX", tmp_path / "D", policy=POLICY, labels=numbers, workers=0, progress=False)
    assert ClipDataset(tmp_path / "D").classes == ["walk", "jump", "run"]
    clips = [{"uri": name, "frames": [0], "label": label} for name, label in zip(NAMES, "bab", strict=True)]
    framedex.shard(folder / "INDEX", tmp_path / "E", clips=clips, labels="label", workers=0, progress=False)
    assert [item["label"] for item in ClipDataset(tmp_path / "E")] == [1, 0, 1]


def test_labels_count_rows_whose_clips_failed(folder: Path, tmp_path: Path) -> None:
    clips = [{"uri": NAMES[0], "frames": [10**6], "label": "a"}, {"uri": NAMES[0], "frames": [0], "label": "b"}]
    shard_clips(folder / "INDEX", tmp_path / "D", clips, "--labels", "label", code=3)
    assert [item["label"] for item in ClipDataset(tmp_path / "D")] == [1]


def test_an_unknown_value_names_the_clip_and_the_labels(folder: Path) -> None:
    with pytest.raises(FramedexError, match=r"PLAIN, clip 1(.|\n)*'run'(.|\n)*allowed: 'walk', 'jump'"):
        ClipDataset(folder / "PLAIN", labels={"walk": 0, "jump": 1})
    assert len(ClipDataset(folder / "PLAIN", labels={"jump": 0}, where={"split": "val"})) == 1


@pytest.fixture(scope="module")
def gaps(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index in which a row has no label."""
    rows = [{"label": "walk", "kind": 1.5}, {"label": None, "kind": 2.5}, {"label": "run", "kind": 1.5}]
    return write_index(tmp_path_factory.mktemp("gaps"), medium, rows)


def test_a_clip_without_a_label_is_refused_unless_it_is_left_out(gaps: Path, tmp_path: Path) -> None:
    with pytest.raises(FramedexError, match=r"INDEX, clip \d(.|\n)*empty"):
        ClipDataset.from_index(gaps, POLICY, labels="label")
    chosen = ClipDataset.from_index(gaps, POLICY, labels="label", where={"label": "walk"})
    assert (chosen.classes, chosen[0]["label"]) == (["run", "walk"], 1)
    with pytest.raises(FramedexError, match=r"INDEX, row \d(.|\n)*empty"):
        framedex.shard(gaps, tmp_path / "D", policy=POLICY, labels="label", workers=0, progress=False)
    assert not (tmp_path / "D").exists()
    some = POLICY | {"filter": "label != ''"}
    framedex.shard(gaps, tmp_path / "D", policy=some, labels="label", workers=0, progress=False)
    assert ClipDataset(tmp_path / "D").classes == ["run", "walk"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"walk": 0, "run": 2}, "without a gap"),
        ({"walk": -1, "run": 0}, "without a gap"),
        ({"walk": "0"}, "without a gap"),
        ({}, "labels must be the name of a column"),
        (["label"], "labels must be the name of a column"),
        ({"label": {}}, "labels must be the name of a column"),
        ({"a": {"x": 0}, "b": {"y": 0}}, "without a gap"),
        ({1: 0, 2: 1}, "of another type"),
        ({float("nan"): 0, "run": 1}, r"(?s)texts or whole numbers.*found: +nan"),
        ({None: 0, "run": 1}, r"(?s)texts or whole numbers.*found: +None.*leave out clips without a label"),
        ({2**70: 0}, "texts or whole numbers"),
        ({"\ud800": 0}, "texts or whole numbers"),
        (np.array(["run", "walk"]), "labels must be the name of a column"),
        ("nothing", r"(?s)the column for labels does not exist.*your columns: label, kind"),
        ("codec", r"(?s)the column for labels does not exist.*your columns: label, kind"),
        ("view_name", r"(?s)the column for labels does not exist.*your columns: label, kind"),
        ("kind", "texts or whole numbers"),
    ],
)
def test_wrong_labels_are_refused(gaps: Path, labels: Any, message: str) -> None:
    with pytest.raises(FramedexError, match=message):
        ClipDataset.from_index(gaps, POLICY, labels=labels)


def test_labels_of_numpy_are_those_of_python(folder: Path) -> None:
    names = dict(zip(np.array(["jump", "run", "walk"]), np.arange(3), strict=True))
    assert ClipDataset(folder / "PLAIN", labels=names).column("label").tolist() == [2, 1, 0]
    codes = ClipDataset(
        folder / "PLAIN", labels={np.str_("code"): {np.int32(7): np.uint8(0), np.int64(5): np.array(1)}}
    )
    assert (codes.classes, codes[0]["code"], codes[1]["code"]) == (["7", "5"], 0, 1)


def test_a_name_column_that_is_taken_is_refused(medium: Callable[[str], Path], tmp_path: Path) -> None:
    index = write_index(tmp_path, medium, [{"label": "a", "label_name": "b"}] * 3)
    with pytest.raises(FramedexError, match="already have the column to which the values"):
        ClipDataset.from_index(index, POLICY, labels="label")


def test_a_dataset_without_labels_has_no_classes(folder: Path) -> None:
    with pytest.raises(FramedexError, match="the dataset has no labels"):
        _ = ClipDataset(folder / "PLAIN").classes


def test_a_header_with_other_labels_than_its_clips_is_damaged(folder: Path, tmp_path: Path) -> None:
    run("shard", folder / "INDEX", "--policy", json.dumps(POLICY), "--out", tmp_path / "D", "--labels", "label")
    header = json.loads((tmp_path / "D/dataset.json").read_text())
    header["labels"]["values"][0] = "swim"
    (tmp_path / "D/dataset.json").write_text(json.dumps(header))
    with pytest.raises(FramedexError, match=r"'jump'(.|\n)*'swim'"):
        ClipDataset(tmp_path / "D", where={"label": "jump"})[0]
    header["labels"]["numbers"][0] = 9
    (tmp_path / "D/dataset.json").write_text(json.dumps(header))
    with pytest.raises(FormatError, match="is damaged"):
        ClipDataset(tmp_path / "D")


def test_views_share_their_label(tmp_path: Path) -> None:
    views = {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"}
    policy = {"policy": "fps", "fps": 5, "frames": 4, "views": views}
    run("index", write_scenes(tmp_path / "MEDIA"), "--out", tmp_path / "INDEX")
    scenes = MultiViewDataset(ClipDataset.from_index(tmp_path / "INDEX", policy, labels="episode"))
    assert scenes.classes == ["a", "b", "c"]
    names = [scenes[number]["episode_name"] for number in range(len(scenes))]
    assert sorted(set(names)) == scenes.classes
    assert scenes.column("episode").tolist() == [scenes.classes.index(name) for name in names]
    assert scenes[len(names) - 1]["episode"] == scenes.classes.index(names[-1])
