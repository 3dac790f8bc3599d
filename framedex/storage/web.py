"""Access to a web server as object storage, by HEAD and range requests. Conversion of stores' errors to StorageError.

obstore follows redirects to any address, so a malicious web server could make it send requests to any host of the
user's network. `WebStore` follows a redirect only within the same scheme, host and port, and to servers that the user
allows. A redirected request has only the headers with the range and the ETag.

`as_storage_error` converts an error of any store into an error for the user that does not contain secrets.
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

REDIRECTS = "FRAMEDEX_STORAGE_REDIRECTS"  # environment variable with further servers to which redirects may lead
MAX_REDIRECTS = 3  # number of redirects per request that are followed; usually, there is at most one
REDIRECTING = frozenset({301, 302, 303, 307, 308})  # HTTP statuses of redirects
AGAIN = frozenset({408, 429, 500, 502, 503, 504})  # HTTP statuses of temporary failures
PORTS = {"http": 80, "https": 443}
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 15.0  # shortest and longest wait between two tries, as in obstore
CHUNK_BYTES = 1 << 20  # maximum number of bytes per read of an answer
MAX_IDLE = 32  # number of idle connections per server that are kept open: one per thread that sends requests
NO_TIME = datetime.fromtimestamp(0, UTC)  # modification time of an object if the server sends none

Origin = tuple[str, str, int]  # scheme, host, port
Connection = tuple[http.client.HTTPConnection, dict[str, str]]  # a connection, and the headers for its proxy


class Response(NamedTuple):
    """The response of a server to one request. The status has not been checked."""

    status: int
    reason: str
    headers: http.client.HTTPMessage
    content: bytes


class NotFoundError(Exception):
    """The server has no such object."""


class PreconditionError(Exception):
    """The ETag of the object differs from the ETag in the request header If-Match."""


class NotSupportedError(Exception):
    """The server does not support range requests."""


class AnswerError(Exception):
    """The server answered with an unexpected status."""


ERRORS: dict[int, type[Exception]] = {404: NotFoundError, 410: NotFoundError, 412: PreconditionError}


class Answer(NamedTuple):
    """A server's answer. It has the attribute `meta` and the method `bytes`, as obstore's answers have."""

    meta: dict[str, Any]
    content: bytes

    def bytes(self) -> bytes:
        """Return the content of the answer."""
        return self.content


def origin_of(address: SplitResult) -> Origin:
    """Return the (scheme, host, port) of an address. Raises ValueError if the port is invalid."""
    return address.scheme, (address.hostname or "").lower(), address.port or PORTS.get(address.scheme, 0)


def allowed_origins() -> frozenset[Origin]:
    """Return the further servers to which redirects may lead, from the environment variable in REDIRECTS.

    Raises:
        FramedexError: The variable has a part that is not the address of a server.
    """
    found = set()
    for text in os.environ.get(REDIRECTS, "").replace(",", " ").split():
        try:
            address = urlsplit(text)
            found.add(origin_of(address))
        except ValueError:
            address = urlsplit("")
        if address.scheme not in PORTS or not address.hostname or address.path not in ("", "/") or address.username:
            raise FramedexError(
                f"{REDIRECTS} must be a list of servers",
                found=text,
                allowed="https://host or https://host:port, separated by spaces",
            )
    return frozenset(found)


class WebStore:
    """A store with the objects of one web server.

    Args:
        name: The server as `scheme://host`, or `scheme://host:port` if the port is not the default of the scheme.
        seconds: The time limit of one try of a request.
        retries: The maximum number of repeats of a failed request.
        trying_seconds: The time after which a failed request is not repeated any more.
    """

    def __init__(self, name: str, *, seconds: float, retries: int, trying_seconds: float) -> None:
        self._name, self._seconds, self._retries, self._trying = name, seconds, retries, trying_seconds
        self._idle: dict[Origin, list[Connection]] = {}
        self._lock = threading.Lock()

    def head(self, key: str) -> dict[str, Any]:
        """Return the metadata of an object."""
        return self._request("HEAD", key, {}).meta

    def get(self, key: str, *, options: Mapping[str, Any]) -> Answer:
        """Return a byte range of an object.

        Args:
            key: The object.
            options: `range` is (begin, end), or {"suffix": number of bytes at the end}. `if_match`, which may be left
                out, is the ETag that the object must have. obstore has the same options.
        """
        wanted = options["range"]
        most = wanted["suffix"] if isinstance(wanted, dict) else wanted[1] - wanted[0]
        headers = {"Range": f"bytes=-{most}" if isinstance(wanted, dict) else f"bytes={wanted[0]}-{wanted[1] - 1}"}
        if "if_match" in options:
            headers["If-Match"] = options["if_match"]
        return self._request("GET", key, headers, most)

    def _request(self, method: str, key: str, headers: dict[str, str], most: int = 0) -> Answer:
        """Send a request and return the answer. After a temporary failure, the request is repeated."""
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
        """Send a request, follow redirects, and return the final answer.

        Raises:
            StorageError: A redirect leads to a server that is not allowed, or there are too many redirects.
        """
        address = f"{self._name}/{quote(key)}"
        home = origin_of(urlsplit(address))
        for _ in range(MAX_REDIRECTS + 1):
            response = self._exchange(method, urlsplit(address), headers, most)
            if response.status not in REDIRECTING:
                return answer_of(method, key, headers, response)
            address = _next(address, response.headers.get("Location"), home)
        raise _not_followed("the server redirects too often", self._name, address)

    def _exchange(self, method: str, address: SplitResult, headers: dict[str, str], most: int) -> Response:
        """Send one request and return the response. Raises OSError, HTTPException.

        If the content is longer than `most` bytes, the rest is not read, and the connection is closed. If the request
        was a range request, longer content is an error.
        """
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
            response.read(0)  # closes the response if it is complete; `read1` does not close it
            if len(content) > most:
                connection.close()  # the rest of the answer is not read
                if response.status == 206:
                    raise http.client.HTTPException("the server sends more bytes than requested")
            return Response(response.status, response.reason, response.headers, bytes(content))

    def _begun(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        """Read the status and the headers of a response. Raises OSError, HTTPException.

        A timer limits the total time, since the time limit of the socket applies to each read separately.
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
        """Provide a connection to a server, and the headers for a proxy.

        If no error occurs in the block, the connection is kept open for later requests.
        """
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
    """Return a connection to a server, and the headers for a proxy. The first request opens the connection.

    The environment variables for proxies are respected, such as HTTPS_PROXY.
    """
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
    tls = ssl.create_default_context()
    connection = http.client.HTTPSConnection(near_host, near_port, timeout=seconds, context=tls)
    if proxy:
        connection.set_tunnel(host, port, headers)
    return connection, {}


