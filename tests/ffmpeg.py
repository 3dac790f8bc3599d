"""FFmpeg's command: the one on the PATH, else the one that imageio-ffmpeg's wheel brings."""

from __future__ import annotations

import functools
import shutil
import subprocess

import imageio_ffmpeg


@functools.cache
def ffmpeg() -> str:
    """Return the path of the command."""
    return shutil.which("ffmpeg") or str(imageio_ffmpeg.get_ffmpeg_exe())


@functools.cache
def ffmpeg_major() -> int | None:
    """Return the command's major version; None for a build that states none."""
    version = subprocess.run([ffmpeg(), "-version"], capture_output=True, text=True, check=True).stdout.split()[2]
    digits = version.removeprefix("n").split(".")[0]
    return int(digits) if digits.isdigit() else None
