"""A web server as a store: HEAD and range requests over kept connections, and redirects within the same server.

Also the errors of all stores, as errors for the user that do not contain secrets.

obstore follows redirects to any address, so a server of videos could send its readers to any host of their network.
This store follows a redirect only within the same scheme, host and port, and to servers that the user names. Only the
range and the ETag of a request are sent along.
"""

import base64
import contextlib
import email.utils
import http.client
import os
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from framedex.errors import FramedexError, StorageError

REDIRECTS = "FRAMEDEX_STORAGE_REDIRECTS"  # names further servers that redirects may lead to
MAX_REDIRECTS = 3  # per request; a server that renamed an object needs one
REDIRECTING = frozenset({301, 302, 303, 307, 308})
AGAIN = frozenset({408, 429, 500, 502, 503, 504})  # statuses of temporary failures
PORTS = {"http": 80, "https": 443}
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 15.0  # between two tries, as obstore waits
CHUNK_BYTES = 1 << 20
MAX_IDLE = 32  # connections that are kept open, one per thread that waits for stores
NO_TIME = datetime.fromtimestamp(0, UTC)

Origin = tuple[str, str, int]  # scheme, host, port
Connection = tuple[http.client.HTTPConnection, dict[str, str]]  # a connection, and the headers for its proxy


class Response(NamedTuple):
    """A server's response to one request, before its status is checked."""

    status: int
    reason: str
    headers: http.client.HTTPMessage
    content: bytes


class NotFoundError(Exception):
    """The server has no such object."""


class PreconditionError(Exception):
    """The object does not match If-Match."""


class NotSupportedError(Exception):
    """The server does not support range requests."""


class AnswerError(Exception):
    """The server answered with an unexpected status."""


ERRORS: dict[int, type[Exception]] = {404: NotFoundError, 410: NotFoundError, 412: PreconditionError}


class Answer(NamedTuple):
    """A server's answer, with the `meta` and `bytes()` of obstore's answers."""

    meta: dict[str, Any]
    content: bytes

    def bytes(self) -> bytes:
        """Return the content."""
        return self.content


def origin_of(address: SplitResult) -> Origin:
    """Return (scheme, host, port) of an address. Raises ValueError for an invalid port."""
    return address.scheme, (address.hostname or "").lower(), address.port or PORTS.get(address.scheme, 0)


def allowed_origins() -> frozenset[Origin]:
    """Return the other servers that redirects may lead to, from the environment. Raises FramedexError if invalid."""
    found = set()
    for text in os.environ.get(REDIRECTS, "").replace(",", " ").split():
        try:
            address = urlsplit(text)
            found.add(origin_of(address))
        except ValueError:
            address = urlsplit("")
        if address.scheme not in PORTS or not address.hostname or address.path not in ("", "/") or address.username:
            raise FramedexError(
                f"{REDIRECTS} names servers",
                found=text,
                allowed="https://host or https://host:port, separated by spaces",
            )
    return frozenset(found)


