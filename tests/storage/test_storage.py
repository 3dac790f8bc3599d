"""Objects over a real protocol are read, written where none exist, and faults are handled without revealing secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from framedex import DiskCache
from framedex.errors import FramedexError, SourceError, StorageError
from framedex.storage import objects, uris, web
from framedex.storage.places import Stored, place
from framedex.storage.reader import ObjectFile, ObjectReader
from tests.support import proxy as proxies
from tests.support.proxy import HttpRequest, Proxy, Spoil
from tests.support.running import environment
from tests.support.s3 import SECRET, Bucket
from tests.support.web import serving

RNG = np.random.default_rng(5)


@pytest.fixture
def proxy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """Return a proxy through which framedex reaches the service, with few retries and a short timeout."""
    monkeypatch.setenv(objects.RETRIES, "3")
    monkeypatch.setenv(objects.TIMEOUT, "5")
    return proxy


def test_names_of_objects_are_told_from_paths() -> None:
    assert uris.is_remote("s3://bucket/key")
    assert uris.is_remote("https://host/file.mp4")
    assert not uris.is_remote("file:///folder/a.mp4")
    assert not uris.is_remote("folder/s3:/a.mp4")
    assert uris.local_path("file:///a%20b/c.mp4") == "/a b/c.mp4"
    with pytest.raises(SourceError, match="file of this machine"):
        uris.local_path("file://host/a.mp4")


@pytest.mark.parametrize(
    "uri",
    [
        "https://user:word@host/a.mp4",
        "https://host/a.mp4?X-Amz-Signature=abc",
        "s3://key:word@bucket/a.mp4",
        "s3://bucket/a.mp4?X-Amz-Signature=abc",
        "az://container/a.mp4?sv=2020&sig=abc",
    ],
)
def test_a_uri_with_a_secret_is_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(SourceError, match="credentials") as error:
        uris.checked(uri)
    assert "word" not in str(error.value)
    assert "abc" not in str(error.value)


@pytest.mark.parametrize("uri", ["s3://", "s3:///key", "s3://bucket/a//b", "s3://bucket/../b"])
def test_a_uri_that_names_nothing_is_refused(uri: str) -> None:
    with pytest.raises(SourceError):
        uris.checked(uri)


def test_relative_names_are_joined_to_either_kind_of_root() -> None:
    assert uris.joined("s3://bucket/videos", "a/b.mp4") == "s3://bucket/videos/a/b.mp4"
    assert uris.joined("/videos", "../b.mp4") == "/b.mp4"
    assert uris.joined("/videos", "s3://bucket/b.mp4") == "s3://bucket/b.mp4"
    assert uris.common_folder(["s3://b/x/y", "s3://b/x/z"]) == "s3://b/x"
    assert uris.common_folder(["s3://b/x", "s3://c/x"]) == ""


def test_objects_are_written_where_nothing_stands(bucket: Bucket) -> None:
    uri = f"{bucket.uri}/a folder/ä #1 %20.txt"
    facts = objects.put(uri, b"first")
    assert bucket.get("a folder/ä #1 %20.txt") == b"first"
    assert objects.put(uri, b"first") == facts  # the content was written before the response was lost
    with pytest.raises(StorageError) as error:
        objects.put(uri, b"other")
    assert error.value.kind == "exists"
    second = objects.put(uri, b"second", replaces=facts)
    with pytest.raises(StorageError) as error:
        objects.put(uri, b"third", replaces=facts)
    assert error.value.kind == "changed"
    assert objects.whole(uri, most=10) == (b"second", second)
    assert [name for name, _ in objects.listing(bucket.uri)] == [uri]
    objects.delete([uri, uri])
    assert objects.exists(uri) is None


def test_large_files_go_up_and_come_down_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    content = RNG.bytes(40 << 20)
    (tmp_path / "a").write_bytes(content)
    facts = objects.upload(tmp_path / "a", f"{bucket.uri}/a")
    assert facts.size_bytes == len(content)
    objects.download(f"{bucket.uri}/a", facts, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == content
    bucket.put("a", b"another")
    with pytest.raises(StorageError) as error:
        objects.download(f"{bucket.uri}/a", facts, tmp_path / "b")
    assert error.value.kind == "changed"


def test_ranges_come_at_once_and_of_the_object_that_is_meant(bucket: Bucket) -> None:
    content = RNG.bytes(100_000)
    uri = bucket.put("a", content)
    facts = objects.head(uri)
    found = objects.fetch_many(uri, [(0, 10), (50_000, 60_000), (99_990, 200_000)], facts)
    assert [bytes(data) for data in found] == [content[:10], content[50_000:60_000], content[99_990:]]
    bucket.put("a", content[::-1])
    with pytest.raises(StorageError) as error:
        objects.fetch_many(uri, [(0, 10), (50_000, 60_000)], facts)
    assert error.value.kind == "changed"
    assert objects.fetch(bucket.put("empty", b""), 0, 10)[0] == b""


def test_a_reader_gives_what_a_file_gives_however_it_is_asked(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    content = RNG.bytes(60_000)
    uri = bucket.put("a", content)
    facts = objects.head(uri)
    for name, size in {"BLOCK_BYTES": 700, "NEXT_BYTES": 1500, "TAIL_BYTES": 3000}.items():
        monkeypatch.setattr(f"framedex.storage.reader.{name}", size)

    def here(_: str, ranges: Sequence[tuple[int, int]], __: objects.Facts) -> list[memoryview]:
        return [memoryview(content)[begin:end] for begin, end in ranges]

    for seed in range(300):
        rng = np.random.default_rng(seed)
        reader = ObjectReader(uri, facts, fetch_ranges=here, kept_bytes=int(rng.integers(2_000, 40_000)))
        for _ in range(40):
            if rng.random() < 0.3:
                reader.prepare(rng.integers(0, 59_000, 6), rng.integers(0, 900, 6))
            at, length = int(rng.integers(0, 60_000)), int(rng.integers(0, 5_000))
            assert reader(at, length) == content[at : at + length]


def test_what_cannot_be_told_from_another_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"content")
    with serving(tmp_path, etags=False, times=False) as address, pytest.raises(StorageError) as error:
        objects.head(f"{address}/a.mp4")
    assert error.value.kind == "unpinned"


def test_a_key_that_cannot_be_named_is_said(bucket: Bucket) -> None:
    bucket.put("a//b.mp4", b"")
    with pytest.raises(StorageError, match="is empty") as error:
        list(objects.listing(bucket.uri))
    assert error.value.kind == "name"
    assert "a//b.mp4" in str(error.value)


def test_many_objects_of_many_pieces_come_at_once(bucket: Bucket) -> None:
    uri = bucket.put("a", RNG.bytes(1000))
    facts = objects.head(uri)
    pieces = [(begin, begin + 100) for begin in range(0, 1000, 100)]
    found = objects.at_once(lambda _: b"".join(objects.fetch_many(uri, pieces, facts)), range(100))
    assert set(found) == {bucket.get("a")}


def test_a_reader_gives_what_a_file_gives(bucket: Bucket) -> None:
    content = RNG.bytes(3_000_000)
    reader = ObjectReader(bucket.put("a", content))
    for offset, length in [(0, 4), (100_000, 300_000), (2_999_000, 5_000), (1_500_000, 10), (1_500_010, 900_000)]:
        assert reader(offset, length) == content[offset : offset + length]
    places = RNG.integers(0, 2_900_000, 50)
    reader.prepare(places, np.full(50, 500))
    before = reader.requests
    assert all(reader(at, 500) == content[at : at + 500] for at in places.tolist())
    assert reader.requests == before
    bounded = ObjectReader(f"{bucket.uri}/a", kept_bytes=400_000)
    for offset in range(0, 3_000_000, 50_000):
        assert bounded(offset, 50_000) == content[offset : offset + 50_000]
        assert bounded._kept_bytes <= 2 * 400_000
    end = ObjectReader.from_end(f"{bucket.uri}/a", 1000)
    assert (end(2_999_500, 500), end(5, 5), end.requests) == (content[-500:], content[5:10], 1)
    assert ObjectReader.from_end(bucket.put("b", b"short"), 1000)(0, 10) == b"short"
    file = ObjectFile(ObjectReader(f"{bucket.uri}/a"))
    assert file.seek(-10, os.SEEK_END) == 2_999_990
    assert (file.read(), file.read()) == (content[-10:], b"")


@pytest.mark.parametrize("status", [500, 503])
def test_a_store_at_fault_is_asked_again(bucket: Bucket, proxy: Proxy, status: int) -> None:
    uri = bucket.put("a", b"content")
    proxy.rule = lambda request: Spoil(status=status, code="SlowDown") if request.number < 2 else None
    assert objects.whole(uri, most=100)[0] == b"content"
    assert len(proxy.requests) == 3


def test_a_store_that_stays_at_fault_is_given_up(bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "TRIES", 1)
    uri = bucket.put("a", b"content")
    proxy.rule = lambda request: Spoil(status=503, code="SlowDown")
    with pytest.raises(StorageError) as error:
        objects.whole(uri, most=100)
    assert error.value.kind == "unanswered"
    assert "503" in str(error.value)
    assert len(proxy.requests) == 4


def test_an_answer_that_breaks_off_is_asked_for_again(bucket: Bucket, proxy: Proxy) -> None:
    content = RNG.bytes(500_000)
    uri = bucket.put("a", content)
    proxy.rule = lambda request: Spoil(cut_after=1000) if request.number == 0 else None
    assert objects.fetch(uri, 0, 500_000)[0] == content


def test_an_answer_that_does_not_come_is_asked_for_again(
    bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(objects.TIMEOUT, "0.5")
    uri = bucket.put("a", b"content")
    proxy.rule = lambda request: Spoil(seconds=3.0) if request.number == 0 else None
    assert objects.whole(uri, most=100)[0] == b"content"


@pytest.mark.parametrize(("status", "code"), [(403, "ExpiredToken"), (400, "ExpiredToken"), (403, "AccessDenied")])
def test_refused_credentials_are_said_at_once(bucket: Bucket, proxy: Proxy, status: int, code: str) -> None:
    uri = bucket.put("a", b"content")
    proxy.rule = lambda request: Spoil(status=status, code=code)
    with pytest.raises(StorageError) as error:
        objects.fetch(uri, 0, 3)
    assert error.value.kind == "denied"
    assert code in str(error.value)
    assert len(proxy.requests) == 1
    assert SECRET not in str(error.value)


def test_messages_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token-of-some-length")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "another-secret")
    said = web.without_secrets("GET http://host/x?X-Amz-Signature=77 with a-token-of-some-length and another-secret")
    assert said == "GET http://host/x?… with *** and ***"
    assert (
        web.without_secrets("Error performing HEAD http://user:word@host/x") == "Error performing HEAD http://…@host/x"
    )


def test_what_is_missing_is_a_missing_file(bucket: Bucket) -> None:
    where = place(f"{bucket.uri}/DATASET/") / "dataset.json"
    assert isinstance(where, Stored)
    with pytest.raises(FileNotFoundError):
        where.read_text()
    assert not where.exists()


def test_a_forked_process_says_what_to_do(bucket: Bucket) -> None:
    uri = bucket.put("a", b"content")
    script = """
