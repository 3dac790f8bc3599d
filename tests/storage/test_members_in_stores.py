"""Videos in tars and Parquet files of a bucket are indexed with a few requests each, and read by their ranges."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index
from framedex.errors import StaleError
from framedex.files import parquet_cells
from framedex.indexer.probing.probe import ProbeTask, probe_medium
from framedex.indexer.runs import existence as probing
from framedex.indexer.sources.members import read_tar
from tests.support.datasets import run, write_clips
from tests.support.images import rows, tar_of
from tests.support.media import Medium
from tests.support.probed import rows_found
from tests.support.proxy import Proxy
from tests.support.s3 import Bucket

NAMES = ("h264_open_gop.mp4", "hevc_open_gop.mkv", "h264_audio.mp4", "h264_fragmented.mp4", "h264_faststart.mp4")
ELSEWHERE = {"mtime_ns", "fingerprint", "media_id", "uri", "open_gop_count", "non_reference_share", "probed_by"}


def wide_tar(path: Path, videos: list[Path], *, apart: int) -> Path:
    """Write a tar of videos with sidecars, and `apart` bytes of something else between them; return its path."""
    files: list[tuple[str, bytes]] = []
    for number, video in enumerate(videos):
        files += [(f"{number:04}{video.suffix}", video.read_bytes()), (f"{number:04}.cls", b"%d" % number)]
        files += [(f"{number:04}.npy", bytes(apart))]
    return tar_of(path, files)


@pytest.mark.parametrize("whole_bytes", [0, 1 << 30])
def test_a_tar_in_a_bucket_has_the_rows_of_a_local_one(
    bucket: Bucket, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(probing, "WHOLE_BYTES", whole_bytes)
    tar = wide_tar(tmp_path / "t.tar", [medium(name) for name in NAMES], apart=1 << 20)
    uri = bucket.put("deep/t.tar", tar)
    raw = tar.read_bytes()
    local = read_tar(lambda at, length: raw[at : at + length], len(raw))
    stored = probing.open_holder(ProbeTask(path=uri, holds="tar"))
    assert stored.contents == local
    assert stored.facts is not None
    for member in stored.contents.videos:
        assert member.part is not None
        task = ProbeTask(path=uri, member=member, facts=stored.facts, expected=stored.facts.tag)
        ((video, frames),) = rows_found(probing.probe_media(task))
        with tarfile.open(tar) as opened:
            content = opened.extractfile(member.name)
            assert content is not None
            (tmp_path / member.name).write_bytes(content.read())
        ((alone, packets),) = rows_found(probe_medium(ProbeTask(path=str(tmp_path / member.name))))
        assert frames["size"].tolist() == packets["size"].tolist()
        assert (frames["offset"] - member.part.offset).tolist() == packets["offset"].tolist()
        assert {name for name in alone if alone[name] != video[name]} <= ELSEWHERE | {
            "member",
            "member_offset",
            "member_bytes",
            "size_bytes",
            "depth",
        }


def test_indexing_a_tar_takes_a_few_requests_for_each_video(
    bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
) -> None:
    """With 2 MiB between videos, no request can be for two of them."""
    videos = [medium(NAMES[0])] * 20
    uri = bucket.put("t.tar", wide_tar(tmp_path / "t.tar", videos, apart=2 << 20))
    proxy.forget()
    run("index", uri, "--out", tmp_path / "INDEX", "--workers", 2)
    found = Index(tmp_path / "INDEX")
    assert found.videos.num_rows == 20
    assert proxy.count("GET", "t.tar") <= 4 * 20 + 4
    clips = [{"uri": f"t.tar/{n:04}.mp4", "frames": [3, 30]} for n in (0, 19, 7)]
    run("shard", tmp_path / "INDEX", "--clips", write_clips(tmp_path / "c.jsonl", clips), "--out", tmp_path / "D")
    assert "3 exact" in run("verify", tmp_path / "D").output
    proxy.forget()
    first, second = (ClipDataset(tmp_path / "D")[number]["frames"] for number in (0, 1))
    assert (first == second).all()
    assert proxy.count("GET", "t.tar") <= 4


def test_columns_of_sidecars_are_read_with_the_headers(bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
    uri = bucket.put("a/t.tar", wide_tar(tmp_path / "t.tar", [medium(name) for name in NAMES[:3]], apart=100))
    run("index", f"{bucket.uri}/a", "--out", tmp_path / "INDEX")
    index = Index(tmp_path / "INDEX")
    assert index.listing["cls"].to_pylist() == [0, 1, 2]
    assert list(rows(index)) == [f"t.tar/{n:04}{Path(NAMES[n]).suffix}" for n in range(3)]
    again = run("index", uri, "--root", f"{bucket.uri}/a", "--out", tmp_path / "INDEX").output
    assert "0 files new, 0 changed, 0 gone, 1 unchanged" in again


def test_a_tar_that_was_replaced_gives_no_clip(bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
    uri = bucket.put("t.tar", wide_tar(tmp_path / "t.tar", [medium(NAMES[0])], apart=100))
    run("index", uri, "--out", tmp_path / "INDEX")
    clips = write_clips(tmp_path / "c.jsonl", [{"uri": "t.tar/0000.mp4", "frames": [3]}])
    run("shard", tmp_path / "INDEX", "--clips", clips, "--out", tmp_path / "D")
    bucket.put("t.tar", wide_tar(tmp_path / "t.tar", [medium(NAMES[0])], apart=99))
    with pytest.raises(StaleError):
        ClipDataset(tmp_path / "D")[0]


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_videos_of_a_parquet_file_in_a_bucket(bucket: Bucket, medium: Medium, tmp_path: Path, compression: str) -> None:
    cells = [{"bytes": medium(name).read_bytes()} for name in NAMES]
    table = pa.table({"video": pa.array(cells, pa.struct([("bytes", pa.binary())])), "n": list(range(len(NAMES)))})
    pq.write_table(table, tmp_path / "t.parquet", compression=compression, row_group_size=2)
    uri = bucket.put("t.parquet", tmp_path / "t.parquet")
    run("index", uri, "--out", tmp_path / "INDEX")
    found = rows(Index(tmp_path / "INDEX"))
    assert [row["status"] for row in found.values()] == ["ok"] * len(NAMES)
    assert Index(tmp_path / "INDEX").listing["n"].to_pylist() == list(range(len(NAMES)))
    clips = write_clips(tmp_path / "c.jsonl", [{"uri": name, "frames": [3, 30]} for name in found])
    shard = ["shard", tmp_path / "INDEX", "--clips", clips]
    run(*shard, "--out", tmp_path / "D", *([] if compression == "none" else ["--pack", "needed"]))
    assert f"{len(NAMES)} exact" in run("verify", tmp_path / "D").output
    bucket.put("t.parquet", (tmp_path / "t.parquet").read_bytes() + b" ")
    if compression == "none":
        with pytest.raises(StaleError):
            ClipDataset(tmp_path / "D")[0]
    else:
        parquet_cells._opened.cache_clear()  # they would still give the bytes that were indexed
        parquet_cells._column.cache_clear()
        assert "is not" in run(*shard, "--out", tmp_path / "E", "--pack", "needed", code=1).output


def test_indexing_a_parquet_file_reads_little_of_it(
    bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
) -> None:
    """Each row has 2 MiB that no video needs, so no request can be for two videos."""
    video, count = medium("h264_faststart.mp4").read_bytes(), 12
    table = pa.table({"video": [video] * count, "other": [bytes([n]) * (2 << 20) for n in range(count)]})
    table = table.replace_schema_metadata(
        {"huggingface": '{"info": {"features": {"video": {"_type": "Video"}, "other": {"_type": "Value"}}}}'}
    )
    pq.write_table(table, tmp_path / "t.parquet", compression="none", use_dictionary=False, row_group_size=1)
    uri = bucket.put("t.parquet", tmp_path / "t.parquet")
    proxy.forget()
    run("index", uri, "--out", tmp_path / "INDEX")
    assert Index(tmp_path / "INDEX").videos.num_rows == count
    assert proxy.count("GET", "t.parquet") <= 5 * count + 5
    assert proxy.body_bytes < (tmp_path / "t.parquet").stat().st_size // 4
