"""Views say what the index says, frame by frame; queries read and do nothing else; answers come in every format."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.audit_data import write_index
from framedex.audit.findings.queries import questions
from framedex.audit.tables.database import Database, database
from framedex.audit.tables.subject import opened
from framedex.errors import FramedexError
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.part_pairs import PartPairs
from framedex.indexer.timeline import CLOSED, DAMAGED, HIDDEN, NON_REFERENCE, OPEN, START, presentation_order, summarise
from framedex.sharder.schema import CLIPS_PER_PART
from tests.support.audited import sound_row, write_rows
from tests.support.counted import some
from tests.support.datasets import content, run


def rows_of(db: Database, sql: str) -> list[dict[str, Any]]:
    return db.ask(sql).records()


@pytest.mark.parametrize("depth", ["index", "packets_index"])
def test_frames_are_those_of_the_index(depth: str, request: pytest.FixtureRequest) -> None:
    index: Index = request.getfixturevalue(depth)
    seen = 0
    with opened(index.path) as audited, database(audited) as db:
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
    with opened(packets_index.path) as audited, database(audited) as db:
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


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of made-up videos, INDEX, and a dataset of it with labels and splits, DS."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_index(folder / "INDEX", 120, seconds=12)
    policy = folder / "policy.yaml"
    policy.write_text(
        "policy: windows\nframes: 8\nfps: 4\nstep_seconds: 2\nshort: pad\nsplit: {shares: {train: 8, val: 2}}\n"
    )
    run("shard", folder / "INDEX", "--policy", policy, "--out", folder / "DS")
    return folder


WRITING = [
    "CREATE TABLE x AS SELECT 1",
    "DROP VIEW videos",
    "DELETE FROM superseded",
    "COPY (SELECT 1) TO '{there}/x.csv'",
    "EXPORT DATABASE '{there}/x'",
    "ATTACH '{there}/x.duckdb'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "PRAGMA enable_external_access",
    "CALL duckdb_tables()",
    "SELECT 1; SELECT 2",
    "",
    "WITH a AS (COPY (SELECT 1) TO '{there}/x.csv') SELECT 1",
    "WITH a AS (COPY (SELECT 1) TO '{there}/videos/part-000000.parquet') SELECT 1",
    "WITH a AS (COPY (SELECT 1) TO 'framedex://x.csv') SELECT 1",
    "WITH a AS (COPY (SELECT 1) TO 'framedex://videos/part-000000.parquet') SELECT 1",
    "EXPLAIN ANALYZE WITH a AS (COPY (SELECT 1) TO '{there}/x.csv') SELECT 1",
    "SELECT * FROM query('WITH a AS (COPY (SELECT 1) TO ''{there}/x.csv'') SELECT 1')",
]
READING_ELSEWHERE = [
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_text('file:///etc/hostname')",
    "SELECT * FROM read_parquet('{there}/videos/*.parquet')",
    "SELECT * FROM read_text('{there}/index.json')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_csv('http://127.0.0.1:1/x')",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT * FROM sqlite_scan('/tmp/x', 'y')",
    "SELECT getenv('HOME')",
]


@pytest.mark.parametrize("sql", WRITING + READING_ELSEWHERE)
def test_a_query_reads_the_views_and_does_nothing_else(sql: str, synthetic: Path) -> None:
    before = content(synthetic)
    with opened(synthetic / "INDEX") as audited, database(audited) as db:
        with pytest.raises(FramedexError):
            db.user(sql.format(there=synthetic / "INDEX")).read_all()
        assert db.ask("SELECT count(*) FROM videos").rows == [(120,)]
    assert content(synthetic) == before


@pytest.mark.parametrize("name", ["index.json", "../index.json", "*", "**/*.json"])
def test_other_files_of_the_folder_are_not_there(name: str, synthetic: Path) -> None:
    with opened(synthetic / "INDEX") as audited, database(audited) as db:
        assert db.user(f"SELECT * FROM read_text('framedex://{name}')").read_all().num_rows == 0


@pytest.mark.parametrize(
    "sql",
    [
        "FROM videos",
        "DESCRIBE frames",
        "SHOW TABLES",
        "SUMMARIZE gops",
        "VALUES (1)",
        "WITH a AS (SELECT 1) FROM a",
        "EXPLAIN SELECT 1",
    ],
)
def test_every_statement_that_reads_is_run(sql: str, synthetic: Path) -> None:
    assert len(run("audit", synthetic / "INDEX", "--sql", sql).output.splitlines()) > 1


def test_a_long_table_is_whole_in_a_file(synthetic: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.txt"
    output = run("audit", synthetic / "INDEX", "--sql", "SELECT frame FROM frames LIMIT 1500", "--out", out).output
    assert (output, len(out.read_text().splitlines())) == (f"1500 rows → {out}\n".replace("1500", "1,500"), 1501)


def test_an_answer_without_end_is_cut(synthetic: Path) -> None:
    assert len(run("audit", synthetic / "INDEX", "--sql", "FROM range(100000000000)").output.splitlines()) == 1002


def test_sums_are_numbers_and_no_column_is_lost(synthetic: Path) -> None:
    sql = "SELECT sum(frame_count) AS n, 1 AS a, 2 AS a FROM videos"
    (row,) = json.loads(run("audit", synthetic / "INDEX", "--sql", sql, "--format", "json").stdout)
    assert (type(row["n"]), row["a"], row["a_1"]) == (int, 1, 2)


@pytest.mark.parametrize("form", ["table", "json"])
def test_values_that_python_has_not_are_told(form: str, synthetic: Path) -> None:
    with pytest.raises(AssertionError, match="cast it to VARCHAR"):
        run("audit", synthetic / "INDEX", "--sql", "SELECT TIMESTAMP 'infinity'", "--format", form)


def test_a_blocked_write_is_told_in_a_line(synthetic: Path) -> None:
    sql = "WITH a AS (COPY (SELECT 1) TO 'framedex://videos/part-000000.parquet') SELECT 1"
    with pytest.raises(AssertionError, match="is only to be read") as caught:
        run("audit", synthetic / "INDEX", "--sql", sql)
    assert "Traceback" not in str(caught.value).split("assert")[0]


def test_only_files_are_replaced(synthetic: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    ask = ("audit", synthetic / "INDEX", "--sql", "SELECT 1 AS a", "--format", "csv", "--overwrite")
    run(*ask, "--out", link)
    assert link.is_symlink()
    assert target.read_text().split() == ['"a"', "1"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AssertionError, match="no regular file"):
        run(*ask, "--out", tmp_path / "pipe")


def test_names_of_columns_cannot_act_on_a_terminal(synthetic: Path) -> None:
    output = run("audit", synthetic / "INDEX", "--sql", 'SELECT 1 AS "a\x1b[31m\nb"').output
    assert "\x1b" not in output
    assert len(output.splitlines()) == 2


def test_a_question_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="it needs a column 'label'"):
        run("audit", write_rows(tmp_path / "INDEX", [sound_row(1)]), "--ask", "hours_a_label")


def test_frames_that_share_a_timestamp_stand_in_their_order(tmp_path: Path) -> None:
    """As a stable sort has them, which is what plans go by."""
    draw = np.random.default_rng(3)
    index, rows = tmp_path / "INDEX", []
    for number in range(1, 12):
        count = int(draw.integers(2, 200))
        pts = (draw.permutation(count) // int(draw.integers(2, 5))).astype(np.int64)
        flags = np.where(draw.random(count) < 0.1, HIDDEN, 0).astype(np.int32)
        flags[0] = CLOSED
        facts = asdict(summarise(pts, flags, last_duration=1, time_base_seconds=1 / 25))
        frames = {"pts": pts, "size": np.arange(count), "flags": flags}
        rows.append((sound_row(number) | facts | {"packet_count": count}, frames))
    write_rows(index)
    parts = PartPairs(index)
    for video, frames in rows:
        parts.add([(video, frames | {"media_id": video["media_id"]})])
    parts.flush()
    with opened(index) as audited, database(audited) as db:
        for video, frames in some(rows):
            found = db.ask(f"SELECT packet FROM frames WHERE media_id = '{video['media_id']}' ORDER BY frame").rows
            assert [packet for (packet,) in found] == presentation_order(frames["pts"], frames["flags"]).tolist()


def test_a_missing_part_is_no_empty_answer(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1)])
    (index / "frames" / "part-000000.parquet").unlink()
    with pytest.raises(AssertionError, match="a part of the tables is missing"):
        run("audit", index, "--ask", "gaps")


def test_a_query_that_cannot_be_run_says_why(synthetic: Path) -> None:
    with pytest.raises(AssertionError, match='"frme" not found'):
        run("audit", synthetic / "INDEX", "--sql", "SELECT frme FROM frames")
    with pytest.raises(AssertionError, match="not SQL that DuckDB takes"):
        run("audit", synthetic / "INDEX", "--sql", "SELEC 1")


def test_answers_come_in_every_format(synthetic: Path, tmp_path: Path) -> None:
    sql = "SELECT uri, frame_count, is_vfr, [1, NULL]::INT[] AS l, 'a'::BLOB AS b, label FROM videos JOIN listing USING (media_id) ORDER BY uri LIMIT 3"
    ask = ("audit", synthetic / "INDEX", "--sql", sql)
    rows = json.loads(run(*ask, "--format", "json").stdout)
    assert [rows[0][name] for name in ("l", "b")] == [[1, None], "61"]
    read = [*csv.reader(io.StringIO(run(*ask, "--format", "csv").stdout))]
    assert [row[0] for row in read[1:]] == [row["uri"] for row in rows]
    assert json.loads(read[1][3]) == [1, None]
    out = tmp_path / "answer.parquet"
    assert run(*ask, "--format", "parquet", "--out", out).output == f"3 rows → {out}\n"
    assert [row["frame_count"] for row in pq.read_table(out).to_pylist()] == [row["frame_count"] for row in rows]
    with pytest.raises(AssertionError, match="there already"):
        run(*ask, "--format", "csv", "--out", out)
    run(*ask, "--format", "csv", "--out", out, "--overwrite")
    assert out.read_text() == run(*ask, "--format", "csv").stdout
    table = run(*ask).output.splitlines()
    assert table[0].split() == ["uri", "frame_count", "is_vfr", "l", "b", "label"]
    assert len(table) == 4


def test_a_long_answer_is_cut_on_a_terminal_alone(synthetic: Path) -> None:
    ask = ("audit", synthetic / "INDEX", "--sql", "SELECT frame FROM frames LIMIT 1500")
    lines = run(*ask).output.splitlines()
    assert (len(lines), lines[-1]) == (1002, "… and more rows (--format csv, or --out FILE, has all)")
    assert len(run(*ask, "--format", "csv").output.splitlines()) == 1501


@pytest.mark.parametrize("kind", ["INDEX", "DS"])
def test_every_question_of_the_cookbook_has_an_answer(kind: str, synthetic: Path) -> None:
    asked = questions("questions", "index" if kind == "INDEX" else "dataset")
    assert len(asked) == (17 if kind == "INDEX" else 8)
    listed = run("audit", synthetic / kind, "--ask", "list").output
    for question in asked:
        assert f"{question.name} " in listed
        rows = json.loads(run("audit", synthetic / kind, "--ask", question.name, "--format", "json").stdout)
        empty = question.name == "leakage"  # which is as it should be
        assert rows or empty, question.name


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
    with pytest.raises(AssertionError, match="there already"):
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
    shutil.copytree(synthetic / "DS", tmp_path / "DS")
    path = tmp_path / "ds.duckdb"
    run("audit", tmp_path / "DS", "--duckdb", path)
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "policy: windows\nframes: 4\nfps: 8\nstep_seconds: 0.25\nlast: drop\nsplit: {shares: {train: 1, val: 1}}\n"
    )
    run("shard", synthetic / "INDEX", "--policy", policy, "--out", tmp_path / "DS", "--overwrite")
    with duckdb.connect(str(path), read_only=True) as connection:
        columns = "clip, clip_id, uri"
        rows = connection.execute(f"SELECT {columns} FROM clips ORDER BY clip").fetchall()
    with opened(tmp_path / "DS") as audited, database(audited) as db:
        assert db.ask(f"SELECT {columns} FROM clips ORDER BY clip").rows == rows
    assert len(rows) > CLIPS_PER_PART
    assert [row[0] for row in rows] == [*range(len(rows))]


def test_a_database_of_a_dataset(synthetic: Path, tmp_path: Path) -> None:
    run("audit", synthetic / "DS", "--duckdb", tmp_path / "ds.duckdb")
    with duckdb.connect(str(tmp_path / "ds.duckdb"), read_only=True) as connection:
        clips, frames = connection.execute("SELECT count(*), sum(wanted_frames) FROM clips").fetchall()[0]
        assert connection.execute("SELECT count(DISTINCT clip_id), count(*) FROM clip_frames").fetchall() == [
            (clips, frames)
        ]


@pytest.mark.parametrize("name", ["a[1]", "what?", "st*r", "it's", 'qu"ote', "ünï"])
def test_folders_of_any_name(name: str, tmp_path: Path) -> None:
    index = write_rows(tmp_path / name / "INDEX", [sound_row(1)])
    assert json.loads(run("audit", index, "--json").stdout)["summary"]["totals"][0]["media"] == 1
    assert run("audit", index, "--sql", "SELECT count(*) AS n FROM videos").output.split() == ["n", "1"]
    if set(name) & set("*?["):
        with pytest.raises(AssertionError, match="takes for a pattern"):
            run("audit", index, "--duckdb", tmp_path / "x.duckdb")
    else:
        run("audit", index, "--duckdb", tmp_path / "x.duckdb")


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


def test_other_libraries_read_the_same_files(synthetic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/audit.md shows it."""
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