import os, sys
from framedex.storage import objects
objects.head(sys.argv[1])
child = os.fork()
if not child:
    try:
        objects.head(sys.argv[1])
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    command = [sys.executable, "-c", script, uri]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert 'multiprocessing_context="spawn"' in done.stdout


def test_environment_variables_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(objects.TIMEOUT, "soon")
    with pytest.raises(FramedexError, match="numbers"):
        objects.limits()


def test_a_web_server_lists_nothing() -> None:
    with pytest.raises(StorageError) as error:
        list(objects.listing("https://127.0.0.1:9/videos"))
    assert error.value.kind == "listing"


class TestCache:
    def test_a_range_is_fetched_once(self, bucket: Bucket, proxy: Proxy, tmp_path: Path) -> None:
        content = RNG.bytes(50_000)
        uri = bucket.put("a", content)
        facts = objects.head(uri)
        proxy.forget()
        for cache in (DiskCache(tmp_path / "cache"), DiskCache(tmp_path / "cache")):
            found = cache.fetch_many(uri, [(0, 100), (20_000, 30_000)], facts)
            assert [bytes(data) for data in found] == [content[:100], content[20_000:30_000]]
        assert len(proxy.requests) == 2

    def test_a_replaced_object_is_not_taken_for_the_old_one(self, bucket: Bucket, tmp_path: Path) -> None:
        cache = DiskCache(tmp_path / "cache")
        uri = bucket.put("a", b"first content")
        facts = objects.head(uri)
        assert bytes(cache.fetch_many(uri, [(0, 5)], facts)[0]) == b"first"
        bucket.put("a", b"other content")
        assert bytes(cache.fetch_many(uri, [(0, 5)], objects.head(uri))[0]) == b"other"
        assert bytes(cache.fetch_many(uri, [(0, 5)], facts)[0]) == b"first"  # the requested version
        with pytest.raises(StorageError):
            cache.fetch_many(uri, [(0, 6)], facts)

    def test_it_stays_within_its_bound(self, bucket: Bucket, tmp_path: Path) -> None:
        uri = bucket.put("a", RNG.bytes(1_000_000))
        facts, cache = objects.head(uri), DiskCache(tmp_path / "cache", most_bytes=100_000)
        kept = (0, 10_000)
        for begin in range(0, 1_000_000, 10_000):
            cache.fetch_many(uri, [(begin, begin + 10_000), kept], facts)
            assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.range")) <= 100_000
        assert cache._read(cache._path(uri, kept, facts)) is not None  # it was used all the time

    def test_damage_on_the_disk_is_no_content(self, bucket: Bucket, tmp_path: Path) -> None:
        uri = bucket.put("a", b"content")
        facts, cache = objects.head(uri), DiskCache(tmp_path / "cache")
        cache.fetch_many(uri, [(0, 7)], facts)
        (path,) = (tmp_path / "cache").rglob("*.range")
        path.write_bytes(path.read_bytes().replace(b"c", b"x"))
        assert bytes(cache.fetch_many(uri, [(0, 7)], facts)[0]) == b"content"

    def test_a_full_disk_costs_no_read(self, bucket: Bucket, tmp_path: Path) -> None:
        uri = bucket.put("a", RNG.bytes(300_000))
        script = """
import resource, signal, sys
from framedex.storage import objects
from framedex import DiskCache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # no file of this process may become longer
facts = objects.head(sys.argv[1])
for _ in range(2):
    print(len(DiskCache(sys.argv[2]).fetch_many(sys.argv[1], [(0, 300_000)], facts)[0]))
"""
        command = [sys.executable, "-c", script, uri, str(tmp_path / "cache")]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.split() == ["300000", "300000"]
        assert "cannot be written" in done.stderr
        assert not list((tmp_path / "cache").rglob("??/*"))


def test_an_etag_has_its_quotes_wherever_it_came_from() -> None:
    seen = {"last_modified": datetime(2026, 1, 1, tzinfo=UTC), "size": 3}
    assert objects.facts_of(seen | {"e_tag": "0x1F"}) == objects.facts_of(seen | {"e_tag": '"0x1F"'})
    assert (
        objects.facts_of(seen | {"e_tag": 'W/"1F"'}).tag
        == objects.facts_of(seen | {"e_tag": None}).tag
        == "modified 1767225600000000000"
    )


def test_a_request_knows_what_it_is_for() -> None:
    request = HttpRequest(number=0, method="GET", path="/b/a", headers={})
    assert proxies.Proxy(endpoint="", requests=[request]).count("GET", "/b/") == 1
    assert objects.Facts(size_bytes=1, mtime_ns=0, tag="modified 5").etag is None
