"""A server that answers as the Hugging Face Hub does, and the storage server that it redirects to.

The Hub resolves revisions, lists files page by page, sends small files itself and redirects for large ones to a signed
address of the storage server. Datasets whose names begin with `gated` need the token.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

TOKEN = "hf_notARealTokenOfAnyone"
LARGE_BYTES = 1000  # from this size on, the storage server has a file
PAGE = 2  # files of one page of a listing
Headers = dict[str, str]


@dataclass(slots=True)
class Hub:
    """A running Hub.

    Attributes:
        endpoint: its address.
        commits: the files of each commit, by its hash and then by path.
        branches: which commit each branch of a dataset names.
        requests: the requests to the Hub: method, path and headers, their names in lower case.
        stored: the requests to the storage server.
        signature: which signed addresses the storage server accepts.
        faults: what goes wrong: `commit`: the Hub answers with another commit; `short`: the storage server ends each
            range early, this many times; `size`: it has a longer file; `elsewhere`: the Hub redirects there.
    """

    endpoint: str = ""
    storage: str = ""
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str, Headers]] = field(default_factory=list)
    stored: list[tuple[str, str, Headers]] = field(default_factory=list)
    signature: str = "first"
    faults: dict[str, Any] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit and let a branch name it; return its hash."""
        content = "".join(f"{name} {hashlib.sha1(data).hexdigest()}" for name, data in sorted(files.items()))
        name = hashlib.sha1(content.encode()).hexdigest()
        self.commits[name], self.branches[branch] = files, name
        return name


@contextlib.contextmanager
def running() -> Iterator[Hub]:
    """Run a Hub and its storage server."""
    hub = Hub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler(hub)) for handler in (_hub_handler, _storage_handler)]
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, headers: Headers, content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send(self, data: bytes, headers: Headers, *, missing: int = 0) -> None:
        """Send a file, or the range of it that is asked for, without its last `missing` bytes."""
        asked = self.headers.get("Range")
        if asked is None:
            self.send_response(200)
            begin, end = 0, len(data)
        else:
            first, last = asked.removeprefix("bytes=").split("-")
            begin = int(first) if first else max(0, len(data) - int(last))
            end = min(int(last) + 1, len(data)) if first else len(data)
            self.send_response(206)
            headers = headers | {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - begin - missing))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[begin : end - missing])

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError


def _hub_handler(hub: Hub) -> type[_Handler]:
    class HubHandler(_Handler):
        def do_GET(self) -> None:
            hub.requests.append(
                (self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
            )
            split = urlsplit(self.path)
            parts = [unquote(part) for part in split.path.strip("/").split("/")]
            if len(parts) < 5:  # such as what huggingface_hub asks for its own purposes
                self.answer(404, {})
                return
            name = parts[3] if parts[0] == "api" else parts[2]
            if name.startswith("gated") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.answer(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted"})
            elif parts[0] == "api" and parts[4] == "revision":
                self._revision(parts[5])
            elif parts[0] == "api" and parts[4] == "tree":
                self._tree(parts[5], "/".join(parts[6:]), parse_qs(split.query))
            else:
                self._file(parts[4], "/".join(parts[5:]))

        def _revision(self, revision: str) -> None:
            commit = hub.branches.get(revision, revision)
            if commit not in hub.commits:
                self.answer(404, {"X-Error-Code": "RevisionNotFound"})
                return
            content = json.dumps({"id": "some/one", "sha": commit, "siblings": []}).encode()
            self.answer(200, {"Content-Type": "application/json"}, content)

        def _tree(self, commit: str, folder: str, query: dict[str, list[str]]) -> None:
            below = [name for name in sorted(hub.commits[commit]) if not folder or name.startswith(f"{folder}/")]
            if not below:
                self.answer(404, {"X-Error-Code": "EntryNotFound"})
                return
            first = int(query.get("cursor", ["0"])[0])
            rows: list[dict[str, Any]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "data"}]
            for name in below[first : first + PAGE]:
                data = hub.commits[commit][name]
                row = {"type": "file", "oid": _oid(data), "size": len(data), "path": name}
                if len(data) >= LARGE_BYTES:
                    row["lfs"] = {"oid": _sha256(data), "size": len(data), "pointerSize": 130}
                rows.append(row)
            headers = {"Content-Type": "application/json"}
            if first + PAGE < len(below):
                path = urlsplit(self.path).path
                headers["Link"] = f'<{hub.endpoint}{path}?recursive=true&cursor={first + PAGE}>; rel="next"'
            self.answer(200, headers, json.dumps(rows).encode())

        def _file(self, commit: str, path: str) -> None:
            data = hub.commits.get(commit, {}).get(path)
            headers = {"X-Repo-Commit": hub.faults.get("commit", commit)}
            if data is None:
                self.answer(404, headers | {"X-Error-Code": "EntryNotFound"})
            elif len(data) < LARGE_BYTES:
                self.send(data, headers | {"ETag": f'"{_oid(data)}"'})
            else:
                target = f"{hub.storage}/{commit}/{quote(path)}?X-Amz-Signature={hub.signature}"
                headers |= {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{_sha256(data)}"'}
                self.answer(302, headers | {"Location": hub.faults.get("elsewhere", target)})

    return HubHandler


def _storage_handler(hub: Hub) -> type[_Handler]:
    class StorageHandler(_Handler):
        def do_GET(self) -> None:
            hub.stored.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
            split = urlsplit(self.path)
            if f"X-Amz-Signature={hub.signature}" not in split.query:
                self.answer(403, {})
                return
            commit, path = unquote(split.path).strip("/").split("/", 1)
            data = hub.commits[commit][path] + hub.faults.get("size", b"")
            missing = 1 if hub.faults.get("short", 0) > 0 else 0
            if missing:
                hub.faults["short"] -= 1
            self.send(data, {"ETag": '"of-the-storage"'}, missing=missing)

    return StorageHandler


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
