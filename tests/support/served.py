"""A browser that answers in this process, and a client that speaks to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from framedex.auditor.browser.server import LIMITS, bound
from framedex.loader.contact_sheets.sheet import Thumbnails


@dataclass(frozen=True, kw_only=True)
class Response:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        """Return the value of an answer that is JSON."""
        assert self.status == 200, self.content
        return json.loads(self.content)


class Client:
    """Sends requests to a running browser."""

    def __init__(self, server: Any) -> None:
        self.address = server.address

    def raw(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """Return the answer to a request for a path, as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True)
            sent = {"Host": f"127.0.0.1:{self.address.port}"} | (headers or {})
            if body is not None:
                sent.setdefault("Content-Length", str(len(body)))
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return Response(status=answer.status, headers=dict(answer.getheaders()), content=answer.read())

    def get(self, resource: str, **query: object) -> Response:
        """Return the answer to a request for a resource."""
        return self.raw(f"/{self.address.token}/{resource}?{urlencode(query)}")

    def post(self, resource: str, body: object) -> Response:
        """Return the answer to a request whose parameters are JSON."""
        return self.raw(f"/{self.address.token}/{resource}", method="POST", body=json.dumps(body).encode())

    def keys(self, page: int = 0, **wanted: object) -> list[str]:
        """Return the keys of a page of what is wanted."""
        return [item["key"] for item in self.post("items", {"wanted": wanted, "page": page}).json()["items"]]


@contextlib.contextmanager
def served(place: Path, *, port: int = 0, memory_bytes: int = 1 << 32, **thumbnails: Any) -> Iterator[Client]:
    """Provide a client of a browser over an index or a dataset."""
    limits = replace(LIMITS, memory_bytes=memory_bytes)
    with bound(place, Thumbnails(**thumbnails), port=port, limits=limits) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield Client(server)
        finally:
            server.shutdown()
            thread.join()
