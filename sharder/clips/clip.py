"""A clip as requested, a clip as planned or read from a manifest, and a clip that could not be made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import INTERNAL_ERROR, StaleError, UncuttableError, internal_error
from framedex.records.clip import ClipRecord
from framedex.records.dataset import Failure
from framedex.records.recipe import ClipAudioPlan, Recipe
from framedex.sharder.clips.byte_source import ByteSource
from framedex.sharder.clips.medium import Medium


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiView:
    """The place of a clip among the clips of several views that belong together.

    Attributes:
        multiview_id: The name that they share.
        view_name: The view.
        view_away_seconds: float64 [F], each frame's time minus the one that was wanted of the view, NaN where padded.
    """

    multiview_id: str
    view_name: str
    view_away_seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedClip:
    """A clip before it is planned.

    Attributes:
        frames: int64 [F], -1 where padded by a constant.
        mask: bool [F], False where padded, by a constant or by repeating frames.
        columns: The user's columns.
        stretch: The frames [first, stop) of the medium that a policy sampled; None if no policy selected the clip.
        anchor_frame: Number of the frame that the clip is about; None if there is none.
        multiview: What it is of a clip of several views; None if it stands alone.
        asked_in: Where the user asked for this very clip; None if a policy selected it.
    """

    clip_id: str
    frames: NDArray[np.int64]
    mask: NDArray[np.bool_]
    columns: dict[str, Any]
    stretch: tuple[int, int] | None = None
    anchor_frame: int | None = None
    multiview: MultiView | None = None
    asked_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(ClipRecord):
    """A planned clip: its row of `clips`, and the recipe for its frames.

    Attributes:
        columns: The user's columns.
        source: The file that the recipe's ranges point into.
        audio: The clip's audio; None if no audio was requested.
        audio_source: The file of the audio packets; None for `source`.
    """

    medium: Medium
    columns: dict[str, Any]
    recipe: Recipe
    source: ByteSource
    audio: ClipAudioPlan | None = None
    audio_source: ByteSource | None = None

    @property
    def stretch(self) -> tuple[int, int] | None:
        """The frames [first, stop) of the medium that a policy sampled; None if no policy selected the clip."""
        if self.stretch_first is None or self.stretch_stop is None:
            return None
        return self.stretch_first, self.stretch_stop


def failure_of(clip: Clip, error: StaleError | UncuttableError) -> Failure:
    """Return the row that says why a planned clip is missing."""
    kind = "stale" if isinstance(error, StaleError) else "uncuttable"
    return Failure(clip_id=clip.clip_id, uri=clip.medium.name, kind=kind, message=error.text())


def internal_failure(clip_id: str, uri: str, error: Exception) -> Failure:
    """Return the row of a clip at which framedex itself failed."""
    found = internal_error(error)
    return Failure(clip_id=clip_id, uri=uri, kind=INTERNAL_ERROR, message=found.what, traceback=found.traceback)
