"""Warns once if frames were counted by another major version of FFmpeg than the one that decodes them now."""

from __future__ import annotations

import functools
import logging

from framedex.core.pyav import ffmpeg_version, other_major_versions
from framedex.errors import printable

LOG = logging.getLogger("framedex.loader")


@functools.cache
def warn_of_other_ffmpeg(place: str, versions: tuple[str, ...]) -> None:
    """Log a warning, once in this process, if an index was made by another major version of FFmpeg than PyAV's.

    Args:
        place: the place of the index, or of a dataset that was made from it.
        versions: the versions of FFmpeg that probed its media.
    """
    others = other_major_versions(versions)
    if others:
        LOG.warning(
            "%s was indexed with FFmpeg %s, and FFmpeg %s decodes it now. `framedex verify` compares the frames of a "
            "dataset; docs/exactness.md says what was tested",
            printable(place),
            printable(", ".join(others)),
            ffmpeg_version(),
        )
