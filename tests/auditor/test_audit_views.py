"""Views of an audit agree with the index and the dataset, frame by frame. A database of views sees later changes."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from framedex import Index
from framedex.indexer.timeline import summarise
from tests.support.audited import audited_database, sound_row, write_rows
from tests.support.counted import some
from tests.support.datasets import run
from tests.support.flags import CLOSED, DAMAGED, HIDDEN, NON_REFERENCE, OPEN, START, presentation_order


def rows_of(db: Any, sql: str) -> list[dict[str, Any]]:
    return db.ask(sql).records()


@pytest.mark.parametrize("depth", ["index", "packets_index"])
def test_frames_are_those_of_the_index(depth: str, request: pytest.FixtureRequest) -> None:
    index: Index = request.getfixturevalue(depth)
    seen = 0
    with audited_database(index.path) as db:
        for video in index.videos.to_pylist():
            packets = index.packets(video["media_id"])
            order = presentation_order(packets.pts, packets.flags)
            where = f"WHERE media_id = '{video['media_id']}'"
            frames = rows_of(db, f"SELECT * FROM frames {where} ORDER BY frame")
            assert [row["frame"] for row in frames] == list(range(video["frame_count"]))
            assert [row["packet"] for row in frames] == order.tolist()
            assert [row["pts"] for row in frames] == packets.pts[order].tolist()
            assert [row["size_bytes"] for row in frames] == packets.size[order].tolist()
            assert [row["is_start"] for row in frames] == ((packets.flags[order] & START) != 0).tolist()
            assert [row["is_damaged"] for row in frames] == ((packets.flags[order] & DAMAGED) != 0).tolist()
            reference = np.where(packets.read, (packets.flags & NON_REFERENCE) == 0, None)[order].tolist()
            stated = [row["is_reference"] for row in frames]
            assert all(said == known for said, known in zip(stated, reference, strict=True) if known is not None)
            tick = video["time_base_num"] / video["time_base_den"]
            assert np.allclose([row["seconds"] for row in frames], packets.pts[order] * tick)
            gaps = [row["gap_seconds"] for row in frames]
            assert gaps[0] is None
            assert np.allclose(gaps[1:], np.diff(packets.pts[order]) * tick)
            seen += len(frames)
    assert seen > 1000


def test_packets_and_gops_are_those_of_the_index(packets_index: Index) -> None:
    with audited_database(packets_index.path) as db:
        for video in some(packets_index.videos.to_pylist()):
            packets = packets_index.packets(video["media_id"])
            where = f"WHERE media_id = '{video['media_id']}'"
            rows = rows_of(db, f"SELECT * FROM packets {where} ORDER BY packet")
            assert [row["size_bytes"] for row in rows] == packets.size.tolist()
            offsets = [None] * len(rows) if packets.offset is None else packets.offset.tolist()
            assert [row["byte_offset"] for row in rows] == offsets
            starts = np.flatnonzero(packets.flags & START)
            gops = rows_of(db, f"SELECT * FROM gops {where} ORDER BY gop")
            assert [row["first_packet"] for row in gops] == starts.tolist()
            assert [row["packets"] for row in gops] == np.diff(starts, append=len(packets.size)).tolist()
            assert [row["size_bytes"] for row in gops] == np.add.reduceat(packets.size, starts).tolist()
            assert [row["is_open"] for row in gops] == ((packets.flags[starts] & OPEN) != 0).tolist()


def test_frames_that_share_a_timestamp_stand_in_their_order(tmp_path: Path) -> None:
    """Their order is that of a stable sort, which plans also use."""
    draw = np.random.default_rng(3)
    rows, packets = [], {}
    for number in range(1, 12):
        count = int(draw.integers(2, 200))
        pts = (draw.permutation(count) // int(draw.integers(2, 5))).astype(np.int64)
        flags = np.where(draw.random(count) < 0.1, HIDDEN, 0).astype(np.int32)
        flags[0] = CLOSED
        facts = asdict(summarise(pts, flags, last_duration=1, time_base_seconds=1 / 25))
        rows.append(sound_row(number) | facts | {"packet_count": count})
        packets[rows[-1]["media_id"]] = {"pts": pts, "size": np.arange(count), "flags": flags}
    with audited_database(write_rows(tmp_path / "INDEX", rows, packets=packets)) as db:
        for media_id, columns in some(packets.items()):
            found = db.ask(f"SELECT packet FROM frames WHERE media_id = '{media_id}' ORDER BY frame").rows
            assert [packet for (packet,) in found] == presentation_order(columns["pts"], columns["flags"]).tolist()


def test_a_missing_part_is_no_empty_answer(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1)])
    (index / "frames" / "part-000000.parquet").unlink()
    with pytest.raises(AssertionError, match="a part of the tables is missing"):
        run("audit", index, "--ask", "gaps")


def test_user_columns_of_any_name_reach_the_clips(tmp_path: Path, synthetic: Path) -> None:
    (video,) = json.loads(
        run(
            "audit",
            synthetic / "INDEX",
            "--sql",
            "SELECT uri FROM videos WHERE status = 'ok' LIMIT 1",
            "--format",
            "json",
        ).stdout
    )
    clips = tmp_path / "clips.jsonl"
    own = {
        "runs": "mine",
        "filename": "f",
        "part": "p",
        "row": "r",
        "wanted_frames": "w",
        "damaged": "d",
        'a "quoted" name': 1,
        "select": True,
        "label": "x",
    }
    clips.write_text(json.dumps({"uri": video["uri"], "clip_id": "c", "frames": [0, 1]} | own) + "\n")
    run("shard", synthetic / "INDEX", "--clips", clips, "--out", tmp_path / "DS")
    (row,) = json.loads(run("audit", tmp_path / "DS", "--sql", "FROM clips", "--format", "json").stdout)
    assert (row['a "quoted" name'], row["select"], row["label"]) == (1, True, "x")
    assert (row["filename"], row["part"], row["row"], row["wanted_frames"], row["damaged"]) == ("f", "p", "r", 2, False)
    assert {"mine", "w", "d"} <= {*map(str, row.values())}
    run("audit", tmp_path / "DS", "--json")


@pytest.mark.parametrize("name", ["a[1]", "what?", "st*r", "it's", 'qu"ote', "ünï"])
def test_folders_of_any_name(name: str, tmp_path: Path) -> None:
    index = write_rows(tmp_path / name / "INDEX", [sound_row(1)])
    assert json.loads(run("audit", index, "--json").stdout)["summary"]["totals"][0]["media"] == 1
    assert run("audit", index, "--sql", "SELECT count(*) AS n FROM videos").output.split() == ["n", "1"]
    if set(name) & set("*?["):
        with pytest.raises(AssertionError, match="interpret the path of this folder as a pattern"):
            run("audit", index, "--duckdb", tmp_path / "x.duckdb")
    else:
        run("audit", index, "--duckdb", tmp_path / "x.duckdb")


def test_a_database_of_views_sees_what_is_indexed_later(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "IN'DEX", [sound_row(1)], labels={})
    path = tmp_path / "views.duckdb"
    assert "views videos, packets, frames, gops, listing, failures" in run("audit", index, "--duckdb", path).output
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM videos").fetchall() == [(1,)]
    more = write_rows(tmp_path / "MORE", [sound_row(2)])
    for table in ("videos", "frames"):
        (more / table / "part-000000.parquet").rename(index / table / "part-000001.parquet")
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.execute("SELECT count(*), count(duration_seconds) FROM videos").fetchall() == [(2, 2)]
    with pytest.raises(AssertionError, match="exists already"):
        run("audit", index, "--duckdb", path)
    run("audit", index, "--duckdb", path, "--overwrite")


def test_a_database_of_older_parts_sees_the_columns_of_newer_ones(tmp_path: Path) -> None:
    index, more = write_rows(tmp_path / "INDEX", [sound_row(1)]), write_rows(tmp_path / "MORE", [sound_row(2)])
    first = index / "videos" / "part-000000.parquet"
    pq.write_table(pq.read_table(first).drop_columns(["packet_bytes", "first_packets"]), first)
    path = tmp_path / "views.duckdb"
    run("audit", index, "--duckdb", path)
    for table in ("videos", "frames"):
        (more / table / "part-000000.parquet").rename(index / table / "part-000001.parquet")
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = connection.execute("SELECT packet_bytes, first_packets FROM videos ORDER BY uri").fetchall()
        assert rows == [(None, None), (sound_row(2)["packet_bytes"], sound_row(2)["first_packets"])]
        names = {row[0] for row in connection.execute("DESCRIBE videos").fetchall()}
        assert not [name for name in names if name.endswith("_1")]


def test_a_database_that_cannot_be_written_costs_no_older_one(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1)])
    path = tmp_path / "out" / "views.duckdb"
    run("audit", index, "--duckdb", path)
    before = path.read_bytes()
    (part,) = (index / "videos").iterdir()
    part.write_bytes(part.read_bytes()[:-100])
    run("audit", index, "--duckdb", path, "--overwrite", code=1)
    assert (path.read_bytes(), [*path.parent.iterdir()]) == (before, [path])


def test_a_database_of_a_dataset_counts_by_its_parts(synthetic: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "policy: windows\nframes: 4\nfps: 8\nstep_seconds: 0.25\nlast: drop\nsplit: {shares: {train: 1, val: 1}}\n"
    )
    run("shard", synthetic / "INDEX", "--policy", policy, "--out", tmp_path / "DS")
    path = tmp_path / "ds.duckdb"
    run("audit", tmp_path / "DS", "--duckdb", path)
    with duckdb.connect(str(path), read_only=True) as connection:
        columns = "clip, clip_id, uri"
        rows = connection.execute(f"SELECT {columns} FROM clips ORDER BY clip").fetchall()
    with audited_database(tmp_path / "DS") as db:
        assert db.ask(f"SELECT {columns} FROM clips ORDER BY clip").rows == rows
    assert len(rows) > 4096  # those of one part
    assert [row[0] for row in rows] == [*range(len(rows))]


def test_a_database_of_a_dataset_that_was_changed_says_so(synthetic: Path, tmp_path: Path) -> None:
    shutil.copytree(synthetic / "DS", tmp_path / "DS")
    path = tmp_path / "ds.duckdb"
    run("audit", tmp_path / "DS", "--duckdb", path)
    policy = "{policy: windows, frames: 4, fps: 4, split: {shares: {train: 1, val: 1}}}"
    run("shard", synthetic / "INDEX", "--policy", policy, "--out", tmp_path / "DS", "--overwrite")
    with duckdb.connect(str(path), read_only=True) as connection:
        for view in ("clips", "videos", "clip_frames", "failures"):
            with pytest.raises(duckdb.Error, match="the dataset was changed, so write this database again"):
                connection.execute(f"SELECT count(*) FROM {view}").fetchall()


def test_a_database_of_a_dataset(synthetic: Path, tmp_path: Path) -> None:
    run("audit", synthetic / "DS", "--duckdb", tmp_path / "ds.duckdb")
    with duckdb.connect(str(tmp_path / "ds.duckdb"), read_only=True) as connection:
        clips, frames = connection.execute("SELECT count(*), sum(wanted_frames) FROM clips").fetchall()[0]
        assert connection.execute("SELECT count(DISTINCT clip_id), count(*) FROM clip_frames").fetchall() == [
            (clips, frames)
        ]


def test_other_libraries_read_the_same_files(synthetic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script in docs/audit.md gives the same results as the views."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(synthetic)
    shown: dict[str, Any] = {}
    exec(script.replace("DATASET", "DS"), shown)

    def asked(kind: str, sql: str) -> list[dict[str, Any]]:
        return list(json.loads(run("audit", kind, "--sql", sql, "--format", "json").stdout))

    by_codec = {
        row["codec"]: row["n"] for row in asked("INDEX", "SELECT codec, count(*) AS n FROM videos GROUP BY codec")
    }
    assert dict(shown["videos"].iter_rows()) == by_codec
    assert shown["frames"]["frame_count"].sum() == asked("INDEX", "SELECT count(*) AS n FROM frames")[0]["n"]
    assert len(shown["clips"]) == asked("DS", "SELECT count(*) AS n FROM clips")[0]["n"]
