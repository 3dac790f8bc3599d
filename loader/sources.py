"""Reading a clip's byte ranges from local files, each file opened once and checked to be the one indexed."""

from __future__ import annotations

import collections
import os
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError
from framedex.indexer.fingerprint import open_same_file
from framedex.loader.manifest import Medium
from framedex.sharder.recipe import Recipe

OPEN_FILES = 64
NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedClip:
    """A clip's packets in memory. payload: uint8 [bytes], packets in decode order. packet_first: int64 [packets + 1],
    where each begins. A state that a decoder must be given first is part of the packet that it precedes.
    """

    payload: NDArray[np.uint8]
    packet_first: NDArray[np.int64]


class SourceFiles:
    """Open files of this process, the least recently used closed first. Picklable; open files stay behind.

    Threads may share it: they read one after the other.
    """

    def __init__(self) -> None:
        self._open: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[SourceFiles], tuple[()]]:
        return SourceFiles, ()

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def read(self, medium: Medium, recipe: Recipe) -> EncodedClip:
        """Return the packets of a clip. Raises StaleError for a file that is gone, changed or too short."""
        with self._lock:
            return self._read(medium, recipe)

    def _read(self, medium: Medium, recipe: Recipe) -> EncodedClip:
        descriptor = self._descriptor(medium)
        given = [np.frombuffer(medium.states[number], np.uint8) for number in recipe.run_state.tolist()]
        extra = np.zeros(len(recipe.packet_size), np.int64)
        extra[recipe.run_first] = [len(state) for state in given]
        packet_first = np.concatenate([[0], np.cumsum(recipe.packet_size + extra)])
        payload = np.empty(int(packet_first[-1]), np.uint8)
        view = payload.data
        starts = dict(zip(packet_first[recipe.run_first].tolist(), given, strict=True))
        at = 0
        for offset, length in zip(recipe.range_offset.tolist(), recipe.range_length.tolist(), strict=True):
            state = starts.pop(at, NOTHING)
            payload[at : at + len(state)] = state
            at += len(state)
            end = at + length
            while at < end:  # one call reads 2 GiB at most
                got = os.preadv(descriptor, [view[at:end]], offset)
                if not got:
                    raise _stale(medium, f"no bytes at {offset}")
                at, offset = at + got, offset + got
        return EncodedClip(payload=payload, packet_first=packet_first)

    def _descriptor(self, medium: Medium) -> int:
        if medium.path in self._open:
            self._open.move_to_end(medium.path)
            return self._open[medium.path]
        descriptor = open_checked(medium)
        self._open[medium.path] = descriptor
        if len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return descriptor


def open_checked(medium: Medium) -> int:
    """Open the file that holds a medium's packets. Raises StaleError unless it is the file that was indexed, or cut."""
    if medium.cut is None:
        return _open_same(medium, medium.path, medium.size_bytes, medium.mtime_ns, medium.fingerprint)
    assert medium.cut_size_bytes is not None
    assert medium.cut_fingerprint is not None
    return _open_same(medium, medium.path, medium.cut_size_bytes, -1, medium.cut_fingerprint)


def open_source(medium: Medium) -> int:
    """Open a medium's source, cut or not. Raises StaleError unless it is the file that was indexed."""
    return _open_same(medium, medium.source, medium.size_bytes, medium.mtime_ns, medium.fingerprint)


def _open_same(medium: Medium, path: str, size_bytes: int, mtime_ns: int, expected: str) -> int:
    try:
        descriptor = open_same_file(path, size_bytes=size_bytes, mtime_ns=mtime_ns, expected=expected)
        if descriptor is None:
            raise _stale(medium, f"{os.stat(path).st_size} bytes of other content")
    except OSError as error:
        raise _stale(medium, error.strerror or str(error)) from error
    return descriptor


def _stale(medium: Medium, found: str) -> StaleError:
    return StaleError(
        "the source is not the file that was indexed",
        where=medium.path,
        found=found,
        allowed=f"{medium.size_bytes} bytes, fingerprint {medium.fingerprint}",
        remedy="index and shard again, or point root at where the sources moved",
    )
