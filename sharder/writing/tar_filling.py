"""Clips on their way into tars: the tar of each sample, and the places of a clip's ranges in it."""

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.samples import Member
from framedex.sharder.packing.tars import TAR_END, Tar, sample_bytes
from framedex.sharder.reading import SourceFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class TarLayout:
    """How tars are cut.

    Attributes:
        prefix: Of their names.
        size_bytes: A new tar begins when a clip would not fit.
    """

    prefix: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """A clip whose members are being copied. `packed`: the clip with its place in the tar."""

    wanted: Clip
    members: Sequence[Member]
    packed: Clip


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCopied:
    """A clip whose files are missing or changed.

    Attributes:
        behind: The clips that were added after it, which are not copied either.
    """

    wanted: Clip
    error: StaleError
    behind: list[Copying]


class TarFilling:
    """Fills one tar after the other. Members are copied in the background.

    Args:
        folder: Folder of the tars.
        layout: How they are cut.
        number: Number of the first tar.
    """

    def __init__(self, folder: Path, layout: TarLayout, *, number: int) -> None:
        self.number = number  # of the tar that is filled, or of the next one
        self._folder, self._layout, self._sources = folder, layout, SourceFiles()
        self._tar: Tar | None = None
        self._copying: collections.deque[Copying] = collections.deque()

    @property
    def is_begun(self) -> bool:
        """Whether a tar is being filled."""
        return self._tar is not None

    @property
    def waiting(self) -> int:
        """Number of clips that were added and are not settled yet."""
        return len(self._copying)

    def has_room(self, members: Sequence[Member]) -> bool:
        """Return whether a sample fits into the current tar; a new tar takes any sample."""
        if self._tar is None or not self._tar.samples:
            return True
        return self._tar.size + sample_bytes(members) + len(TAR_END) <= self._layout.size_bytes

    def add(self, key: str, clip: Clip, members: Sequence[Member]) -> None:
        """Start to copy a clip's members. Raises OSError."""
        if self._tar is None:
            self._tar = Tar(self._folder / f"{self._layout.prefix}-{self.number:06d}.tar", self._sources)
        packed = _shifted(clip, _shift_into(members, self._tar.add(key, members)))
        self._copying.append(Copying(wanted=clip, members=members, packed=packed))

    def settle(self) -> Clip | NotCopied:
        """Wait for the first clip that is being copied, and return it with its place in the tar. Raises OSError."""
        assert self._tar is not None  # some clip is waiting
        try:
            self._tar.settle()
        except StaleError as error:
            first, *behind = self._copying
            self._copying.clear()
            return NotCopied(wanted=first.wanted, error=error, behind=behind)
        return self._copying.popleft().packed

    def take(self) -> Tar | None:
        """Return the current tar for closing, or None if it holds no sample. All its samples must be settled."""
        tar, self._tar = self._tar, None
        if tar is None or tar.samples:
            self.number += tar is not None
            return tar
        tar.abandon()
        return None

    def abandon(self) -> None:
        """Remove the tar that is being filled."""
        if self._tar is not None:
            self._tar.abandon()


def _shift_into(members: Sequence[Member], offsets: Sequence[int]) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a function that turns positions in the joined content of members into positions in their tar."""
    begins = np.cumsum([0, *map(len, members)])
    shift = np.array(offsets, np.int64) - begins[:-1]
    return lambda position: position + shift[np.searchsorted(begins, position, side="right") - 1]


def _shifted(clip: Clip, shift: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Clip:
    """Return a clip whose ranges, and whose audio file, lie in a tar."""
    clip = replace(clip, recipe=replace(clip.recipe, range_offset=shift(clip.recipe.range_offset)))
    if clip.audio is None:
        return clip
    file = replace(clip.audio.recipe, range_offset=shift(clip.audio.recipe.range_offset))
    return replace(clip, audio=replace(clip.audio, recipe=file))
