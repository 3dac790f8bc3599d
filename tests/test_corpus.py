"""The corpus of hazards through index, shard and verify: exact, or refused with a reason; never another frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex.indexer.index import Index
from tests.datasets import run, write_clips

COVERED = (".mp4", ".mov", ".mkv")
FRAMES_A_CLIP = 8
# Refused until frame-exactness is shown for them, and why.
REFUSED = {
    "edit_multi.mov": "edit_list",
    "edit_trim_copy.mkv": "no_pts",
    "mkv_headerstrip.mkv": "not_addressable",
    "mp4_two_stsd.mp4": "parameter_sets",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def oracle(corpus: Path) -> dict[str, Any]:
    return dict(json.loads((corpus / "manifest.json").read_text(encoding="utf-8"))["files"])


@pytest.fixture(scope="module")
def corpus_index(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus") / "INDEX"
    run("index", corpus, "--root", corpus, "--out", out, "--max-failures", 1000)
    return out


def undamaged(oracle: dict[str, Any]) -> list[str]:
    """Return the files whose chosen stream must be exact or refused."""
    names = []
    for name, facts in oracle.items():
        streams = facts.get("streams", {}).values()
        whole = "damaged" not in facts["tags"] and "error" not in facts["tags"] and not facts.get("error")
        right = any(stream["codec"] in ("h264", "hevc") and not stream["decode_errors"] for stream in streams)
        if name.endswith(COVERED) and whole and right:
            names.append(name)
    return names


def test_every_file_has_an_honest_row(corpus_index: Path, oracle: dict[str, Any]) -> None:
    rows = {row["uri"]: row for row in Index(corpus_index).videos.to_pylist()}
    for name, facts in oracle.items():
        if name in rows and ("damaged" in facts["tags"] or facts.get("error")):
            assert rows[name]["status"] != "ok", name
            assert rows[name]["error_message"], name
    refused = {name: rows[name]["error_kind"] for name in undamaged(oracle) if rows[name]["status"] != "ok"}
    assert refused == REFUSED


def test_numbers_and_timestamps_are_those_of_the_oracle(corpus_index: Path, oracle: dict[str, Any]) -> None:
    from framedex.indexer.timeline import presentation_order

    index = Index(corpus_index)
    for row in index.videos.to_pylist():
        if row["status"] == "ok" and row["uri"] in oracle:
            frames = oracle[row["uri"]]["streams"][str(row["stream_index"])]["frames"]
            packets = index.packets(row["media_id"])
            order = presentation_order(packets.pts, packets.flags)
            assert packets.pts[order].tolist() == [frame[0] for frame in frames], row["uri"]
            assert order.tolist() == [frame[3] for frame in frames], row["uri"]


def test_random_frames_are_exact_or_refused_never_wrong(
    corpus_index: Path, oracle: dict[str, Any], tmp_path: Path
) -> None:
    rng = np.random.default_rng(11)
    rows = {row["uri"]: row for row in Index(corpus_index).videos.to_pylist()}
    clips = []
    for name in undamaged(oracle):
        stream = str(rows[name]["stream_index"])
        count = len(oracle[name]["streams"][stream]["frames"])
        for number in range(4):
            frames = rng.integers(0, count, FRAMES_A_CLIP).tolist()
            frames[5] = frames[2]
            clips.append({"uri": name, "frames": frames, "clip_id": f"{name}-{number}"})
    path = write_clips(tmp_path / "clips.jsonl", clips)
    run("shard", corpus_index, "--clips", path, "--out", tmp_path / "D", "--max-failures", 1000)
    exact: set[str] = set()
    for line in run("verify", tmp_path / "D", "--json").output.splitlines():
        row = json.loads(line)
        frames = oracle[row["uri"]]["streams"][str(rows[row["uri"]]["stream_index"])]["frames"]
        assert row["verdict"] == "exact"
        assert row["md5"] == [frames[number][4] for number in row["frames"]], row["clip_id"]
        assert row["pts"] == [frames[number][0] for number in row["frames"]], row["clip_id"]
        exact.add(row["uri"])
    names = set(undamaged(oracle))
    assert exact | REFUSED.keys() == names
    assert len(exact) >= 0.9 * len(names)
