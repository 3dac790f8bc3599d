"""Input and output of policies: a video's timestamps in; clips, and the clips that were missed, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

MissedKind = Literal["short", "tolerance", "row", "view"]


def _no_frames() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """A video as a policy sees it.

    Attributes:
        pts: int64 [frames], ascending, in presentation order.
        duration_pts: From the first frame's pts to the end of the last frame.
        time_base: Unit of both, in seconds.
        starts: int64 [starts], ascending presentation numbers of frames where decoding may start.
        name: The medium's stable id. Together with `epoch`, it seeds random draws.
        epoch: Number of the epoch.
    """

    pts: NDArray[np.int64]
    duration_pts: int
    time_base: Fraction
    starts: NDArray[np.int64] = field(default_factory=_no_frames)
    name: str = ""
    epoch: int = 0

    @property
    def seconds(self) -> Fraction:
        """Duration of the video."""
        return self.duration_pts * self.time_base


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """A clip that a policy selected.

    Attributes:
        frames: int64 [wanted], presentation numbers in the clip's order, repeats allowed; -1 only for padding by a
            constant.
        mask: bool [wanted], False where padded.
        number: Number of the clip among those that the policy sees in this row, including the missed ones.
        stretch: The frames [first, stop) of the video that were sampled: the whole video, or a range of it.
        anchor: Presentation number of the frame that the clip is about; None if the policy has no such frame.
    """

    frames: NDArray[np.int64]
    mask: NDArray[np.bool_]
    number: int
    stretch: tuple[int, int] | None = None
    anchor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A clip, or all clips of a row, that a policy wanted and did not get.

    Attributes:
        kind: `short` (the video or range is too short), `tolerance` (a frame lies too far from the wanted place), `row`
            (the listing's row is not valid) or `view` (a view of a scene is missing).
        counts: Whether this is a failure of the run.
        number: As in `Sampled`; None if no single clip is meant.
    """

    kind: MissedKind
    message: str
    counts: bool
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """The result of a policy for one mention of a video.

    Attributes:
        clips: In order of their numbers.
        missed: What the policy wanted besides.
        following: The number that a clip after all of these would have, those included that `max_clips` leaves out.
    """

    clips: list[Sampled]
    missed: list[Missed]
    following: int = 0


class Policy(Protocol):
    """The interface that every policy of the registry implements."""

    @property
    def is_random(self) -> bool:
        """Whether anything is drawn at random, so that epochs differ."""

    @property
    def counts_by_pts(self) -> bool:
        """Whether a video's number of clips depends on more than its duration and its number of frames."""

    @property
    def names_ranges(self) -> bool:
        """Whether columns of the listing say which stretches of a video are sampled."""

    def range_columns(self, names: Sequence[str]) -> Sequence[str]:
        """Return the columns that name the stretches that are sampled, for a listing with some columns.

        Raises:
            PolicyError: The names of these columns contradict the policy's unit.
        """

    def sample(self, timeline: Timeline, row: Mapping[str, Any]) -> Sampling:
        """Return the clips of one mention of a video.

        A pure function: the same input gives the same output.

        Args:
            row: The listing's columns for the mention; {} if there are none.

        Raises:
            PolicyError: `short: error` forbids the video, or the parameters would give more than MOST_CLIPS clips or
                MOST_WANTED frames.
        """
