"""Indexing media in object storage gives the same rows as on a disk, needs few requests, and detects changes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import ClipDataset, Index
from tests.support import proxy as proxies
from tests.support.datasets import run
from tests.support.flags import HIDDEN
from tests.support.images import encoded, tar_of
from tests.support.media import Medium, remux
from tests.support.object_datasets import segments
from tests.support.probed import probed, probed_object
from tests.support.proxy import Proxy
from tests.support.s3 import Bucket

ALIKE = ("h264_open_gop.mp4", "hevc_open_gop.mkv", "h264_audio.mp4", "h264_fragmented.mp4", "hevc_radl.mp4")
OF_FILES = {"mtime_ns", "fingerprint", "probed_by"}


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

    def test_ranges_tell_what_the_whole_file_tells(self, bucket: Bucket, all_media: Path, by_ranges: None) -> None:
        from_tables = 0
        for path in sorted(all_media.glob("*.m[po][4v]")):
            video, frames = probed_object(bucket.put(path.name, path))
            other, packets = probed(path)
            packets_alike(frames, packets)
            if video["depth"] != other["depth"]:  # recovery points that the first samples do not show
                assert path.name in ("h264_intra_refresh.mp4", "h264_open_gop.mp4")
                continue
            different = {name for name in other if video.get(name) != other[name]} - OF_FILES
            assert different <= {"open_gop_count"}, path.name
            from_tables += video["depth"] == "tables" and video["open_gop_count"] is None
        assert from_tables > 5

    def test_frames_are_proved_from_ranges_alone(self, bucket: Bucket, long_mp4: Path, by_ranges: None) -> None:
        uri = bucket.put("a.mp4", long_mp4)
        video, frames = probed_object(uri, prove=3)
        assert (video["proof"], video["depth"], video["first_difference"]) == ("sampled", "tables", None)
        _, plain = probed_object(uri)
        packets_alike(frames, plain, ("pts", "offset", "size", "flags"))  # what was read for the proof is not recorded

    def test_a_tail_that_an_edit_list_hides_is_not_taken_on_trust(
        self, bucket: Bucket, medium: Medium, tmp_path: Path, by_ranges: None
    ) -> None:
        data = bytearray(medium("h264_default.mp4").read_bytes())
        at = data.index(b"elst") + 12  # the duration of its only entry, in the movie's timescale
        struct.pack_into(">I", data, at, struct.unpack_from(">I", data, at)[0] * 9 // 10)
        (tmp_path / "a.mp4").write_bytes(data)
        video, _ = probed_object(bucket.put("a.mp4", bytes(data)))
        other, frames = probed(tmp_path / "a.mp4")
        assert np.flatnonzero(np.ma.getdata(frames["flags"]) & HIDDEN).min() > 12  # after the first start points
        assert columns(video) == columns(other)

    def test_a_long_mp4_takes_few_requests(self, bucket: Bucket, proxy: Proxy, long_mp4: Path) -> None:
        for name, path in (("end.mp4", long_mp4), ("front.mp4", long_mp4.with_name("front.mp4"))):
            assert path.stat().st_size > 25 << 20
            uri = bucket.put(name, path)
            proxy.forget()
            video, frames = probed_object(uri)
            assert (video["status"], video["depth"]) == ("ok", "tables")
            assert len(proxy.requests) <= 4
            assert proxy.body_bytes <= 1 << 20
            _, packets = probed(path)
            packets_alike(frames, packets)

    @pytest.mark.parametrize("name", ["h264_default.mp4", "h264_open_gop.mkv"])
    @pytest.mark.parametrize("depth", ["tables", "packets"])
    def test_a_small_object_is_read_once(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, name: str, depth: str
    ) -> None:
        path = medium(name)
        assert path.stat().st_size < 256 << 10
        uri = bucket.put(name, path)
        proxy.forget()
        video, frames = probed_object(uri, depth=depth)
        assert [request.method for request in proxy.requests] == ["GET"]
        assert proxy.body_bytes == path.stat().st_size
        other, packets = probed(path, depth=depth)
        packets_alike(frames, packets)
        assert columns(video) == columns(other)

    @pytest.mark.parametrize("number", [1, 2])
    def test_an_object_that_is_replaced_while_it_is_probed(
        self, bucket: Bucket, proxy: Proxy, long_mp4: Path, number: int
    ) -> None:
        uri = bucket.put("a.mp4", long_mp4)
        changed = long_mp4.with_name("front.mp4").read_bytes()

        def replace_it(request: proxies.HttpRequest) -> None:
            if request.number == number:
                bucket.put("a.mp4", changed)

        proxy.rule = replace_it
        video, frames = probed_object(uri)
        assert (video["status"], video["error_kind"]) == ("failed", "changing")
        assert len(frames["pts"]) == 0

    def test_fragments_far_apart_are_copied(
        self, bucket: Bucket, proxy: Proxy, long_mp4: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        remux(long_mp4, tmp_path / "frag.mp4", movflags="frag_keyframe+empty_moov")
        uri = bucket.put("frag.mp4", tmp_path / "frag.mp4")
        proxy.forget()
        video, frames = probed_object(uri)
        assert len(proxy.requests) < 20
        other, packets = probed(tmp_path / "frag.mp4")
        packets_alike(frames, packets)
        assert columns(video) == columns(other)
        assert capfd.readouterr().err == ""

    def test_changes_are_found_by_listing_alone(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
    ) -> None:
        for name in ("h264_default.mp4", "h264_open_gop.mp4", "h264_baseline.mp4"):
            bucket.put(f"v/{name}", medium(name))
        source, out = f"{bucket.uri}/v", tmp_path / "INDEX"
        run("index", source, "--out", out)
        proxy.forget()
        report = json.loads(run("index", source, "--out", out, "--json").output)
        assert (report["unchanged"], report["new"]) == (3, 0)
        assert len(proxy.requests) == 1
        bucket.put("v/h264_default.mp4", medium("h264_vfr.mp4"))
        bucket.delete("v/h264_baseline.mp4")
        bucket.put("v/new.mp4", medium("h264_single.mp4"))
        report = json.loads(run("index", source, "--out", out, "--json").output)
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
        assert (
            "no file or folder matches"
            in run("index", f"{bucket.uri}/*.avi", "--out", tmp_path / "NONE", code=1).output
        )
        run("index", f"{bucket.uri}/rows.csv", "--out", tmp_path / "LABELS")
        assert Index(tmp_path / "LABELS").listing["label"].to_pylist() == ["cat"]

    def test_what_is_not_there_is_a_row(self, bucket: Bucket, tmp_path: Path) -> None:
        broken = bucket.put("broken.mp4", b"no video at all")
        report = json.loads(
            run("index", broken, f"{bucket.uri}/none.mp4", "--out", tmp_path / "I", "--json", code=3).output
        )
        kinds = {problem["uri"]: problem["error_kind"] for problem in report["problems"]}
        assert kinds == {"broken.mp4": "not_media", "none.mp4": "missing"}

    def test_images_of_a_folder_and_of_a_tar(self, bucket: Bucket, tmp_path: Path) -> None:
        tar_of(tmp_path / "seq.tar", [(f"s/{number:03d}.png", encoded(number)) for number in range(4)])
        bucket.put("images/seq.tar", tmp_path / "seq.tar")
        for number in range(3):
            bucket.put(f"images/loose/{number:03d}.png", encoded(number + 10))
        run("index", f"{bucket.uri}/images", "--out", tmp_path / "I")
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D")
        assert run("verify", tmp_path / "D").exit_code == 0
        dataset = ClipDataset(tmp_path / "D")
        assert {dataset[number]["uri"] for number in range(len(dataset))} == {"seq.tar", "loose"}
