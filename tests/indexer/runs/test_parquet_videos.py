"""Videos in Parquet files are media of their own: by range in plain pages, by copies in compressed ones."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import Index
from tests.support.counted import some
from tests.support.datasets import run, write_clips
from tests.support.images import Row, encoded, indexed, rows
from tests.support.media import Medium

# The columns of a listing that are not the user's.
NAMED = ("media_id", "listing_row", "listed_uri", "file_row", "named_by")

VIDEO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = ("h264_open_gop.mp4", "h264_b_pyramid.mkv", "h264_audio.mp4", "hevc_radl.mp4")


@pytest.fixture
def videos(medium: Medium) -> list[Path]:
    return [medium(name) for name in NAMES]


def table_of(videos: Sequence[Path], **columns: list[Any]) -> pa.Table:
    cells = [{"bytes": video.read_bytes(), "path": video.name} for video in videos]
    return pa.table({"video": pa.array(cells, VIDEO), **columns})


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    """Write a Parquet file without compression, unless options say otherwise; return its path."""
    pq.write_table(table, path, **{"compression": "none", "row_group_size": 3} | options)
    return path


def listing(index: Index) -> list[Row]:
    """Return the rows of a listing in the order of the media."""
    by_id = {row["media_id"]: row for row in index.listing.to_pylist()}
    return [by_id[row["media_id"]] for row in rows(index).values() if row["media_id"] in by_id]


def test_files_that_hugging_faces_datasets_writes_are_read_by_range(tmp_path: Path, videos: list[Path]) -> None:
    features = datasets.Features(
        {"video": datasets.Video(), "cover": datasets.Image(), "caption": datasets.Value("string")}
    )
    made = datasets.Dataset.from_dict(
        {
            "video": [{"bytes": video.read_bytes(), "path": video.name} for video in videos],
            "cover": [{"bytes": encoded(0), "path": None}] * 4,
            "caption": list("abcd"),
        },
        features=features,
    )
    made.to_parquet(tmp_path / "t.parquet")
    report, index = indexed(tmp_path / "INDEX", tmp_path / "t.parquet")
    assert (report.ok, report.problems) == (4, [])
    assert [(row["caption"], row["path"]) for row in listing(index)] == list(zip("abcd", NAMES, strict=True))
    raw = (tmp_path / "t.parquet").read_bytes()
    for row, video in zip(rows(index).values(), videos, strict=True):
        assert raw[row["member_offset"] :][: row["member_bytes"]] == video.read_bytes()
        assert row["byte_addressable"]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_clips_are_exact_by_range_and_by_copy(tmp_path: Path, videos: list[Path], compression: str) -> None:
    source = write(tmp_path / "t.parquet", table_of(videos), compression=compression)
    run("index", source, "--out", tmp_path / "INDEX")
    found = rows(Index(tmp_path / "INDEX"))
    assert list(found) == [f"t.parquet/video/{number}" for number in range(4)]
    assert {row["byte_addressable"] for row in found.values()} == {compression == "none"}
    clips = [{"uri": name, "frames": [9, 0, 30]} for name in found]
    shard = ["shard", tmp_path / "INDEX", "--clips", write_clips(tmp_path / "c.jsonl", clips)]
    if compression == "none":
        run(*shard, "--out", tmp_path / "D")
    else:
        said = run(*shard, "--out", tmp_path / "D", code=1).output
        assert "pass --pack needed" in said
        run(*shard, "--out", tmp_path / "D", "--pack", "needed", "--overwrite")
    said = run("verify", tmp_path / "D", "--json").stdout
    assert [json.loads(line)["verdict"] for line in said.splitlines() if line.startswith("{")] == ["exact"] * 4
    assert indexed(tmp_path / "INDEX", source)[0].unchanged == 1


def test_facts_in_a_compressed_column_are_those_of_the_file(tmp_path: Path, videos: list[Path]) -> None:
    _, index = indexed(tmp_path / "I", write(tmp_path / "t.parquet", table_of(videos), compression="snappy"))
    _, alone = indexed(tmp_path / "J", *videos, depth="packets")
    for row, other in some(zip(rows(index).values(), alone.videos.to_pylist(), strict=True), 4):
        for name in ("codec", "frame_count", "packet_bytes", "duration_pts", "audio_end_sample", "extradata"):
            assert row[name] == other[name], name
        packets = index.packets(row["media_id"])
        assert packets.offset is None
        assert packets.size.tolist() == alone.packets(other["media_id"]).size.tolist()


def test_other_columns_become_the_users_columns(tmp_path: Path, videos: list[Path]) -> None:
    table = table_of(
        videos[:2],
        label=[3, None],
        day=[datetime.date(2026, 1, 2), None],
        price=[Decimal("1.50"), Decimal("2.00")],
        vector=[[0.5, float("nan")], []],
        thumbnail=[b"x", b"y"],
        frames=[1, 2],
    )
    table = table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": {"video": {"_type": "Video"}}}})}
    )
    _, index = indexed(tmp_path / "INDEX", write(tmp_path / "t.parquet", table), label_from_parent=False)
    first, second = listing(index)
    own = {name: value for name, value in first.items() if name not in NAMED}
    assert own == {
        "path": NAMES[0],
        "label": 3,
        "day": "2026-01-02",
        "price": "1.50",
        "vector": "[0.5, null]",
        "columns.frames": 1,
    }
    assert (second["label"], second["vector"]) == (None, "[]")


def test_values_that_are_no_videos_cost_no_other(tmp_path: Path, videos: list[Path]) -> None:
    cells = [
        {"bytes": b"garbage" * 99, "path": None},
        None,
        {"bytes": None, "path": "far.mp4"},
        {"bytes": b"", "path": ""},
    ]
    cells.append({"bytes": videos[0].read_bytes(), "path": None})
    for compression in ("none", "snappy"):
        source = write(
            tmp_path / f"{compression}.parquet", pa.table({"v": pa.array(cells, VIDEO)}), compression=compression
        )
        _, index = indexed(tmp_path / compression, source)
        found = list(rows(index).values())
        assert [row["status"] for row in found] == ["failed", "refused", "refused", "failed", "ok"]
        assert "but a path; index the file far.mp4 itself" in found[2]["error_message"]
        assert found[3]["error_kind"] == "empty"


def test_a_column_of_binaries_holds_videos_too(tmp_path: Path, videos: list[Path]) -> None:
    table = pa.table({"key": ["a"], "mp4": pa.array([videos[0].read_bytes()], pa.large_binary())})
    _, index = indexed(tmp_path / "INDEX", write(tmp_path / "t.parquet", table))
    assert [name for name, row in rows(index).items() if row["status"] == "ok"] == ["t.parquet/mp4/0"]
    assert [row["key"] for row in listing(index)] == ["a"]


def test_a_file_with_a_uri_column_is_a_listing(tmp_path: Path, videos: list[Path]) -> None:
    table = pa.table({"uri": [str(videos[0])], "hash": [b"1"]})
    write(tmp_path / "t.parquet", table)
    _, index = indexed(tmp_path / "INDEX", tmp_path / "t.parquet")
    (row,), (listed,) = index.videos.to_pylist(), index.listing.to_pylist()
    assert os.path.join(index.root, row["uri"]) == str(videos[0])
    assert (listed["media_id"], listed["hash"]) == (row["media_id"], b"1")


def test_a_glob_names_files_of_videos(tmp_path: Path, videos: list[Path]) -> None:
    for number in range(2):
        write(tmp_path / f"t{number}.parquet", table_of(videos[number : number + 1]))
    write(tmp_path / "t2.parquet", pa.table({"uri": ["x"]}))
    _, index = indexed(tmp_path / "INDEX", tmp_path / "t*.parquet")
    found = rows(index)
    assert [name for name, row in found.items() if row["status"] == "ok"] == [
        "t0.parquet/video/0",
        "t1.parquet/video/0",
    ]
    assert "it is a listing; pass it as a source" in found["t2.parquet"]["error_message"]


def test_a_file_cut_short_is_a_row_of_its_own(tmp_path: Path, videos: list[Path]) -> None:
    source = write(tmp_path / "t.parquet", table_of(videos))
    source.write_bytes(source.read_bytes()[:-100])
    other = write(tmp_path / "u.parquet", table_of(videos[:1]))
    (tmp_path / "list.txt").write_text("t.parquet\nu.parquet\n")
    _, index = indexed(tmp_path / "INDEX", tmp_path / "list.txt")
    assert other.exists()
    found = rows(index)
    assert {name: row["status"] for name, row in found.items()} == {"t.parquet": "failed", "u.parquet/video/0": "ok"}
    assert "is truncated" in found["t.parquet"]["error_message"]


def test_damaged_pages_cost_only_their_videos(tmp_path: Path, videos: list[Path]) -> None:
    source = write(tmp_path / "t.parquet", table_of(videos), use_dictionary=False, row_group_size=1)
    chunk = pq.ParquetFile(source).metadata.row_group(1).column(0)
    raw = bytearray(source.read_bytes())
    raw[chunk.data_page_offset] = 0xFF
    source.write_bytes(raw)
    _, index = indexed(tmp_path / "INDEX", source)
    found = rows(index)
    assert [row["status"] for row in found.values()] == ["ok", "failed", "ok", "ok"]
    assert "the value cannot be read" in found["t.parquet/video/1"]["error_message"]


def test_values_that_cannot_be_read_cost_only_their_column(tmp_path: Path, videos: list[Path]) -> None:
    days = pa.array([0, 1 << 30, 1, 2], pa.int32()).cast(pa.date32())
    texts = pa.Array.from_buffers(
        pa.string(), 4, [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0] + [2, 0, 0, 0] * 3)), pa.py_buffer(b"a\xff")]
    )
    table = table_of(videos).append_column("day", days).append_column("text", texts)
    table = table.append_column("view", pa.array([b"x"] * 4, pa.binary_view()))
    table = table.append_column("kinds", pa.array([b"x"] * 4).dictionary_encode())
    features = {"info": {"features": {"video": {"_type": "Video"}}}}
    source = write(tmp_path / "t.parquet", table.replace_schema_metadata({"huggingface": json.dumps(features)}))
    _, index = indexed(tmp_path / "INDEX", source)
    assert [row["status"] for row in rows(index).values()] == ["ok"] * 4
    assert [row["error_message"] for row in rows(index).values()] == [
        None,
        "values that cannot be read: column day, text",
        None,
        None,
    ]
    assert [row["day"] for row in listing(index)] == ["1970-01-01", None, "1970-01-02", "1970-01-03"]
    assert not {"view", "kinds"} & set(index.listing.column_names)


def test_columns_that_share_a_name_are_refused_where_they_hold_videos(tmp_path: Path, videos: list[Path]) -> None:
    first, second = (video.read_bytes() for video in videos[:2])
    table = pa.table({"a": pa.array([{"bytes": first}], pa.struct([("bytes", pa.binary())])), "a.bytes": [second]})
    _, index = indexed(tmp_path / "INDEX", write(tmp_path / "t.parquet", table))
    (row,) = rows(index).values()
    assert (row["status"], row["error_kind"]) == ("refused", "columns")
    assert "several columns have the name a.bytes" in row["error_message"]
    table = pa.Table.from_arrays([pa.array([first]), pa.array([1]), pa.array([2])], ["v", "n", "n"])
    _, index = indexed(tmp_path / "J", write(tmp_path / "u.parquet", table))
    assert [row["status"] for row in rows(index).values()] == ["ok"]


def test_a_changed_file_gives_no_clip(tmp_path: Path, videos: list[Path]) -> None:
    source = write(tmp_path / "t.parquet", table_of(videos), compression="snappy")
    run("index", source, "--out", tmp_path / "INDEX")
    write(source, table_of(videos[::-1]), compression="snappy")
    clips = write_clips(tmp_path / "c.jsonl", [{"uri": "t.parquet/video/0", "frames": [3]}])
    said = run(
        "shard", tmp_path / "INDEX", "--clips", clips, "--out", tmp_path / "D", "--pack", "needed", code=1
    ).output
    assert "is not the file that was indexed" in said
