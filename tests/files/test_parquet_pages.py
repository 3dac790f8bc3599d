"""The places of values in uncompressed Parquet files, beside what pyarrow reads; damage is an error, never a place.

Row groups that would take too much memory are refused before they are read.
"""

from __future__ import annotations

import gc
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset, Index
from framedex.errors import FormatError
from framedex.files import parquet_cells, parquet_parts
from tests.support.datasets import shard_clips

VALUES = 10_000_000  # equal ones, which take few bytes in a file
PAIR = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def places(raw: bytes, leaf: str) -> list[bytes | None]:
    """Return the bytes at the places of all values of a column."""
    file = pq.ParquetFile(io.BytesIO(raw))
    number = next(number for number in range(len(file.schema)) if file.schema.column(number).path == leaf)
    found: list[bytes | None] = []
    for group in range(file.metadata.num_row_groups):
        chunk = file.metadata.row_group(group).column(number)
        ranges = parquet_cells.value_ranges(lambda at, length: raw[at : at + length], chunk, file.schema.column(number))
        found += [None if place is None else raw[place.offset :][: place.size_bytes] for place in ranges]
    return found


def written(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **{"compression": "none"} | options)
    return file.getvalue()


def drawn(seed: int) -> tuple[pa.Table, str, list[bytes | None], dict[str, Any]]:
    """Return (table, path of the column, its values, options of the writer)."""
    given = random.Random(seed)
    count = given.choice([1, 3, 50, 400])
    nulls = given.choice([0, 0, 0.3])
    values = [
        None if given.random() < nulls else given.randbytes(given.choice([0, 1, 100, 5000])) for _ in range(count)
    ]
    if given.random() < 0.3:  # values that a dictionary holds once
        values = [values[number % 7 % count] for number in range(count)]
    options = {
        "use_dictionary": given.choice([True, False]),
        "data_page_version": given.choice(["1.0", "2.0"]),
        "row_group_size": given.choice([7, 1000]),
        "data_page_size": given.choice([None, 1000, 10]),
        "write_page_index": given.choice([True, False]),
        "write_page_checksum": given.choice([True, False]),
        "dictionary_pagesize_limit": given.choice([None, 2000]),
    }
    if given.random() < 0.5:
        cells = [None if value is None and given.random() < 0.5 else {"bytes": value} for value in values]
        return pa.table({"v": pa.array(cells, PAIR)}), "v.bytes", values, options
    kind = given.choice([pa.binary(), pa.large_binary()])
    field = pa.field("v", kind, nullable=None in values or given.random() < 0.5)
    return pa.table([pa.array(values, kind)], schema=pa.schema([field])), "v", values, options


@pytest.mark.parametrize("seed", range(80))
def test_places_hold_the_values(seed: int) -> None:
    table, leaf, values, options = drawn(seed)
    assert places(written(table, **options), leaf) == values


@pytest.mark.parametrize("compression", ["snappy", "gzip", "zstd"])
def test_compressed_pages_are_refused(compression: str) -> None:
    raw = written(pa.table({"v": pa.array([b"x"])}), compression=compression)
    with pytest.raises(parquet_cells.ScatteredError, match=compression):
        places(raw, "v")


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_other_encodings_are_refused(encoding: str) -> None:
    raw = written(pa.table({"v": pa.array([b"x", b"xy"])}), use_dictionary=False, column_encoding={"v": encoding})
    with pytest.raises(parquet_cells.ScatteredError, match="not plain"):
        places(raw, "v")


def test_lists_are_refused() -> None:
    raw = written(pa.table({"v": pa.array([[b"x"]], pa.list_(pa.binary()))}))
    with pytest.raises(parquet_cells.ScatteredError, match="lists"):
        places(raw, "v.list.element")


