"""Audit queries can only read the views and have limits; results are available in every format."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import framedex
from framedex.auditor.tables.database import database
from framedex.auditor.tables.subject import opened
from framedex.errors import FramedexError
from tests.support.audited import audited_database, cookbook, sound_row, write_rows
from tests.support.datasets import content, run
from tests.support.depth import drawn
from tests.support.media import picture

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
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{there}/x.csv'",
    "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
    "EXPLAIN ANALYZE DROP VIEW videos",
    "EXPLAIN ANALYZE LOAD httpfs",
    "EXPLAIN ANALYZE SET VARIABLE x = 1",
    "EXPLAIN ANALYZE CALL pragma_version()",
    "explain /* é ( */ analyze -- ü )\n INSERT INTO superseded SELECT 'x', 1",
    "EXPLAIN (ANALYZE, FORMAT 'json') CREATE TABLE x AS SELECT 1",
    "EXPLAIN ANALYZE\u00a0CREATE\u00a0TABLE\u00a0x\u00a0AS SELECT 1",
    "EXPLAIN\u00a0ANALYZE\u00a0CREATE\u00a0TABLE\u00a0x\u00a0AS SELECT 1",
    "EXPLAIN CREATE TABLE x AS SELECT 1",
    "WITH a AS (DELETE FROM superseded RETURNING *) FROM a",
    "EXPLAIN ANALYZE WITH a AS (DELETE FROM superseded RETURNING *) FROM a",
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
    with audited_database(synthetic / "INDEX") as db:
        with pytest.raises(FramedexError):
            db.user(sql.format(there=synthetic / "INDEX")).read_all()
        assert db.ask("SELECT count(*) FROM videos").rows == [(120,)]
    assert content(synthetic) == before


@pytest.mark.parametrize("name", ["index.json", "../index.json", "*", "**/*.json"])
def test_other_files_of_the_folder_are_not_there(name: str, synthetic: Path) -> None:
    with audited_database(synthetic / "INDEX") as db:
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
        "EXPLAIN ANALYZE FROM videos",
        "EXPLAIN (ANALYZE, FORMAT json) SELECT 1",
        "EXPLAIN (SELECT 1)",
        "explain /* a */ analyze (SELECT 'é')",
    ],
)
def test_every_statement_that_reads_is_run(sql: str, synthetic: Path) -> None:
    assert len(run("audit", synthetic / "INDEX", "--sql", sql).output.splitlines()) > 1


def test_queries_follow_each_other_after_errors(synthetic: Path) -> None:
    with audited_database(synthetic / "INDEX") as db:
        for sql in ("SELECT error('x')", "WITH a AS (DELETE FROM superseded RETURNING *) FROM a", "SELECT no"):
            with pytest.raises(FramedexError):
                db.user(sql).read_all()
            assert db.user("SELECT count(*) AS n FROM videos").read_all()["n"].to_pylist() == [120]


def test_a_blocked_write_is_told_in_a_line(synthetic: Path) -> None:
    sql = "WITH a AS (COPY (SELECT 1) TO 'framedex://videos/part-000000.parquet') SELECT 1"
    with pytest.raises(AssertionError, match="is read-only") as caught:
        run("audit", synthetic / "INDEX", "--sql", sql)
    assert "Traceback" not in str(caught.value).split("assert")[0]


def test_a_query_that_cannot_be_run_says_why(synthetic: Path) -> None:
    with pytest.raises(AssertionError, match='"frme" not found'):
        run("audit", synthetic / "INDEX", "--sql", "SELECT frme FROM frames")
    with pytest.raises(AssertionError, match="DuckDB cannot parse the query"):
        run("audit", synthetic / "INDEX", "--sql", "SELEC 1")


LATE = "SELECT CASE WHEN i = 2900000 THEN error('late') ELSE i END AS i FROM range(3000000) AS a(i)"


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_an_error_after_the_first_rows_is_of_the_query(form: str, synthetic: Path, tmp_path: Path) -> None:
    said = run("audit", synthetic / "INDEX", "--sql", LATE, "--format", form, "--out", tmp_path / "o", code=1).output
    assert said.startswith("error: the query cannot be run\n  found:   Invalid Input Error: late")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("late", [False, True])
def test_a_table_that_goes_missing_is_told_in_a_line(late: bool, synthetic: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(synthetic / "INDEX", tmp_path / "INDEX")
    (part,) = (copy / "frames").glob("*.parquet")
    with opened(copy) as audited, contextlib.ExitStack() as stack:
        if late:
            db = stack.enter_context(database(audited))
            part.unlink()
            with pytest.raises(FramedexError, match="the query cannot be run") as caught:
                db.user("FROM frames").read_all()
        else:
            part.unlink()
            with pytest.raises(FramedexError, match="a table is missing or damaged") as caught:
                stack.enter_context(database(audited))
    assert caught.value.found == f"FileNotFoundError: [Errno 2] No such file or directory: '{part}'"


def test_a_question_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="it needs a column 'label'"):
        run("audit", write_rows(tmp_path / "INDEX", [sound_row(1)]), "--ask", "hours_a_label")


@pytest.mark.parametrize("kind", ["INDEX", "DS"])
def test_every_question_of_the_cookbook_has_an_answer(kind: str, synthetic: Path) -> None:
    asked = cookbook(synthetic / kind)
    assert len(set(asked)) == (17 if kind == "INDEX" else 8)
    for question in drawn("many long cases", asked, seed=19):
        rows = json.loads(run("audit", synthetic / kind, "--ask", question, "--format", "json").stdout)
        empty = question == "leakage"  # which is as it should be
        assert rows or empty, question


def test_answers_come_in_every_format(synthetic: Path, tmp_path: Path) -> None:
    sql = (
        "SELECT uri, frame_count, is_vfr, [1, NULL]::INT[] AS l, 'a'::BLOB AS b, label "
        "FROM videos JOIN listing USING (media_id) ORDER BY uri LIMIT 3"
    )
    ask = ("audit", synthetic / "INDEX", "--sql", sql)
    rows = json.loads(run(*ask, "--format", "json").stdout)
    assert [rows[0][name] for name in ("l", "b")] == [[1, None], "61"]
    read = [*csv.reader(io.StringIO(run(*ask, "--format", "csv").stdout))]
    assert [row[0] for row in read[1:]] == [row["uri"] for row in rows]
    assert json.loads(read[1][3]) == [1, None]
    out = tmp_path / "answer.parquet"
    assert run(*ask, "--format", "parquet", "--out", out).output == f"3 rows → {out}\n"
    assert [row["frame_count"] for row in pq.read_table(out).to_pylist()] == [row["frame_count"] for row in rows]
    with pytest.raises(AssertionError, match="exists already"):
        run(*ask, "--format", "csv", "--out", out)
    run(*ask, "--format", "csv", "--out", out, "--overwrite")
    assert out.read_text() == run(*ask, "--format", "csv").stdout
    table = run(*ask).output.splitlines()
    assert table[0].split() == ["uri", "frame_count", "is_vfr", "l", "b", "label"]
    assert len(table) == 4


def test_sums_are_numbers_and_no_column_is_lost(synthetic: Path) -> None:
    sql = "SELECT sum(frame_count) AS n, 1 AS a, 2 AS a FROM videos"
    (row,) = json.loads(run("audit", synthetic / "INDEX", "--sql", sql, "--format", "json").stdout)
    assert (type(row["n"]), row["a"], row["a_1"]) == (int, 1, 2)


ODD = (
    "SELECT DATE 'infinity' AS a, TIMESTAMP '-infinity' AS b, DATE '0044-03-15 (BC)' AS c, INTERVAL '1 month' AS d, "
    "340282366920938463463374607431768211455::UHUGEINT AS e, TIMETZ '12:00:00+02' AS f, '101'::BIT AS g, "
    "[DATE 'infinity'] AS h, TIMESTAMP_NS '2000-01-01 00:00:00.123456789' AS i"
)
SHOWN = {
    "a": "infinity",
    "b": "-infinity",
    "c": "0044-03-15 (BC)",
    "d": "1 month",
    "e": "340282366920938463463374607431768211455",
    "f": "12:00:00+02",
    "g": "101",
    "h": ["infinity"],
    "i": "2000-01-01 00:00:00.123456789",
}


SHOWN_IN_CELLS = SHOWN | {"h": '["infinity"]'}


def test_values_that_python_has_not_are_text(synthetic: Path) -> None:
    ask = ("audit", synthetic / "INDEX", "--sql", ODD, "--format")
    assert json.loads(run(*ask, "json").stdout) == [SHOWN]
    assert [*csv.DictReader(io.StringIO(run(*ask, "csv").stdout))] == [SHOWN_IN_CELLS]
    assert run(*ask, "table").output.splitlines()[1].split("  ")[:2] == ["infinity", "-infinity"]


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_every_type_is_shown(form: str, synthetic: Path) -> None:
    sql = "SELECT * EXCLUDE (small_enum, medium_enum, large_enum) FROM test_all_types()"
    output = run("audit", synthetic / "INDEX", "--sql", sql, "--format", form).output
    assert "5881580-07-10" in output
    assert "340282366920938463463374607431768211455" in output


def test_values_with_dates_inside_stay_lists_and_records(synthetic: Path) -> None:
    sql = "SELECT [DATE '2020-01-02'] l, {'a b': DATE 'infinity', 'n': [1, 2]} s, MAP {'k': TIME '10:00'} m"
    shown = {"l": ["2020-01-02"], "s": {"a b": "infinity", "n": [1, 2]}, "m": [["k", "10:00:00"]]}
    assert json.loads(run("audit", synthetic / "INDEX", "--sql", sql, "--format", "json").stdout) == [shown]


@pytest.mark.parametrize("value", ["7::UHUGEINT", "[{'a': 7::UHUGEINT}]"])
def test_types_that_arrow_lacks_are_refused_where_types_are_kept(value: str, synthetic: Path, tmp_path: Path) -> None:
    sql = f"SELECT {value} AS large"
    out = run("audit", synthetic / "INDEX", "--sql", sql, "--out", tmp_path / "o.parquet", code=1).output
    assert "large: " in out
    with pytest.raises(FramedexError, match="type that Arrow lacks"):
        framedex.query(synthetic / "INDEX", sql)


def test_what_is_no_query_is_an_error(synthetic: Path) -> None:
    with pytest.raises(FramedexError, match="a query must be a text"):
        framedex.query(synthetic / "INDEX", 5)  # type: ignore[arg-type]
    with pytest.raises(FramedexError, match="cannot parse"):
        framedex.query(synthetic / "INDEX", "SELECT '\ud800'")


def test_an_error_about_a_name_is_no_interrupt(synthetic: Path) -> None:
    output = run("audit", synthetic / "INDEX", "--sql", "SELECT interrupted FROM videos", code=1).output
    assert "interrupted" in output
    assert "the query cannot be run" in output


def test_an_explanation_is_drawn_in_lines(synthetic: Path, tmp_path: Path) -> None:
    ask = ("audit", synthetic / "INDEX", "--sql", "EXPLAIN SELECT 1")
    drawn = run(*ask).output
    assert [line.strip("╭╮╰╯│─┬┴ ") for line in drawn.splitlines()][:2] == ["Projection", "Projections: 1"]
    run(*ask, "--out", tmp_path / "plan.txt")
    assert (tmp_path / "plan.txt").read_text() == drawn


def test_names_of_columns_cannot_act_on_a_terminal(synthetic: Path) -> None:
    output = run("audit", synthetic / "INDEX", "--sql", 'SELECT 1 AS "a\x1b[31m\nb"').output
    assert "\x1b" not in output
    assert len(output.splitlines()) == 2


def test_a_long_answer_is_cut_on_a_terminal_alone(synthetic: Path) -> None:
    ask = ("audit", synthetic / "INDEX", "--sql", "SELECT frame FROM frames LIMIT 1500")
    lines = run(*ask).output.splitlines()
    assert (len(lines), lines[-1]) == (1002, "… and more rows (for all rows, use --format csv or --out FILE)")
    assert len(run(*ask, "--format", "csv").output.splitlines()) == 1501


def test_a_long_table_is_whole_in_a_file(synthetic: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.txt"
    output = run("audit", synthetic / "INDEX", "--sql", "SELECT frame FROM frames LIMIT 1500", "--out", out).output
    assert (output, len(out.read_text().splitlines())) == (f"1500 rows → {out}\n".replace("1500", "1,500"), 1501)


def test_an_answer_without_end_is_cut(synthetic: Path) -> None:
    assert len(run("audit", synthetic / "INDEX", "--sql", "FROM range(100000000000)").output.splitlines()) == 1002


def test_only_files_are_replaced(synthetic: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    ask = ("audit", synthetic / "INDEX", "--sql", "SELECT 1 AS a", "--format", "csv", "--overwrite")
    run(*ask, "--out", link)
    assert link.is_symlink()
    assert target.read_text().split() == ['"a"', "1"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AssertionError, match="not a regular file"):
        run(*ask, "--out", tmp_path / "pipe")


ENDLESS = {
    "counting": "SELECT count(*) FROM range(1000000000000) AS a(i) WHERE hash(i) % 7 = 1",
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
    assert "the query exceeds its time limit" in said
    assert "raise the limits --timeout, --memory and --spill" in said
    assert list(tmp_path.iterdir()) == []


def test_a_query_has_no_more_memory_than_it_may(synthetic: Path) -> None:
    hungry = "SELECT i, count(*) FROM range(100000000) AS a(i) GROUP BY i ORDER BY hash(i) LIMIT 1"
    ask = ("audit", synthetic / "INDEX", "--sql", hungry, "--memory", 0.1, "--spill", 0)
    assert "--memory and --spill" in run(*ask, code=1).output


# A gigabyte for each of 120 videos, in memory that DuckDB does not count and at places where it cannot be interrupted.
OF_TEXTS = "SELECT sum(length(repeat(uri, 60000000))) AS n FROM videos"


def test_a_query_of_texts_has_no_more_memory_than_it_may(synthetic: Path) -> None:
    with pytest.raises(FramedexError, match="the query exceeds its memory limit"):
        framedex.query(synthetic / "INDEX", OF_TEXTS, memory=0.5)
    said = run("audit", synthetic / "INDEX", "--sql", OF_TEXTS, "--memory", 0.5, code=1).output
    assert "found:   it takes more than 537 MB" in said
    assert multiprocessing.active_children() == []


def test_an_answer_has_no_more_memory_than_a_query_may(synthetic: Path) -> None:
    long = "SELECT repeat('x', 5000) AS x FROM range(200000)"
    with pytest.raises(FramedexError, match="its result takes more than"):
        framedex.query(synthetic / "INDEX", long, memory=0.5)


def test_limits_are_for_queries(synthetic: Path) -> None:
    assert "--timeout needs --sql or --ask" in run("audit", synthetic / "INDEX", "--timeout", 5, code=2).output


def test_a_frozen_picture_is_stiller_than_a_moving_one(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    grain = np.random.default_rng(7).integers(0, 256, (144, 176, 3), np.uint8)
    write_video(videos / "frozen.mp4", [grain] * 24, codec="libx264", options={"g": "8"})
    moving = [np.roll(picture(0, 176, 144), 4 * number, axis=1) for number in range(24)]
    write_video(videos / "moving.mp4", moving, codec="libx265", options={"x265-params": "keyint=24:crf=40"})
    framedex.index(videos, tmp_path / "I", workers=0, progress=False)
    whole = framedex.query(tmp_path / "I", "SELECT uri FROM videos ORDER BY packet_bytes").to_pylist()
    assert whole == [{"uri": "moving.mp4"}, {"uri": "frozen.mp4"}]  # bytes of key frames would mislead
    asked = json.loads(run("audit", tmp_path / "I", "--ask", "still_videos", "--format", "json").stdout)
    assert [(row["uri"], row["frames"]) for row in asked] == [("frozen.mp4", 21), ("moving.mp4", 23)]


def write_video(path: Path, pictures: list[NDArray[np.uint8]], *, codec: str, options: dict[str, str]) -> None:
    """Encode pictures, uint8 [H, W, 3]."""
    with av.open(path, "w") as out:
        stream = out.add_stream(codec, rate=25, options=options)
        stream.height, stream.width = pictures[0].shape[:2]
        for rgb in pictures:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, format="rgb24")))
        out.mux(stream.encode(None))


def test_the_answer_to_still_videos_has_more_than_five_rows(synthetic: Path) -> None:
    asked = json.loads(run("audit", synthetic / "INDEX", "--ask", "still_videos", "--format", "json").stdout)
    assert len(asked) > 5


def test_json_prints_the_rows_of_a_query(synthetic: Path, tmp_path: Path) -> None:
    query = ["audit", synthetic / "INDEX", "--sql", "SELECT uri, width FROM videos ORDER BY uri LIMIT 3"]
    rows = json.loads(run(*query, "--format", "json").stdout)
    assert len(rows) == 3
    assert json.loads(run(*query, "--json").stdout) == rows
    assert json.loads(run("audit", synthetic / "INDEX", "--ask", "rates", "--json").stdout)
    run(*query, "--json", "--out", tmp_path / "rows.txt")
    assert json.loads((tmp_path / "rows.txt").read_text(encoding="utf-8")) == rows
    for wrong in (["--sql", "SELECT 1", "--format", "csv"], ["--ask", "list"], ["--duckdb", tmp_path / "x.duckdb"]):
        assert "--json" in run("audit", synthetic / "INDEX", *wrong, "--json", code=2).output
