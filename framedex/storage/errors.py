"""Errors of stores, as errors for the user that do not contain secrets."""

import os
import re

from framedex.errors import StorageError

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
