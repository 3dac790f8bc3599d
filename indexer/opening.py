"""CONTRACT: opening a media file with libavformat so that it reaches neither the network nor other files."""

from __future__ import annotations

import av
import av.container

from framedex.indexer.demuxers import OPEN_OPTIONS


def open_container(path: str) -> av.container.InputContainer:
    """Open a local media file. Raises av.error.FFmpegError, OSError or ValueError as PyAV does.

    A playlist, or a reference inside the file, is not followed.
    """
    # The file: prefix keeps names with a colon from being read as a protocol.
    return av.open(f"file:{path}", metadata_errors="replace", options=dict(OPEN_OPTIONS))
