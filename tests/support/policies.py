"""Helpers for policy tests: timelines with given gaps between frames, and the clips that a policy samples."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.sharder.policies.reading import PolicyFile, find_policy
from framedex.sharder.policies.sampling import Sampling, Timeline
from tests.support.policy_reference import Clips

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
Document = dict[str, Any]
# The policies of docs/policies.md.
NAMES = (
    "fps",
    "segments",
    "stride",
    "frames",
    "seconds",
    "keyframes",
    "windows",
    "random",
    "uniform",
    "around",
    "per_row",
)


def timeline(gaps: list[int], base: int = 100, *, every_start: int = 1, name: str = "") -> Timeline:
    pts = np.concatenate([[7], 7 + np.cumsum(gaps)[:-1]]).astype(np.int64)
    starts = np.arange(0, len(pts), every_start)
    return video_of(pts, int(sum(gaps)), Fraction(1, base), starts=starts, name=name)


def video_of(pts: NDArray[np.int64], duration_pts: int, time_base: Fraction, **more: Any) -> Timeline:
    """Return a video with these timestamps and, unless stated, no start points."""
    return Timeline(pts=pts, duration_pts=duration_pts, time_base=time_base, **more)


def policy_of(said: Document | Path | str) -> PolicyFile:
    """Return the checked content of a policy: of a document, a file, a name or YAML."""
    return find_policy(said)


def run(document: Document, video: Timeline, row: Document | None = None) -> Sampling:
    return policy_of(document).policy.sample(video, row or {})


def sample(document: Document, video: Timeline, row: Document | None = None) -> list[list[int]]:
    return [clip.frames.tolist() for clip in run(document, video, row).clips]


def clips_of(sampling: Sampling) -> Clips:
    return [(clip.frames.tolist(), clip.mask.tolist()) for clip in sampling.clips]


def kinds(sampling: Sampling) -> list[str]:
    return [missed.kind for missed in sampling.missed]


THIRTY = timeline([10] * 300, base=300, every_start=30)  # ten seconds at 30 fps, one key frame per second
