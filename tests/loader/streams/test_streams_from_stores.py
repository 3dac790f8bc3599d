"""Streams read tars of object storage and web servers in few large requests, ahead of their use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from framedex import ClipDataset, ClipStream
from framedex.errors import StaleError
from tests.support import proxy as proxies
from tests.support import web
from tests.support.counted import some
from tests.support.object_datasets import forget_connections
from tests.support.proxy import Proxy
from tests.support.s3 import Bucket
from tests.support.streams import pack, same_item


@pytest.fixture
def proxied(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of the S3 service, which counts requests."""
    with proxies.running(bucket.service.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        forget_connections()
        yield proxy
    forget_connections()


@pytest.mark.parametrize("name", ["packed", "packed_images"])
def test_a_stream_from_a_bucket_gives_the_items_of_the_disk(
    name: str, bucket: Bucket, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    uri = bucket.put_folder(path, "DATASET")
    found = {item["clip_id"]: item for item in ClipStream(uri, shuffle=8, seed=1)}
    dataset = ClipDataset(path)
    assert len(found) == len(dataset)
    for number in some(np.random.default_rng(4).permutation(len(dataset)).tolist()):
        assert same_item(found[dataset[number]["clip_id"]], dataset[number])


def test_a_tar_takes_few_requests(small_index: Path, tmp_path: Path, bucket: Bucket, proxied: Proxy) -> None:
    whole = pack(small_index, tmp_path / "D", "policy: stride\nstride: 1\nframes: 3\n", "--pack", "clips")
    uri = bucket.put_folder(whole, "DATASET")
    proxied.forget()
    count = len(list(ClipStream(uri, decode="movie")))
    assert count == len(ClipDataset(whole)) > 80
    # The 16 ranges of its fingerprint, which show that it is the packed one, and all of its clips at once.
    assert (whole / "shards" / "clips-000000.tar").stat().st_size > 16 << 14, "a smaller one is read as a whole"
    assert proxied.count("GET", ".tar") == 16 + 1
    assert proxied.count("HEAD", ".tar") == 1
    assert proxied.count("GET") < count / 2


def test_a_tar_that_was_replaced_in_a_bucket_is_named(packed: Path, bucket: Bucket) -> None:
    uri = bucket.put_folder(packed, "DATASET")
    tar = sorted((packed / "shards").glob("*.tar"))[1]
    bucket.put(f"DATASET/shards/{tar.name}", tar.read_bytes()[:-5000])
    with pytest.raises(StaleError, match="the tar is missing, too short, or was changed") as caught:
        list(ClipStream(uri, decode="movie"))
    assert caught.value.where == f"{uri}/shards/{tar.name}"
    bucket.delete(f"DATASET/shards/{tar.name}")
    stream = ClipStream(uri, decode="movie", on_error="skip")
    count = len(list(stream))
    assert {skip.where for skip in stream.skipped()} == {f"{uri}/shards/{tar.name}"}
    assert count + len(stream.skipped()) == len(ClipDataset(packed))


def test_a_stream_from_a_web_server_gives_the_items_of_the_disk(packed: Path) -> None:
    with web.serving(packed, etags=True) as address:
        found = {item["clip_id"]: item for item in ClipStream(address, shuffle=8)}
    dataset = ClipDataset(packed)
    assert len(found) == len(dataset)
    for number in some(range(len(dataset))):
        assert same_item(found[dataset[number]["clip_id"]], dataset[number])
