"""A clip on its way into a dataset, and the files of a tar that it becomes: webdataset's sample and its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framedex.sharder.clips.byte_source import ByteSource
from framedex.sharder.clips.clip import Clip, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRanges:
    """Bytes of a file, copied when a member is written. ranges: (offset, length) of each stretch."""

    source: ByteSource
    ranges: Sequence[tuple[int, int]]

    def __len__(self) -> int:
        return sum(length for _, length in self.ranges)


Piece = bytes | FileRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of a sample: what stands behind the first dot of its name, and its content in pieces."""

    suffix: str
    pieces: Sequence[Piece]

    def __len__(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A clip on its way into the dataset, or why there is none. members: what a tar holds of it. done: of the plan's
    progress, after this step.
    """

    outcome: Clip | Failure
    done: int
    members: tuple[Member, ...] = ()
