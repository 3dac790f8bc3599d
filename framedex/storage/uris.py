"""Functions for uris and paths of sources and outputs. They access neither files nor the network."""

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from framedex.errors import SourceError

SCHEMES = frozenset({"s3", "gs", "az", "hf", "http", "https"})
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SIGNED = re.compile(r"[?&](?:sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+)=", re.IGNORECASE)
_HUB_SECRET = re.compile(r"hf_[A-Za-z0-9]{8,}|\?[^/=]*=")  # a token of the Hub, or a query
_FILE = "file://"


def is_uri(name: str) -> bool:
    """Return whether a name begins with any scheme, such as s3:// or ftp://."""
    return _SCHEME.match(name) is not None


def is_remote(name: str) -> bool:
    """Return whether a name is a uri with a scheme of object storage or of a web server."""
    match = _SCHEME.match(name)
    return match is not None and match[1].lower() in SCHEMES


def local_path(name: str) -> str:
    """Return the path of a `file://` uri. Return other names unchanged.

    Raises:
        SourceError: The uri has the name of another machine, or no absolute path.
    """
    if not name.startswith(_FILE):
        return name
    host, slash, path = name.removeprefix(_FILE).partition("/")
    if not slash or host not in ("", "localhost"):
        raise SourceError(
            "a file:// uri must refer to a file of this machine", found=name, allowed="file:///absolute/path"
        )
    return unquote(f"/{path}")


def checked(uri: str) -> str:
    """Return a uri in the form in which indexes and datasets record uris: without a trailing slash.

    Recorded uris are also shown in messages, so a uri that may contain a secret is refused. Secrets may be a user name,
    a password, or the query of a presigned uri or of a shared access signature.

    Raises:
        SourceError: The uri may contain a secret, has no bucket, or has a key with an empty part, `.` or `..`.
    """
    scheme, rest = uri.split("://", 1)
    authority, _, key = rest.partition("/")
    shown = f"{scheme.lower()}://{authority.rpartition('@')[2]}/…"
    is_web = scheme.lower() in ("http", "https")
    if (
        "@" in authority
        or (is_web and ("?" in rest or "#" in rest))
        or _SIGNED.search(rest)
        or (scheme.lower() == "hf" and _HUB_SECRET.search(rest))
    ):
        raise SourceError(
            "the uri contains credentials or a query, which would be recorded",
            where=shown,
            remedy="leave them out, and pass credentials by environment variables (docs/storage.md)",
        )
    if not authority:
        raise SourceError("the uri has no bucket", where=uri, allowed="scheme://bucket/key")
    if any(part in (".", "..", "") for part in key.rstrip("/").split("/")) and key.rstrip("/"):
        raise SourceError("a part of the key is empty, . or ..", where=uri, remedy="write the uri without these parts")
    return f"{scheme.lower()}://{authority}/{key}".rstrip("/")


def split(uri: str) -> tuple[str, str]:
    """Split a uri into (name of the store, key in the store). The name of a bucket's store is `scheme://bucket`.

    The name of the store of a dataset on the Hugging Face Hub is `hf://datasets/OWNER/NAME@COMMIT`.
    """
    scheme, rest = uri.split("://", 1)
    if scheme == "hf":  # the rest is datasets/OWNER/NAME@COMMIT/KEY
        parts = rest.split("/", 3)
        return f"{scheme}://{'/'.join(parts[:3])}", "".join(parts[3:])
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", unquote(key) if scheme in ("http", "https") else key


def uri_of(store: str, key: str) -> str:
    """Join the name of a store and a key into a uri. This is the inverse of `split`."""
    return f"{store}/{quote(key) if urlsplit(store).scheme in ('http', 'https') else key}"


def joined(root: str, uri: str) -> str:
    """Join a root folder and a relative path. For an absolute path or a uri, the root is ignored."""
    if is_remote(uri):
        return _lower_scheme(uri)
    if is_remote(root):
        return os.path.normpath(uri) if os.path.isabs(uri) else f"{_lower_scheme(root).rstrip('/')}/{uri}"
    return os.path.normpath(os.path.join(root, uri))


def _lower_scheme(uri: str) -> str:
    """Return a uri with the scheme in lower case, since schemes are compared in lower case."""
    scheme, rest = uri.split("://", 1)
    return f"{scheme.lower()}://{rest}"


def absolute(name: str) -> str:
    """Return the absolute path of a path, or a uri in the form of `checked`. Raises SourceError as `checked` does."""
    return checked(name) if is_remote(name) else os.path.abspath(local_path(name))


def relative(name: str, root: str) -> str:
    """Return a path or uri in the form in which an index records sources.

    A name in the root folder becomes relative to the root, with forward slashes. Other names are returned unchanged.
    """
    if is_remote(name) or is_remote(root):
        return name[len(root) + 1 :] if is_remote(root) and is_inside(name, root) else name
    path = os.path.relpath(name, root)
    return name if path == ".." or path.startswith("../") else Path(path).as_posix()


def is_inside(name: str, folder: str) -> bool:
    """Return whether a uri or an absolute path is below a folder. Only the texts are compared."""
    return name.startswith(f"{folder.rstrip('/')}/")


def leads_out(name: str) -> bool:
    """Return whether a name may lead out of the folder to which it is joined.

    Uris, absolute paths and paths with `..` may lead out of the folder.
    """
    return is_uri(name) or name.startswith("file:/") or os.path.isabs(name) or goes_up(name)


def goes_up(name: str) -> bool:
    """Return whether a path or uri has a part `..`, or a part that is `..` when a web server decodes it (`%2e%2e`)."""
    return ".." in name.split("/") or ".." in unquote(name).split("/")


def common_folder(uris: list[str]) -> str:
    """Return the deepest folder of object storage that contains all given folders, or "" if there is no such folder."""
    levels = zip(*(uri.split("/") for uri in uris), strict=False)
    same = [level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels)]
    return "/".join(same) if len(same) > len(["s3:", ""]) else ""


def spellings(name: str, root: str) -> tuple[str, str]:
    """Return the names that a medium may have in an index or a dataset: `name`, and its path relative to `root`."""
    return name, relative(absolute(name), root)


def rows_by_name(uris: Iterable[str], members: Iterable[str | None]) -> dict[str, list[int]]:
    """Return the rows of media by their names: by `medium_name`, and by the uri of the file that contains them.

    Args:
        uris: The uri of each medium.
        members: The name of each medium within its file, or None.
    """
    found: dict[str, list[int]] = {}
    for row, (uri, member) in enumerate(zip(uris, members, strict=True)):
        for name in {uri, medium_name(uri, member)}:
            found.setdefault(name, []).append(row)
    return found


def medium_name(uri: str, member: str | None) -> str:
    """Return the name of a medium in messages and lists of clips: `uri`, or `uri/member` for a member of a file."""
    return uri if member is None else f"{uri}/{member}"
