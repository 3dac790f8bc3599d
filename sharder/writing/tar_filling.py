"""Copy clips into tars, and convert the clips' byte ranges to offsets in their tars."""

import collections
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from framedex.records.clip import AudioFile, AudioRecipe, Recipe
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.samples import Member
from framedex.sharder.packing.tars import TAR_END, Tar, sample_bytes
from framedex.sharder.reading import SourceFiles

SHARD_BYTES = 512_000_000
RecipeOrFile = TypeVar("RecipeOrFile", Recipe, AudioRecipe | AudioFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class TarLayout:
    """The names and the maximum size of tars.

    Attributes:
        prefix: The beginning of each tar's name.
        size_bytes: The maximum size of a tar in bytes. A clip that would exceed it goes into a new tar.
    """

    prefix: str = "clips"
    size_bytes: int = SHARD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """A clip whose members are being copied.

    Attributes:
        tar: The tar to which the members belong.
        wanted: The clip with byte ranges in the concatenated content of its members.
        members: The members of the clip's sample.
        packed: The clip, with byte ranges as offsets into the tar.
    """

    tar: Tar
    wanted: Clip
    members: Sequence[Member]
    packed: Clip


class TarFilling:
    """A writer that fills one tar after the other. Members are copied in the background.

    Args:
        folder: The folder of the tars.
        layout: The names and the maximum size of the tars.
        number: The number of the first tar.

    Attributes:
        tar: The tar that is being filled. None if no tar is begun.
        copying: The clips that were added but are not completely written yet.
    """

    def __init__(self, folder: Path, layout: TarLayout, *, number: int) -> None:
        self.number = number  # number of the current tar, or of the next tar if no tar is begun
        self._folder, self._layout, self._sources = folder, layout, SourceFiles()
        self.tar: Tar | None = None
        self.copying: collections.deque[Copying] = collections.deque()

    def has_room(self, members: Sequence[Member]) -> bool:
        """Return whether a sample fits into the current tar. The first sample of a tar may have any size."""
        if self.tar is None or not self.tar.samples:
            return True
        return self.tar.size + sample_bytes(members) + len(TAR_END) <= self._layout.size_bytes

    def add(self, key: str, clip: Clip, members: Sequence[Member]) -> None:
        """Start to copy a clip's members. Raises OSError."""
        if self.tar is None:
            self.tar = Tar(self._folder / f"{self._layout.prefix}-{self.number:06d}.tar", self._sources)
        # Byte ranges are offsets into the concatenated content of the members. They become offsets into the tar.
        begins = np.cumsum([0, *map(len, members)])
        shift = np.array(self.tar.add(key, members), np.int64) - begins[:-1]

        def moved(recipe: RecipeOrFile) -> RecipeOrFile:
            member = np.searchsorted(begins, recipe.range_offset, side="right") - 1
            return replace(recipe, range_offset=recipe.range_offset + shift[member])

        audio = None if clip.audio is None else replace(clip.audio, recipe=moved(clip.audio.recipe))
        packed = replace(clip, recipe=moved(clip.recipe), audio=audio)
        self.copying.append(Copying(tar=self.tar, wanted=clip, members=members, packed=packed))

    def settle(self) -> Clip:
        """Wait until the earliest clip that is being copied is written. Return the clip with byte ranges in the tar.

        Raises:
            StaleError: A source of the clip is missing or changed. `drop` then returns this clip and all later ones.
            OSError: The tar cannot be written.
        """
        self.copying[0].tar.settle()
        return self.copying.popleft().packed

    def drop(self) -> list[Copying]:
        """Forget all clips for which `settle` was not called yet, and return them."""
        dropped = list(self.copying)
        self.copying.clear()
        return dropped

    def take(self) -> Tar | None:
        """Return the current tar, which the caller must close. `settle` must have been called for all of its clips.

        If no tar is begun, or the tar has no samples, return None.
        """
        tar, self.tar = self.tar, None
        if tar is None or tar.samples:
            self.number += tar is not None
            return tar
        tar.abandon()
        return None

    def abandon(self) -> None:
        """Delete the current tar, if any."""
        if self.tar is not None:
            self.tar.abandon()
