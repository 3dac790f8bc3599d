"""The HTTP server of `framedex inspect --serve`, which shows an index or a dataset in the web browser.

The server listens on the loopback interface only, requires a secret token in each request, and does not serve files.
"""

import contextlib
import logging
import select
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson

from framedex.auditor.browser.page import page
from framedex.auditor.browser.resources import Answer, Findings, Items, Resource, Resources
from framedex.auditor.browser.selections import LESS, LIMITS, Selections
from framedex.auditor.browser.shown import HOST, Address, Clips, Media, whole_number
from framedex.auditor.report.media_table import STATE
from framedex.auditor.tables.database import QueryLimits
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.subject import opened
from framedex.core.words import counted
from framedex.errors import FramedexError, internal_error, printable
from framedex.loader.contact_sheets.sheet import Thumbnails
from framedex.records.medium import OK
from framedex.storage.places import OWN_STORE, Access, Place

LOG = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 18
IDLE_SECONDS = 60.0  # time after which an idle connection is closed
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",  # the other directives are in a meta element of the page
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"


class Server(ThreadingHTTPServer):
    """An HTTP server of one page and the resources that the page requests.

    Args:
        port: The port. If 0, any free port is used.
        page: The page as HTML.
        resources: The resources that the page requests.

    Raises:
        FramedexError: The port cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, page: bytes, resources: Resources) -> None:
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise FramedexError(
                "the port cannot be used",
                found=f"--port {port}: {error.strerror}",
                remedy="choose another port, or leave --port out",
            ) from error
        self.address = Address(port=self.server_address[1])
        self.page = page
        self.resources = resources

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error outside of resources. Usually, the client has closed the connection."""
        LOG.info("a connection ended", exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """The handler of one connection, which answers its requests one after the other."""

    server: Server
    server_version, sys_version = "framedex", ""
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    query: Mapping[str, str]
    body: Any

    def do_GET(self) -> None:
        """Answer a GET request with the page or a resource."""
        name = self._admitted()
        self.body = None
        if name == "":
            self._send(HTTPStatus.OK, Answer(content=self.server.page, type_=HTML))
        elif name is not None:
            self._answer(self.server.resources.get, name)

    def do_POST(self) -> None:
        """Answer a POST request, whose body contains the parameters as JSON, with a resource."""
        name = self._admitted()
        if name is None:
            return
        length = whole_number(self.headers.get("Content-Length", ""))
        if length is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "Content-Length is missing or is not a whole number of bytes")
            return
        if length > MAX_BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY_BYTES} bytes")
            return
        try:
            self.body = orjson.loads(self.rfile.read(length))
        except orjson.JSONDecodeError:
            self._refuse(HTTPStatus.BAD_REQUEST, "the body is not JSON")
            return
        self._answer(self.server.resources.post, name)

    def _admitted(self) -> str | None:
        """Return the name of the requested resource, or None if the request was refused.

        The parameters of the resource are assigned to `query`.
        """
        parts = urlsplit(self.path)
        host, origin, site = (self.headers.get(name) for name in ("Host", "Origin", "Sec-Fetch-Site"))
        refusal = self.server.address.refusal(host=host, origin=origin, site=site)
        name = self.server.address.resource(parts.path)
        if refusal is not None:
            self._refuse(HTTPStatus.FORBIDDEN, refusal)
        elif name is None:
            self._refuse(HTTPStatus.FORBIDDEN, "the token in the address is wrong; use the address framedex printed")
        else:
            self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
            return name
        return None

    def _answer(self, resources: Mapping[str, Resource], name: str) -> None:
        if name in resources:
            self._send(*self._made(resources[name]))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _made(self, resource: Resource) -> tuple[HTTPStatus, Answer]:
        """Return the status and the answer of a resource. If the resource raises an error, the answer is its text."""
        try:
            return HTTPStatus.OK, resource(self)
        except FramedexError as error:
            return HTTPStatus.UNPROCESSABLE_ENTITY, _text(error.text())
        except KeyboardInterrupt:  # raised if a query was stopped. Ctrl-C raises it only in the main thread
            return HTTPStatus.UNPROCESSABLE_ENTITY, _text("stopped")
        except Exception as error:
            found = internal_error(error)
            LOG.error("%s\n%s", found.traceback, found)
            return HTTPStatus.INTERNAL_SERVER_ERROR, _text(found.text())

    def is_waiting(self) -> bool:
        """Return whether the page still waits for the answer, which means that it has not closed the connection."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        try:
            return not ready or bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True
        self._send(status, _text(text))

    def _send(self, status: HTTPStatus, answer: Answer) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.type_)
        self.send_header("Content-Length", str(len(answer.content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log a request without its path, since the path contains the token."""
        LOG.debug("%s %s", self.command, arguments[1] if len(arguments) > 1 else "")


def _text(text: str) -> Answer:
    return Answer(content=text.encode(), type_=TEXT)


@contextlib.contextmanager
def bound(
    place: Place, thumbnails: Thumbnails, *, port: int, access: Access = OWN_STORE, limits: QueryLimits = LIMITS
) -> Iterator[Server]:
    """Provide the server of an index or a dataset. The server listens on its port, but does not answer requests yet.

    Args:
        place: The index or dataset.
        thumbnails: How pictures are turned and scaled.
        port: The port. If 0, any free port is used.
        access: The rules for which sources may be read.
        limits: The limits of each query.

    Raises:
        FormatError: The index or dataset does not exist or is damaged.
        FramedexError: The port cannot be used.
    """
    with contextlib.ExitStack() as stack:
        audited = stack.enter_context(opened(place))
        queries = stack.enter_context(QueryProcess(audited, limits, remedy=LESS))
        selections = Selections(queries)
        items: Items
        if audited.kind == "dataset":
            items = Clips(place, thumbnails, access=access)
            heading = items.heading()
            counts, settings, policy = heading.counts(), heading.settings, heading.policy
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="framedex-browser-"))
            items = Media(place, thumbnails, access=access, folder=folder)
            states = dict(queries.rows(f"SELECT {STATE}, count(*) FROM videos GROUP BY ALL").rows)
            bad = [f"{count:,} {state}" for state, count in sorted(states.items()) if state != OK]
            counts = " · ".join([counted(selections.total, "medium", "media"), *bad])
            settings, policy = None, None
        findings = Findings(place, selections.link)
        stack.callback(selections.close)
        content = page(
            kind=audited.kind,
            name=printable(PurePosixPath(str(place.absolute())).name or str(place)),
            place=printable(str(place.absolute())),
            counts=counts,
            settings=settings,
            policy=policy,
        )
        server = stack.enter_context(Server(port, content, Resources(selections, items, findings)))
        findings.start()
        stack.callback(findings.close)
        yield server


def serve(place: Place, thumbnails: Thumbnails, *, port: int, access: Access, ready: Callable[[str], None]) -> None:
    """Run the server of an index or a dataset until the process is interrupted.

    Args:
        place, thumbnails, port, access: See `bound`.
        ready: A function that is called with the address of the page when the server listens.

    Raises:
        FormatError: The index or dataset does not exist or is damaged.
        FramedexError: The port cannot be used.
    """
    with bound(place, thumbnails, port=port, access=access) as server:
        ready(server.address.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.1)
