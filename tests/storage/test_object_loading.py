"""Clips from object storage and from web servers have the same frames as clips from a disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from framedex import ClipDataset, ClipLoader, DiskCache, Index
from framedex.errors import StaleError, StorageError
from tests.support.datasets import content, run, shard_clips, write_clips
from tests.support.media import Medium, remux
from tests.support.object_datasets import index_here, same, segments
from tests.support.proxy import Proxy
from tests.support.s3 import Bucket
from tests.support.web import serving


class TestLoading:
    def test_clips_come_out_of_a_bucket_in_every_form(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        names = ["h264_open_gop.mp4", "h264_audio.mp4", "hevc_open_gop.mkv", "h264_vfr.mp4"]
        folder = tmp_path / "v"
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(medium(name).read_bytes())
        remux(medium("h264_audio.mp4"), folder / "stream.ts")
        run("index", folder, "--out", tmp_path / "I")
        truth = ClipDataset(shard_clips(tmp_path / "I", tmp_path / "D", clips_of(names)))
        stored = bucket.put_folder(folder, "v")
        run("index", stored, "--out", f"{bucket.uri}/INDEX", "--workers", 1)
        clips = write_clips(tmp_path / "c.jsonl", clips_of(names))
        moved = ClipDataset(bucket.put_folder(tmp_path / "D", "COPIED"), root=stored)
        same(moved, truth, "a dataset that was copied, of sources that were, too")
        for pack in ([], ["--pack", "clips"], ["--pack", "clips", "--shard-size", "20kB"]):
            out = f"{bucket.uri}/OUT{'-'.join(pack)}"
            run("shard", f"{bucket.uri}/INDEX", "--clips", clips, "--out", out, "--scratch", tmp_path / "s", *pack)
            same(ClipDataset(out), truth, out)
            assert run("verify", out, "--workers", 1).output.count("exact") >= 1
        everything = ["--policy", segments(tmp_path), "--pack", "clips", "--audio"]
        run("shard", f"{bucket.uri}/INDEX", *everything, "--out", f"{bucket.uri}/ALL")
        run("shard", tmp_path / "I", *everything, "--out", tmp_path / "ALL")
        same(
            ClipDataset(f"{bucket.uri}/ALL"),
            ClipDataset(tmp_path / "ALL"),
            "packed with audio, a transport stream among them",
        )
        assert not list((tmp_path / "s").glob("*/DATASET*"))
        assert len(bucket.keys("OUT--pack-clips---shard-size-20kB/shards/")) > 4

    def test_bytes_are_those_of_a_disk(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I")
        pack = ["--pack", "clips", "--shard-size", "50kB"]
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D", *pack)
        run("shard", f"{bucket.uri}/I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D", *pack)
        for name in ("I", "D"):
            local = content(tmp_path / name)
            assert bucket.keys(f"{name}/") == sorted(f"{name}/{key}" for key in local)
            for key in local.keys() - {"log.jsonl"}:
                assert bucket.get(f"{name}/{key}") == (tmp_path / name / key).read_bytes(), key

    def test_a_loader_with_workers_and_a_cache(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
    ) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I")
        run("shard", f"{bucket.uri}/I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D")
        plain, cache = ClipDataset(f"{bucket.uri}/D"), DiskCache(tmp_path / "cache")
        expected = {plain[number]["clip_id"]: plain[number]["frames"] for number in range(len(plain))}
        gets = []
        for _ in range(2):
            proxy.forget()
            dataset = ClipDataset(f"{bucket.uri}/D", cache=cache)
            loader = ClipLoader(dataset, batch_size=2, num_workers=2, output="numpy", collate="list")
            seen = {}
            for batch in loader:
                seen |= dict(zip(batch["clip_id"], batch["frames"], strict=True))
            loader.close()
            assert seen.keys() == expected.keys()
            assert all(np.array_equal(seen[name], expected[name]) for name in expected)
            gets.append(sum("a.mp4" in request.path for request in proxy.requests))
        assert gets[0] > 0
        assert gets[1] == 0

    def test_a_dataloader_of_spawned_workers_and_what_looks_at_datasets(
        self, bucket: Bucket, medium: Medium, tmp_path: Path
    ) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I")
        run("shard", f"{bucket.uri}/I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D")
        dataset = ClipDataset(f"{bucket.uri}/D")
        how = {"batch_size": None, "num_workers": 1}
        loaded = list(DataLoader(dataset, multiprocessing_context="spawn", **how))  # type: ignore[arg-type]
        for number, clip in enumerate(loaded):
            assert np.array_equal(clip["frames"], dataset[number]["frames"])
        with pytest.raises(StorageError, match="spawn"):
            list(DataLoader(dataset, multiprocessing_context="fork", **how))  # type: ignore[arg-type]
        run("inspect", f"{bucket.uri}/D", "--sample", 2, "--out", tmp_path / "sheet.html")
        assert "a.mp4" in (tmp_path / "sheet.html").read_text()
        said = run("bench", f"{bucket.uri}/D", "--workers", 1, "--epochs", 1, "--json").output
        assert '"clips_a_second"' in said

    def test_plans_from_an_index_in_a_bucket(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I")
        run("shard", f"{bucket.uri}/I", "--policy", segments(tmp_path), "--out", tmp_path / "D")
        same(ClipDataset.from_index(f"{bucket.uri}/I", segments(tmp_path)), ClipDataset(tmp_path / "D"), "from_index")

    def test_start_points_that_no_index_looked_at_are_looked_at_by_plans(
        self, bucket: Bucket, all_media: Path, tmp_path: Path, by_ranges: None
    ) -> None:
        paths = sorted(all_media.glob("*.m[po][4v]"))
        for path in paths:
            bucket.put(f"v/{path.name}", path)
        index_here(tmp_path / "STORED", f"{bucket.uri}/v")
        run("index", *paths, "--out", tmp_path / "LOCAL", "--follow-symlinks")
        unknown = [row["uri"] for row in Index(tmp_path / "STORED").videos.to_pylist() if row["open_gop_count"] is None]
        assert "h264_open_gop.mp4" in unknown
        assert "hevc_open_gop.mp4" in unknown
        for name in ("STORED", "LOCAL"):
            run("shard", tmp_path / name, "--policy", segments(tmp_path), "--out", tmp_path / f"D-{name}")
        stored, local = ClipDataset(tmp_path / "D-STORED"), ClipDataset(tmp_path / "D-LOCAL")
        same(stored, local, "ranges")
        assert run("verify", tmp_path / "D-STORED").exit_code == 0

    def test_a_promise_that_a_later_start_point_breaks_is_a_refusal(
        self, bucket: Bucket, medium: Medium, tmp_path: Path, by_ranges: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("framedex.indexer.probing.packet_headers.check_promises", broken_promise)
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        index_here(tmp_path / "I", f"{bucket.uri}/v")
        clips = [{"uri": "a.mp4", "frames": [40, 41]}]
        write_clips(tmp_path / "c.jsonl", clips)
        said = run("shard", tmp_path / "I", "--clips", tmp_path / "c.jsonl", "--out", tmp_path / "D", code=1).output
        assert "sets of their own" in said
        assert "--depth packets" in said


def broken_promise(*_: object, **__: object) -> None:
    raise ValueError("start points carry parameter sets of their own")


class TestWebServers:
    @pytest.mark.parametrize("etags", [True, False])
    def test_clips_come_out_of_a_web_server(self, medium: Medium, tmp_path: Path, etags: bool) -> None:
        folder = tmp_path / "www" / "some videos"
        folder.mkdir(parents=True)
        name = "h264_open_gop.mp4"
        (folder / name).write_bytes(medium(name).read_bytes())
        os.utime(folder / name, (1_700_000_000, 1_700_000_000))
        run("index", folder / name, "--out", tmp_path / "LOCAL")
        truth = ClipDataset(shard_clips(tmp_path / "LOCAL", tmp_path / "L", clips_of([name])))
        with serving(tmp_path / "www", etags=etags) as address:
            root = f"{address}/some%20videos"
            run("index", f"{root}/{name}", "--out", tmp_path / "I")
            dataset = ClipDataset(shard_clips(tmp_path / "I", tmp_path / "D", clips_of([name])))
            same(dataset, truth, "a web server")
            assert (
                json.loads(run("index", f"{root}/{name}", "--out", tmp_path / "I", "--json").output)["unchanged"] == 1
            )
            run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "T", "--pack", "clips")
            assert run("verify", tmp_path / "T").exit_code == 0
            (folder / name).write_bytes(medium(name).read_bytes()[:-1] + b"x")
            os.utime(folder / name, (1_700_000_009, 1_700_000_009))
            with pytest.raises(StaleError):
                dataset[0]
            assert "cannot list the files" in run("index", f"{root}/", "--out", tmp_path / "J", code=1).output


def clips_of(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"uri": name, "frames": [start, start + 1, start + 7]} for name in names for start in (30, 3, 17)]
