"""Rows of a listing that fail have their own number in it, in `index` and in `shard`, and cost no other row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset
from tests.support.datasets import run

POLICY = {"policy": "per_row", "uniform": 2}
ROWS = """uri,start,end,label
a.mp4,0,1,x
a.mp4,soon,1,x
,0,1,x
a.mp4,5,9999,x
a.mp4,0.5,1
a.mp4,0.2,1.5,x
b.mp4,,2,x
"""


@pytest.fixture
def index(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """An index of two videos, by a listing of which rows 1, 2 and 4 name no medium, and rows 3 and 6 no range."""
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(medium("h264_default.mp4").read_bytes())
    (tmp_path / "rows.csv").write_text(ROWS)
    output = run("index", tmp_path / "rows.csv", "--out", tmp_path / "I", "--workers", 0, code=3).output
    assert "row 1 of the listing: 'start' is 'soon', but a number in most other rows" in output
    assert "row 2 of the listing: a uri must be a non-empty string: None" in output
    assert "row 4 of the listing: 3 cells, but 4 columns" in output
    return tmp_path / "I"


def test_shard_names_the_row(index: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    output = run("shard", index, "--policy", tmp_path / "policy.json", "--out", tmp_path / "D", code=3).output
    assert "a.mp4: row 3 of the listing: " in output
    assert "b.mp4: row 6 of the listing: column 'start': the cell is empty" in output
    failures = pq.read_table(tmp_path / "D" / "failures.parquet").to_pylist()
    assert [row["message"][:20] for row in failures] == ["row 3 of the listing", "row 6 of the listing"]
    dataset = ClipDataset(tmp_path / "D")
    assert sorted(item["start"] for item in map(dataset.__getitem__, range(len(dataset)))) == [0.0, 0.2]
    assert "file_row" not in dataset[0]


def test_clips_without_a_dataset_name_the_row(index: Path) -> None:
    dataset = ClipDataset.from_index(index, POLICY)
    assert sorted(dataset.column("start")) == [0.0, 0.2]
    assert [failure.message[:20] for failure in dataset.failures()] == ["row 3 of the listing", "row 6 of the listing"]


def test_an_index_without_numbers_of_rows_gives_the_same_clips(index: Path) -> None:
    listing = index / "listing.parquet"
    pq.write_table(pq.read_table(listing).drop_columns(["file_row"]), listing)
    dataset = ClipDataset.from_index(index, POLICY)
    assert sorted(dataset.column("start")) == [0.0, 0.2]
    assert not any("of the listing" in failure.message for failure in dataset.failures())


def test_rows_keep_their_numbers_when_media_are_added(index: Path, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("uri,start,end,label\n" + "b.mp4,0,1,y\n" * 2 + "b.mp4,0.5,1,y\n")
    framedex.index([tmp_path / "more.csv"], index, workers=0, progress=False)
    listing = framedex.Index(index).listing
    rows = zip(listing["listed_uri"].to_pylist(), listing["file_row"].to_pylist(), strict=True)
    assert [row for row in rows if row[0] in {"a.mp4", "b.mp4"}] == [
        ("a.mp4", 0), ("a.mp4", 3), ("a.mp4", 5), ("b.mp4", 0), ("b.mp4", 2),
    ]  # fmt: skip
