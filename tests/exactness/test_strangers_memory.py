"""Memory that a stranger's index or dataset asked for: what is read is reckoned first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index
from framedex.errors import FormatError
from tests.support.manifests import make_earlier, rewrite_part


def test_a_text_that_is_repeated_has_its_memory_counted(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = own / "INDEX" / "listing.parquet"
    row = pq.read_table(listing)
    many = pa.concat_tables([row] * 200)
    pq.write_table(many.append_column("caption", pa.array(["x" * 100_000] * 200)), listing)
    assert listing.stat().st_size < 1_000_000
    monkeypatch.setattr("framedex.files.parquet_parts.usual_clip_bytes", lambda: 30_000_000)
    assert len(Index(own / "INDEX").listing) == 200
    monkeypatch.setattr("framedex.files.parquet_parts.usual_clip_bytes", lambda: 15_000_000)
    with pytest.raises(FormatError, match=r"takes 20\.1 MB of memory; 15 MB are allowed"):
        _ = Index(own / "INDEX").listing


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[[0] * 1000] * 1000]),
        pa.array([[{"a": 0, "b": []}] * 300_000]),
        pa.array([{"a": ["x" * 100] * 200_000}]),
        pa.array([[None] * 1_000_000]),
    ],
    ids=["numbers", "records", "texts", "nothing"],
)
def test_nested_columns_have_their_python_objects_counted(
    values: pa.Array, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = own / "D" / "clips" / "part-000000.parquet"
    rewrite_part(part, pq.read_table(part).append_column("nested", values))
    assert part.stat().st_size < 1_000_000
    dataset = ClipDataset(own / "D")
    assert "nested" in dataset.manifest.clip(0).columns
    monkeypatch.setattr("framedex.sharder.clips.rows.usual_clip_bytes", lambda: 30_000_000)
    with pytest.raises(FormatError, match=r"column nested(.|\n)*of memory"):
        ClipDataset(own / "D").manifest.clip(0)


def test_texts_of_all_clips_have_their_memory_counted(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = own / "D" / "clips" / "part-000000.parquet"
    rows = pq.read_table(part)
    pq.write_table(pa.concat_tables([rows] * 200).append_column("caption", pa.array(["x" * 100_000] * 200)), part, 32)
    recipes = own / "D" / "recipes" / "part-000000.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(recipes)] * 200), recipes, 32)
    header = json.loads((own / "D" / "dataset.json").read_text())
    del header["columns"]  # as in datasets of earlier versions, which have no files of all clips
    header["clips_per_part"] = [200]
    (own / "D" / "dataset.json").write_text(json.dumps(header))
    assert len(ClipDataset(own / "D").column("caption")) == 200
    monkeypatch.setattr("framedex.files.parquet_parts.usual_clip_bytes", lambda: 15_000_000)
    with pytest.raises(FormatError, match=r"takes 20.* MB of memory; 15 MB are allowed"):
        ClipDataset(own / "D").column("caption")


def with_column(own: Path, values: pa.Array, field: pa.Field | None = None, **how: Any) -> Path:
    """Add a column to the only clip of a dataset, and return the dataset."""
    part = own / "D" / "clips" / "part-000000.parquet"
    table = pq.read_table(part).append_column(field or pa.field("evil", values.type), values)
    rewrite_part(part, table, **how)
    assert part.stat().st_size < 1_000_000
    return own / "D"


def deep(count: int, levels: int) -> pa.Array:
    """Return one list of `count` nulls, each of them within lists."""
    values = pa.nulls(count, pa.int32())
    for _ in range(levels):
        values = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), values)
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), values)


@pytest.mark.parametrize(
    ("values", "how"),
    [
        (pa.array([[None] * 300], pa.list_(pa.binary(500_000))), {}),
        (
            pa.array(["x" * 1_000_000]),
            {"use_dictionary": False, "column_encoding": {"evil": "DELTA_BYTE_ARRAY"}},
        ),
        (deep(500_000, 45), {}),
    ],
    ids=["fixed", "delta", "deep"],
)
def test_what_a_row_group_takes_is_reckoned_before_it_is_read(
    values: pa.Array, how: dict[str, Any], own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_earlier(own / "D")
    dataset = with_column(own, values, **how)
    monkeypatch.setattr("framedex.loader.dataset.manifest.usual_clip_bytes", lambda: 3_000_000)
    with pytest.raises(FormatError, match="row group 0 takes"):
        ClipDataset(dataset).manifest.clip(0)


OPAQUE = {"ARROW:extension:name": "arrow.opaque", "ARROW:extension:metadata": '{"type_name": "a", "vendor_name": "b"}'}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (pa.array(["a" * 10_000_000 + "\N{GRINNING FACE}"]), None),
        (pa.array([[{"a": None}] * 500_000]), OPAQUE),
        (pa.array([[("a", 1)] * 500_000], pa.map_(pa.string(), pa.int32())), None),
    ],
    ids=["text", "extension", "map"],
)
def test_values_have_their_python_objects_counted(
    values: pa.Array, field: dict[str, str] | None, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = pa.list_(pa.struct([("a", pa.bool_())])) if field else values.type
    dataset = ClipDataset(with_column(own, values.cast(kind), pa.field("evil", kind, metadata=field)))
    assert "evil" in dataset.manifest.clip(0).columns
    monkeypatch.setattr("framedex.sharder.clips.rows.usual_clip_bytes", lambda: 30_000_000)
    with pytest.raises(FormatError, match=r"column evil(.|\n)*of memory"):
        ClipDataset(own / "D").manifest.clip(0)


def test_a_large_footer_is_not_read(own: Path) -> None:
    make_earlier(own / "D")
    size = 2_000_000_000
    with open(own / "D" / "clips" / "part-000000.parquet", "wb") as file:
        file.seek(size)
        file.write(size.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(FormatError, match="bytes of metadata"):
        ClipDataset(own / "D").manifest.clip(0)


def test_numbers_of_all_clips_have_their_memory_counted(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = json.loads((own / "D" / "dataset.json").read_text())
    many = {"clips_per_part": [1_000_000], "columns": ["number"]}
    (own / "D" / "dataset.json").write_text(json.dumps(header | many))
    pq.write_table(pa.table({"number": np.zeros(1_000_000, np.int64)}), own / "D" / "columns.parquet")
    assert len(ClipDataset(own / "D").column("number")) == 1_000_000
    monkeypatch.setattr("framedex.files.parquet_parts.usual_clip_bytes", lambda: 7_000_000)
    with pytest.raises(FormatError, match=r"the file takes 8.* MB of memory; 7 MB"):
        ClipDataset(own / "D").column("number")


def test_texts_of_videos_have_their_memory_counted(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = own / "INDEX" / "videos" / "part-000000.parquet"
    many = pa.concat_tables([pq.read_table(part)] * 100)
    ids = pa.array([f"m{number}" for number in range(100)])
    for name, values in (("media_id", ids), ("error_message", pa.array(["x" * 1_000_000] * 100))):
        place = many.column_names.index(name)
        many = many.set_column(place, many.schema.field(place), values)
    pq.write_table(many, part)
    monkeypatch.setattr("framedex.files.parquet_parts.usual_clip_bytes", lambda: 30_000_000)
    with pytest.raises(FormatError, match=r"the file takes 10.* MB of memory; 30 MB"):
        _ = Index(own / "INDEX").videos
