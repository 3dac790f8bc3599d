"""A clip as wanted, as planned or a manifest says it, and as one that cannot be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import INTERNAL_ERROR, StaleError, UncuttableError, internal_error
from framedex.sharder.clips.audio import ClipAudioPlan
from framedex.sharder.clips.byte_source import ByteSource
from framedex.sharder.clips.medium import Medium
from framedex.sharder.clips.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedClip:
    """A clip before it is planned. frames: int64 [F], -1 where padded by a constant. mask: bool [F], False where padded,
    by a constant or by repeating frames. columns: the user's. asked_in: where the user asked for this very clip; None where
    a policy found it.
    """

    clip_id: str
    frames: NDArray[np.int64]
    mask: NDArray[np.bool_]
    columns: dict[str, Any]
    asked_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A clip as planned: what is wanted, and the recipe for it.

    frame_index: int64 [F], -1 where padded. pts: int64 [F], `NO_PTS` where padded. seconds: float64 [F], NaN where
    padded. mask: bool [F], False where padded. md5: the hash of each frame's native planes, None where padded; None for
    all where the index has none. columns: the user's. source: the file that the recipe's ranges point into.
    audio: what the clip carries, None where nobody asked for it; audio_source: the file of its packets, None: the same.
    """

    clip_id: str
    medium: Medium
    frame_index: NDArray[np.int64]
    pts: NDArray[np.int64]
    seconds: NDArray[np.float64]
    mask: NDArray[np.bool_]
    md5: list[bytes | None] | None
    columns: dict[str, Any]
    recipe: Recipe
    source: ByteSource
    audio: ClipAudioPlan | None = None
    audio_source: ByteSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A clip that cannot be had: a row of failures.parquet.

    counts: whether as a failure of the run. traceback: of one at which framedex itself failed (kind INTERNAL_ERROR).
    """

    clip_id: str | None
    uri: str | None
    kind: str
    message: str
    counts: bool = True
    traceback: str | None = None


def failure_of(clip: Clip, error: StaleError | UncuttableError) -> Failure:
    """Return the row that says why a planned clip is not there."""
    kind = "stale" if isinstance(error, StaleError) else "uncuttable"
    return Failure(clip_id=clip.clip_id, uri=clip.medium.uri, kind=kind, message=error.text())


def internal_failure(clip_id: str, uri: str, error: Exception) -> Failure:
    """Return the row of a clip at which framedex itself failed."""
    found = internal_error(error)
    return Failure(clip_id=clip_id, uri=uri, kind=INTERNAL_ERROR, message=found.what, traceback=found.traceback)
