"""A proxy for an HTTP server that counts, delays and damages responses, to test how a client handles them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

HEAD_BYTES = 1 << 16
PIECE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A client's request. `number` is the count of earlier requests."""

    number: int
    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoil:
    """How to damage a response.

    Attributes:
        status: the status to send instead, with a body that says so.
        seconds: the delay before the response.
        cut_after: the number of body bytes after which the connection is closed.
        instead: a short body that claims to be the whole one.
    """

    status: int | None = None
    code: str = "InternalError"
    seconds: float = 0.0
    cut_after: int | None = None


Rule = Callable[[HttpRequest], Spoil | None]


@dataclass(slots=True)
class Proxy:
    """A running proxy.

    Attributes:
        rule: how to damage responses; may be changed at any time.
        requests: all requests received.
    """

    endpoint: str
    rule: Rule = lambda request: None
    delay: float = 0.0
    requests: list[HttpRequest] = field(default_factory=list)
    body_bytes: int = 0

    def count(self, method: str | None = None, path: str = "") -> int:
        """Return the number of requests with this method and with `path` in their path."""
        return sum(method in (None, request.method) and path in request.path for request in self.requests)

    def forget(self) -> None:
        """Reset all counts."""
        self.requests.clear()
        self.body_bytes = 0


@contextlib.contextmanager
def running(target: str, *, delay: float = 0.0, port: int = 0) -> Iterator[Proxy]:
    """Start a proxy for `target`, `http://host:port`; `delay` seconds are added to each response."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxy = Proxy(endpoint="", delay=delay)
    where = urlsplit(target)

    async def begin() -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await _serve(proxy, where.hostname or "", where.port or 80, reader, writer)
            writer.close()

        return await asyncio.start_server(serve, "127.0.0.1", port, limit=HEAD_BYTES)

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    proxy.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


async def _end(server: asyncio.Server) -> None:
    """Close a server and its open connections."""
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _serve(
    proxy: Proxy, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Forward the requests of one connection."""
    theirs, ours = await asyncio.open_connection(host, port, limit=HEAD_BYTES)
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, path, _ = lines[0].split(" ", 2)
            headers = _headers(lines[1:])
            request = HttpRequest(number=len(proxy.requests), method=method, path=unquote(path), headers=headers)
            proxy.requests.append(request)
            spoil = proxy.rule(request) or Spoil()
            if headers.get("expect") == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            await asyncio.sleep(proxy.delay + spoil.seconds)
            if spoil.status is not None:
                text = f"<Error><Code>{spoil.code}</Code><Message>spoilt</Message></Error>".encode()
                said = (
                    f"HTTP/1.1 {spoil.status} Spoilt\r\ncontent-length: {len(text)}\r\ncontent-type: text/xml\r\n\r\n"
                )
                writer.write(said.encode() + (b"" if method == "HEAD" else text))
                await writer.drain()
                continue
            ours.write(_without_expect(head) + body)
            await ours.drain()
            if not await _answer(proxy, method, spoil, theirs, writer):
                return
    finally:
        ours.close()


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, value in pairs}


def _without_expect(head: bytes) -> bytes:
    return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))


async def _answer(
    proxy: Proxy, method: str, spoil: Spoil, theirs: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Forward one response; return whether the connection stays open."""
    head = await theirs.readuntil(b"\r\n\r\n")
    headers = _headers(head.decode("latin-1").split("\r\n")[1:])
    writer.write(head)
    if method == "HEAD" or head.split(b" ", 2)[1] in (b"204", b"304"):
        await writer.drain()
    elif headers.get("transfer-encoding") == "chunked":
        while True:
            line = await theirs.readuntil(b"\r\n")
            chunk = await theirs.readexactly(int(line, 16) + 2)
            writer.write(line + chunk)
            if line.strip() == b"0":
                break
        await writer.drain()
    else:
        left = int(headers.get("content-length", 0))
        if spoil.cut_after is not None:
            writer.write(await theirs.readexactly(min(left, spoil.cut_after)))
            await writer.drain()
            return False
        while left:
            piece = await theirs.read(min(left, PIECE_BYTES))
            if not piece:
                return False
            left -= len(piece)
            proxy.body_bytes += len(piece)
            writer.write(piece)
            await writer.drain()
    return headers.get("connection", "").lower() != "close"


def main() -> None:
    """Run a proxy until it is stopped: python -m tests.support.proxy http://127.0.0.1:9000 --delay 0.03."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with running(options.target, delay=options.delay, port=options.port) as proxy:
        print(proxy.endpoint, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
