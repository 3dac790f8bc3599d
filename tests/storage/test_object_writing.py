"""Indexes and datasets are written to object storage once, by one run at a time, and can be resumed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index
from framedex.errors import FramedexError, OutputError
from framedex.execution.engine import run_local
from tests.support import proxy as proxies
from tests.support.datasets import content, run
from tests.support.media import Medium
from tests.support.object_datasets import index_here, same, segments
from tests.support.proxy import Proxy, Spoil
from tests.support.s3 import Bucket


class TestWriting:
    def test_of_two_runs_that_write_an_index_one_is_refused(self, bucket: Bucket, medium: Medium) -> None:
        for name in ("h264_default.mp4", "h264_open_gop.mp4"):
            bucket.put(f"v/{name}", medium(name))
        out = f"{bucket.uri}/I"
        run("index", f"{bucket.uri}/v/h264_default.mp4", "--root", f"{bucket.uri}/v", "--out", out)

        def meanwhile(*arguments: Any, **options: Any) -> Iterator[Any]:
            run("index", f"{bucket.uri}/w", "--root", f"{bucket.uri}/v", "--out", out)
            return run_local(*arguments, **options)

        bucket.put("w/c.mp4", medium("h264_baseline.mp4"))
        given = Index(out).path, f"{bucket.uri}/v"
        with pytest.raises(OutputError, match="another run"):
            index_here(*given, engine=meanwhile)
        index = Index(out)
        found = sorted(uri.rpartition("/")[2] for uri in index.columns(["uri"])["uri"].to_pylist())
        assert found == ["c.mp4", "h264_default.mp4"]
        index_here(*given)
        assert len(Index(out)) == len(Index(out).listing) == 3

    def test_half_a_part_that_a_killed_run_left_is_passed_over(
        self, bucket: Bucket, medium: Medium, tmp_path: Path
    ) -> None:
        bucket.put("v/a.mp4", medium("h264_single.mp4"))
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I")
        bucket.put("I/frames/part-000001.parquet", b"of a run that was killed")
        bucket.put("v/b.mp4", medium("h264_single.mp4"))
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I")
        index = Index(f"{bucket.uri}/I")
        assert [len(index.packets(name).size) for name in index.columns(["media_id"])["media_id"].to_pylist()] == [1, 1]

    def test_slices_and_compaction(
        self, bucket: Bucket, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("framedex.indexer.parts.part_pairs.FILES_A_PART", 1)
        monkeypatch.setattr("framedex.indexer.runs.build.FILES_A_PART", 1)
        for number in range(3):
            bucket.put(f"v/{number}.mp4", medium("h264_single.mp4"))
        out, sources = f"{bucket.uri}/I", f"{bucket.uri}/v"
        run("index", sources, "--out", out, "--task", "1/2")
        assert "missing" in run("index", sources, "--out", out, "--finish", code=1).output
        run("index", sources, "--out", out, "--task", "0/2")
        report = json.loads(run("index", sources, "--out", out, "--finish", "--json").output)
        assert (report["ok"], len(Index(out))) == (3, 3)
        run("index", sources, "--out", tmp_path / "I")
        for key in bucket.keys("I/videos/") + bucket.keys("I/frames/"):
            assert bucket.get(key) == (tmp_path / key).read_bytes()
        run("index", "--compact", "--out", out)
        assert len(bucket.keys("I/videos/")) == 1
        assert sorted(Index(out).columns(["uri"])["uri"].to_pylist()) == ["0.mp4", "1.mp4", "2.mp4"]

    def test_media_are_pruned_and_removed_to_the_last_byte(self, bucket: Bucket, medium: Medium) -> None:
        names = [f"secret{number}" for number in range(12)]
        for name in names:
            bucket.put(f"v/{name}.mp4", medium("h264_single.mp4"))

        def put_listing(count: int) -> str:
            lines = [f"{bucket.uri}/v/{name}.mp4,caption of {name}" for name in names[:count]]
            bucket.put("listing.csv", "\n".join(["uri,caption", *lines]).encode())
            return f"{bucket.uri}/listing.csv"

        out = f"{bucket.uri}/I"
        run("index", put_listing(12), "--out", out)
        report = json.loads(run("index", put_listing(11), "--out", out, "--prune", "--json").output)
        assert report["pruned"] == 1
        run("index", "--remove", f"{bucket.uri}/v/secret10.mp4", out)
        bucket.put("I/frames/part-000009.parquet", b"of a run that was killed, with secret11")
        run("index", "--compact", "--out", out)
        left = Index(out)
        assert len(left) == len(left.listing) == 10
        for key in bucket.keys("I/"):
            assert not any(word in bucket.get(key) for word in (b"secret10", b"secret11")), key
        lines = [json.loads(line) for line in run("log", out, "--json").output.splitlines()]
        assert [line["generation"] for line in lines] == [1, 2, 3, 4]
        before = {key: bucket.get(key) for key in bucket.keys("I/")}
        run("index", "--compact", "--out", out)
        run("index", put_listing(10), "--out", out, "--prune")
        run("index", "--remove", "secret10.mp4", out)
        assert {key: bucket.get(key) for key in bucket.keys("I/")}.keys() == before.keys()

    def test_media_are_removed_from_a_dataset_to_the_last_byte(
        self, bucket: Bucket, medium: Medium, tmp_path: Path
    ) -> None:
        for number in range(9):
            bucket.put(f"v/secret{number}.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
        policy = "{policy: fps, fps: 4, frames: 2}"
        out = f"{bucket.uri}/D"
        run("shard", tmp_path / "I", "--policy", policy, "--out", out, "--pack", "clips", "--shard-size", "100kB")
        reader = ClipDataset(out)
        before = {item["clip_id"]: item for item in map(reader.__getitem__, range(len(reader)))}
        keys = set(bucket.keys("D/"))
        old_tars = {key: bucket.get(key) for key in keys if key.endswith(".tar")}
        assert len(old_tars) >= 4
        gone = f"{bucket.uri}/v/secret4.mp4"
        claim = {"command": "shard", "options": {"remove": 1, "what": "of another command"}}
        bucket.put("D/unfinished.json", json.dumps(claim).encode())
        said = run("shard", out, "--remove", gone, code=1).output
        assert "another run is changing this dataset, or was interrupted" in said
        bucket.delete("D/unfinished.json")
        bucket.put("D/clips/part-000099.parquet", b"of a run that was killed, with secret4.mp4")
        report = json.loads(run("shard", out, "--remove", gone, "--json").output)
        assert report["media"] == 1
        assert 1 <= report["tars"] < len(old_tars)
        for key in bucket.keys("D/"):
            assert b"secret4.mp4" not in bucket.get(key), key
            assert not key.endswith(".parquet") or "secret4" not in str(
                pq.read_table(io.BytesIO(bucket.get(key))).to_pylist()
            ), key
        kept = {key for key in old_tars if key in bucket.keys("D/")}
        assert len(kept) == len(old_tars) - report["tars"]
        assert all(bucket.get(key) == old_tars[key] for key in kept)
        with pytest.raises(FramedexError, match="the dataset was changed since it was opened"):
            reader[next(n for n, name in enumerate(before) if reader.clip(n).medium.uri.endswith("secret4.mp4"))]
        left = ClipDataset(out)
        assert len(left) == report["left"] == len(before) - report["clips"]
        for item in map(left.__getitem__, range(len(left))):
            assert (item["frames"] == before[item["clip_id"]]["frames"]).all()
        files = {key: bucket.get(key) for key in bucket.keys("D/")}
        assert "0 media with 0 clips removed" in run("shard", out, "--remove", gone).output
        assert {key: bucket.get(key) for key in bucket.keys("D/")} == files
        run("verify", out)

    def test_a_dataset_is_written_once(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
        arguments = ["shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D"]
        run(*arguments)
        before = bucket.keys("D/")
        assert "finished before, nothing was written" in run(*arguments).output
        assert "already has a dataset" in run(*arguments, "--damaged", "keep", code=1).output
        run(*arguments, "--overwrite", "--pack", "clips")
        assert set(bucket.keys("D/")) - set(before)
        own = bucket.put("F/clips/holiday.mp4", b"a video of the user's")
        said = run(*arguments[:-1], f"{bucket.uri}/F", "--overwrite", code=1).output
        assert "do not belong to a dataset" in said
        assert "holiday.mp4" in said
        assert own
        assert bucket.keys("F/") == ["F/clips/holiday.mp4"]
        bucket.put("H/policy.yaml", b"the user's")
        bucket.put("J/dataset.json", b"{}")
        for place in ("H", "J"):
            said = run(*arguments[:-1], f"{bucket.uri}/{place}", "--overwrite", code=1).output
            assert "do not belong to a dataset" in said
        bucket.put("G/videos/mine.mp4", b"")
        assert "is not an index" in run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/G", code=1).output
        bucket.put("D2/dataset.json", b"of another one whose name begins alike")
        run(*arguments, "--overwrite")
        assert bucket.get("D2/dataset.json").startswith(b"of another")
        bucket.put("E/else.txt", b"")
        assert "do not belong to a dataset" in run(*arguments[:-1], f"{bucket.uri}/E", code=1).output

    def test_a_dataset_that_takes_the_place_of_another_leaves_nothing_of_it(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FRAMEDEX_STORAGE_RETRIES", "0")
        monkeypatch.setattr("framedex.storage.objects.TRIES", 1)
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
        policy = ["shard", tmp_path / "I", "--policy", segments(tmp_path)]
        stored = ["--out", f"{bucket.uri}/D", "--scratch", tmp_path / "scratch"]
        run(*policy, *stored, "--pack", "clips", "--shard-size", "20kB")
        proxy.rule = lambda request: Spoil(status=500) if request.method in ("DELETE", "POST") else None
        run(*policy, *stored, "--overwrite", code=1)
        bucket.put("D/notes.txt", b"of somebody else")
        proxy.rule = lambda request: None
        run(*policy, *stored)
        run(*policy, "--out", tmp_path / "D")
        assert bucket.keys("D/") == sorted(["D/notes.txt", *(f"D/{key}" for key in content(tmp_path / "D"))])
        same(ClipDataset(f"{bucket.uri}/D"), ClipDataset(tmp_path / "D"), "in the place of another")

    def test_a_run_that_is_broken_off_goes_on_and_keeps_others_out(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FRAMEDEX_STORAGE_RETRIES", "0")
        monkeypatch.setattr("framedex.storage.objects.TRIES", 1)
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
        arguments = ["shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D"]
        arguments += ["--pack", "clips", "--shard-size", "20kB", "--scratch"]
        uploads: list[str] = []

        def fail_at_last(request: proxies.HttpRequest) -> Spoil | None:
            if request.method == "PUT" and request.path.split("?")[0].endswith(".tar"):
                uploads.append(request.path)
            return Spoil(status=500) if len(uploads) > 2 else None

        proxy.rule = fail_at_last
        run(*arguments, tmp_path / "scratch", code=1)
        shipped = [key for key in bucket.keys("D/shards/") if key.endswith(".tar")]
        assert len(shipped) == 2
        assert "D/dataset.json" not in bucket.keys("D/")
        proxy.rule = lambda request: None
        assert "another run" in run(*arguments, tmp_path / "elsewhere", code=1).output
        proxy.forget()
        assert "taken up" in run(*arguments, tmp_path / "scratch").output
        again = [request.path for request in proxy.requests if request.method == "PUT" and shipped[0] in request.path]
        assert again == []
        assert "D/unfinished.json" not in bucket.keys("D/")
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D", "--pack", "clips",
            "--shard-size", "20kB", "--workers", 1)  # fmt: skip
        for key in content(tmp_path / "D").keys() - {"log.jsonl"}:
            assert bucket.get(f"D/{key}") == (tmp_path / "D" / key).read_bytes(), key

    def test_a_web_server_is_not_written_to(self, medium: Medium, tmp_path: Path) -> None:
        said = run("index", medium("h264_single.mp4"), "--out", "https://127.0.0.1:9/I", code=2).output
        assert "cannot write to a web server or the Hub" in said
