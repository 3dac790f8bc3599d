"""Replaced objects, failing requests and expired credentials in object storage raise right errors without secrets."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from framedex import ClipDataset, ClipLoader, Index
from framedex.errors import FramedexError, PolicyError, SourceError, StaleError, StorageError
from tests.support.datasets import run
from tests.support.media import Medium
from tests.support.object_datasets import index_here, segments
from tests.support.proxy import Proxy, Spoil
from tests.support.s3 import Bucket


class TestFaults:
    def test_a_replaced_object_is_stale(self, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
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
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
        run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", f"{bucket.uri}/D", "--pack", "clips")
        (key,) = [key for key in bucket.keys("D/shards/") if key.endswith(".tar")]
        bucket.put(key, bucket.get(key)[:-2000] + bytes(2000))
        with pytest.raises(StaleError, match="other content"):
            ClipDataset(f"{bucket.uri}/D")[0]

    def test_loading_lives_through_a_store_that_stumbles(
        self, bucket: Bucket, proxy: Proxy, medium: Medium, tmp_path: Path
    ) -> None:
        bucket.put("v/a.mp4", medium("h264_open_gop.mp4"))
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
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
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
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
        run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
        proxy.rule = lambda request: Spoil(status=403, code="ExpiredToken") if "v/b.mp4" in request.path else None
        said = run("index", f"{bucket.uri}/v", "--out", tmp_path / "I", "--depth", "packets", code=1).output
        assert "refuses the credentials" in said
        assert set(Index(tmp_path / "I").columns(["status"])["status"].to_pylist()) == {"ok"}

    def test_an_object_that_is_replaced_before_its_plan_is_a_failed_clip(
        self, bucket: Bucket, medium: Medium, tmp_path: Path, by_ranges: None
    ) -> None:
        for name in "abc":
            bucket.put(f"v/{name}.mp4", medium("h264_open_gop.mp4"))
        index_here(tmp_path / "I", f"{bucket.uri}/v")
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


def test_errors_are_of_the_kinds_that_callers_know(bucket: Bucket) -> None:
    with pytest.raises(FramedexError, match=r"no dataset\.json"):
        ClipDataset(f"{bucket.uri}/none")
    with pytest.raises(FramedexError, match=r"no index\.json"):
        Index(f"{bucket.uri}/none")
    with pytest.raises(SourceError, match="credentials"):
        Index("s3://key:secret@bucket/I")
    assert issubclass(StorageError, FramedexError)
    assert issubclass(PolicyError, FramedexError)
