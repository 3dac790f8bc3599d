"""Spools: packets of media that are not addressable by bytes (TS, PS, ASF, Ogg …), demuxed once into a file.

The file lies beside the dataset and holds all packets of the stream, one after the other, so that planning works as for
any other medium. It is removed when other spools need its room, or when the run ends.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from pathlib import Path

import av.error
import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError
from framedex.files.atomic import ASIDE
from framedex.files.fingerprint import fingerprint
from framedex.indexer.containers.opening import demux_packets, open_container
from framedex.sharder.clips.byte_source import CONTENT_ALONE, ByteSource, stale
from framedex.sharder.clips.medium import Medium
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.reading.local_copies import local_copy

MOST_BYTES = 4 << 30  # of all spools at a time; the one in use may be larger


class Spools:
    """The spools of a run, in a folder. A context manager that removes them at its end.

    Args:
        needed: Make no spools for media whose pictures are byte ranges of their file, since their clips stay by
            reference.
        settle: Waits until everything that was planned from spools is copied; called before a spool is removed.
    """

    def __init__(self, folder: Path, *, needed: bool, settle: Callable[[], None]) -> None:
        self._folder, self._needed, self._settle = folder, needed, settle
        self._made: collections.OrderedDict[str, ByteSource] = collections.OrderedDict()
        self._failed: dict[str, StaleError] = {}

    def __enter__(self) -> Spools:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._settle()
        while self._made:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        Path(self._made.popitem(last=False)[1].path).unlink(missing_ok=True)

    def make_addressable(self, medium: IndexedMedium) -> None:
        """Let a medium plan with byte ranges of spools.

        Raises:
            StaleError: The source is not what was indexed.
            OSError: A file cannot be written.
        """
        if self._needed and medium.video["byte_addressable"]:
            return
        facts, audio = medium.medium, medium.audio_packets
        if not medium.addressable:
            medium.spooled(self._spool(facts.media_id, facts, facts.stream_index, medium.packets.size))
        if audio is not None and audio.offset is None:
            assert facts.audio_stream_index is not None  # it has packets
            medium.audio_spooled(self._spool(f"{facts.media_id}-audio", facts, facts.audio_stream_index, audio.size))

    def _spool(self, identity: str, medium: Medium, stream: int, size: NDArray[np.int64]) -> ByteSource:
        """Return the spool of a stream, and make it if it does not exist yet."""
        if identity in self._failed:
            raise self._failed[identity]
        if identity not in self._made:
            while self._made and sum(spool.size_bytes for spool in self._made.values()) + size.sum() > MOST_BYTES:
                self._settle()
                self._remove_oldest()
            path = self._folder / f"{ASIDE}spool-{identity}"
            try:
                self._made[identity] = spool(medium, stream, size, path)
            except StaleError as error:
                path.unlink(missing_ok=True)
                self._failed[identity] = error
                raise
        self._made.move_to_end(identity)
        return self._made[identity]


def spool(medium: Medium, stream: int, size: NDArray[np.int64], path: Path) -> ByteSource:
    """Write all packets of a stream of a medium into a file.

    Args:
        size: int64 [packets], sizes in bytes as indexed.

    Raises:
        StaleError: The source is not what was indexed.
        OSError: The file cannot be written.
    """
    number = 0
    with local_copy(medium) as copy, open(path, "wb") as file:
        try:
            with open_container(copy.path) as container:
                for packet in demux_packets(container, stream):
                    if number >= len(size) or packet.size != size[number]:
                        raise stale(medium.path, f"packet {number} has {packet.size} bytes")
                    file.write(bytes(packet))
                    number += 1
        except av.error.FFmpegError as error:
            if number != len(size):  # a file with a damaged end was indexed up to there
                raise stale(medium.path, f"{number} packets, then {error}") from error
        if number != len(size):
            raise stale(medium.path, f"{number} packets, not {len(size)}")
    return ByteSource(path=str(path), size_bytes=int(size.sum()), mtime_ns=CONTENT_ALONE, fingerprint=_mark(path))


def _mark(path: Path) -> str:
    with open(path, "rb") as file:
        return fingerprint(file.fileno(), os.fstat(file.fileno()).st_size)