def answer_of(method: str, key: str, headers: dict[str, str], response: Response) -> Answer:
    """Check a response, and return the content and the metadata of the object.

    Args:
        method: The method of the request.
        key: The object.
        headers: The headers of the request.
        response: The response.

    Raises:
        NotFoundError, PreconditionError, AnswerError: The status of the response is an error.
        NotSupportedError: The server ignored the range, or did not send the size of the object.
    """
    status, reason, found, content = response
    if status not in (200, 206):
        raise ERRORS.get(status, AnswerError)(f"status code: {status} {reason}", status)
    if status == 200 and "Range" in headers and method == "GET":
        raise NotSupportedError("the server does not support range requests")
    size = found.get("Content-Length", "")
    if status == 206:
        match = re.fullmatch(r"bytes \d+-\d+/(\d+)", found.get("Content-Range", ""))
        if match is None:
            raise NotSupportedError("the server's answer does not have the range of its content")
        size = match[1]
    if not size.isdigit():
        raise NotSupportedError("the server's answer does not have the size of the object")
    modified = NO_TIME
    with contextlib.suppress(ValueError):
        modified = email.utils.parsedate_to_datetime(found.get("Last-Modified", ""))
    meta = {"path": key, "size": int(size), "last_modified": modified, "e_tag": found.get("ETag")}
    return Answer(meta, content)


def _next(address: str, location: str | None, home: Origin) -> str:
    """Return the target of a redirect. Raises StorageError if the redirect must not be followed."""
    found = urljoin(address, location or "")
    split = urlsplit(found)
    try:
        origin = origin_of(split)
    except ValueError:
        origin = ("", "", 0)
    if location is None or split.username is not None or (origin != home and origin not in allowed_origins()):
        raise _not_followed("the server redirects to another server", address, found)
    return found


def _not_followed(what: str, address: str, found: str) -> StorageError:
    to = urlsplit(found)
    return StorageError(
        what,
        kind="redirected",
        where=address.partition("?")[0],
        found=f"{to.scheme}://{to.netloc.rpartition('@')[2]}{to.path}",
        allowed=f"up to {MAX_REDIRECTS} redirects within the same scheme, host and port, or to servers in {REDIRECTS}",
        remedy=f"use the address in `found`, or set {REDIRECTS}=scheme://host:port if you trust its server",
    )


