"""Helpers for policy tests: timelines with given gaps between frames, and the clips that a policy samples."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from framedex.sharder.policies.reading import make_policy
from framedex.sharder.sampling.records import Sampling, Timeline
from tests.support.policy_reference import Clips

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
Document = dict[str, Any]


def timeline(gaps: list[int], base: int = 100, *, every_start: int = 1, name: str = "") -> Timeline:
    pts = np.concatenate([[7], 7 + np.cumsum(gaps)[:-1]]).astype(np.int64)
    return Timeline(
        pts=pts,
        duration_pts=int(sum(gaps)),
        time_base=Fraction(1, base),
        starts=np.arange(0, len(pts), every_start),
        name=name,
    )


def run(document: Document, video: Timeline, row: Document | None = None) -> Sampling:
    return make_policy(document, where="test").policy.sample(video, row or {})


def sample(document: Document, video: Timeline, row: Document | None = None) -> list[list[int]]:
    return [clip.frames.tolist() for clip in run(document, video, row).clips]


def clips_of(sampling: Sampling) -> Clips:
    return [(clip.frames.tolist(), clip.mask.tolist()) for clip in sampling.clips]


def kinds(sampling: Sampling) -> list[str]:
    return [missed.kind for missed in sampling.missed]


THIRTY = timeline([10] * 300, base=300, every_start=30)  # ten seconds at 30 fps, one key frame per second
