"""Explicit clips as JSON Lines, JSON, CSV and Parquet; answers of `framedex audit` are such files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset
from tests.support.datasets import run

NAMES = ("h264_default.mp4", "hevc_closed.mp4")
CLIPS = [
    {"uri": NAMES[0], "frames": [4, 0, 4], "clip_id": "a", "label": "x", "weight": 0.5},
    {"uri": NAMES[1], "seconds": [0.04, 0.2], "label": "y, z", "weight": None},
]


@pytest.fixture(scope="module")
def index(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    paths = [medium(name) for name in NAMES]
    run("index", *paths, "--root", paths[0].parent, "--out", folder / "INDEX")
    return folder / "INDEX"


def shard(index: Path, clips: Path, out: Path, code: int = 0) -> str:
    return run("shard", index, "--clips", clips, "--out", out, "--overwrite", code=code).output


def items(dataset: Path) -> list[dict[str, Any]]:
    return [
        {
            "frames": item["frame_index"].tolist(),
            "md5": item["frames"].tobytes(),
            **{name: item[name] for name in ("uri", "clip_id", "label", "weight")},
        }
        for item in ClipDataset(dataset)
    ]


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(clip) + "\n" for clip in CLIPS))


def write_json(path: Path) -> None:
    path.write_text("\ufeff \n" + json.dumps(CLIPS))


def write_csv(path: Path) -> None:
    path.write_text(
        "uri,frames,seconds,clip_id,label,weight\n"
        f'{NAMES[0]},"[4, 0, 4]",,a,x,0.5\n'
        f'{NAMES[1]},,"[0.04, 0.2]",,"y, z",\n'
    )


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([CLIPS[0] | {"seconds": None}, CLIPS[1]]), path)


WRITERS = {".ndjson": write_jsonl, ".json": write_json, ".csv": write_csv, ".PARQUET": write_parquet}


@pytest.mark.parametrize("ending", WRITERS)
def test_all_formats_give_the_same_clips(index: Path, tmp_path: Path, ending: str) -> None:
    write_jsonl(tmp_path / "expected.jsonl")
    shard(index, tmp_path / "expected.jsonl", tmp_path / "EXPECTED")
    WRITERS[ending](tmp_path / f"clips{ending}")
    shard(index, tmp_path / f"clips{ending}", tmp_path / "D")
    expected = items(tmp_path / "EXPECTED")
    assert [item["frames"] for item in expected] == [[4, 0, 4], [1, 5]]
    assert items(tmp_path / "D") == expected


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_the_answer_of_an_audit_goes_straight_back_in(index: Path, tmp_path: Path, ending: str) -> None:
    sql = "SELECT uri, [0, frame_count - 1, 7] AS frames, codec AS label, 0.5 AS weight FROM videos ORDER BY uri"
    run("audit", index, "--sql", sql, "--out", tmp_path / f"clips.{ending}")
    shard(index, tmp_path / f"clips.{ending}", tmp_path / "D")
    found = items(tmp_path / "D")
    assert [(item["uri"], item["label"], item["weight"]) for item in found] == [
        ("h264_default.mp4", "h264", 0.5),
        ("hevc_closed.mp4", "hevc", 0.5),
    ]
    assert [item["frames"] for item in found] == [[0, 49, 7], [0, 49, 7]]


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_clips_that_a_query_of_a_dataset_picks_are_the_same_clips(index: Path, tmp_path: Path, ending: str) -> None:
    write_jsonl(tmp_path / "clips.jsonl")
    shard(index, tmp_path / "clips.jsonl", tmp_path / "ALL")
    sql = """SELECT clip_id, uri, list(frame ORDER BY place) AS frames, label, weight
        FROM clip_frames JOIN clips USING (clip_id) WHERE label LIKE 'x%' GROUP BY ALL"""
    run("audit", tmp_path / "ALL", "--sql", sql, "--out", tmp_path / f"some.{ending}")
    shard(index, tmp_path / f"some.{ending}", tmp_path / "SOME")
    assert items(tmp_path / "SOME") == items(tmp_path / "ALL")[:1]


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_times_of_sql_are_times_of_clips(index: Path, tmp_path: Path, ending: str) -> None:
    sql = "SELECT uri, [0.04, 0.2] AS seconds, 'a' AS label, sum(1) AS weight FROM videos GROUP BY uri ORDER BY uri"
    run("audit", index, "--sql", sql, "--out", tmp_path / f"clips.{ending}")
    shard(index, tmp_path / f"clips.{ending}", tmp_path / "D")
    assert [(item["frames"], item["weight"]) for item in items(tmp_path / "D")] == [([1, 5], 1)] * 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", "uri,frames\nh264_default.mp4,0 7 3\n", 'a JSON list in the cell: "[0, 7, 3]"'),
        ("c.csv", "uri,frames\nh264_default.mp4,7\n", "c.csv, row 1: frames must be a non-empty list"),
        ("c.csv", "uri,frames,frames\nh264_default.mp4,[7],[7]\n", "two columns with the same name"),
        ("c.csv", "uri\nh264_default.mp4\n", "either frames or seconds"),
        ("c.csv", "", "cannot be read"),
        (
            "c.csv",
            "uri,frames\nh264_default.mp4,[7]\nh264_default.mp4\n",
            "c.csv, row 2: a row must have a cell for each",
        ),
        ("c.json", '[{"uri": "h264_default.mp4", "frames": [0]}, 7]', "c.json, row 2: a clip must be an object"),
        ("c.json", '[{"uri": "h264_default.mp4", "frames": [0]}', "not valid JSON"),
        ("c.json", '[{"uri": "h264_default.mp4", "frames": [0], "x": "\\ud800"}]', "lone surrogate"),
        ("c.parquet", "PAR1", "cannot be read"),
    ],
)
def test_files_that_say_no_clips_are_refused(
    index: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    assert message in shard(index, tmp_path / name, tmp_path / "D", code=1)
    assert not (tmp_path / "D").exists()


def test_names_of_digits_alone_keep_them(index: Path, tmp_path: Path) -> None:
    rows = [f"{NAMES[0]},[0],007,01", f"{NAMES[0]},[1],12,", f"{NAMES[1]},[2],13,2"]
    (tmp_path / "c.csv").write_text("\n".join(["uri,frames,clip_id,label", *rows]) + "\n")
    shard(index, tmp_path / "c.csv", tmp_path / "D")
    clips = ClipDataset(tmp_path / "D")
    assert clips.column("clip_id").tolist() == ["007", "12", "13"]
    assert clips.column("label").tolist() == ["01", None, "2"]


def test_columns_of_a_table_that_are_nested_too_deeply_are_refused(index: Path, tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(33):
        deep = [deep]
    pq.write_table(pa.Table.from_pylist([{"uri": NAMES[0], "frames": [0], "deep": deep}]), tmp_path / "c.parquet")
    assert "nested too deeply" in shard(index, tmp_path / "c.parquet", tmp_path / "D", code=1)
