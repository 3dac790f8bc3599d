"""Names of things in object storage and on this machine. Pure."""

import itertools
import os
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from framedex.errors import SourceError

SCHEMES = frozenset({"s3", "gs", "az", "hf", "http", "https"})
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SIGNED = re.compile(r"[?&](?:sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+)=", re.IGNORECASE)
_HUB_SECRET = re.compile(r"hf_[A-Za-z0-9]{8,}|\?[^/=]*=")  # a token, or a query
_FILE = "file://"


def is_uri(name: str) -> bool:
    """Return whether a name begins with a scheme, of object storage or not."""
    return _SCHEME.match(name) is not None


def is_remote(name: str) -> bool:
    """Return whether a name refers to object storage."""
    match = _SCHEME.match(name)
    return match is not None and match[1].lower() in SCHEMES


def local_path(name: str) -> str:
    """Return the path of a `file://` uri, and other names unchanged.

    Raises SourceError if the uri names another machine.
    """
    if not name.startswith(_FILE):
        return name
    host, slash, path = name.removeprefix(_FILE).partition("/")
    if not slash or host not in ("", "localhost"):
        raise SourceError("a file:// uri names a file of this machine", found=name, allowed="file:///absolute/path")
    return unquote(f"/{path}")


def checked(uri: str) -> str:
    """Return a uri as it is recorded: without a trailing slash. Raises SourceError for a uri that must not be recorded.

    A uri is written into indexes, manifests and messages, so it must not contain secrets: no user name or password, and
    no query, such as that of a presigned uri or a shared access signature.
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
    """Return (store, key): `scheme://bucket`, which one store serves, and the key in it.

    The store of a dataset on the Hugging Face Hub is `hf://datasets/OWNER/NAME@COMMIT`.
    """
    scheme, rest = uri.split("://", 1)
    if scheme == "hf":  # datasets/OWNER/NAME@COMMIT
        parts = rest.split("/", 3)
        return f"{scheme}://{'/'.join(parts[:3])}", "".join(parts[3:])
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", unquote(key) if scheme in ("http", "https") else key


def uri_of(store: str, key: str) -> str:
    """Return the uri of a key in a store. The inverse of `split`."""
    return f"{store}/{quote(key) if urlsplit(store).scheme in ('http', 'https') else key}"


def joined(root: str, uri: str) -> str:
    """Return the path or uri of something whose name is relative to a root, or absolute."""
    if is_remote(uri):
        return _lower_scheme(uri)
    if is_remote(root):
        return os.path.normpath(uri) if os.path.isabs(uri) else f"{_lower_scheme(root).rstrip('/')}/{uri}"
    return os.path.normpath(os.path.join(root, uri))


def _lower_scheme(uri: str) -> str:
    """Return a uri with its scheme in lower case, as all comparisons of schemes expect."""
    scheme, rest = uri.split("://", 1)
    return f"{scheme.lower()}://{rest}"


def absolute(name: str) -> str:
    """Return an absolute path, or a uri as it is recorded. Raises SourceError for a uri that must not be recorded."""
    return checked(name) if is_remote(name) else os.path.abspath(local_path(name))


def relative(name: str, root: str) -> str:
    """Return a path or uri as it is recorded: relative to the root with forward slashes, or absolute outside of it."""
    if is_remote(name) or is_remote(root):
        return name[len(root) + 1 :] if is_remote(root) and is_inside(name, root) else name
    path = os.path.relpath(name, root)
    return name if path == ".." or path.startswith("../") else Path(path).as_posix()


def is_inside(name: str, folder: str) -> bool:
    """Return whether a uri or an absolute path is below a folder. Compares only the names."""
    return name.startswith(f"{folder.rstrip('/')}/")


def leads_out(name: str) -> bool:
    """Return whether a name may lead out of a folder: a URI, an absolute path, or a path with `..` in it."""
    return is_uri(name) or name.startswith("file:/") or os.path.isabs(name) or goes_up(name)


def goes_up(name: str) -> bool:
    """Return whether a path or uri has a part `..`, perhaps percent-encoded, as web servers decode it."""
    return ".." in name.split("/") or ".." in unquote(name).split("/")


def common_folder(uris: list[str]) -> str:
    """Return the deepest folder of object storage that contains all of these folders, or "" if there is none."""
    levels = zip(*(uri.split("/") for uri in uris), strict=False)
    same = [level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels)]
    return "/".join(same) if len(same) > len(["s3:", ""]) else ""


def medium_name(uri: str, member: str | None) -> str:
    """Return a medium's name in messages and in lists of clips: its uri, then its name among the media of its file."""
    return uri if member is None else f"{uri}/{member}"
