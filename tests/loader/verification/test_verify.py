"""verify: exact where it is, and each other verdict where it belongs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import Index
from tests.conftest import Truth
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.manifests import rewrite_part


@pytest.fixture
def copy(index: Index, tmp_path: Path) -> Path:
    """A folder of its own with two videos."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("h264_default.mp4", "hevc_open_gop.mp4"):
        shutil.copy(Path(index.root) / name, folder / name)
    return folder


@pytest.fixture
def dataset(copy: Path, tmp_path: Path) -> Path:
    run("index", copy, "--out", tmp_path / "INDEX")
    clips = [
        {"uri": name, "frames": [9, 2, -1, 30], "clip_id": name} for name in ("h264_default.mp4", "hevc_open_gop.mp4")
    ]
    return shard_clips(tmp_path / "INDEX", tmp_path / "D", clips)


def verdicts(dataset: Path, *arguments: object, code: int = 0) -> dict[str, dict[str, Any]]:
    output = run("verify", dataset, "--json", *arguments, code=code).output
    return {row["clip_id"]: row for row in map(json.loads, output.splitlines())}


def test_a_line_a_clip_holds_what_was_decoded(dataset: Path, truth: Callable[[str], Truth]) -> None:
    for name, row in some(verdicts(dataset).items()):
        expected = truth(name)
        keys = ["clip_id", "uri", "frames", "pts", "md5", "verdict", "reason", "source_psnr", "undecided"]
        assert list(row) == keys
        assert row["frames"] == [9, 2, -1, 30]
        assert row["md5"] == [expected.md5[9], expected.md5[2], None, expected.md5[30]]
        assert row["pts"] == [expected.pts[9], expected.pts[2], None, expected.pts[30]]
        assert (row["verdict"], row["reason"]) == ("exact", None)


def test_a_changed_source_is_stale(dataset: Path, copy: Path) -> None:
    path = copy / "h264_default.mp4"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found = verdicts(dataset, code=3)
    assert found["h264_default.mp4"]["verdict"] == "stale"
    assert found["h264_default.mp4"]["md5"] == [None] * 4
    assert "fingerprint" in found["h264_default.mp4"]["reason"]
    assert found["hevc_open_gop.mp4"]["verdict"] == "exact"


def test_a_plan_that_leads_to_another_frame_is_refused(dataset: Path) -> None:
    _rewrite(dataset / "recipes/part-000000.parquet", "position", lambda column: [list(np.roll(v, 1)) for v in column])
    assert {row["verdict"] for row in verdicts(dataset, code=3).values()} == {"undecodable"}


def test_a_manifest_that_claims_another_timestamp_differs(dataset: Path) -> None:
    _rewrite(
        dataset / "clips/part-000000.parquet", "pts", lambda column: [[v and v + 1 for v in row] for row in column]
    )
    found = verdicts(dataset, "--max-failures", 2)
    assert {row["verdict"] for row in found.values()} == {"differs"}
    assert all("pts" in row["reason"] for row in found.values())


def test_ranges_that_hold_other_bytes_are_undecodable(dataset: Path) -> None:
    _rewrite(dataset / "recipes/part-000000.parquet", "range_offset", lambda column: [[0] * len(row) for row in column])
    assert {row["verdict"] for row in verdicts(dataset, code=3).values()} == {"undecodable"}


def _rewrite(path: Path, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    table = pq.read_table(path)
    field = table.schema.field(name)
    number = table.schema.get_field_index(name)
    rewrite_part(path, table.set_column(number, field, pa.array(change(table[name].to_pylist()), field.type)))


def test_a_sample_is_as_large_as_asked_and_repeats(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [number], "clip_id": str(number)} for number in range(40)]
    dataset = shard_clips(index.path, tmp_path / "D", clips)
    chosen = verdicts(dataset, "--sample", 7)
    assert len(chosen) == 7
    assert verdicts(dataset, "--sample", 7).keys() == chosen.keys()
    assert verdicts(dataset, "--sample", 7, "--seed", 1).keys() != chosen.keys()


def test_a_moved_root_can_be_told(dataset: Path, copy: Path, tmp_path: Path) -> None:
    copy.rename(tmp_path / "elsewhere")
    assert {row["verdict"] for row in verdicts(dataset, code=3).values()} == {"stale"}
    assert {row["verdict"] for row in verdicts(dataset, "--root", tmp_path / "elsewhere").values()} == {"exact"}


def test_a_source_that_takes_too_long_makes_its_clips_undecodable(copy: Path, tmp_path: Path) -> None:
    run("index", copy, "--out", tmp_path / "INDEX")
    many = [{"uri": "h264_default.mp4", "frames": [number % 50 for number in range(40)]}] * 400  # seconds of decoding
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "D", many)
    found = verdicts(dataset, "--workers", 1, "--timeout", 0.001, code=3)
    assert {row["verdict"] for row in found.values()} == {"undecodable"}
    assert {row["reason"] for row in found.values()} == {"timeout: took longer than 0.001 s"}
