"""The ffmpeg command: the one on PATH, or else the one in the imageio-ffmpeg wheel."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess


@functools.cache
def ffmpeg() -> str:
    """Return the path of the command."""
    if found := shutil.which("ffmpeg"):
        return found
    import imageio_ffmpeg

    return str(imageio_ffmpeg.get_ffmpeg_exe())


@functools.cache
def ffmpeg_version() -> tuple[int, ...]:
    """Return the command's version, such as (8, 1, 2)."""
    printed = subprocess.run([ffmpeg(), "-version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return tuple(map(int, re.findall(r"\d+", printed)[:3]))
