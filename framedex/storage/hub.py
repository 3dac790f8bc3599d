"""Datasets of the Hugging Face Hub as stores: `hf://datasets/OWNER/NAME@REVISION/PATH`.

huggingface_hub finds the token, resolves revisions and lists files. Ranges are requested from the Hub's address of a
file, which sends the reader on to a storage server with a signed address. The token goes to the Hub alone. A signed
address is kept in memory for a few minutes, and never shown or written.
"""

import functools
import http.client
import os
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from framedex.errors import MissingExtraError, SourceError, StorageError
from framedex.storage import web
from framedex.storage.errors import as_storage_error
from framedex.storage.uris import checked

SCHEME = "hf"
ENDPOINT = "HF_ENDPOINT"  # the variable of huggingface_hub
DATASET = re.compile(r"hf://datasets/(?P<owner>[^/@]+)/(?P<name>[^/@]+)(?:@(?P<revision>[^/]+))?(?P<path>(?:/.*)?)")
COMMIT = re.compile(r"[0-9a-f]{40}")
FRESH_SECONDS = 60.0  # how long a revision is taken for the commit that it was
MAX_SIGNED = 1024  # addresses that are kept
KEPT_SECONDS = 240.0  # how long a signed address is used; the Hub signs them for an hour
CHUNK = 1000  # files of a listing


def is_hub(uri: str) -> bool:
    """Return whether a uri names something on the Hub."""
    return uri.lower().startswith(f"{SCHEME}://")


