"""Datasets of the Hugging Face Hub: revisions become commits, the token goes to the Hub alone, and faults are said."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index
from framedex.errors import SourceError, StaleError, StorageError
from framedex.storage import objects, places
from framedex.storage.hub import pinned
from tests.support.datasets import content, run, write_clips
from tests.support.hub import TOKEN, Hub
from tests.support.images import rows, tar_of
from tests.support.media import Medium
from tests.support.object_datasets import forget_connections

NAMES = ("h264_open_gop.mp4", "hevc_open_gop.mkv", "h264_audio.mp4")


def videos(medium: Medium) -> dict[str, bytes]:
    return {f"data/{name}": medium(name).read_bytes() for name in NAMES} | {"README.md": b"A dataset."}


def test_a_revision_becomes_its_commit(hub: Hub) -> None:
    first = hub.commit({"a": b"1"})
    second = hub.commit({"a": b"2"}, branch="v2/x")
    assert pinned("hf://datasets/some/one/a") == f"hf://datasets/some/one@{first}/a"
    assert pinned("hf://datasets/some/one@v2%2Fx") == f"hf://datasets/some/one@{second}"
    assert pinned(f"hf://datasets/some/one@{second}/a") == f"hf://datasets/some/one@{second}/a"
    assert pinned("s3://bucket/a") == "s3://bucket/a"
    with pytest.raises(SourceError, match="does not name a dataset"):
        pinned("hf://some/model/a")
    with pytest.raises(StorageError, match="no such revision"):
        pinned("hf://datasets/some/one@none/a")


@pytest.mark.parametrize("size", [10, 5000])
def test_ranges_of_small_and_large_files(hub: Hub, size: int) -> None:
    data = bytes(range(250)) * (size // 250 + 1)
    hub.commit({"folder/näme 1.bin": data[:size]})
    uri = pinned("hf://datasets/some/one/folder/näme 1.bin")
    facts = objects.head(uri)
    assert facts.size_bytes == size
    assert bytes(objects.fetch(uri, 3, 9, facts)[0]) == data[3:9]
    assert bytes(objects.fetch_end(uri, 4)[0]) == data[:size][-4:]
    assert objects.children(uri.rpartition("/")[0]) == {"näme 1.bin": facts}
    assert objects.children(f"{uri.rpartition('/')[0]}/none") == {}


def test_the_token_goes_to_the_hub_alone(hub: Hub) -> None:
    hub.commit({"a.bin": bytes(5000)})
    uri = pinned("hf://datasets/gated/gated/a.bin")
    facts = objects.head(uri)
    assert len(objects.fetch(uri, 0, 5000, facts)[0]) == 5000
    assert {headers.get("authorization") for _, _, headers in hub.requests} == {f"Bearer {TOKEN}"}
    assert len(hub.stored) >= 1
    assert {headers.get("authorization") for _, _, headers in hub.stored} == {None}


def test_a_signed_address_is_used_until_it_expires(hub: Hub) -> None:
    hub.commit({"a.bin": bytes(5000)})
    uri = pinned("hf://datasets/some/one/a.bin")
    facts = objects.head(uri)
    before = len(hub.requests)
    for begin in range(5):
        objects.fetch(uri, begin, begin + 9, facts)
    assert len(hub.requests) == before + 1
    hub.signature = "second"
    assert len(objects.fetch(uri, 0, 9, facts)[0]) == 9
    assert len(hub.requests) == before + 2


def test_without_a_token_a_gated_dataset_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit({"a.bin": bytes(5000)})
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(StorageError, match="accepted the dataset's conditions") as error:
        pinned("hf://datasets/some/gated/a.bin")
    assert error.value.kind == "denied"
    with pytest.raises(StorageError) as error:
        objects.head(f"hf://datasets/some/gated@{hub.branches['main']}/a.bin")
    assert error.value.kind == "denied"


def test_another_commit_size_or_content_is_an_error(hub: Hub) -> None:
    hub.commit({"a.bin": bytes(5000)})
    uri = pinned("hf://datasets/some/one/a.bin")
    facts = objects.head(uri)
    hub.faults["size"] = b"more"
    with pytest.raises(StorageError, match="another size than the file on the Hub"):
        objects.fetch(uri, 0, 9, facts)
    hub.faults = {"commit": "0" * 40}
    with pytest.raises(StorageError, match="answers with another revision"):
        objects.head(uri)
    hub.faults = {}
    forget_connections()
    hub.commits[hub.branches["main"]]["a.bin"] = b"\1" * 5000
    with pytest.raises(StorageError) as error:
        objects.fetch(uri, 0, 9, facts)
    assert error.value.kind == "changed"


def test_a_range_that_ends_early_is_requested_again(hub: Hub) -> None:
    hub.commit({"a.bin": bytes(range(250)) * 20})
    uri = pinned("hf://datasets/some/one/a.bin")
    facts = objects.head(uri)
    hub.faults["short"] = 2
    assert bytes(objects.fetch(uri, 5, 50, facts)[0]) == bytes(range(5, 50))


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/x", "http://u:p@127.0.0.1/x", "file:///etc/passwd", ""])
def test_redirects_that_are_no_web_addresses_are_refused(hub: Hub, target: str) -> None:
    hub.commit({"a.bin": bytes(5000)})
    hub.faults["elsewhere"] = target
    with pytest.raises(StorageError) as error:
        objects.fetch(pinned("hf://datasets/some/one/a.bin"), 0, 9)
    assert error.value.kind == "redirected"
    assert "u:p" not in str(error.value)


def test_a_dataset_is_indexed_at_its_commit_and_stays_there(hub: Hub, medium: Medium, tmp_path: Path) -> None:
    commit = hub.commit(videos(medium))
    run("index", "hf://datasets/some/one/data", "--out", tmp_path / "INDEX", "--workers", 2)
    index = Index(tmp_path / "INDEX")
    assert index.root == f"hf://datasets/some/one@{commit}/data"
    assert sorted(row["uri"] for row in index.videos.to_pylist() if row["status"] == "ok") == sorted(NAMES)
    clips = write_clips(tmp_path / "c.jsonl", [{"uri": name, "frames": [3, 30]} for name in NAMES])
    run("shard", tmp_path / "INDEX", "--clips", clips, "--out", tmp_path / "D")
    assert "3 exact" in run("verify", tmp_path / "D").output
    hub.commit({"data/other.mp4": medium(NAMES[0]).read_bytes()})
    assert ClipDataset(tmp_path / "D")[0]["frames"].shape[0] == 2
    assert "0 files new" in run("index", index.root, "--out", tmp_path / "INDEX").output
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN.encode() not in written
    assert b"Signature" not in written
    assert content(tmp_path / "INDEX")


def test_tars_parquet_files_and_lists_of_the_hub(hub: Hub, medium: Medium, tmp_path: Path) -> None:
    video = medium(NAMES[0]).read_bytes()
    parquet = io.BytesIO()
    table = pa.table({"video": pa.array([{"bytes": video}], pa.struct([("bytes", pa.binary())])), "n": [7]})
    pq.write_table(table, parquet, compression="none")
    tar = tar_of(tmp_path / "t.tar", [("k.mp4", video), ("k.json", json.dumps({"n": 5}).encode())])
    hub.commit({"t.tar": tar.read_bytes(), "data/p.parquet": parquet.getvalue(), "a.mp4": video})
    (tmp_path / "list.txt").write_text("hf://datasets/some/one/a.mp4\n")
    sources = ["hf://datasets/some/one/t.tar", "hf://datasets/some/one/data/*.parquet", tmp_path / "list.txt"]
    run("index", *sources, "--out", tmp_path / "INDEX")
    found = rows(Index(tmp_path / "INDEX"))
    at = f"hf://datasets/some/one@{hub.branches['main']}"
    assert {name: row["status"] for name, row in found.items()} == dict.fromkeys(
        [f"{at}/a.mp4", f"{at}/data/p.parquet/video/0", f"{at}/t.tar/k.mp4"], "ok"
    )
    assert sorted(n for n in Index(tmp_path / "INDEX").listing["n"].to_pylist() if n) == [5, 7]


def test_a_dataset_of_clips_is_read_from_the_hub(hub: Hub, medium: Medium, tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v/a.mp4").write_bytes(medium(NAMES[0]).read_bytes())
    run("index", tmp_path / "v", "--out", tmp_path / "INDEX")
    clips = write_clips(tmp_path / "c.jsonl", [{"uri": "a.mp4", "frames": [3, 30]}])
    run("shard", tmp_path / "INDEX", "--clips", clips, "--out", tmp_path / "D", "--pack", "clips")
    paths = [path for path in (tmp_path / "D").rglob("*") if path.is_file()]
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in paths}
    hub.commit(files)
    ours, theirs = ClipDataset("hf://datasets/some/one/D")[0], ClipDataset(tmp_path / "D")[0]
    assert (ours["frames"] == theirs["frames"]).all()
    assert str(places.place("hf://datasets/some/one/D")) == f"hf://datasets/some/one@{hub.branches['main']}/D"
    assert (
        "cannot write to a web server or the Hub"
        in run("index", "x", "--out", "hf://datasets/some/one/I", code=2).output
    )


def test_a_file_that_is_not_at_its_commit_any_more_is_stale(hub: Hub, medium: Medium, tmp_path: Path) -> None:
    commit = hub.commit(videos(medium))
    run("index", "hf://datasets/some/one/data", "--out", tmp_path / "INDEX")
    clips = write_clips(tmp_path / "c.jsonl", [{"uri": NAMES[0], "frames": [3]}])
    run("shard", tmp_path / "INDEX", "--clips", clips, "--out", tmp_path / "D")
    del hub.commits[commit][f"data/{NAMES[0]}"]
    forget_connections()
    with pytest.raises(StaleError):
        ClipDataset(tmp_path / "D")[0]
