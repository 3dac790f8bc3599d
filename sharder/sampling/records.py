"""Input and output of policies: a video's timestamps in; clips, and the clips that were missed, out."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

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
        uri: The medium's name in messages.
        epoch: Number of the epoch.
    """

    pts: NDArray[np.int64]
    duration_pts: int
    time_base: Fraction
    starts: NDArray[np.int64] = field(default_factory=_no_frames)
    name: str = ""
    uri: str = ""
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
