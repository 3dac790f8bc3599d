"""The source that is probed: a file of this machine, or an object whose ranges are read on demand."""

from __future__ import annotations

import os
from dataclasses import dataclass

import av.container
import av.error
import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.indexer.containers.demuxers import HEAD_BYTES, REFERRING
from framedex.indexer.containers.opening import open_container
from framedex.indexer.facts import Identity
from framedex.indexer.sources.file_member import FileMember
from framedex.storage.reader import ObjectFile, ObjectReader, RangedFile

MOST_REQUESTS = 8  # for what our own reading of sample tables takes


class NeedsWholeError(Exception):
    """Probing an object takes all of its bytes: it must be copied to this machine first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedFile:
    """A file on this machine, opened for probing, or a part of one. Offsets count from the beginning of the part.

    Attributes:
        path: of the file.
        descriptor: the open file.
        identity: of the file.
        member: which part of the file the medium is. None: the whole file.
    """

    path: str
    descriptor: int
    identity: Identity
    member: FileMember | None = None

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return self.path if self.member is None else f"{self.path}, {self.member.name}"

    @property
    def begin(self) -> int:
        """Where the medium begins in the file."""
        return 0 if self.member is None or self.member.part is None else self.member.part.offset

    @property
    def size_bytes(self) -> int:
        """Size of the medium when the file was opened."""
        if self.member is None or self.member.part is None:
            return self.identity.size_bytes
        return self.member.part.size_bytes

    @property
    def sparing(self) -> bool:
        """True if every read costs a request (object storage)."""
        return False

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the medium, fewer at its end."""
        return os.pread(self.descriptor, max(0, min(length, self.size_bytes - offset)), self.begin + offset)

    def read_into(self, target: NDArray[np.uint8], offset: int) -> int:
        """Fill `target`, uint8 [bytes], from `offset` on. Return how many bytes were read, fewer at the end."""
        target, done = target[: max(0, self.size_bytes - offset)], 0
        while done < len(target):
            count = os.preadv(self.descriptor, [target[done:].data], self.begin + offset + done)
            if not count:
                break
            done += count
        return done

    def open(self) -> av.container.InputContainer:
        """Open the medium with libavformat; each call opens it again. Raises as `open_container`."""
        if self.member is None:
            return open_container(self.path)
        return open_container(RangedFile(self.read, self.size_bytes, self.member.name))

    def whole(self) -> ProbedFile:
        """Return the file itself, for callers that read all of it."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedObject:
    """An object, or a part of one, read in ranges.

    Attributes:
        read: reads ranges of the medium.
        identity: of the object.
        member: which part of the object the medium is. None: the whole object.
    """

    read: ObjectReader
    identity: Identity
    member: FileMember | None = None

    @property
    def name(self) -> str:
        """The object's uri, for messages."""
        return self.read.uri if self.member is None else f"{self.read.uri}, {self.member.name}"

    @property
    def size_bytes(self) -> int:
        """Size of the medium when the object was first read."""
        return self.read.size_bytes

    @property
    def sparing(self) -> bool:
        return True

    def open(self) -> av.container.InputContainer:
        if self.read.requests > MOST_REQUESTS:  # fragments, far apart: what comes next would cost more than a copy
            raise NeedsWholeError
        if self.member is None:
            return open_container(ObjectFile(self.read))
        return open_container(RangedFile(self.read, self.size_bytes, self.member.name))

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
        head = file.read(0, HEAD_BYTES)
        is_playlist = any(mark in head for mark in REFERRING)
        message = "it refers to other files, as playlists do" if is_playlist else "its format is not supported"
        raise MediaError("container", message, refused=True) from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError("not_media", f"not a video, or damaged at its start: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return the message of an error of libav or the system."""
    return str(getattr(error, "strerror", None) or error)
