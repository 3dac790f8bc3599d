"""Encoded clips of the corpus of hazards show the frames of a full decode, in any order, or there is a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset, Index
from tests.support.depth import DEPTH, drawn
from tests.support.encoded import encode_clips

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("corpus")]
MIN_MEDIA = 100


def shuffled_clips(index: Index) -> list[dict[str, Any]]:
    """Return a clip of every usable medium: frames in any order, with repeats and padding."""
    rng = np.random.default_rng(5)
    clips = []
    for row in index.videos.to_pylist():
        if row["status"] != "ok":
            continue
        frames = rng.permutation(row["frame_count"])[:6].tolist()
        name = {} if row["member"] is None else {"member": row["member"]}
        clips.append({"uri": row["uri"], **name, "frames": [*frames, -1, frames[0]]})
    return clips


def test_clips_of_the_corpus_show_the_frames_of_a_full_decode(corpus_index: Index, tmp_path: Path) -> None:
    clips = drawn("media of the corpus that are encoded", shuffled_clips(corpus_index), seed=3)
    dataset = encode_clips(corpus_index.path, tmp_path / "D", clips, "--crf", 16, "--max-failures", 100)
    failures = pq.read_table(dataset / "failures.parquet").to_pylist()
    assert {row["kind"] for row in failures} <= {"damaged", "undecodable", "uncuttable"}
    opened = ClipDataset(dataset)
    assert len(opened) + len(failures) == len(clips)
    assert len(opened) >= (MIN_MEDIA if DEPTH == "full" else 30)
    report = framedex.verify(dataset, workers=0, progress=False)
    assert [(checked.uri, checked.reason) for checked in report.wrong] == []
    assert report.verdicts == {"nearest": len(opened)}
    header = json.loads((dataset / "dataset.json").read_text())
    assert header["encode"]["crf"] == 16
