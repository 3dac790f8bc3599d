"""Opens stores, one per bucket and process. Addresses and credentials come from the environment."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from framedex.errors import FramedexError, MissingExtraError, StorageError
from framedex.storage.errors import as_storage_error
from framedex.storage.hub import SCHEME, HubStore
from framedex.storage.web import WebStore

NO_LISTING = frozenset({"http", "https"})
TIMEOUT, RETRIES = "FRAMEDEX_STORAGE_TIMEOUT", "FRAMEDEX_STORAGE_RETRIES"
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_ENDPOINT")
_OPENED_BY: list[int] = []  # the process that first used stores; a process forked from it cannot use them


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """The time limit of a request, and how often a request is repeated if the store fails.

    The wait between two tries doubles from 0.1 s to 15 s. Nothing is repeated after `TRYING_SECONDS`.

    Attributes:
        seconds: The time limit of one request.
        retries: How often a failed request is repeated.
    """

    seconds: float = 30.0
    retries: int = 8


TRYING_SECONDS = 180.0


def limits() -> StoreLimits:
    """Return the limits that environment variables set. Raises FramedexError for a value that is not a number."""
    usual = StoreLimits()
    try:
        return StoreLimits(
            seconds=float(os.environ.get(TIMEOUT, usual.seconds)), retries=int(os.environ.get(RETRIES, usual.retries))
        )
    except ValueError as error:
        raise FramedexError(f"{TIMEOUT} and {RETRIES} are numbers", found=error) from None


def open_store(name: str) -> Any:
    """Return the store of `scheme://bucket`. Raises MissingExtraError, and StorageError in a forked process."""
    if _OPENED_BY and _OPENED_BY[0] != os.getpid():
        raise StorageError(
            "object storage cannot be used in a process that was forked from one that used it",
            kind="forked",
            where=name,
            remedy='start processes anew: DataLoader(…, multiprocessing_context="spawn")',
        )
    _OPENED_BY[:] = [os.getpid()]
    return _store(name, limits())


@functools.lru_cache(maxsize=64)
def _store(name: str, allowed: StoreLimits) -> Any:
    scheme, _, bucket = name.partition("://")
    if scheme in NO_LISTING | {SCHEME}:
        made = HubStore if scheme == SCHEME else WebStore
        return made(name, seconds=allowed.seconds, retries=allowed.retries, trying_seconds=TRYING_SECONDS)
    if scheme not in ("s3", "gs", "az"):
        raise StorageError("there is no store of this scheme", where=name, allowed="s3, gs, az")
    try:
        from obstore import store as stores
    except ImportError as error:
        raise MissingExtraError("obstore", "s3", "object storage") from error
    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=allowed.seconds),
            "connect_timeout": timedelta(seconds=min(5.0, allowed.seconds)),
            "allow_http": any(os.environ.get(key, "").startswith("http://") for key in ENDPOINTS),
        },
        "retry_config": {"max_retries": allowed.retries, "retry_timeout": timedelta(seconds=TRYING_SECONDS)},
    }
    try:
        if scheme == "s3":
            return stores.S3Store(bucket, **options)
        if scheme == "gs":
            return stores.GCSStore(bucket, **options)
        return stores.AzureStore(bucket, **options)
    except Exception as error:
        raise as_storage_error(name, error) from None
