"""Access to datasets of the Hugging Face Hub as object storage: `hf://datasets/OWNER/NAME@REVISION/PATH`.

huggingface_hub finds the token, resolves revisions and lists files. Byte ranges are requested from the Hub, which
redirects to a signed address on a storage server. The token is sent only to the Hub. A signed address is kept in memory
for a few minutes. It is never shown or written to a file.
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
ENDPOINT = "HF_ENDPOINT"  # environment variable with the address of the Hub, as in huggingface_hub
DATASET = re.compile(r"hf://datasets/(?P<owner>[^/@]+)/(?P<name>[^/@]+)(?:@(?P<revision>[^/]+))?(?P<path>(?:/.*)?)")
COMMIT = re.compile(r"[0-9a-f]{40}")
FRESH_SECONDS = 60.0  # how long the resolved commit of a branch is used; branches change seldom
MAX_SIGNED = 1024  # number of signed addresses that are kept in memory, of about 1 kB each
KEPT_SECONDS = 240.0  # how long a signed address is used; the Hub signs addresses for an hour
CHUNK = 1000  # number of files per chunk of a listing, as in S3


def pinned(uri: str) -> str:
    """Replace the revision in a uri of the Hub by the current commit of that revision. Return other uris unchanged.

    If the uri has no revision, the branch `main` is used.

    Raises:
        SourceError: The uri does not name a dataset.
        StorageError: The Hub does not answer, or does not have the dataset or revision.
        MissingExtraError: huggingface_hub is not installed.
    """
    if not uri.lower().startswith(f"{SCHEME}://"):
        return uri
    uri = checked(uri)
    match = DATASET.fullmatch(uri)
    if match is None:
        raise SourceError(
            "the uri does not name a dataset of the Hub", where=uri, allowed="hf://datasets/OWNER/NAME@REVISION/PATH"
        )
    if (match["revision"] or "").startswith("refs") and "%2F" not in match["revision"].upper():
        raise SourceError(
            "a slash in the revision must be written as %2F", where=uri, allowed="@refs%2Fconvert%2Fparquet"
        )
    revision = unquote(match["revision"] or "main")
    if not COMMIT.fullmatch(revision):
        revision = _commit(match["owner"], match["name"], revision, int(time.monotonic() // FRESH_SECONDS))
    return f"hf://datasets/{match['owner']}/{match['name']}@{revision}{match['path']}"


@functools.lru_cache(maxsize=256)
def _commit(owner: str, name: str, revision: str, now: int) -> str:
    """Return the commit of a branch, a tag or a short hash.

    Args:
        owner: The owner of the dataset.
        name: The name of the dataset.
        revision: The branch, tag or short hash.
        now: The current minute. It is a part of the cache key, so that a cached commit is used for at most a minute.
    """
    try:
        found = _api().repo_info(f"{owner}/{name}", revision=revision, repo_type="dataset").sha
    except MissingExtraError:
        raise
    except Exception as error:  # errors of huggingface_hub and of its HTTP library
        raise web.as_storage_error(f"hf://datasets/{owner}/{name}@{revision}", error) from None
    if found is None or not COMMIT.fullmatch(found):
        raise StorageError("the Hub's answer has no commit", where=f"hf://datasets/{owner}/{name}")
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
    """A store with the files of one dataset of the Hub at one commit.

    Args:
        name: The store as a uri, `hf://datasets/OWNER/NAME@COMMIT`.
        seconds: The time limit of one try of a request.
        retries: The maximum number of repeats of a failed request.
        trying_seconds: The time after which a failed request is not repeated any more.
    """

    def __init__(self, name: str, *, seconds: float, retries: int, trying_seconds: float) -> None:
        super().__init__(name, seconds=seconds, retries=retries, trying_seconds=trying_seconds)
        match = DATASET.fullmatch(name)
        if match is None or not COMMIT.fullmatch(match["revision"] or ""):
            raise StorageError(
                "the uri of the Hub has no commit",
                kind="revision",
                where=name,
                remedy="index the dataset again; the new index will record the commit",
            )
        self._repository, self._revision = f"{match['owner']}/{match['name']}", match["revision"]
        self._home = f"{endpoint()}/datasets/{self._repository}/resolve/{self._revision}"
        self._signed: dict[str, tuple[float, str, dict[str, Any]]] = {}  # key → (time when kept, address, metadata)

    def list(self, prefix: str | None) -> Iterator[list[dict[str, Any]]]:
        """Yield the metadata of all files below a folder, in lists of up to CHUNK files."""
        where = (prefix or "").rstrip("/") or None
        options = {"recursive": True, "revision": self._revision, "repo_type": "dataset"}
        try:
            entries = iter(_api().list_repo_tree(self._repository, where, **options))
            while some := list(itertools.islice(entries, CHUNK)):
                yield [_listed(one) for one in some if hasattr(one, "blob_id")]  # folders do not have this attribute
        except (_library().errors.EntryNotFoundError, web.NotFoundError):
            return

    def _follow(self, method: str, key: str, headers: dict[str, str], most: int) -> web.Answer:
        """Return the answer of the Hub or of the storage server to which the Hub redirects.

        Raises:
            StorageError: The Hub answered for another commit, or redirects to an address that must not be followed.
            PreconditionError: The ETag of the file differs from `If-Match`.
        """
        # The ETags of storage servers differ from those of the Hub, so `If-Match` is checked by this class.
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
            # Only requests to the Hub get the user's token.
            sent = headers | (_library().utils.build_hf_headers(library_name="framedex") if at_home else {})
            response = self._exchange(method, urlsplit(address), sent, most)
            if at_home:
                self._check_commit(response.headers)
                # If the file is on a storage server, the headers X-Linked-ETag and X-Linked-Size describe it.
                if tag := response.headers.get("X-Linked-ETag") or response.headers.get("ETag"):
                    meta["e_tag"] = '"{}"'.format(tag.removeprefix("W/").strip('"'))
                size = response.headers.get("X-Linked-Size", "")
                meta |= {"path": key, "last_modified": web.NO_TIME} | ({"size": int(size)} if size.isdigit() else {})
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
        """Return an answer with the metadata that the Hub sent.

        Args:
            answer: The answer of the Hub or of a storage server.
            meta: The metadata that the Hub sent.
            expected: The ETag that the file must have. If None, any ETag is accepted.

        Raises:
            StorageError: The file has another size on the storage server than on the Hub.
            PreconditionError: The file has another ETag.
        """
        known = answer.meta | meta
        if known["size"] != answer.meta["size"]:
            raise StorageError(
                "the file on the storage server has another size than the file on the Hub",
                kind="changed",
                where=f"{self._name}/{answer.meta['path']}",
                found=answer.meta["size"],
                allowed=known["size"],
            )
        if expected is not None and known["e_tag"] != expected:
            raise web.PreconditionError("status code: 412 the file has another ETag", 412)
        return web.Answer(known, answer.content)


def _listed(file: Any) -> dict[str, Any]:
    """Return the metadata of one file of a listing, with the keys of `web.Answer.meta`."""
    tag = file.blob_id if file.lfs is None else file.lfs.sha256
    return {"path": file.path, "size": file.size, "last_modified": web.NO_TIME, "e_tag": f'"{tag}"'}


def _next(address: str, location: str | None, scheme: str, key: str) -> str:
    """Return the target of a redirect.

    Args:
        address: The address that was requested.
        location: The header `Location` of the answer, or None.
        scheme: The scheme of the Hub's address. A redirect may lead to this scheme or to https.
        key: The path of the file, for the error.

    Raises:
        StorageError: The redirect has no target, or a target with another scheme or with a user name.
    """
    found = urljoin(address, location or "")
    split = urlsplit(found)
    if location is None or split.username is not None or split.scheme not in {"https", scheme} or not split.hostname:
        raise StorageError(
            "the Hub redirects to an address that framedex does not follow",
            kind="redirected",
            where=key,
            found=f"{split.scheme}://{split.hostname}",
            allowed="https://",
        )
    return found