# An environment variable of a store (_STORES) has a secret value if its name contains one of these words.
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL|SIGNATURE", re.IGNORECASE)
_STORES = ("AWS_", "AZURE_", "GOOGLE_", "GCS_", "HF_", "HUGGING_FACE_")
_LEAST_SECRET = 6  # least number of characters of a secret; shorter values would match ordinary text
MAX_TEXT = 600  # number of characters of a store's answer that are shown; some stores answer with whole HTML pages
# Error codes and HTTP statuses with which stores refuse credentials. The codes are needed since some stores answer with
# status 400 if a token has expired.
REFUSED = re.compile(
    r"ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch|TokenRefreshRequired|InvalidToken|status code: 40[13]"
)
_STATUS = re.compile(r"status code: (\d{3}[^:<]*)")
# (kind, sentence) of errors.
MISSING = ("missing", "the object does not exist")
CHANGED = ("changed", "the object is not the same as before")
DENIED = ("denied", "the store refuses the credentials from the environment variables")
UNSUPPORTED = ("unsupported", "the store does not support this request")
# Name of an exception's class → (kind, sentence). Names are used since importing the libraries of all stores is slow.
KINDS = {
    "AlreadyExistsError": ("exists", "the object exists already"),
    "GatedRepoError": ("denied", "the Hub gives access only to users who accepted the dataset's conditions"),
    "RepositoryNotFoundError": ("missing", "the Hub has no such dataset, or the token does not give access to it"),
    "RevisionNotFoundError": ("missing", "the dataset has no such revision"),
    **dict.fromkeys(("NotFoundError", "FileNotFoundError", "EntryNotFoundError", "RemoteEntryNotFoundError"), MISSING),
    **dict.fromkeys(("PreconditionError", "NotModifiedError"), CHANGED),
    **dict.fromkeys(("PermissionDeniedError", "UnauthenticatedError"), DENIED),
    **dict.fromkeys(("NotSupportedError", "NotImplementedError"), UNSUPPORTED),
}
REMEDIES = {
    "name": "rename the object, or choose folders without it",
    "denied": "check that the credentials are set, have not expired and allow this request (docs/storage.md)",
    "exists": "another run is writing to this folder or has written to it; wait for that run, or choose another folder",
    "unanswered": "run the same command again; objects that were written are kept",
}


def may_be_tried_again(error: Exception) -> bool:
    """Return whether a failed request may succeed if it is repeated.

    True for broken connections, time limits and temporary server errors. False if the store refused the request.
    """
    status = _STATUS.search(str(error))
    # 408 is a timeout, 429 is too many requests, and 5xx are errors of the server.
    is_passing = status is None or status[1].startswith(("408", "429", "5"))
    return is_passing and kind_of(error)[0] == "unanswered" and not isinstance(error, TypeError | ValueError)


def kind_of(error: Exception) -> tuple[str, str]:
    """Return (kind, sentence) for an error: the `kind` of a StorageError, and the text of its message."""
    text = str(error)
    if REFUSED.search(text):
        return DENIED
    if "path segment" in text:
        return "name", "a part of a key in this folder is empty, . or .."
    if "NoSuchBucket" in text:
        return "missing", "the bucket does not exist"
    return KINDS.get(type(error).__name__, ("unanswered", "the store did not answer, or answered with an error"))


def as_storage_error(uri: str, error: Exception) -> StorageError:
    """Return a StorageError without secrets for an error of a store or of a library.

    Args:
        uri: The object or folder, for the message.
        error: The error.
    """
    kind, what = kind_of(error)
    found = without_secrets(answer_in(str(error)))
    return StorageError(what, kind=kind, where=uri, found=found, remedy=REMEDIES.get(kind))


def without_secrets(text: str) -> str:
    """Return a message without secrets, cut to MAX_TEXT characters.

    The values of secret environment variables, and the user names and queries of addresses, are removed.
    """
    values = {value for name, value in os.environ.items() if name.startswith(_STORES) and _SECRET.search(name)}
    for secret in sorted((value for value in values if len(value) >= _LEAST_SECRET), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"//[^/@\s]*@", "//…@", re.sub(r"\?[^\s\"']*", "?…", text))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def answer_in(text: str) -> str:
    """Return the status, error code and message of a store's answer from the text of an error.

    If the text does not have a status, the whole text is returned, without obstore's debugging details.
    """
    status = _STATUS.search(text)
    if status is None:
        return text.split("\n\nDebug source")[0].strip()
    answer = [found[1] for tag in ("Code", "Message") if (found := re.search(f"<{tag}>([^<]*)</{tag}>", text))]
    return ": ".join(part.strip() for part in (status[1], *answer))
