"""Clips on their way into a dataset, and the tar members that they become (webdataset: a sample and its members)."""

from collections.abc import Sequence
from dataclasses import dataclass

from framedex.records.clip import Failure
from framedex.sharder.clips.clip import ByteSource, Clip


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRanges:
    """Bytes of a file that are copied when a member is written.

    Attributes:
        ranges: (offset, length) of each stretch, in bytes.
    """

    source: ByteSource
    ranges: Sequence[tuple[int, int]]

    def __len__(self) -> int:
        return sum(length for _, length in self.ranges)


Piece = bytes | FileRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of a sample.

    Attributes:
        suffix: The part of its name after the first dot.
        pieces: Its content.
    """

    suffix: str
    pieces: Sequence[Piece]

    def __len__(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A clip on its way into the dataset, or the reason why there is none.

    Attributes:
        members: The clip's files in a tar.
        done: Progress of the plan after this step.
    """

    outcome: Clip | Failure
    done: int
    members: tuple[Member, ...] = ()
