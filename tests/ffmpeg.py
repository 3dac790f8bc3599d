"""FFmpeg's command: the one on the PATH, else the one that imageio-ffmpeg's wheel brings."""

from __future__ import annotations

import functools
import shutil

import imageio_ffmpeg


@functools.cache
def ffmpeg() -> str:
    """Return the path of the command."""
    return shutil.which("ffmpeg") or str(imageio_ffmpeg.get_ffmpeg_exe())