def test_damaged_pages_raise_an_error_or_give_places_within_the_column() -> None:
    values = [random.Random(number).randbytes(20) if number % 5 else None for number in range(60)]
    raw = written(pa.table({"v": pa.array(values, pa.binary())}), data_page_size=10, write_batch_size=8)
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    given, refused = random.Random(1), 0
    for _ in range(2000):
        changed = bytearray(raw)
        changed[given.randrange(4, len(raw) - footer)] ^= 1 << given.randrange(8)
        try:
            found = places(bytes(changed), "v")
        except ValueError:
            refused += 1
            continue
        assert len(found) == len(values)
    assert refused > 100


def test_cells_are_read_by_name(tmp_path: Path) -> None:
    cells = [{"bytes": b"one"}, None, {"bytes": None}, {"bytes": b"four"}]
    pq.write_table(pa.table({"a/b": pa.array(cells, PAIR), "n": [1, 2, 3, 4]}), tmp_path / "t", row_group_size=3)
    assert parquet_cells.cell_of(parquet_cells.cell_name("a/b", 12)) == ("a/b", 12)
    assert bytes(parquet_cells.read_cell(tmp_path / "t", "a/b/0")) == b"one"
    assert bytes(parquet_cells.read_cell(tmp_path / "t", "a/b/3")) == b"four"
    for name, said in (
        ("a/b/1", "is null"),
        ("a/b/2", "is null"),
        ("a/b/9", "4 rows"),
        ("n/0", "no binary column n"),
    ):
        with pytest.raises(ValueError, match=said):
            parquet_cells.read_cell(tmp_path / "t", name)


def test_a_small_file_with_many_equal_values_is_refused(tmp_path: Path) -> None:
    lists = pa.ListArray.from_arrays([0, VALUES], np.zeros(VALUES, np.int32))
    pq.write_table(pa.table({"a": lists, "b": pa.array([1])}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 100_000
    with pq.ParquetFile(tmp_path / "x.parquet") as file:
        with pytest.raises(ValueError, match="row group 0 takes 80 MB of memory; 79 MB are allowed"):
            parquet_parts.read_group(file, 0, most_bytes=79_000_000)
        assert parquet_parts.read_group(file, 0, ["b"], most_bytes=1000)["b"].to_pylist() == [1]
        assert len(parquet_parts.read_group(file, 0, most_bytes=81_000_000)["a"][0]) == VALUES


def test_a_column_is_counted_with_all_of_its_parts_and_no_other(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": [1, 2], "c": 3}], "a.b": ["x" * 5000]})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd")
    with pq.ParquetFile(tmp_path / "x.parquet") as file:
        assert parquet_parts.read_group(file, 0, ["a"], most_bytes=6000).num_rows == 1
        with pytest.raises(ValueError, match="row group 0 takes"):
            parquet_parts.read_group(file, 0, most_bytes=5000)


def test_indexes_and_datasets_have_the_limit(
    medium: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framedex.index(medium("h264_default.mp4"), tmp_path / "I", workers=0, progress=False)
    dataset = shard_clips(tmp_path / "I", tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [0, 1]}])
    identity = Index(tmp_path / "I").columns(["media_id"])["media_id"][0].as_py()
    ways: dict[Callable[[], Any], int] = {  # four blocks of rows are kept, and share the limit
        lambda: ClipDataset(dataset)[0]: 25,
        lambda: Index(tmp_path / "I").video(identity): 100,
        lambda: Index(tmp_path / "I").packets(identity): 100,
    }
    for way in ways:
        way()
    for module in ("framedex.files.parquet_parts", "framedex.loader.dataset.manifest"):
        monkeypatch.setattr(f"{module}.usual_clip_bytes", lambda: 100)
    for way, allowed in ways.items():
        with pytest.raises(FormatError, match=f"of memory; {allowed} bytes are allowed"):
            way()
    assert len(ways) == 3


def test_files_are_closed_with_the_dataset_that_read_them(medium: Callable[[str], Path], tmp_path: Path) -> None:
    framedex.index(medium("h264_default.mp4"), tmp_path / "I", workers=0, progress=False)
    dataset = shard_clips(tmp_path / "I", tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [0, 1]}])
    ClipDataset(dataset)[0]
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        ClipDataset(dataset)[0]
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
