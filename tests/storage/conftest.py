"""Fixtures: a proxy in front of the object storage service, and a server that answers as the Hugging Face Hub does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from framedex.indexer.runs import existence
from framedex.storage import hub as hubs
from tests.support import hub as servers
from tests.support import proxy as proxies
from tests.support.hub import TOKEN, Hub
from tests.support.object_datasets import forget_connections
from tests.support.proxy import Proxy
from tests.support.s3 import Bucket


@pytest.fixture(autouse=True)
def allow_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests here have an index on a disk and its media in a store."""
    monkeypatch.setenv("FRAMEDEX_ALLOW_REMOTE", "1")


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy through which framedex reaches the service."""
    with proxies.running(bucket.service.endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        forget_connections()
        yield running
    forget_connections()


@pytest.fixture
def by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of any size are probed from ranges of theirs; none is small enough to be read as a whole."""
    monkeypatch.setattr(existence, "WHOLE_BYTES", 0)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A server that answers as the Hub does."""
    with servers.running() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "no-token-here"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # other tests use no network
        monkeypatch.setenv("FRAMEDEX_STORAGE_RETRIES", "1")
        forget_connections()
        hubs._commit.cache_clear()
        yield running
    forget_connections()
    hubs._commit.cache_clear()
