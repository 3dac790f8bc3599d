"""Reads a clip's byte ranges from files and objects. Each source is checked to be the one indexed."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from framedex.core.memory import check_room
from framedex.files.parquet_cells import read_cell
from framedex.records.recipe import Recipe
from framedex.sharder.clips.byte_source import ByteSource, stale
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.medium import Medium
from framedex.sharder.reading.object_sources import Objects, stale_as
from framedex.sharder.reading.recorded_files import RecordedFile, RecordedFiles, open_recorded
from framedex.storage.cache import DiskCache
from framedex.storage.places import Stored
from framedex.storage.reader import ObjectFile, ObjectReader, RangedFile
from framedex.storage.uris import is_remote, joined, leads_out

NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedClip:
    """A clip's packets in memory.

    Attributes:
        payload: uint8 [bytes], packets in decode order. A state that a decoder must be given first is part of the
            packet that it precedes.
        packet_first: int64 [packets + 1], where each packet begins.
    """

    payload: NDArray[np.uint8]
    packet_first: NDArray[np.int64]


class SourceFiles:
    """The sources that this process reads: files and objects.

    Threads may share an instance: they read files one after the other, and objects concurrently. It is picklable; open
    files are not pickled.

    Args:
        cache: Holds ranges of objects.

    Attributes:
        cache: As given.
    """

    def __init__(self, cache: DiskCache | None = None) -> None:
        self.cache = cache
        self._files, self._objects = RecordedFiles(), Objects(cache)

    def __reduce__(self) -> tuple[type[SourceFiles], tuple[DiskCache | None]]:
        return SourceFiles, (self.cache,)

    def _of(self, source: ByteSource) -> RecordedFiles | Objects:
        """Return the reader of a source."""
        return self._objects if is_remote(source.path) else self._files

    def read(self, clip: Clip) -> EncodedClip:
        """Return the packets of a clip. Raises StaleError if the source is missing or changed."""
        source, recipe = clip.source, clip.recipe
        encoded, pieces = laid_out(clip)
        if recipe.range_path is not None:
            _check_names(source, recipe.range_path)
            self._of(source).fill_whole(source.path, recipe.range_path, pieces)
        else:
            self._of(source).fill(source, recipe.range_offset, pieces)
        check_content(source, recipe, pieces)
        return encoded

    def read_ranges(
        self, source: ByteSource, offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return uint8 [bytes]: some ranges of a source, joined. Raises StaleError if it is missing or changed."""
        payload = np.empty(int(length.sum()), np.uint8)
        ends = np.cumsum(length)
        places = zip((ends - length).tolist(), ends.tolist(), strict=True)
        self._of(source).fill(source, offset, [payload[begin:end] for begin, end in places])
        return payload

    @contextlib.contextmanager
    def opened(self, source: ByteSource) -> Iterator[int | None]:
        """Provide the descriptor of a file, or None for an object.

        If the caller raises StaleError, the file is closed.

        Raises:
            StaleError: The file is missing or changed.
        """
        reader = self._of(source)
        if isinstance(reader, Objects):
            yield None
            return
        with reader.opened(source) as descriptor:
            yield descriptor


def range_reader(source: ByteSource) -> RecordedFile | ObjectReader:
    """Return a function (offset, length) → bytes of a source.

    Raises:
        StaleError: The source is missing or changed.
        StorageError: The store does not deliver the source.
    """
    return Objects(None).reader(source) if is_remote(source.path) else RecordedFile(source)


def openable(medium: Medium) -> str | RangedFile:
    """Return what libavformat opens for a medium. Raises StaleError if it is missing or changed, StorageError."""
    source = medium.source
    if medium.part is not None or medium.cell is not None:
        return opened_part(medium)
    if is_remote(source.path):
        return ObjectFile(Objects(None).reader(source))
    os.close(open_recorded(source))
    return source.path


def opened_part(medium: Medium) -> RangedFile:
    """Open a video inside a file. Raises StaleError if its source is missing or changed, StorageError."""
    part = medium.part
    if part is None:
        content = _cell_content(medium)
        return RangedFile(lambda offset, length: bytes(content[offset : offset + length]), len(content), "cell")
    read = range_reader(medium.source)

    def read_part(offset: int, length: int) -> bytes:
        return read(part.offset + offset, max(0, min(length, part.size_bytes - offset)))

    return RangedFile(read_part, part.size_bytes, medium.member or "")


def _cell_content(medium: Medium) -> memoryview:
    """Return the bytes of a video that is a value of a compressed column.

    Raises:
        StaleError: the source is missing or changed.
        StorageError: the store does not deliver it.
    """
    source = medium.source
    assert medium.cell is not None  # the caller checked this
    try:
        if is_remote(source.path):
            with stale_as(source):
                return read_cell(Stored(uri=source.path), medium.cell, tag=Objects(None).facts(source).tag)
        os.close(open_recorded(source))
        return read_cell(Path(source.path), medium.cell)
    except (OSError, ValueError) as error:
        raise stale(source.path, f"{medium.cell}: {error}") from error


def _check_names(source: ByteSource, names: Sequence[str]) -> None:
    """Raise StaleError for names that lead out of a folder of images."""
    for name in names:
        if not name or leads_out(name) or "\0" in name:
            raise stale(f"{source.path}/{name}", "no name of a file in the medium's folder")


def check_content(source: ByteSource, recipe: Recipe, pieces: Sequence[NDArray[np.uint8]]) -> None:
    """Raise StaleError if the bytes of a range are not those of its checksum. Only images have checksums."""
    for number, piece in enumerate(pieces):
        if recipe.range_crc32 is not None and zlib.crc32(piece.data) != recipe.range_crc32[number]:
            where = source.path if recipe.range_path is None else joined(source.path, recipe.range_path[number])
            raise stale(where, "other content")


def laid_out(clip: Clip) -> tuple[EncodedClip, list[NDArray[np.uint8]]]:
    """Return a clip whose payload holds the runs' states, and the part of the payload for each range."""
    recipe, states = clip.recipe, clip.medium.states
    given = [np.frombuffer(states[number], np.uint8) for number in recipe.run_state.tolist()]
    extra = np.zeros(len(recipe.packet_size), np.int64)
    extra[recipe.run_first] = [len(state) for state in given]
    packet_first = np.concatenate([[0], np.cumsum(recipe.packet_size + extra)])
    check_room(int(packet_first[-1]), "the packets of a clip", where="recipes")
    payload = np.empty(int(packet_first[-1]), np.uint8)
    starts = dict(zip(packet_first[recipe.run_first].tolist(), given, strict=True))
    at, pieces = 0, []
    for length in recipe.range_length.tolist():
        state = starts.pop(at, NOTHING)
        payload[at : at + len(state)] = state
        at += len(state)
        pieces.append(payload[at : at + length])
        at += length
    return EncodedClip(payload=payload, packet_first=packet_first), pieces
