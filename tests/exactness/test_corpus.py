"""Every frame of every undamaged stream in the corpus of hazards is bit-exact in any order; the rest has a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import pytest

from benchmarks.exactness import Tried, markdown, read_oracle, try_folder
from framedex import Index
from tests.support.counted import some
from tests.support.datasets import run
from tests.support.flags import DAMAGED, presentation_order

DOCS = Path(__file__).resolve().parents[2] / "docs"
FFMPEG_OF_TABLE = "8."
# Undamaged, but some frames are left out: the transport stream itself reports a loss at the place where it was joined.
DOUBTED = {"h264_sps_change.ts": 60, "ts_discontinuity.ts": 110}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("corpus")]


@pytest.fixture(scope="module")
def files(corpus: Path) -> dict[str, Any]:
    return dict(json.loads((corpus / "manifest.json").read_text(encoding="utf-8"))["files"])


@pytest.fixture(scope="module")
def tried(corpus: Path) -> list[Tried]:
    return try_folder(corpus)


def is_damaged(facts: dict[str, Any], stream: str) -> bool:
    if "error" in facts:
        return True
    frames = facts["streams"][stream]
    return "damaged" in facts["tags"] or frames["decode_errors"] or any(frame[5] for frame in frames["frames"])


def test_no_frame_is_ever_another_one(tried: list[Tried]) -> None:
    assert {medium.uri: medium.wrong for medium in tried if medium.wrong} == {}


def test_every_frame_of_every_undamaged_stream_that_is_indexed_is_exact(
    tried: list[Tried], files: dict[str, Any]
) -> None:
    checked = 0
    for medium in tried:
        facts = files.get(medium.uri, {})
        if medium.status != "ok" or is_damaged(facts, str(medium.stream)):
            continue
        assert medium.exact == DOUBTED.get(medium.uri, medium.frames), medium.uri
        assert not medium.undecodable, medium.uri
        assert not medium.refused, medium.uri
        checked += 1
    assert checked >= 130


def test_every_undamaged_video_is_indexed(tried: list[Tried], files: dict[str, Any]) -> None:
    indexed = {medium.uri for medium in tried if medium.status == "ok"}
    playable = {
        uri
        for uri, facts in files.items()
        if not {"error", "damaged", "playlist"} & set(facts["tags"])
        and any(not is_damaged(facts, stream) for stream in facts.get("streams", {}))
    }
    assert playable - indexed == set()


def test_every_other_file_is_named_with_its_reason(tried: list[Tried]) -> None:
    for medium in some(tried):
        assert medium.status == "ok" or medium.reason, medium.uri


def test_damaged_files_are_flagged_or_refuse_to_decode(tried: list[Tried], files: dict[str, Any]) -> None:
    for medium in some(tried):
        if "damaged" in files.get(medium.uri, {"tags": ()})["tags"] and medium.uri != "corrupt_mid_vp9.webm":
            assert medium.status != "ok" or medium.held < medium.frames or medium.refused or medium.undecodable, (
                medium.uri
            )


def test_the_table_in_the_docs_is_this_one(tried: list[Tried]) -> None:
    """With another version of FFmpeg than the table's, some rows differ from the table."""
    page = (DOCS / "exactness.md").read_text(encoding="utf-8")
    if av.ffmpeg_version_info.startswith(FFMPEG_OF_TABLE):
        assert markdown(tried) in page, "run `make docs`"
    rows = markdown(tried).splitlines()
    assert len(rows) > 100
    assert [row for row in rows if row not in page] == []


def test_numbers_and_timestamps_are_those_of_the_oracle(corpus: Path, tmp_path: Path, files: dict[str, Any]) -> None:
    oracle = read_oracle(corpus)
    run("index", corpus, "--root", corpus, "--out", tmp_path / "INDEX", "--max-failures", 1000, "--streams", "all")
    index = Index(tmp_path / "INDEX")
    for row in some(index.videos.to_pylist()):
        key = row["uri"], row["stream_index"]
        if row["status"] != "ok" or key not in oracle or is_damaged(files[row["uri"]], str(row["stream_index"])):
            continue
        packets = index.packets(row["media_id"])
        order = presentation_order(packets.pts, packets.flags)
        frames = files[row["uri"]]["streams"][str(row["stream_index"])]["frames"]
        assert order.tolist() == [frame[3] for frame in frames], row["uri"]
        if row["pts_source"] == "container":
            assert packets.pts[order].tolist() == [frame[0] for frame in frames], row["uri"]


def test_hashes_recorded_by_verify_are_those_of_the_oracle(corpus: Path, tmp_path: Path, files: dict[str, Any]) -> None:
    oracle = read_oracle(corpus)
    run("index", corpus, "--root", corpus, "--out", tmp_path / "INDEX", "--max-failures", 1000, "--verify")
    index = Index(tmp_path / "INDEX")
    damaged = set()
    for row in index.videos.to_pylist():
        if row["status"] != "ok":
            continue
        packets = index.packets(row["media_id"])
        assert packets.md5 is not None
        if (packets.flags & DAMAGED).any():
            damaged.add(row["uri"])
        key = row["uri"], row["stream_index"]
        if key in oracle and not is_damaged(files[row["uri"]], str(row["stream_index"])):
            order = presentation_order(packets.pts, packets.flags).tolist()
            assert [bytes(packets.md5[n] or b"").hex() for n in order] == [md5 for _, md5 in oracle[key]], row["uri"]
    assert {"corrupt_mid.mp4", "corrupt_mid_av1.mp4"} <= damaged
