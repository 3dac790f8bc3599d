"""What policies take and give: a video's timestamps in, clips and what was missed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

MissedKind = Literal["short", "tolerance", "row"]


def _no_frames() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """A video as a policy sees it.

    pts: int64 [frames], ascending, in presentation order; duration_pts: from the first frame's pts to the end of the
    last one; time_base: the unit of both, in seconds. starts: int64 [starts], ascending presentation numbers of frames
    where decoding may start. name: the medium's stable id, which seeds what is random, together with epoch.
    """

    pts: NDArray[np.int64]
    duration_pts: int
    time_base: Fraction
    starts: NDArray[np.int64] = field(default_factory=_no_frames)
    name: str = ""
    epoch: int = 0

    @property
    def seconds(self) -> Fraction:
        """How long the video is."""
        return self.duration_pts * self.time_base


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """A clip that a policy found.

    frames: int64 [wanted], presentation numbers in the clip's order, repeats allowed; -1 only where a constant pads.
    mask: bool [wanted], False where padded. number: the clip's number among those that the policy sees in this row,
    the missed ones counted.
    """

    frames: NDArray[np.int64]
    mask: NDArray[np.bool_]
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A clip, or all clips of a row, that a policy wanted and did not get.

    kind: `short` (the video or range is too short), `tolerance` (a frame lies too far from where one is wanted), `row`
    (the listing's row does not say what it should). counts: whether this is a failure of the run. number: as in
    `Sampled`; None where no single clip is meant.
    """

    kind: MissedKind
    message: str
    counts: bool
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """What a policy made of one mention of a video: the clips in order of their numbers, and what was missed."""

    clips: list[Sampled]
    missed: list[Missed]


class Policy(Protocol):
    """What every entry of the registry does."""

    @property
    def is_random(self) -> bool:
        """Whether something is drawn, so that epochs differ."""

    @property
    def counts_by_pts(self) -> bool:
        """Whether the number of a video's clips depends on more than how long it is and how many frames it has."""

    @property
    def names_ranges(self) -> bool:
        """Whether columns of the listing say which stretches of a video are sampled."""

    @property
    def range_columns(self) -> Sequence[str]:
        """Columns that the listing must have for that."""

    def sample(self, timeline: Timeline, row: Mapping[str, Any]) -> Sampling:
        """Return the clips of one mention of a video; row: the listing's columns for it, {} where there are none.

        Pure: the same input gives the same output. Raises PolicyError where `short: error` forbids a video, and for
        parameters that would give more clips or frames than MOST_CLIPS and MOST_WANTED.
        """
