"""The story of docs/living.md, in a bucket: a dataset grows, media are taken down, and the training goes on.

In CI, the bucket is on a real S3 server.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from framedex import ClipDataset, ClipSampler
from tests.support.datasets import run
from tests.support.media import Medium
from tests.support.s3 import Bucket

MEDIA, MORE, TAKEN = 300, 30, (7, 150, 299)
POLICY = "{policy: uniform, frames: 2, split: {shares: {train: 9, val: 1}}}"


def put_listing(bucket: Bucket, numbers: Sequence[int]) -> str:
    rows = [f"{bucket.uri}/v/secret{number:04d}.mp4,caption of {number:04d},{number % 7}" for number in numbers]
    bucket.put("listing.csv", "\n".join(["uri,caption,label", *rows]).encode())
    return f"{bucket.uri}/listing.csv"


def files_with(bucket: Bucket, prefix: str, text: str) -> list[str]:
    """Return the names of the objects that contain a text, in whatever way a Parquet file stores it."""
    found = []
    for key in bucket.keys(prefix):
        data = bucket.get(key)
        words = str(pq.read_table(io.BytesIO(data)).to_pylist()).encode() if key.endswith(".parquet") else b""
        if text in key or text.encode() in data + words:
            found.append(key)
    return found


def test_a_dataset_grows_and_forgets_while_a_training_goes_on(bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
    names = ("h264_single.mp4", "h264_open_gop.mp4")
    for number in range(MEDIA + MORE):
        bucket.put(f"v/secret{number:04d}.mp4", medium(names[number % 2]))
    index, dataset = f"{bucket.uri}/I", f"{bucket.uri}/D"
    shard = ["shard", index, "--policy", POLICY, "--pack", "clips", "--shard-size", "200kB", "--out", dataset]
    run("index", put_listing(bucket, range(MEDIA)), "--out", index)
    run(*shard, "--labels", "label", "--scratch", tmp_path)

    # Half an epoch of training.
    clips = ClipDataset(dataset)
    order = ClipSampler(clips, shuffle=True, seed=1)
    seen = [clips.clip(number).clip_id for number in order]
    half = len(seen) // 2
    trained = [clips[number]["clip_id"] for number in itertools.islice(ClipSampler(clips, shuffle=True, seed=1), 20)]
    assert trained == seen[:20]
    state = json.loads(json.dumps(order.state_dict(delivered=half)))
    tars = {key: bucket.get(key) for key in bucket.keys("D/shards/")}

    # 30 more media.
    run("index", put_listing(bucket, range(MEDIA + MORE)), "--out", index)
    run(*shard, "--append", "--scratch", tmp_path)
    assert tars.items() <= {key: bucket.get(key) for key in bucket.keys("D/shards/")}.items()
    grown = {key: bucket.get(key) for key in bucket.keys("D/shards/")}

    # Three media are taken down.
    left = [number for number in range(MEDIA + MORE) if number not in TAKEN]
    report = json.loads(run("index", put_listing(bucket, left), "--out", index, "--prune", "--json").output)
    assert report["pruned"] == len(TAKEN)
    run("index", "--compact", "--out", index)
    report = json.loads(run("shard", dataset, "--follow", index, "--json").output)
    assert report["media"] == len(TAKEN)
    now = {key: bucket.get(key) for key in bucket.keys("D/shards/")}
    written = now.items() - grown.items()
    assert len(written) == 2 * report["tars"] <= 2 * len(TAKEN) + 2
    for number in TAKEN:
        for text in (f"secret{number:04d}", f"caption of {number:04d}"):
            assert files_with(bucket, "I/", text) == files_with(bucket, "D/", text) == []

    # The training goes on.
    opened = ClipDataset(dataset)
    again = ClipSampler(opened, shuffle=True, seed=1)
    again.load_state_dict(state)
    ids = opened.column("clip_id").tolist()
    found = [ids[number] for number in again]
    old = {*seen}
    rest = [name for name in seen[half:] if name in {*ids}]
    assert found[: len(rest)] == rest
    assert sorted(found[len(rest) :]) == sorted(name for name in ids if name not in old)
    assert opened[len(opened) - 1]["frames"].shape[0] == 2
    assert f"{len(opened)} exact" in run("verify", dataset).output
    lines = [json.loads(line) for line in run("log", dataset, "--json").output.splitlines()]
    assert [line["counts"].get("media") for line in lines] == [MEDIA, MORE, len(TAKEN)]
