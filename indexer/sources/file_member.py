"""A video inside a file that holds several, such as a member of a tar."""

from __future__ import annotations

from dataclasses import dataclass

from framedex.errors import MediaError
from framedex.storage.ranges import ByteRange


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMember:
    """A video inside a file.

    Attributes:
        name: its name in the file.
        part: its bytes.
        sidecars: the user's columns beside it, as JSON (`sidecars.sidecar_text`). None: none are read.
        remark: what is wrong with the sidecars. None: nothing.
        error: why it must not be opened. None: it may be.
    """

    name: str
    part: ByteRange
    sidecars: str | None = None
    remark: str | None = None
    error: MediaError | None = None
