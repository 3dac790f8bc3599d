"""Datasets of the Hugging Face Hub as stores: `hf://datasets/OWNER/NAME@REVISION/PATH`.

huggingface_hub finds the token, resolves revisions and lists files. Ranges are requested from the Hub, which redirects
to a signed address on a storage server. Only the Hub receives the token. A signed address is kept in memory for a few
minutes, and never shown or written.
"""

import functools
import http.client
import itertools
import os
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from framedex.errors import MissingExtraError, SourceError, StorageError
from framedex.storage import web
from framedex.storage.uris import checked

SCHEME = "hf"
ENDPOINT = "HF_ENDPOINT"  # the variable of huggingface_hub
DATASET = re.compile(r"hf://datasets/(?P<owner>[^/@]+)/(?P<name>[^/@]+)(?:@(?P<revision>[^/]+))?(?P<path>(?:/.*)?)")
COMMIT = re.compile(r"[0-9a-f]{40}")
FRESH_SECONDS = 60.0  # branches move seldom, so their commit is requested once a minute
MAX_SIGNED = 1024  # addresses that are kept, of about 1 kB each
KEPT_SECONDS = 240.0  # the Hub signs addresses for an hour; a few minutes save most requests
CHUNK = 1000  # files per chunk of a listing, as in S3


def pinned(uri: str) -> str:
    """Replace the revision in a uri of the Hub by its current commit. Return other uris unchanged.

    The default revision is the branch `main`.

    Raises:
        SourceError: The uri does not name a dataset.
        StorageError: The Hub does not answer, or lacks the dataset or revision.
        MissingExtraError: huggingface_hub is not installed.
    """
    if not uri.lower().startswith(f"{SCHEME}://"):
        return uri
    uri = checked(uri)
    match = DATASET.fullmatch(uri)
    if match is None:
        raise SourceError(
            "a uri of the Hub does not name a dataset", where=uri, allowed="hf://datasets/OWNER/NAME@REVISION/PATH"
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
    """Return the commit of a branch, a tag or a short hash. `now` changes each minute, and ends a cached answer."""
    try:
        found = _api().repo_info(f"{owner}/{name}", revision=revision, repo_type="dataset").sha
    except MissingExtraError:
        raise
    except Exception as error:  # errors of huggingface_hub and of its HTTP library
        raise web.as_storage_error(f"hf://datasets/{owner}/{name}@{revision}", error) from None
    if found is None or not COMMIT.fullmatch(found):
        raise StorageError("the Hub does not name a commit", where=f"hf://datasets/{owner}/{name}")
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
        seconds, retries, trying_seconds: See `WebStore`.
    """

    def __init__(self, name: str, *, seconds: float, retries: int, trying_seconds: float) -> None:
        super().__init__(name, seconds=seconds, retries=retries, trying_seconds=trying_seconds)
        match = DATASET.fullmatch(name)
        if match is None or not COMMIT.fullmatch(match["revision"] or ""):
            raise StorageError(
                "a uri of the Hub does not name a commit",
                kind="revision",
                where=name,
                remedy="index the dataset again: an index records the commit",
            )
        self._repository, self._revision = f"{match['owner']}/{match['name']}", match["revision"]
        self._home = f"{endpoint()}/datasets/{self._repository}/resolve/{self._revision}"
        self._signed: dict[str, tuple[float, str, dict[str, Any]]] = {}  # (when, address, metadata) by key

    def list(self, prefix: str | None) -> Iterator[list[dict[str, Any]]]:
        """Yield chunks of metadata of the files below a folder."""
        where = (prefix or "").rstrip("/") or None
        options = {"recursive": True, "revision": self._revision, "repo_type": "dataset"}
        try:
            entries = iter(_api().list_repo_tree(self._repository, where, **options))
            while some := list(itertools.islice(entries, CHUNK)):
                yield [_listed(one) for one in some if hasattr(one, "blob_id")]  # folders do not have this attribute
        except (_library().errors.EntryNotFoundError, web.NotFoundError):
            return

    def _follow(self, method: str, key: str, headers: dict[str, str], most: int) -> web.Answer:
        """Return the answer of the Hub or of the server that it redirects to.

        Raises:
            StorageError: The answer is about another commit, or a redirect is not followed.
            PreconditionError: The file does not match `If-Match`.
        """
        # Storage servers have other ETags than the Hub, so `If-Match` is checked here.
        own = {name: value for name, value in headers.items() if name != "If-Match"}
        expected = headers.get("If-Match")
        kept = self._signed.get(key)
        if method == "GET" and kept is not None and time.monotonic() - kept[0] < KEPT_SECONDS:
            response = self._exchange(method, urlsplit(kept[1]), own, most)
            if response.status in (200, 206):
                return self._checked(web.answer_of(method, key, own, response), kept[2], expected)
            self._signed.pop(key, None)  # the address has expired
        return self._from_hub(method, key, own, expected, most)

    def _from_hub(self, method: str, key: str, headers: dict[str, str], expected: str | None, most: int) -> web.Answer:
        address = f"{self._home}/{quote(key)}"
        home = web.origin_of(urlsplit(address))
        meta: dict[str, Any] = {}
        for _ in range(web.MAX_REDIRECTS + 1):
            at_home = web.origin_of(urlsplit(address)) == home
            # The token in the environment, if there is one, is only for the Hub.
            sent = headers | (_library().utils.build_hf_headers(library_name="framedex") if at_home else {})
            response = self._exchange(method, urlsplit(address), sent, most)
            if at_home:
                self._check_commit(response.headers)
                meta |= _metadata(key, response.headers)
            if response.status not in web.REDIRECTING:
                answer = web.answer_of(method, key, headers, response)
                if not at_home:
                    if len(self._signed) >= MAX_SIGNED:
                        self._signed.clear()
                    self._signed[key] = (time.monotonic(), address, meta)
                return self._checked(answer, meta, expected)
            address = _next(address, response.headers.get("Location"), home[0], key)
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
            StorageError: The file's size on the storage server differs from its size on the Hub.
            PreconditionError: The file is not the expected one.
        """
        known = answer.meta | meta
        if known["size"] != answer.meta["size"]:
            raise StorageError(
                "the file has another size than on the Hub",
                kind="changed",
                where=f"{self._name}/{answer.meta['path']}",
                found=answer.meta["size"],
                allowed=known["size"],
            )
        if expected is not None and known["e_tag"] != expected:
            raise web.PreconditionError("status code: 412 the file is another one", 412)
        return web.Answer(known, answer.content)


def _listed(file: Any) -> dict[str, Any]:
    """Return the metadata of a file in a listing."""
    tag = file.blob_id if file.lfs is None else file.lfs.sha256
    return {"path": file.path, "size": file.size, "last_modified": web.NO_TIME, "e_tag": f'"{tag}"'}


def _metadata(key: str, found: http.client.HTTPMessage) -> dict[str, Any]:
    """Return the metadata in an answer of the Hub. For files on storage servers, it has headers with X-Linked."""
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
