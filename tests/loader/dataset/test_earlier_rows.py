"""Datasets before version 3.10, whose clips are read from row groups of Parquet files, give the same clips."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index
from framedex.errors import FormatError
from tests.support.datasets import run, shard_clips
from tests.support.manifests import make_earlier

NAMES = ("h264_default.mp4", "hevc_open_gop.mp4", "h264_vfr.mp4")


@pytest.fixture(scope="module")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    clips = [{"uri": NAMES[number % 3], "frames": [number % 40, 7], "caption": str(number)} for number in range(100)]
    return shard_clips(index.path, tmp_path_factory.mktemp("rows") / "D", clips)


@pytest.mark.parametrize("rows", [{}, {"clips": 64, "recipes": 16, "media": 1}, {"clips": 16, "recipes": 512}])
def test_earlier_datasets_have_the_same_clips(rows: dict[str, int], dataset: Path, tmp_path: Path) -> None:
    earlier = Path(shutil.copytree(dataset, tmp_path / "D"))
    make_earlier(earlier, **rows)
    one, other = ClipDataset(dataset), ClipDataset(earlier)
    assert len(other) == 100
    for number in np.random.default_rng(1).permutation(100).tolist():
        assert repr(other.clip(number)) == repr(one.clip(number))
        assert other.clip(number).columns == {"caption": str(number)}
    assert np.array_equal(other[57]["frames"], one[57]["frames"])


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"clip_id": pa.array(["other"] * 100)}, "the tables clips and recipes are from different datasets"),
        ({}, "do not have one column clip_id each"),
    ],
    ids=["other", "none"],
)
def test_recipes_with_other_names_are_refused(
    columns: dict[str, pa.Array], match: str, dataset: Path, tmp_path: Path
) -> None:
    earlier = Path(shutil.copytree(dataset, tmp_path / "D"))
    make_earlier(earlier)
    path = earlier / "recipes/part-000000.parquet"
    recipes = pq.read_table(path).drop_columns(["clip_id"])
    for name, values in columns.items():
        recipes = recipes.add_column(0, name, values)
    pq.write_table(recipes, path, 32)
    with pytest.raises(FormatError, match=match):
        ClipDataset(earlier).clip(5)


def test_row_groups_of_other_sizes_are_refused(dataset: Path, tmp_path: Path) -> None:
    earlier = Path(shutil.copytree(dataset, tmp_path / "D"))
    make_earlier(earlier)
    path = earlier / "clips/part-000000.parquet"
    clips = pq.read_table(path)
    with pq.ParquetWriter(path, clips.schema) as writer:
        for first, rows in ((0, 20), (20, 50), (70, 30)):
            writer.write_table(clips.slice(first, rows))
    with pytest.raises(FormatError, match="row groups of"):
        ClipDataset(earlier).clip(5)


def test_an_earlier_dataset_stays_one_when_media_are_removed(dataset: Path, tmp_path: Path) -> None:
    earlier = Path(shutil.copytree(dataset, tmp_path / "D"))
    make_earlier(earlier)
    run("shard", earlier, "--remove", NAMES[0])
    assert json.loads((earlier / "dataset.json").read_text())["schema_version"] == "3.9"
    assert not (earlier / "rows").exists()
    left = [number for number in range(100) if number % 3]
    opened = ClipDataset(earlier)
    assert [opened.clip(number).columns["caption"] for number in range(len(opened))] == list(map(str, left))
    file = pq.ParquetFile(earlier / "clips/part-000001.parquet")
    assert [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)] == [32, 32, 2]