class WebStore:
    """The objects of one web server.

    Args:
        name: `scheme://host`, with a port if it is not the usual one.
        seconds: The time limit of a request.
        retries: How often a failed request is repeated.
        trying_seconds: The time limit of all tries of a request.
    """

    def __init__(self, name: str, *, seconds: float, retries: int, trying_seconds: float) -> None:
        self._name, self._seconds, self._retries, self._trying = name, seconds, retries, trying_seconds
        self._idle: dict[Origin, list[Connection]] = {}
        self._lock = threading.Lock()

    def head(self, key: str) -> dict[str, Any]:
        """Return the metadata of an object."""
        return self._request("HEAD", key, {}).meta

    def get(self, key: str, *, options: Mapping[str, Any]) -> Answer:
        """Return bytes of an object.

        `options` as in obstore: `range`, (begin, end) or {"suffix": bytes}, and `if_match`.
        """
        wanted = options["range"]
        most = wanted["suffix"] if isinstance(wanted, dict) else wanted[1] - wanted[0]
        headers = {"Range": f"bytes=-{most}" if isinstance(wanted, dict) else f"bytes={wanted[0]}-{wanted[1] - 1}"}
        if "if_match" in options:
            headers["If-Match"] = options["if_match"]
        return self._request("GET", key, headers, most)

    def _request(self, method: str, key: str, headers: dict[str, str], most: int = 0) -> Answer:
        """Return the answer to a request. Temporary failures are repeated."""
        begun, wait = time.monotonic(), FIRST_WAIT_SECONDS
        for attempt in range(self._retries + 1):
            try:
                return self._follow(method, key, headers, most)
            except (OSError, http.client.HTTPException, AnswerError) as error:
                passing = not isinstance(error, AnswerError) or error.args[1] in AGAIN
                if not passing or attempt == self._retries or time.monotonic() - begun > self._trying:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _follow(self, method: str, key: str, headers: dict[str, str], most: int) -> Answer:
        """Return the answer at the end of the redirects. Raises StorageError for a redirect that is not followed."""
        address = f"{self._name}/{quote(key)}"
        home = origin_of(urlsplit(address))
        for _ in range(MAX_REDIRECTS + 1):
            response = self._exchange(method, urlsplit(address), headers, most)
            if response.status not in REDIRECTING:
                return answer_of(method, key, headers, response)
            address = _next(address, response.headers.get("Location"), home)
        raise _not_followed("the server redirects in circles, or too often", self._name, address)

    def _exchange(self, method: str, address: SplitResult, headers: dict[str, str], most: int) -> Response:
        """Return the response to one request, with at most `most` bytes of content. Raises OSError, HTTPException."""
        origin = origin_of(address)
        target = address.path + (f"?{address.query}" if address.query else "")
        with self._connection(origin) as (connection, by_proxy):
            full = f"{address.scheme}://{address.netloc}{target}" if by_proxy else target
            deadline = time.monotonic() + self._seconds
            connection.request(method, full or "/", headers={"Accept-Encoding": "identity"} | headers | by_proxy)
            response = self._begun(connection)
            content = bytearray()
            while len(content) <= most and (chunk := response.read1(CHUNK_BYTES)):
                content += chunk
                if time.monotonic() > deadline:
                    raise self._late()
            response.read(0)  # closes a complete response, which `read1` leaves open
            if len(content) > most:
                connection.close()  # the rest of the answer is not read
                if response.status == 206:
                    raise http.client.HTTPException("the server sends more bytes than requested")
            return Response(response.status, response.reason, response.headers, bytes(content))

    def _begun(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        """Read the headers of a response. Raises OSError, HTTPException.

        A timer limits the time of all headers, since the socket's time limit applies to each line.
        """
        late = threading.Event()

        def end() -> None:
            late.set()
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._seconds, end)
        timer.daemon = True
        timer.start()
        try:
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._late() if late.is_set() else error from None
        finally:
            timer.cancel()

    def _late(self) -> TimeoutError:
        return TimeoutError(f"the answer took longer than {self._seconds:g} s")

    @contextlib.contextmanager
    def _connection(self, origin: Origin) -> Iterator[Connection]:
        """Provide a connection and the headers for its proxy. The connection is kept if no error occurs."""
        with self._lock:
            idle = self._idle.setdefault(origin, [])
            kept = idle.pop() if idle else None
        connection = kept or _connect(origin, self._seconds)
        try:
            yield connection
        except BaseException:
            connection[0].close()
            raise
        with self._lock:
            if len(idle) < MAX_IDLE:
                idle.append(connection)
                return
        connection[0].close()


