"""What proofs leave in an index, and what reads it: rows, reruns, clips that are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from framedex import Index
from tests.support.datasets import run, shard_clips
from tests.support.flags import DAMAGED, NOT_REPRODUCIBLE
from tests.support.hazards import HAZARDS
from tests.support.media import make
from tests.support.probed import facts_of

COLUMNS = ("proof", "proved_by", "not_reproducible_gop_count", "first_difference", "depth")


def indexed(folder: Path, *words: object, code: int = 0) -> tuple[Index, dict[str, Any], dict[str, Any]]:
    """Return the index of a folder with one video, its row, and what the run reported."""
    out = folder.parent / "INDEX"
    report = json.loads(run("index", folder, "--out", out, "--json", *words, code=code).output)
    (row,) = Index(out).videos.to_pylist()
    return Index(out), row, report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "videos").mkdir()
    return tmp_path / "videos"


def test_an_index_says_what_was_proved_and_a_rerun_proves_what_was_not(
    folder: Path, medium: Callable[[str], Path]
) -> None:
    shutil.copy(medium("h264_default.mp4"), folder)
    _, row, _ = indexed(folder)
    assert [row[name] for name in COLUMNS] == [None, None, None, None, "tables"]
    _, row, report = indexed(folder, "--prove", 3)
    assert [row[name] for name in COLUMNS] == ["sampled", av.ffmpeg_version_info, 0, None, "tables"]
    assert report["changed"] == 1
    assert indexed(folder, "--prove", 5)[2]["unchanged"] == 1
    assert indexed(folder)[2]["unchanged"] == 1
    _, row, _ = indexed(folder, "--verify")
    assert [row[name] for name in COLUMNS] == ["every_frame", av.ffmpeg_version_info, 0, None, "packets"]
    assert indexed(folder, "--prove", 3)[2]["unchanged"] == 1


def test_clips_are_refused_where_a_clips_decoder_gives_other_pictures(folder: Path, tmp_path: Path) -> None:
    name = "vp8_lost_packet_35.webm"
    make(HAZARDS[name], folder)
    index, row, _ = indexed(folder)
    assert row["proof"] == "every_frame"  # headers of VP8 do not show a lost packet, so all of it is decoded
    first = row["first_difference"]
    assert row["not_reproducible_gop_count"] == 1
    assert f"first at frame {first}" in row["error_message"]
    flags = index.packets(row["media_id"]).flags
    assert ((flags & NOT_REPRODUCIBLE) != 0).any()
    assert ((flags[(flags & NOT_REPRODUCIBLE) != 0] & DAMAGED) != 0).all()
    clips = [{"uri": name, "frames": [first]}, {"uri": name, "frames": [0]}]
    out = shard_clips(tmp_path / "INDEX", tmp_path / "D", clips, code=3)
    (failed,) = pq.read_table(out / "failures.parquet").to_pylist()
    assert "frames differ between decoding a clip and decoding the whole video" in str(failed)


def test_proving_every_frame_and_some_of_them_exclude_each_other(folder: Path, medium: Callable[[str], Path]) -> None:
    shutil.copy(medium("h264_default.mp4"), folder)
    said = run("index", folder, "--out", folder.parent / "I", "--verify", "--prove", 2, code=2).output
    assert "--prove" in said
    assert "compares every frame" in said


@pytest.mark.parametrize(
    ("where", "proof", "depth"),
    [
        ("by_tables._drawn_differing", "sampled", "packets"),
        ("every_packet._StreamProof.drawn_differing", "every_frame", "packets"),
    ],
)
def test_a_frame_that_differs_makes_more_of_the_file_be_read(
    where: str, proof: str, depth: str, medium: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def differing(*_: object) -> NDArray[np.bool_]:
        return np.ones(50, np.bool_)

    monkeypatch.setattr(f"framedex.indexer.probing.{where}", differing)
    by_tables = where.startswith("by_tables")
    path = medium("h264_default.mp4")
    (found,) = facts_of(path, depth="auto" if by_tables else depth, prove=1)
    assert found.proof is not None
    assert found.timeline is not None
    assert (found.proof.proof, found.proof.first_difference, found.timeline.depth) == (proof, None, depth)
    if by_tables:
        (refused,) = facts_of(path, depth="tables", prove=1)
        assert refused.problem is not None
        assert refused.problem.kind == "untrusted_tables"
