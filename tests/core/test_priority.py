"""An encoder never gives this process a realtime priority, from which everything else on the machine would suffer."""

from __future__ import annotations

import os
from pathlib import Path

from framedex import Index
from tests.support import media
from tests.support.counted import some
from tests.support.datasets import shard_clips

SVT = {"preset": "12", "svtav1-params": "lp=1"}


def policies() -> list[int]:
    """Return the scheduling policy of every thread of this process."""
    return [os.sched_getscheduler(int(thread)) for thread in some(os.listdir("/proc/self/task"))]


def test_no_thread_is_a_realtime_thread_after_a_clip_was_encoded_as_av1(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [0, 1, 2, 3]}]
    shard_clips(index.path, tmp_path / "D", clips, "--pack", "clips", "--encode", "av1", "--short-side", "64")
    assert set(policies()) == {os.SCHED_OTHER}


def test_no_thread_is_a_realtime_thread_after_a_test_medium_was_made(tmp_path: Path) -> None:
    media.encode(media.Recipe(name="a.mp4", codec="libsvtav1", options=SVT, frames=3), tmp_path / "a.mp4")
    assert set(policies()) == {os.SCHED_OTHER}