def _connect(origin: Origin, seconds: float) -> Connection:
    """Return a connection to a server, through the proxy in the environment. The first request opens it."""
    scheme, host, port = origin
    proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)
    through = urlsplit(proxy if proxy is None or "://" in proxy else f"http://{proxy}")
    near_host, near_port = host, port
    if proxy and through.hostname:
        near_host, near_port = str(through.hostname), through.port or PORTS["http"]
    headers: dict[str, str] = {}
    if proxy and through.username:
        login = f"{unquote(str(through.username))}:{unquote(str(through.password or ''))}"
        headers = {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    if scheme == "http":
        plain = http.client.HTTPConnection(near_host, near_port, timeout=seconds)
        return plain, {"Host": f"{host}:{port}"} | headers if proxy else {}
    connection = http.client.HTTPSConnection(
        near_host, near_port, timeout=seconds, context=ssl.create_default_context()
    )
    if proxy:
        connection.set_tunnel(host, port, headers)
    return connection, {}


def answer_of(method: str, key: str, headers: dict[str, str], response: Response) -> Answer:
    """Return an answer with the object's metadata. Raises the errors that `as_storage_error` knows."""
    status, reason, found, content = response
    if status not in (200, 206):
        raise ERRORS.get(status, AnswerError)(f"status code: {status} {reason}", status)
    if status == 200 and "Range" in headers and method == "GET":
        raise NotSupportedError("the server does not answer range requests")
    size = found.get("Content-Length", "")
    if status == 206:
        match = re.fullmatch(r"bytes \d+-\d+/(\d+)", found.get("Content-Range", ""))
        if match is None:
            raise NotSupportedError("the server's answer lacks its range")
        size = match[1]
    if not size.isdigit():
        raise NotSupportedError("the server's answer lacks the object's size")
    modified = NO_TIME
    with contextlib.suppress(ValueError):
        modified = email.utils.parsedate_to_datetime(found.get("Last-Modified", ""))
    meta = {"path": key, "size": int(size), "last_modified": modified, "e_tag": found.get("ETag")}
    return Answer(meta, content)


def _next(address: str, location: str | None, home: Origin) -> str:
    """Return the target of a redirect. Raises StorageError if it must not be followed."""
    found = urljoin(address, location or "")
    split = urlsplit(found)
    try:
        origin = origin_of(split)
    except ValueError:
        origin = ("", "", 0)
    if location is None or split.username is not None or (origin != home and origin not in allowed_origins()):
        raise _not_followed("the server redirects to another one", address, found)
    return found


def _not_followed(what: str, address: str, found: str) -> StorageError:
    to = urlsplit(found)
    return StorageError(
        what,
        kind="redirected",
        where=address.partition("?")[0],
        found=f"{to.scheme}://{to.netloc.rpartition('@')[2]}{to.path}",
        allowed=f"up to {MAX_REDIRECTS} redirects within the same scheme, host and port, and to those in {REDIRECTS}",
        remedy=f"name the other address itself, or set {REDIRECTS}=scheme://host:port if you trust it",
    )


# Variables with these words in their names have secret values.
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL|SIGNATURE", re.IGNORECASE)
_STORES = ("AWS_", "AZURE_", "GOOGLE_", "GCS_", "HF_", "HUGGING_FACE_")
_LEAST_SECRET = 6  # characters; shorter values are not secrets and would match everywhere
MAX_TEXT = 600  # characters; some stores answer with whole pages
# Statuses and codes with which stores refuse credentials; some answer 400 for an expired token.
REFUSED = re.compile(
    r"ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch|TokenRefreshRequired|InvalidToken|status code: 40[13]"
)
_STATUS = re.compile(r"status code: (\d{3}[^:<]*)")
MISSING = ("missing", "the object does not exist")
CHANGED = ("changed", "the object is not the same as before")
DENIED = ("denied", "the store refuses the credentials in the environment")
UNSUPPORTED = ("unsupported", "the store does not support this request")
# By the name of the class, since importing the libraries of all stores would be slow.
KINDS = {
    "AlreadyExistsError": ("exists", "something has been written there already"),
    "GatedRepoError": ("denied", "the Hub gives access only to those who accepted the dataset's conditions"),
    "RepositoryNotFoundError": ("missing", "the Hub has no such dataset, or the token gives no access to it"),
    "RevisionNotFoundError": ("missing", "the dataset has no such revision"),
    **dict.fromkeys(("NotFoundError", "FileNotFoundError", "EntryNotFoundError", "RemoteEntryNotFoundError"), MISSING),
    **dict.fromkeys(("PreconditionError", "NotModifiedError"), CHANGED),
    **dict.fromkeys(("PermissionDeniedError", "UnauthenticatedError"), DENIED),
    **dict.fromkeys(("NotSupportedError", "NotImplementedError"), UNSUPPORTED),
}
REMEDIES = {
    "name": "rename the object, or name folders without it",
    "denied": "check that they are there, have not expired and allow this (docs/storage.md)",
    "exists": "another run is writing here, or has: wait for it, or choose another place",
    "unanswered": "run the same again; what was written stays",
}


def may_be_tried_again(error: Exception) -> bool:
    """Return whether a request may succeed when repeated: the answer broke off or was late, and was not a refusal."""
    status = _STATUS.search(str(error))
    is_passing = status is None or status[1].startswith(("408", "429", "5"))  # timeout, too many requests, server error
    return is_passing and kind_of(error)[0] == "unanswered" and not isinstance(error, TypeError | ValueError)


def is_past_the_end(error: Exception) -> bool:
    """Return whether a store reports that the object ends before the requested range."""
    return "status code: 416" in str(error)


def kind_of(error: Exception) -> tuple[str, str]:
    """Return (kind, sentence) of an error."""
    text = str(error)
    if REFUSED.search(text):
        return DENIED
    if "path segment" in text:
        return "name", "a key there has empty parts, or some that are . or .."
    if "NoSuchBucket" in text:
        return "missing", "there is no such bucket"
    return KINDS.get(type(error).__name__, ("unanswered", "the store does not answer as it should"))


def as_storage_error(uri: str, error: Exception) -> StorageError:
    """Return the error to raise for an error of a store or of obstore."""
    kind, what = kind_of(error)
    return StorageError(
        what, kind=kind, where=uri, found=without_secrets(answer_in(str(error))), remedy=REMEDIES.get(kind)
    )


def without_secrets(text: str) -> str:
    """Return a shortened message without the values of secret variables and without the queries of addresses."""
    secrets = {
        value
        for name, value in os.environ.items()
        if name.startswith(_STORES) and _SECRET.search(name) and len(value) >= _LEAST_SECRET
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"//[^/@\s]*@", "//…@", re.sub(r"\?[^\s\"']*", "?…", text))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def answer_in(text: str) -> str:
    """Return the text of a store's answer without markup, addresses and times."""
    status = _STATUS.search(text)
    if status is None:
        return text.split("\n\nDebug source")[0].strip()
    answer = [found[1] for tag in ("Code", "Message") if (found := re.search(f"<{tag}>([^<]*)</{tag}>", text))]
    return ": ".join(part.strip() for part in (status[1], *answer))
