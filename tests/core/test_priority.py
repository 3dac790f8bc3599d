"""An encoder never gives this process a realtime priority, from which everything else on the machine would suffer."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from framedex import EncodeOptions
from framedex.sharder.packing.encoders import encode
from tests.support import media
from tests.support.counted import some

SVT = {"preset": "12", "svtav1-params": "lp=1"}


def policies() -> list[int]:
    """Return the scheduling policy of every thread of this process."""
    return [os.sched_getscheduler(int(thread)) for thread in some(os.listdir("/proc/self/task"))]


def test_no_thread_is_a_realtime_thread_after_a_clip_was_encoded_as_av1() -> None:
    encode(np.zeros((4, 64, 64, 3), np.uint8), (64, 64), EncodeOptions(codec="av1"))
    assert set(policies()) == {os.SCHED_OTHER}


def test_no_thread_is_a_realtime_thread_after_a_test_medium_was_made(tmp_path: Path) -> None:
    media.encode(media.Recipe(name="a.mp4", codec="libsvtav1", options=SVT, frames=3), tmp_path / "a.mp4")
    assert set(policies()) == {os.SCHED_OTHER}
