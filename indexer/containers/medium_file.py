"""The source that is probed: a file of this machine, or an object whose ranges are read on demand."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import av.container
import av.error

from framedex.errors import MediaError
from framedex.indexer.containers.opening import open_container
from framedex.indexer.facts import Identity
from framedex.storage.reader import ObjectFile, ObjectReader

MOST_REQUESTS = 8  # for what our own reading of sample tables takes
Read = Callable[[int, int], bytes]  # (offset, length) → bytes, fewer at the end


class NeedsWholeError(Exception):
    """Probing an object takes all of its bytes: it must be copied to this machine first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedFile:
    """A file on this machine, opened for probing."""

    path: str
    descriptor: int
    identity: Identity

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return self.path

    @property
    def size_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self.identity.size_bytes

    @property
    def sparing(self) -> bool:
        """True if every read costs a request (object storage)."""
        return False

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file, fewer at its end."""
        return os.pread(self.descriptor, length, offset)

    def open(self) -> av.container.InputContainer:
        """Open the file with libavformat; each call opens it again. Raises as `open_container`."""
        return open_container(self.path)

    def whole(self) -> ProbedFile:
        """Return the file itself, for callers that read all of it."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedObject:
    """An object, read in ranges."""

    read: ObjectReader
    identity: Identity

    @property
    def name(self) -> str:
        """The object's uri, for messages."""
        return self.read.uri

    @property
    def size_bytes(self) -> int:
        """Size of the object when it was first read."""
        return self.identity.size_bytes

    @property
    def sparing(self) -> bool:
        return True

    def open(self) -> av.container.InputContainer:
        if self.read.requests > MOST_REQUESTS:  # fragments, far apart: what comes next would cost more than a copy
            raise NeedsWholeError
        return open_container(ObjectFile(self.read))

    def whole(self) -> ProbedFile:
        raise NeedsWholeError


Probed = ProbedFile | ProbedObject


def open_medium(file: Probed) -> av.container.InputContainer:
    """Open a file or an object with libavformat.

    Raises:
        MediaError: if it cannot be opened, or must not be opened.
        NeedsWholeError: if an object must be copied to this machine first.
    """
    try:
        return file.open()
    except av.error.ArgumentError as error:
        raise MediaError(
            "container",
            "libavformat takes it for a format that refers to other files, or that is not covered",
            refused=True,
        ) from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError("not_media", f"not a video, or damaged at its start: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return the message of an error of libav or the system."""
    return str(getattr(error, "strerror", None) or error)
