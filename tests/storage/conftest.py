"""Fixtures: a proxy in front of the object storage service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framedex.storage import stores
from tests.support import proxy as proxies
from tests.support.proxy import Proxy
from tests.support.s3 import Bucket


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy through which framedex reaches the service."""
    with proxies.running(bucket.service.endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        stores._store.cache_clear()
        yield running
    stores._store.cache_clear()
