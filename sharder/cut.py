"""Cutting packets out of a source by demuxing, where they are not byte ranges of it (TS, PS, ASF, Ogg …)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError
from framedex.indexer.fingerprint import fingerprint, open_same_file
from framedex.indexer.opening import demux_packets, open_container

Row = dict[str, Any]


def cut_packets(
    video: Row, path: str, needed: NDArray[np.bool_], size: NDArray[np.int64], out: Path
) -> NDArray[np.int64]:
    """Copy some packets of a medium into the file `out`, and return int64 [packets]: where each begins there, or -1.

    video: its row of `videos`. needed: bool [packets]. size: int64 [packets], as indexed. Raises StaleError where the
    source is not what was indexed.
    """
    os.close(open_same(video, path))
    offset = np.full(len(needed), -1, np.int64)
    out.parent.mkdir(parents=True, exist_ok=True)
    number = 0
    with open_container(path) as container, open(out, "wb") as file:
        for packet in demux_packets(container, video["stream_index"]):
            if number >= len(size) or packet.size != size[number]:
                raise _stale(path, f"packet {number} has {packet.size} bytes")
            if needed[number]:
                offset[number] = file.tell()
                file.write(bytes(packet))
            number += 1
        file.flush()
        os.fsync(file.fileno())
    if (offset[needed] < 0).any():
        raise _stale(path, f"{number} packets, not {len(size)}")
    return offset


def describe_cut(out: Path) -> tuple[int, str]:
    """Return size and fingerprint of a cut file."""
    with open(out, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return size, fingerprint(file.fileno(), size)


def open_same(video: Row, path: str) -> int:
    """Open a medium's source and return its descriptor. Raises StaleError where it is not what was indexed."""
    try:
        descriptor = open_same_file(
            path, size_bytes=video["size_bytes"], mtime_ns=video["mtime_ns"], expected=video["fingerprint"]
        )
    except OSError as error:
        raise _stale(path, error.strerror or str(error)) from error
    if descriptor is None:
        raise _stale(path, "other content")
    return descriptor


def _stale(path: str, found: str) -> StaleError:
    return StaleError("the source is not the file that was indexed", where=path, found=found, remedy="index it again")
