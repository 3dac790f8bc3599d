"""Writes the rows of media as pairs of parts of an index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from framedex.files.parquet_parts import PartWriter, part_numbers, part_path, table_of, write_part
from framedex.indexer.media_rows import Row
from framedex.indexer.parts.layout import FRAMES_FOLDER, VIDEOS_FOLDER
from framedex.indexer.schema import DELTA_COLUMNS, FRAMES, FRAMES_PER_ROW_GROUP, SCHEMA_VERSION, VIDEOS
from framedex.records.packets import gaps_of
from framedex.storage.outputs import Output
from framedex.storage.places import Place

FILES_A_PART = 256  # what a killed run loses at most, and what one task of many does at least
VERIFIED_FILES_A_PART = 32  # where every frame is decoded, too


class PartPairs:
    """Writes rows as pairs of parts: frames first, then videos, which makes the pair visible.

    A part holds the rows of a fixed number of files, so that the same files give the same parts, whoever probes them
    and however fast.

    Args:
        index: the index directory.
        numbers: numbers of the parts to write; None for the numbers after the index's own parts.
        files_a_part: files per part; None for FILES_A_PART.
    """

    def __init__(
        self, index: Path | Output, *, numbers: Iterable[int] | None = None, files_a_part: int | None = None
    ) -> None:
        self._output = index if isinstance(index, Output) else Output(index)
        self._folders = self._output.local / VIDEOS_FOLDER, self._output.local / FRAMES_FOLDER
        self._numbers = iter(itertools.count(next_part(self._output.where)) if numbers is None else numbers)
        self._files_a_part = files_a_part or FILES_A_PART
        self._clear()

    def _clear(self) -> None:
        self._writer: PartWriter | None = None
        self._number = -1
        self._videos: list[Row] = []
        self._group: list[Row] = []
        self._packets = self._files = 0

    def add(self, rows: Sequence[tuple[Row, Row]], files: int = 1) -> None:
        """Add the rows of `videos` and `frames` of the media of one file; write a pair of parts if it is full.

        Args:
            rows: of the media.
            files: how many files they count as.
        """
        for video, frames in rows:
            if self._group and self._packets + len(frames["size"]) > FRAMES_PER_ROW_GROUP:
                self._write_group()
            self._videos.append(video)
            self._group.append(frames | _gaps(frames))
            self._packets += len(frames["size"])
        self._files += files
        if self._files >= self._files_a_part:
            self.flush()

    def flush(self) -> None:
        """Write the rows added since the last pair of parts."""
        if not self._files:
            return
        self._write_group()
        if self._writer is not None:
            self._writer.commit()
            self._output.publish(part_path(self._folders[1], self._number))
        videos = part_path(self._folders[0], self._number)
        write_part(videos, table_of(self._videos, VIDEOS), version=SCHEMA_VERSION)
        self._output.publish(videos)
        self._clear()

    def _write_group(self) -> None:
        if self._writer is None:
            self._number = next(self._numbers)
            path = part_path(self._folders[1], self._number)
            self._writer = PartWriter(path, FRAMES, version=SCHEMA_VERSION, delta=DELTA_COLUMNS)
        self._writer.write(table_of(self._group, FRAMES))
        self._group, self._packets = [], 0


def next_part(index: Place) -> int:
    """Return the number after those of all existing parts, including halves of pairs that a killed run left."""
    return max([*part_numbers(index / VIDEOS_FOLDER), *part_numbers(index / FRAMES_FOLDER)], default=-1) + 1


def _gaps(frames: Row) -> Row:
    return {
        f"{kind}gap": gaps_of(frames[f"{kind}offset"], frames[f"{kind}size"])
        for kind in ("", "audio_")
        if frames.get(f"{kind}offset") is not None
    }
