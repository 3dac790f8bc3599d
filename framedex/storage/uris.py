"""Names of things that lie in object storage, and of those that lie on this machine. Pure."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from framedex.errors import SourceError

SCHEMES = frozenset({"s3", "gs", "az", "http", "https"})
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SIGNED = re.compile(r"[?&](?:sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+)=", re.IGNORECASE)
_FILE = "file://"


def is_remote(name: str) -> bool:
    """Return whether a name is that of something in object storage."""
    match = _SCHEME.match(name)
    return match is not None and match[1].lower() in SCHEMES


def local_path(name: str) -> str:
    """Return the path that a `file://` uri names; other names as they are. Raises SourceError for one of another machine."""
    if not name.startswith(_FILE):
        return name
    host, slash, path = name.removeprefix(_FILE).partition("/")
    if not slash or host not in ("", "localhost"):
        raise SourceError("a file:// uri names a file of this machine", found=name, allowed="file:///absolute/path")
    return unquote(f"/{path}")


def checked(uri: str) -> str:
    """Return a uri as it is recorded: without a slash at its end. Raises SourceError for one that is not to be recorded.

    What a uri holds is written into indexes, manifests and messages. So it may hold no secret: neither a user's name and
    password nor a query, such as that of a presigned uri or of a shared access signature.
    """
    scheme, rest = uri.split("://", 1)
    authority, _, key = rest.partition("/")
    shown = f"{scheme.lower()}://{authority.rpartition('@')[2]}/…"
    is_web = scheme.lower() in ("http", "https")
    if "@" in authority or (is_web and ("?" in rest or "#" in rest)) or _SIGNED.search(rest):
        raise SourceError(
            "a uri holds credentials or a query, which would be recorded",
            where=shown,
            remedy="leave them out; credentials come from the environment alone (docs/storage.md)",
        )
    if not authority:
        raise SourceError("a uri names no bucket", where=uri, allowed="scheme://bucket/key")
    if any(part in (".", "..", "") for part in key.rstrip("/").split("/")) and key.rstrip("/"):
        raise SourceError("a key has empty parts, or some that are . or ..", where=uri, remedy="name it without them")
    return f"{scheme.lower()}://{authority}/{key}".rstrip("/")


def split(uri: str) -> tuple[str, str]:
    """Return (what one store serves: `scheme://bucket`, key in it)."""
    scheme, rest = uri.split("://", 1)
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", unquote(key) if scheme in ("http", "https") else key


def uri_of(store: str, key: str) -> str:
    """Return the uri of a key; the inverse of `split`."""
    return f"{store}/{quote(key) if urlsplit(store).scheme in ('http', 'https') else key}"


def joined(root: str, uri: str) -> str:
    """Return where something lies whose uri is relative to a root, or absolute."""
    if is_remote(uri):
        return uri
    if is_remote(root):
        return uri if os.path.isabs(uri) else f"{root.rstrip('/')}/{uri}"
    return os.path.normpath(os.path.join(root, uri))


def absolute(name: str) -> str:
    """Return an absolute path, or a uri as it is recorded. Raises SourceError for one that is not to be recorded."""
    return checked(name) if is_remote(name) else os.path.abspath(local_path(name))


def relative(name: str, root: str) -> str:
    """Return a path or uri as it is recorded: relative to the root with forward slashes, or absolute outside of it."""
    if is_remote(name) or is_remote(root):
        return name[len(root) + 1 :] if is_remote(root) and is_inside(name, root) else name
    path = os.path.relpath(name, root)
    return name if path == ".." or path.startswith("../") else Path(path).as_posix()


def is_inside(name: str, folder: str) -> bool:
    """Return whether a uri or an absolute path lies under another, by their names alone."""
    return name.startswith(f"{folder.rstrip('/')}/")


def common_folder(uris: list[str]) -> str:
    """Return the deepest folder of object storage that holds all of some uris of folders, or "" where none does."""
    levels = zip(*(uri.split("/") for uri in uris), strict=False)
    same = [level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels)]
    return "/".join(same) if len(same) > len(["s3:", ""]) else ""
