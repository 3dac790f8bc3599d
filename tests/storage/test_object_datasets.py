"""Media, indexes and datasets in object storage: the same rows, the same bytes, the same frames as on a disk."""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from framedex import ClipDataset, ClipLoader, DiskCache, Index
from framedex.errors import FramedexError, OutputError, PolicyError, SourceError, StaleError, StorageError
from framedex.execution.engine import Outcome
from framedex.indexer.probing.probe import ProbeTask, probe_medium
from framedex.indexer.runs import objects as probing
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.objects import probe_object
from framedex.indexer.runs.work import IndexOptions
from framedex.indexer.timeline import HIDDEN
from framedex.storage import stores
from tests.support import proxy as proxies
from tests.support.datasets import content, run, shard_clips, write_clips
from tests.support.images import encoded, tar_of
from tests.support.media import remux
from tests.support.proxy import Proxy, Spoil
from tests.support.s3 import Bucket
from tests.support.web import serving

Medium = Callable[[str], Path]
ALIKE = ("h264_open_gop.mp4", "hevc_open_gop.mkv", "h264_audio.mp4", "h264_fragmented.mp4", "hevc_radl.mp4")
OF_FILES = {"mtime_ns", "fingerprint", "probed_by"}


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy through which framedex reaches the service."""
    with proxies.running(bucket.service.endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        stores._store.cache_clear()
        yield running
    stores._store.cache_clear()


def here(function: Callable[[Any], Any], items: Iterable[Any], **_: Any) -> Iterator[Outcome[Any, Any]]:
    """An engine that probes in this process."""
    for item in items:
        yield Outcome(item=item, result=None if item.task is None else function(item))


def columns(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in OF_FILES}


def packets_alike(
    ours: dict[str, Any], theirs: dict[str, Any], names: Iterable[str] = ("pts", "offset", "size")
) -> None:
    for name in names:
        assert np.array_equal(ours[name], theirs[name]), name


class TestProbing:
    def test_a_bucket_gives_the_rows_of_a_folder(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        paths = [medium(name) for name in ALIKE]
        for path in paths:
            bucket.put(f"videos/deep/{path.name}", path)
        run("index", f"{bucket.uri}/videos", "--out", tmp_path / "STORED", "--workers", 2)
        run("index", *paths, "--out", tmp_path / "LOCAL", "--workers", 2)
        stored, local = Index(tmp_path / "STORED"), Index(tmp_path / "LOCAL")
        assert stored.root == f"{bucket.uri}/videos"
        rows = {row["uri"].removeprefix("deep/"): row for row in stored.videos.to_pylist()}
        for row in local.videos.to_pylist():
            other = rows.pop(row["uri"])
            assert columns(other) == columns(row) | {name: other[name] for name in ("media_id", "uri")}
            assert other["fingerprint"].startswith("etag ")
            ours, theirs = stored.packets(other["media_id"]), local.packets(row["media_id"])
            packets_alike(
                {name: getattr(ours, name) for name in ("pts", "offset", "size", "flags")},
                {name: getattr(theirs, name) for name in ("pts", "offset", "size", "flags")},
            )
        assert not rows

    def test_ranges_tell_what_the_whole_file_tells(
        self, bucket: Bucket, all_media: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probing, "WHOLE_BYTES", 0)
        by_ranges = 0
        for path in sorted(all_media.glob("*.m[po][4v]")):
            ((video, frames),) = probe_object(ProbeTask(path=bucket.put(path.name, path)))
            ((other, packets),) = probe_medium(ProbeTask(path=str(path)))
            packets_alike(frames, packets)
            if video["depth"] != other["depth"]:  # recovery points that the first samples do not show
                assert path.name in ("h264_intra_refresh.mp4", "h264_open_gop.mp4")
                continue
            different = {name for name in other if video.get(name) != other[name]} - OF_FILES
            assert different <= {"open_gop_count"}, path.name
            by_ranges += video["depth"] == "tables" and video["open_gop_count"] is None
        assert by_ranges > 5

    def test_a_tail_that_an_edit_list_hides_is_not_taken_on_trust(
        self, bucket: Bucket, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probing, "WHOLE_BYTES", 0)
        data = bytearray(medium("h264_default.mp4").read_bytes())
        at = data.index(b"elst") + 12  # its only entry: a duration, in the movie's timescale
        struct.pack_into(">I", data, at, struct.unpack_from(">I", data, at)[0] * 9 // 10)
        (tmp_path / "a.mp4").write_bytes(data)
        ((video, _),) = probe_object(ProbeTask(path=bucket.put("a.mp4", bytes(data))))
        ((other, frames),) = probe_medium(ProbeTask(path=str(tmp_path / "a.mp4")))
        assert np.flatnonzero(np.ma.getdata(frames["flags"]) & HIDDEN).min() > 12  # behind the first start points
        assert columns(video) == columns(other)

    def test_a_long_mp4_takes_few_requests(self, bucket: Bucket, proxy: Proxy, long_mp4: Path) -> None:
        for name, path in (("end.mp4", long_mp4), ("front.mp4", long_mp4.with_name("front.mp4"))):
            assert path.stat().st_size > 25 << 20
            uri = bucket.put(name, path)
            proxy.forget()
            ((video, frames),) = probe_object(ProbeTask(path=uri))
            assert (video["status"], video["depth"]) == ("ok", "tables")
            assert len(proxy.requests) <= 4
            assert proxy.body_bytes <= 1 << 20
            ((_, packets),) = probe_medium(ProbeTask(path=str(path)))
            packets_alike(frames, packets)

    @pytest.mark.parametrize("number", [1, 2])
    def test_an_object_that_is_replaced_while_it_is_probed(
        self, bucket: Bucket, proxy: Proxy, long_mp4: Path, number: int
    ) -> None:
        uri = bucket.put("a.mp4", long_mp4)
        changed = long_mp4.with_name("front.mp4").read_bytes()

        def replace_it(request: proxies.ExplicitClip) -> None:
            if request.number == number:
                bucket.put("a.mp4", changed)

        proxy.rule = replace_it
        ((video, frames),) = probe_object(ProbeTask(path=uri))
        assert (video["status"], video["error_kind"]) == ("failed", "changing")
        assert len(frames["pts"]) == 0

    def test_fragments_far_apart_are_copied(
        self, bucket: Bucket, proxy: Proxy, long_mp4: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        remux(long_mp4, tmp_path / "frag.mp4", movflags="frag_keyframe+empty_moov")
        uri = bucket.put("frag.mp4", tmp_path / "frag.mp4")
        proxy.forget()
        ((video, frames),) = probe_object(ProbeTask(path=uri))
        assert len(proxy.requests) < 20
        ((other, packets),) = probe_medium(ProbeTask(path=str(tmp_path / "frag.mp4")))
        packets_alike(frames, packets)
        assert columns(video) == columns(other)
        assert capfd.readouterr().err == ""

    def test_changes_are_found_by_listing_alone(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
    ) -> None:
        for name in ("h264_default.mp4", "h264_open_gop.mp4", "h264_baseline.mp4"):
            bucket.put(f"v/{name}", medium(name))
        source, out = f"{bucket.uri}/v", tmp_path / "INDEX"
        run("index", source, "--out", out, "--workers", 1)
        proxy.forget()
        report = json.loads(run("index", source, "--out", out, "--json").output)
        assert (report["unchanged"], report["new"]) == (3, 0)
        assert len(proxy.requests) == 1
        bucket.put("v/h264_default.mp4", medium("h264_vfr.mp4"))
        bucket.delete("v/h264_baseline.mp4")
        bucket.put("v/new.mp4", medium("h264_single.mp4"))
        report = json.loads(run("index", source, "--out", out, "--json", "--workers", 1).output)
        assert [report[name] for name in ("new", "changed", "gone", "unchanged")] == [1, 1, 1, 1]
        uris = Index(out).columns(["uri"])["uri"].to_pylist()
        assert sorted(uris) == ["h264_default.mp4", "h264_open_gop.mp4", "new.mp4"]

    def test_sources_are_folders_patterns_lists_and_listings(
        self, bucket: Bucket, medium: Medium, tmp_path: Path
    ) -> None:
        path = medium("h264_single.mp4")
        for key in ("v/a/1.mp4", "v/b/2.mp4", "v/b/.hidden/3.mp4", "w/4.mkv"):
            bucket.put(key, path)
        bucket.put("list.txt", f"v/a/1.mp4 7\n{bucket.uri}/v/b/2.mp4 8\n".encode())
        bucket.put("rows.csv", b"uri,label\nv/a/1.mp4,cat\n")

        def found(*sources: str) -> list[str]:
            plan = json.loads(run("index", *sources, "--out", tmp_path / "NONE", "--dry-run", "--json").output)
            return [name.rpartition("/")[2] for name in plan["probe"]]

        assert found(f"{bucket.uri}/v/*/?.mp4") == ["1.mp4", "2.mp4"]
        assert found(f"{bucket.uri}/**/*.mk[uv]") == ["4.mkv"]
        assert found(f"{bucket.uri}/**/*.mp4") == ["1.mp4", "2.mp4"]
        assert found(f"@{bucket.uri}/list.txt") == ["1.mp4", "2.mp4"]
        assert found(f"{bucket.uri}/rows.csv", f"{bucket.uri}/w/4.mkv") == ["1.mp4", "4.mkv"]
        assert "matches nothing" in run("index", f"{bucket.uri}/*.avi", "--out", tmp_path / "NONE", code=1).output
        run("index", f"{bucket.uri}/rows.csv", "--out", tmp_path / "LABELS", "--workers", 1)
        assert Index(tmp_path / "LABELS").listing["label"].to_pylist() == ["cat"]

    def test_what_is_not_there_is_a_row(self, bucket: Bucket, tmp_path: Path) -> None:
        broken = bucket.put("broken.mp4", b"no video at all")
        report = json.loads(
            run(
                "index", broken, f"{bucket.uri}/none.mp4", "--out", tmp_path / "I", "--json", "--workers", 1, code=3
            ).output
        )
        kinds = {problem["uri"]: problem["error_kind"] for problem in report["problems"]}
        assert kinds == {"broken.mp4": "not_media", "none.mp4": "missing"}

    def test_images_of_a_folder_and_of_a_tar(self, bucket: Bucket, tmp_path: Path) -> None:
        tar_of(tmp_path / "seq.tar", [(f"s/{number:03d}.png", encoded(number)) for number in range(4)])
        bucket.put("images/seq.tar", tmp_path / "seq.tar")
        for number in range(3):
            bucket.put(f"images/loose/{number:03d}.png", encoded(number + 10))
        run("index", f"{bucket.uri}/images", "--out", tmp_path / "I", "--workers", 1)
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D")
        assert run("verify", tmp_path / "D").exit_code == 0
        dataset = ClipDataset(tmp_path / "D")
        assert {dataset[number]["uri"] for number in range(len(dataset))} == {"seq.tar", "loose"}


class TestLoading:
    def test_clips_come_out_of_a_bucket_in_every_form(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        names = ["h264_open_gop.mp4", "h264_audio.mp4", "hevc_open_gop.mkv", "h264_vfr.mp4"]
        folder = tmp_path / "v"
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(medium(name).read_bytes())
        remux(medium("h264_audio.mp4"), folder / "stream.ts")
        run("index", folder, "--out", tmp_path / "I", "--workers", 1)
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
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I", "--workers", 1)
        pack = ["--pack", "clips", "--shard-size", "50kB"]
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D", *pack)
        run("shard", f"{bucket.uri}/I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D", *pack)
        for name in ("I", "D"):
            local = content(tmp_path / name)
            assert bucket.keys(f"{name}/") == sorted(f"{name}/{key}" for key in local)
            for key in local:
                assert bucket.get(f"{name}/{key}") == (tmp_path / name / key).read_bytes(), key

    def test_a_loader_with_workers_and_a_cache(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
    ) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I", "--workers", 1)
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
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I", "--workers", 1)
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
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I", "--workers", 1)
        run("shard", f"{bucket.uri}/I", "--policy", segments(tmp_path), "--out", tmp_path / "D")
        same(ClipDataset.from_index(f"{bucket.uri}/I", segments(tmp_path)), ClipDataset(tmp_path / "D"), "from_index")

    def test_start_points_that_no_index_looked_at_are_looked_at_by_plans(
        self, bucket: Bucket, all_media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probing, "WHOLE_BYTES", 0)
        paths = sorted(all_media.glob("*.m[po][4v]"))
        for path in paths:
            bucket.put(f"v/{path.name}", path)
        build_index(IndexOptions(sources=[f"{bucket.uri}/v"], out=tmp_path / "STORED", engine=here))
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
        self, bucket: Bucket, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("framedex.sharder.planning.unread_headers.check_promises", broken_promise)
        monkeypatch.setattr(probing, "WHOLE_BYTES", 0)
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        build_index(IndexOptions(sources=[f"{bucket.uri}/v"], out=tmp_path / "I", engine=here))
        clips = [{"uri": "a.mp4", "frames": [40, 41]}]
        write_clips(tmp_path / "c.jsonl", clips)
        said = run("shard", tmp_path / "I", "--clips", tmp_path / "c.jsonl", "--out", tmp_path / "D", code=3).output
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
        run("index", folder / name, "--out", tmp_path / "LOCAL", "--workers", 1)
        truth = ClipDataset(shard_clips(tmp_path / "LOCAL", tmp_path / "L", clips_of([name])))
        with serving(tmp_path / "www", etags=etags) as address:
            root = f"{address}/some%20videos"
            run("index", f"{root}/{name}", "--out", tmp_path / "I", "--workers", 1)
            dataset = ClipDataset(shard_clips(tmp_path / "I", tmp_path / "D", clips_of([name])))
            same(dataset, truth, "a web server")
            assert (
                json.loads(run("index", f"{root}/{name}", "--out", tmp_path / "I", "--json").output)["unchanged"] == 1
            )
            run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "T", "--pack", "clips")
            assert run("verify", tmp_path / "T", "--workers", 1).exit_code == 0
            (folder / name).write_bytes(medium(name).read_bytes()[:-1] + b"x")
            os.utime(folder / name, (1_700_000_009, 1_700_000_009))
            with pytest.raises(StaleError):
                dataset[0]
            assert "does not list" in run("index", f"{root}/", "--out", tmp_path / "J", code=1).output


class TestFaults:
    def test_a_replaced_object_is_stale(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D")
        dataset = ClipDataset(tmp_path / "D")
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4").read_bytes()[:-1] + b"x")
        with pytest.raises(StaleError, match=r"412|other"):
            dataset[0]
        bucket.delete("v/a.mp4")
        with pytest.raises(StaleError, match="404"):
            dataset[0]
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        assert dataset[0]["frames"].shape[0] > 0

    def test_a_replaced_tar_is_stale(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D", "--pack", "clips")
        (key,) = [key for key in bucket.keys("D/shards/") if key.endswith(".tar")]
        bucket.put(key, bucket.get(key)[:-2000] + bytes(2000))
        with pytest.raises(StaleError, match="other content"):
            ClipDataset(f"{bucket.uri}/D")[0]

    def test_loading_lives_through_a_store_that_stumbles(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
    ) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D")
        dataset = ClipDataset(tmp_path / "D")
        expected = [dataset[number]["frames"] for number in range(len(dataset))]
        spoils = [Spoil(status=500), Spoil(status=503, code="SlowDown"), Spoil(cut_after=100), Spoil(seconds=0.3), None]
        proxy.forget()
        proxy.rule = lambda request: spoils[request.number % len(spoils)]
        for number in range(len(dataset)):
            assert np.array_equal(dataset[number]["frames"], expected[number])
        assert len(proxy.requests) > len(dataset)

    def test_expired_credentials_end_a_run_and_are_no_faults_of_clips(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
    ) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D")
        proxy.rule = lambda request: Spoil(status=403, code="ExpiredToken")
        loader = ClipLoader(ClipDataset(tmp_path / "D"), batch_size=2, on_error="skip", output="numpy")
        with pytest.raises(FramedexError, match="refuses the credentials"):
            list(loader)
        loader.close()
        said = run("index", f"{bucket.uri}/v", "--out", tmp_path / "J", code=1).output
        assert "refuses the credentials" in said

    def test_credentials_that_expire_cost_no_row(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
    ) -> None:
        for name in "abc":
            bucket.put(f"v/{name}.mp4", medium("h264_default.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
        proxy.rule = lambda request: Spoil(status=403, code="ExpiredToken") if "v/b.mp4" in request.path else None
        said = run(
            "index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--depth", "packets", "--workers", 1, code=1
        ).output
        assert "refuses the credentials" in said
        assert set(Index(tmp_path / "I").columns(["status"])["status"].to_pylist()) == {"ok"}

    def test_an_object_that_is_replaced_before_its_plan_is_a_failed_clip(
        self, bucket: Bucket, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probing, "WHOLE_BYTES", 0)
        for name in "abc":
            bucket.put(f"v/{name}.mp4", medium("h264_open_gop.mp4"))
        build_index(IndexOptions(sources=[f"{bucket.uri}/v"], out=tmp_path / "I", engine=here))
        bucket.put("v/a.mp4", medium("h264_vfr.mp4"))
        bucket.delete("v/b.mp4")
        arguments = ["shard", tmp_path / "I", "--policy", segments(tmp_path), "--json", "--out"]
        report = json.loads(run(*arguments, tmp_path / "D", code=3).output)
        assert {(row["uri"], row["kind"]) for row in report["failures"]} == {("a.mp4", "stale"), ("b.mp4", "stale")}
        assert report["clips"] > 0

    def test_credentials_are_written_nowhere(
        self, bucket: Bucket, medium: Medium, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        key, secret = (bucket.service.environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        said = run("index", f"{bucket.uri}/v", f"{bucket.uri}/none.mp4", "--out", tmp_path / "I", code=3).output
        said += run(
            "shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D", "--pack", "clips"
        ).output
        written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert key.encode() not in written
        assert secret.encode() not in written
        own = "".join(record.getMessage() for record in caplog.records if record.name.startswith("framedex"))
        assert secret not in said + own


class TestWriting:
    def test_of_two_runs_that_write_an_index_one_is_refused(self, bucket: Bucket, medium: Medium) -> None:
        for name in ("h264_default.mp4", "h264_open_gop.mp4"):
            bucket.put(f"v/{name}", medium(name))
        out = f"{bucket.uri}/I"
        run("index", f"{bucket.uri}/v/h264_default.mp4", "--root", f"{bucket.uri}/v", "--out", out, "--workers", 1)

        def meanwhile(*arguments: Any, **options: Any) -> Iterator[Outcome[Any, Any]]:
            run("index", f"{bucket.uri}/w", "--root", f"{bucket.uri}/v", "--out", out, "--workers", 1)
            return here(*arguments, **options)

        bucket.put("w/c.mp4", medium("h264_baseline.mp4"))
        options = {"sources": [f"{bucket.uri}/v"], "out": Index(out).path}
        with pytest.raises(OutputError, match="another run"):
            build_index(IndexOptions(**options, engine=meanwhile))  # type: ignore[arg-type]
        index = Index(out)
        found = sorted(uri.rpartition("/")[2] for uri in index.columns(["uri"])["uri"].to_pylist())
        assert found == ["c.mp4", "h264_default.mp4"]
        build_index(IndexOptions(**options, engine=here))  # type: ignore[arg-type]
        assert len(Index(out)) == len(Index(out).listing) == 3

    def test_half_a_part_that_a_killed_run_left_is_passed_over(
        self, bucket: Bucket, medium: Medium, tmp_path: Path
    ) -> None:
        bucket.put("v/a.mp4", medium("h264_single.mp4"))
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I", "--workers", 1)
        bucket.put("I/frames/part-000001.parquet", b"of a run that was killed")
        bucket.put("v/b.mp4", medium("h264_single.mp4"))
        run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/I", "--workers", 1)
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
        run("index", sources, "--out", out, "--task", "1/2", "--workers", 1)
        assert "missing" in run("index", sources, "--out", out, "--finish", code=1).output
        run("index", sources, "--out", out, "--task", "0/2", "--workers", 1)
        report = json.loads(run("index", sources, "--out", out, "--finish", "--json").output)
        assert (report["ok"], len(Index(out))) == (3, 3)
        run("index", sources, "--out", tmp_path / "I", "--workers", 1)
        for key in bucket.keys("I/videos/") + bucket.keys("I/frames/"):
            assert bucket.get(key) == (tmp_path / key).read_bytes()
        run("index", "--compact", "--out", out)
        assert len(bucket.keys("I/videos/")) == 1
        assert sorted(Index(out).columns(["uri"])["uri"].to_pylist()) == ["0.mp4", "1.mp4", "2.mp4"]

    def test_a_dataset_is_written_once(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
        arguments = ["shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D"]
        run(*arguments)
        before = bucket.keys("D/")
        assert "dataset already" in run(*arguments, code=1).output
        run(*arguments, "--overwrite", "--pack", "clips")
        assert set(bucket.keys("D/")) - set(before)
        own = bucket.put("F/clips/holiday.mp4", b"a video of the user's")
        said = run(*arguments[:-1], f"{bucket.uri}/F", "--overwrite", code=1).output
        assert "something else" in said
        assert "holiday.mp4" in said
        assert own
        assert bucket.keys("F/") == ["F/clips/holiday.mp4"]
        bucket.put("H/policy.yaml", b"the user's")
        bucket.put("J/dataset.json", b"{}")
        for place in ("H", "J"):
            said = run(*arguments[:-1], f"{bucket.uri}/{place}", "--overwrite", code=1).output
            assert "something else" in said
        bucket.put("G/videos/mine.mp4", b"")
        assert "something else" in run("index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/G", code=1).output
        bucket.put("D2/dataset.json", b"of another one whose name begins alike")
        run(*arguments, "--overwrite")
        assert bucket.get("D2/dataset.json").startswith(b"of another")
        bucket.put("E/else.txt", b"")
        assert "something else" in run(*arguments[:-1], f"{bucket.uri}/E", code=1).output

    def test_a_dataset_that_takes_the_place_of_another_leaves_nothing_of_it(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(stores.RETRIES, "0")
        monkeypatch.setattr("framedex.storage.objects.TRIES", 1)
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
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
        monkeypatch.setenv(stores.RETRIES, "0")
        monkeypatch.setattr("framedex.storage.objects.TRIES", 1)
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--workers", 1)
        arguments = ["shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D"]
        arguments += ["--pack", "clips", "--shard-size", "20kB", "--workers", 1, "--scratch"]
        uploads: list[str] = []

        def fail_at_last(request: proxies.ExplicitClip) -> Spoil | None:
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
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D", "--pack", "clips", "--shard-size",
            "20kB", "--workers", 1)  # fmt: skip
        for key in content(tmp_path / "D"):
            assert bucket.get(f"D/{key}") == (tmp_path / "D" / key).read_bytes(), key

    def test_a_web_server_is_not_written_to(self, medium: Medium, tmp_path: Path) -> None:
        said = run("index", medium("h264_single.mp4"), "--out", "https://127.0.0.1:9/I", code=2).output
        assert "a web server is not written to" in said


def test_errors_are_of_the_kinds_that_callers_know(bucket: Bucket) -> None:
    with pytest.raises(FramedexError, match=r"no dataset\.json"):
        ClipDataset(f"{bucket.uri}/none")
    with pytest.raises(FramedexError, match=r"no index\.json"):
        Index(f"{bucket.uri}/none")
    with pytest.raises(SourceError, match="credentials"):
        Index("s3://key:secret@bucket/I")
    assert issubclass(StorageError, FramedexError)
    assert issubclass(PolicyError, FramedexError)


def segments(folder: Path) -> Path:
    """Return a policy file: all that media hold, in clips of 8 frames."""
    path = folder / "segments.yaml"
    path.write_text("policy: stride\nstride: 1\nframes: 8\nlast: pad\n", encoding="utf-8")
    return path


def clips_of(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"uri": name, "frames": [start, start + 1, start + 7]} for name in names for start in (30, 3, 17)]


def same(ours: ClipDataset, theirs: ClipDataset, what: str) -> None:
    """Compare every clip of two datasets, in another order."""
    assert len(ours) == len(theirs) > 0
    for number in np.random.default_rng(1).permutation(len(ours)).tolist():
        mine, other = ours[number], theirs[number]
        assert np.array_equal(mine["frames"], other["frames"]), (what, number)
        assert np.array_equal(mine["pts"], other["pts"])
