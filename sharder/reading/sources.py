"""Reads a clip's byte ranges from files and objects. Each source is checked to be the one indexed.

A stretch of a source that is already in memory, from which a clip is read as from its source.

Sources as files of this machine, for code that decodes or demuxes them from their beginning.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from framedex.core.limits import check_room
from framedex.errors import StaleError
from framedex.files.parquet_cells import read_cell
from framedex.records.clip import Recipe
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import ByteSource, Clip, Medium, stale
from framedex.sharder.reading.recorded_files import Objects, RecordedFile, RecordedFiles, open_recorded, stale_as
from framedex.storage.cache import DiskCache
from framedex.storage.objects import Facts, at_once, children, download
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes of a source that were read before. It reads like `SourceFiles`.

    Attributes:
        first_byte: Where the bytes begin in the source.
        content: uint8 [bytes].
    """

    first_byte: int
    content: NDArray[np.uint8]

    def read(self, clip: Clip) -> EncodedClip:
        """Return the packets of a clip. Raises StaleError if they are not the recorded ones, or not held."""
        encoded, pieces = laid_out(clip)
        for offset, piece in zip(clip.recipe.range_offset.tolist(), pieces, strict=True):
            piece[...] = self._bytes(clip.source, offset, len(piece))
        check_content(clip.source, clip.recipe, pieces)
        return encoded

    def read_ranges(
        self, source: ByteSource, offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return uint8 [bytes]: some ranges, joined. Raises StaleError for a range that is not held."""
        pairs = zip(offset.tolist(), length.tolist(), strict=True)
        return np.concatenate([np.zeros(0, np.uint8), *(self._bytes(source, *pair) for pair in pairs)])

    def _bytes(self, source: ByteSource, offset: int, length: int) -> NDArray[np.uint8]:
        begin = offset - self.first_byte
        if begin < 0 or begin + length > len(self.content):
            raise self._missing(source, offset)
        return self.content[begin : begin + length]

    def _missing(self, source: ByteSource, offset: int) -> StaleError:
        return stale(source.path, f"no bytes at {offset}")


PIECE_BYTES = 16 << 20  # of a video inside a file, copied at once
LOOSE = "files"  # the container of images that are files of a folder


@contextlib.contextmanager
def local_copy(medium: Medium) -> Iterator[Medium]:
    """Provide a medium whose path is on this machine: the medium itself, or a temporary copy.

    Objects are copied, and so are videos inside a file.

    Raises:
        StaleError: The source is not the one recorded.
        StorageError: The store does not deliver the source.
        OSError: The source cannot be opened, or the copy cannot be written.
    """
    loose, part = medium.kind == IMAGES and medium.container == LOOSE, medium.part
    if medium.cell is not None or (part is not None and not is_remote(medium.path)):
        with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
            yield _alone(medium, Path(folder))
        return
    if not is_remote(medium.path):
        if not loose:
            os.close(open_recorded(medium.source))
        yield medium
        return
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder, stale_as(medium.source):
        if loose:
            copy_folder(medium.path, Path(folder))
            yield replace(medium, path=folder)
            return
        path = Path(folder) / f"medium{_ending(medium)}"
        download(medium.path, Objects(None).facts(medium.source), path, part)
        yield replace(medium, path=str(path), member_offset=None, member_bytes=None)


def _ending(medium: Medium) -> str:
    """Return the ending of the name of a medium's file, or of its own name in a file that holds several."""
    return Path(medium.path if medium.part is None else medium.member or "").suffix


def _alone(medium: Medium, folder: Path) -> Medium:
    """Copy a video inside a file into a folder, and return the medium there. Raises StaleError, OSError."""
    path = folder / f"medium{_ending(medium)}"
    with open(path, "wb") as file:
        shutil.copyfileobj(opened_part(medium), file, PIECE_BYTES)
        if file.tell() != medium.member_bytes:
            raise stale(medium.path, f"{file.tell()} of {medium.member_bytes} bytes of {medium.member}")
    return replace(medium, path=str(path), member_offset=None, member_bytes=None)


def copy_folder(uri: str, folder: Path) -> dict[str, Facts]:
    """Copy the objects directly in a folder of a store; return their facts by name."""
    found = children(uri)
    at_once(lambda name: download(f"{uri}/{name}", found[name], folder / name), list(found))
    return found
