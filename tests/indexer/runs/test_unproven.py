"""Indexes, datasets and tars of earlier versions lack the proof that the codec of some of their videos needs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset, Index
from tests.support.datasets import run
from tests.support.media import Recipe, encode
from tests.support.packed import samples

MEDIA = ("a.avi", "b.mp4")
WARNING = "counted packets as frames"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Return an index of an MPEG-4 and an H.264 video."""
    (tmp_path / "m").mkdir()
    for name, codec in zip(MEDIA, ("mpeg4", "libx264"), strict=True):
        encode(Recipe(name=name, codec=codec, frames=20), tmp_path / "m" / name)
    run("index", tmp_path / "m", "--out", tmp_path / "I")
    return tmp_path / "I"


def as_before(index: Path) -> None:
    """Change an index so that version 3.7 could have written it."""
    (part,) = (index / "videos").iterdir()
    table = pq.read_table(part)
    proof = pa.nulls(len(table), pa.string())
    table = table.set_column(table.schema.names.index("proof"), table.schema.field("proof"), proof)
    metadata = dict(table.schema.metadata) | {b"framedex.schema_version": b"3.7"}
    pq.write_table(table.replace_schema_metadata(metadata), part)
    header = json.loads((index / "index.json").read_text("utf-8"))
    (index / "index.json").write_text(json.dumps(header | {"schema_version": "3.7"}), "utf-8")


def statuses(index: Path) -> dict[str, tuple[str, str | None, str | None]]:
    rows = Index(index).columns(["uri", "status", "error_kind", "proof"]).to_pylist()
    return {row["uri"]: (row["status"], row["error_kind"], row["proof"]) for row in rows}


def test_every_video_of_a_codec_that_is_not_parsed_has_a_proof(index: Path) -> None:
    assert statuses(index) == {"a.avi": ("ok", None, "every_frame"), "b.mp4": ("ok", None, None)}


def test_media_without_a_proof_that_they_need_are_refused_until_they_are_indexed_again(
    index: Path, tmp_path: Path
) -> None:
    as_before(index)
    assert statuses(index) == {"a.avi": ("refused", "unproven", None), "b.mp4": ("ok", None, None)}
    assert Index(index).videos["status"].to_pylist() == Index(index).columns(["status"])["status"].to_pylist()
    (failure,) = framedex.query(index, "SELECT uri, status, error_kind, error_message FROM failures").to_pylist()
    assert (failure["uri"], failure["status"], failure["error_kind"]) == ("a.avi", "refused", "unproven")
    assert "framedex index again" in failure["error_message"]
    policy = "{policy: windows, frames: 4, stride: 2}"
    said = run("shard", index, "--policy", policy, "--out", tmp_path / "D").output
    assert "1 unusable medium skipped (run framedex index again for 1 of them)" in said
    assert {ClipDataset(tmp_path / "D").clip(number).medium.uri for number in range(2)} == {"b.mp4"}
    again = run("index", tmp_path / "m", "--out", index).output
    assert "1 retried, 0 gone, 1 unchanged" in again
    assert statuses(index)["a.avi"] == ("ok", None, "every_frame")
    assert "0 changed, 0 gone, 2 unchanged" in run("index", tmp_path / "m", "--out", index).output


def test_indexing_says_how_many_videos_were_decoded_whole(index: Path, tmp_path: Path) -> None:
    said = run("index", tmp_path / "m", "--out", tmp_path / "J").output
    assert "1 video decoded completely to prove the frames; this takes longer than reading packets (1 of mpeg4)" in said
    report = json.loads(run("index", tmp_path / "m", "--out", tmp_path / "K", "--json").stdout)
    assert (report["ok"], report["decoded_whole"]) == (2, {"mpeg4": 1})


def test_datasets_of_earlier_versions_say_once_that_their_frames_were_counted_by_packets(
    index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = "{policy: windows, frames: 4, stride: 2}"
    run("shard", index, "--policy", policy, "--out", tmp_path / "D")
    with caplog.at_level(logging.WARNING, "framedex.loader"):
        ClipDataset(tmp_path / "D")
        assert WARNING not in caplog.text
        header = json.loads((tmp_path / "D" / "dataset.json").read_text("utf-8"))
        (tmp_path / "D" / "dataset.json").write_text(json.dumps(header | {"schema_version": "3.5"}), "utf-8")
        ClipDataset(tmp_path / "D")
        ClipDataset(tmp_path / "D")
    assert caplog.text.count(WARNING) == 1
    assert "clips of mpeg4 were planned" in caplog.text


def test_samples_of_earlier_versions_say_so_once(index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(
        "shard",
        index,
        "--policy",
        "{policy: windows, frames: 4, stride: 2}",
        "--pack",
        "clips",
        "--out",
        tmp_path / "D",
    )
    found = list(samples(tmp_path / "D"))
    with caplog.at_level(logging.WARNING, "framedex.loader"):
        for _, sample in found:
            framedex.decode_sample(sample)
        assert WARNING not in caplog.text
        for _, sample in found:
            told = json.loads(sample["json"])
            recipe = json.loads(told["framedex"])
            del recipe["schema"]
            framedex.decode_sample(sample | {"json": json.dumps(told | {"framedex": json.dumps(recipe)}).encode()})
    assert caplog.text.count(WARNING) == 1