def pinned(uri: str) -> str:
    """Return a uri of the Hub with the commit that its revision names now, and other names unchanged.

    Without a revision, this is the commit of the branch `main`.

    Raises:
        SourceError: the uri names no dataset.
        StorageError: the Hub does not answer, or has no such dataset or revision.
        MissingExtraError: huggingface_hub is not installed.
    """
    if not is_hub(uri):
        return uri
    uri = checked(uri)
    match = DATASET.fullmatch(uri)
    if match is None:
        raise SourceError(
            "a uri of the Hub names no dataset", where=uri, allowed="hf://datasets/OWNER/NAME@REVISION/PATH"
        )
    if (match["revision"] or "").startswith("refs") and "%2F" not in match["revision"].upper():
        raise SourceError(
            "a slash in a revision of the Hub is written %2F", where=uri, allowed="@refs%2Fconvert%2Fparquet"
        )
    revision = unquote(match["revision"] or "main")
    if not COMMIT.fullmatch(revision):
        revision = _commit(match["owner"], match["name"], revision, int(time.monotonic() // FRESH_SECONDS))
    return f"hf://datasets/{match['owner']}/{match['name']}@{revision}{match['path']}"


@functools.lru_cache(maxsize=256)
def _commit(owner: str, name: str, revision: str, now: int) -> str:
    """Return the commit that a branch, a tag or a short hash names. `now`: changes when it is to be asked again."""
    try:
        found = _api().repo_info(f"{owner}/{name}", revision=revision, repo_type="dataset").sha
    except MissingExtraError:
        raise
    except Exception as error:  # huggingface_hub's errors, and those of its HTTP library
        raise as_storage_error(f"hf://datasets/{owner}/{name}@{revision}", error) from None
    if found is None or not COMMIT.fullmatch(found):
        raise StorageError("the Hub names no commit", kind="unanswered", where=f"hf://datasets/{owner}/{name}")
    return str(found)


def endpoint() -> str:
    """Return the address of the Hub."""
    return os.environ.get(ENDPOINT, "").rstrip("/") or _library().constants.ENDPOINT


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "hf", "the Hugging Face Hub") from error
    return huggingface_hub


def _api() -> Any:
    return _library().HfApi(endpoint=endpoint(), library_name="framedex")


class HubStore(web.WebStore):
    """The files of one dataset at one commit.

    Args:
        name: `hf://datasets/OWNER/NAME@COMMIT`.
        seconds, retries, trying_seconds: as for `WebStore`.
    """

    def __init__(self, name: str, *, seconds: float, retries: int, trying_seconds: float) -> None:
        super().__init__(name, seconds=seconds, retries=retries, trying_seconds=trying_seconds)
        match = DATASET.fullmatch(name)
        if match is None or not COMMIT.fullmatch(match["revision"] or ""):
            raise StorageError(
                "a uri of the Hub names no commit",
                kind="revision",
                where=name,
                remedy="index the dataset again: an index records the commit",
            )
        self._repository, self._revision = f"{match['owner']}/{match['name']}", match["revision"]
        self._home = f"{endpoint()}/datasets/{self._repository}/resolve/{self._revision}"
        self._signed: dict[str, tuple[float, str, dict[str, Any]]] = {}  # (when, address, metadata) by key

    def list(self, prefix: str | None) -> Iterator[list[dict[str, Any]]]:
        """Yield chunks of metadata of the files below a folder."""
        missing = (_library().errors.EntryNotFoundError, web.NotFoundError)
        chunk: list[dict[str, Any]] = []
        try:
            found = _api().list_repo_tree(
                self._repository,
                (prefix or "").rstrip("/") or None,
                recursive=True,
                revision=self._revision,
                repo_type="dataset",
            )
            for one in found:
                if hasattr(one, "blob_id"):  # folders have none
                    tag = one.blob_id if one.lfs is None else one.lfs.sha256
                    chunk.append(
                        {"path": one.path, "size": one.size, "last_modified": web.NO_TIME, "e_tag": f'"{tag}"'}
                    )
                if len(chunk) == CHUNK:
                    yield chunk
                    chunk = []
        except missing:
            return
        yield chunk

    def _follow(self, method: str, key: str, headers: dict[str, str], most: int) -> web.Answer:
        """Return the answer of the Hub or of the server that it redirects to.

        Raises:
            StorageError: the answer is about another commit, or a redirect is not followed.
            PreconditionError: the file is another one than `If-Match` says.
        """
        own = {name: value for name, value in headers.items() if name != "If-Match"}
        expected = headers.get("If-Match")
        kept = self._signed.get(key)
        if method == "GET" and kept is not None and time.monotonic() - kept[0] < KEPT_SECONDS:
            status, reason, found, content = self._exchange(method, urlsplit(kept[1]), own, most)
            if status in (200, 206):
                return self._checked(web.answer_of(method, key, own, status, reason, found, content), kept[2], expected)
            self._signed.pop(key, None)  # the address has expired
        return self._from_hub(method, key, own, expected, most)

    def _from_hub(self, method: str, key: str, headers: dict[str, str], expected: str | None, most: int) -> web.Answer:
        address = f"{self._home}/{quote(key)}"
        home = web.origin_of(urlsplit(address))
        meta: dict[str, Any] = {}
        for _ in range(web.MAX_REDIRECTS + 1):
            at_home = web.origin_of(urlsplit(address)) == home
            sent = headers | (_credentials() if at_home else {})
            status, reason, found, content = self._exchange(method, urlsplit(address), sent, most)
            if at_home:
                self._check_commit(found)
                meta |= _metadata(key, found)
            if status not in web.REDIRECTING:
                answer = web.answer_of(method, key, headers, status, reason, found, content)
                if not at_home:
                    if len(self._signed) >= MAX_SIGNED:
                        self._signed.clear()
                    self._signed[key] = (time.monotonic(), address, meta)
                return self._checked(answer, meta, expected)
            address = _next(address, found.get("Location"), home[0], key)
            if method == "HEAD" and web.origin_of(urlsplit(address)) != home and "e_tag" in meta and "size" in meta:
                return self._checked(web.Answer(meta, b""), meta, expected)
        raise StorageError("the Hub redirects too often", kind="redirected", where=f"{self._name}/{key}")

    def _check_commit(self, found: http.client.HTTPMessage) -> None:
        commit = found.get("X-Repo-Commit")
        if commit is not None and commit != self._revision:
            raise StorageError(
                "the Hub answers with another revision",
                kind="changed",
                where=self._name,
                found=commit,
                allowed=self._revision,
                remedy="index the dataset again",
            )

    def _checked(self, answer: web.Answer, meta: dict[str, Any], expected: str | None) -> web.Answer:
        """Return an answer with the Hub's metadata.

        Raises:
            StorageError: the storage server has a file of another size than the Hub says.
            PreconditionError: the file is another one than expected.
        """
        known = answer.meta | meta
        if known["size"] != answer.meta["size"]:
            raise StorageError(
                "the file has another size than the Hub says",
                kind="changed",
                where=f"{self._name}/{answer.meta['path']}",
                found=answer.meta["size"],
                allowed=known["size"],
            )
        if expected is not None and known["e_tag"] != expected:
            raise web.PreconditionError("status code: 412 the file is another one", 412)
        return web.Answer(known, answer.content)


def _credentials() -> dict[str, str]:
    """Return the headers that identify the user to the Hub: the token in the environment, if there is one."""
    headers: dict[str, str] = _library().utils.build_hf_headers(library_name="framedex")
    return headers


def _metadata(key: str, found: http.client.HTTPMessage) -> dict[str, Any]:
    """Return what the Hub says about a file: of one in its storage, the headers that begin with X-Linked."""
    meta: dict[str, Any] = {}
    tag = found.get("X-Linked-ETag") or found.get("ETag")
    if tag:
        meta["e_tag"] = '"{}"'.format(tag.removeprefix("W/").strip('"'))
    size = found.get("X-Linked-Size", "")
    return meta | {"path": key, "last_modified": web.NO_TIME} | ({"size": int(size)} if size.isdigit() else {})


def _next(address: str, location: str | None, scheme: str, key: str) -> str:
    """Return the target of a redirect. Raises StorageError for one that is not a web address as safe as the Hub's."""
    found = urljoin(address, location or "")
    split = urlsplit(found)
    if location is None or split.username is not None or split.scheme not in {"https", scheme} or not split.hostname:
        raise StorageError(
            "the Hub redirects to an address that is not followed",
            kind="redirected",
            where=key,
            found=f"{split.scheme}://{split.hostname}",
            allowed="https://",
        )
    return found
