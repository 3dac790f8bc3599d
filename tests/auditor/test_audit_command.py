"""The command `framedex audit`: what it reads, in folders and buckets; which options it accepts; when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.support.audited import found, sound_row, write_rows
from tests.support.datasets import run, shard_clips
from tests.support.media import Medium


def test_the_index_that_counts_is_asked(tmp_path: Path) -> None:
    """Later parts replace earlier rows: one medium was probed again, and one is gone."""
    first, second, third = (sound_row(number) for number in (1, 2, 3))
    again = second | {"rotation_degrees": 180}
    gone = third | {"status": "gone"}
    index = write_rows(tmp_path / "INDEX", [first, second | {"is_vfr": True}, third], [again], [gone])
    assert found(index).keys() == {"rotated"}
    totals = json.loads(run("audit", index, "--json").stdout)["summary"]["totals"][0]
    assert totals["media"] == 2


@pytest.mark.parametrize("folder", ["part-3", "part-000000.parquet"])
def test_folders_named_like_parts_are_none(folder: str, tmp_path: Path) -> None:
    first, second = sound_row(1), sound_row(2)
    parts = [first, second], [first | {"rotation_degrees": 90}], [second | {"status": "gone"}]
    index = write_rows(tmp_path / folder / "INDEX", *map(list, parts))
    assert found(index).keys() == {"rotated"}
    assert json.loads(run("audit", index, "--json").stdout)["summary"]["totals"][0]["media"] == 1
    run("audit", index, "--duckdb", tmp_path / "x.duckdb")
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT uri, rotation_degrees FROM videos").fetchall() == [(first["uri"], 90)]


def test_folders_of_the_path_are_no_columns(medium: Medium, tmp_path: Path) -> None:
    folder = tmp_path / "split=train" / "status=failed" / "label=x"
    run("index", medium("h264_default.mp4"), "--out", folder / "INDEX")
    assert json.loads(run("audit", folder / "INDEX", "--json").stdout)["summary"]["totals"][0]["usable"] == 1
    dataset = shard_clips(folder / "INDEX", folder / "DS", [{"uri": "h264_default.mp4", "frames": [1]}])
    assert found(dataset) == {}
    path = tmp_path / "views.duckdb"
    run("audit", dataset, "--duckdb", path)
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM clips").fetchall() == [(1,)]
        assert "split" not in {row[0] for row in connection.execute("DESCRIBE clips").fetchall()}


def test_a_bucket_is_audited_like_a_folder(bucket: Any, medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_vfr.mkv"), "--out", tmp_path / "INDEX")
    run("index", medium("h264_vfr.mkv"), "--out", f"{bucket.uri}/INDEX")
    here, there = found(tmp_path / "INDEX"), found(f"{bucket.uri}/INDEX")
    assert here == there
    query = ("--sql", "SELECT count(*) AS frames, sum(size_bytes) AS bytes FROM frames")
    assert run("audit", tmp_path / "INDEX", *query).output == run("audit", f"{bucket.uri}/INDEX", *query).output
    with pytest.raises(AssertionError, match="a DuckDB database of views cannot refer to object storage"):
        run("audit", f"{bucket.uri}/INDEX", "--duckdb", tmp_path / "x.duckdb")


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1)])
    part = index / "videos" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(AssertionError, match="a table is missing or damaged"):
        run("audit", index)


def test_what_fails_the_command(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1), sound_row(2) | {"rotation_degrees": 90}])
    run("audit", index, "--fail-on", "note", code=3)
    run("audit", index, "--fail-on", "warning")
    run("audit", index, "--check", "hdr", "--fail-on", "note")
    with pytest.raises(AssertionError, match="there is no such check"):
        run("audit", index, "--check", "rotatd")
    with pytest.raises(AssertionError, match="is neither an index nor a dataset"):
        run("audit", tmp_path)
    for both in (("--sql", "SELECT 1", "--ask", "rates"), ("--out", "x.csv")):
        run("audit", index, *both, code=2)
    assert "rotated" in run("audit", index, "--check", "list").output


def test_one_check_is_asked_without_the_summary(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1) | {"rotation_degrees": 90}])
    output = run("audit", index, "--check", "rotated").output
    assert output.startswith("note: Video that players rotate: 1   [rotated]")


@pytest.mark.parametrize(
    "options",
    [
        ("--sql", "SELECT 1", "--fail-on", "note"),
        ("--ask", "rates", "--json", "--format", "csv"),
        ("--format", "csv"),
        ("--sql", "SELECT 1", "--files"),
    ],
)
def test_no_option_is_ignored(options: tuple[str, ...], tmp_path: Path) -> None:
    run("audit", write_rows(tmp_path / "INDEX", [sound_row(1)]), *options, code=2)


def test_names_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    name = "a\x1b[2J\u202eb\nc.mp4"
    index = write_rows(tmp_path / "INDEX", [sound_row(1) | {"rotation_degrees": 90, "uri": name}])
    output = run("audit", index).output
    assert "\x1b" not in output
    assert "\u202e" not in output
    assert r"a\x1b[2J\u202eb\nc.mp4" in output