ENDLESS = {
    "counting": "SELECT count(*) FROM range(1000000000000) AS a(i) WHERE i % 7 = 8",
    "recursion": "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT count(*) FROM t",
    "rows that come and come": "SELECT i FROM range(1000000000000) AS a(i)",
    "no rows for long": "SELECT i FROM range(1000000000000) AS a(i) WHERE hash(i) = 1",
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_query_that_does_not_end_is_ended(name: str, form: str, synthetic: Path, tmp_path: Path) -> None:
    out = tmp_path / f"answer.{form}"
    ask = ("audit", synthetic / "INDEX", "--sql", ENDLESS[name], "--timeout", 0.5, "--format", form, "--out", out)
    said = run(*ask, code=1).output
    assert "the query takes longer than it may" in said
    assert "--timeout gives it more" in said
    assert list(tmp_path.iterdir()) == []


def test_a_query_has_no_more_memory_than_it_may(synthetic: Path) -> None:
    hungry = "SELECT i, count(*) FROM range(100000000) AS a(i) GROUP BY i ORDER BY hash(i) LIMIT 1"
    ask = ("audit", synthetic / "INDEX", "--sql", hungry, "--memory", 0.1, "--spill", 0)
    assert "--memory and --spill give it more" in run(*ask, code=1).output


def test_limits_are_for_queries(synthetic: Path) -> None:
    assert "--timeout needs --sql or --ask" in run("audit", synthetic / "INDEX", "--timeout", 5, code=2).output
