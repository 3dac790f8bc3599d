"""Data classes for clips that are being written into a dataset, and for their tar members (as in webdataset)."""

from collections.abc import Sequence
from dataclasses import dataclass

from framedex.records.clip import Failure
from framedex.sharder.clips.clip import ByteSource, Clip, PlannedClip


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRanges:
    """Byte ranges of a source file whose content is copied when a tar member is written.

    Attributes:
        source: The source file.
        ranges: The (offset, length) of each range, in bytes.
    """

    source: ByteSource
    ranges: Sequence[tuple[int, int]]

    def __len__(self) -> int:
        return sum(length for _, length in self.ranges)


Piece = bytes | FileRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A tar member: one file of a webdataset sample.

    Attributes:
        suffix: The part of the file's name after the first dot.
        pieces: The parts of the file's content, in order.
    """

    suffix: str
    pieces: Sequence[Piece]

    def __len__(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A clip to be written into the dataset, or the failure because of which there is no clip.

    Attributes:
        outcome: The clip or the failure.
        done: The progress of the plan after this step.
        members: The clip's files in a tar.
    """

    outcome: Clip | Failure
    done: int
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep(Step):
    """A clip that is planned and not packed yet, or the failure because of which there is no clip."""

    outcome: PlannedClip | Failure
