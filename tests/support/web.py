"""A plain web server that answers range requests, with or without ETags."""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@contextlib.contextmanager
def serving(
    folder: Path,
    *,
    etags: bool,
    times: bool = True,
    redirects: Mapping[str, str] | None = None,
    requests: list[str] | None = None,
) -> Iterator[str]:
    """Serve a folder; yield its address.

    Args:
        redirects: the targets of redirected paths.
        requests: gets one line per request, with its headers.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            if requests is not None:
                requests.append(f"{self.command} {self.path} {dict(self.headers)}")
            if redirects is not None and self.path in redirects:
                self.send_response(302)
                self.send_header("Location", redirects[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path = folder / unquote(self.path).lstrip("/")
            if not path.is_file():
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = path.read_bytes()
            tag = f'"{hashlib.md5(content).hexdigest()}"'
            wanted = self.headers.get("If-Match")
            if etags and wanted is not None and wanted != tag:
                self.send_response(412)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            begin, end = 0, len(content)
            if (asked := self.headers.get("Range")) is not None:
                first, last = asked.removeprefix("bytes=").split("-")
                begin = int(first) if first else max(0, len(content) - int(last))
                end = min(int(last) + 1, len(content)) if first else len(content)
            self.send_response(200 if asked is None else 206)
            if asked is not None:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            if etags:
                self.send_header("ETag", tag)
            if times:
                self.send_header("Last-Modified", email.utils.formatdate(path.stat().st_mtime, usegmt=True))
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            if body:
                self.wfile.write(content[begin:end])

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
