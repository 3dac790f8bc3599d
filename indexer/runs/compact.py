"""Merge the parts of an index that many runs wrote into few parts, without the rows that no longer count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.files.atomic import write_json_aside
from framedex.files.parquet_parts import PartWriter, part_path
from framedex.indexer.parts.index import Index, as_videos, rows_by_group
from framedex.indexer.parts.layout import FRAMES_FOLDER, HEADER, VIDEOS_FOLDER, read_header
from framedex.indexer.parts.part_pairs import next_part
from framedex.indexer.runs.build import opened_whole
from framedex.indexer.schema import DELTA_COLUMNS, FRAMES, FRAMES_PER_ROW_GROUP, SCHEMA_VERSION, VIDEOS
from framedex.storage.outputs import Output
from framedex.storage.places import Place, parquet_file

MEDIA_A_PART = 16_384
PACKETS_A_PART = 32_000_000
# Looking up one video reads one row group (decision 0019).
VIDEOS_A_ROW_GROUP = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What compacting did.

    Attributes:
        parts_before: parts of the index before.
        parts: parts of the index now.
        media: media of the index.
        dropped: rows that no longer counted.
    """

    parts_before: int
    parts: int
    media: int
    dropped: int


def compact_index(out: Place) -> CompactReport:
    """Write the rows that count into new parts, in the same order, and remove the old parts.

    At every moment a reader that opens the index sees every medium. Memory use is one row group, plus the rows of
    `videos` for one part.

    Raises:
        FormatError: the index cannot be read.
        OutputError: another run writes the index, or it is being written in slices.
    """
    with opened_whole(out) as output:
        index = Index(out)
        old, rows, media = index.parts, index.rows, len(index)
        if len(old) <= -(-media // MEDIA_A_PART) and rows == media:
            return CompactReport(parts_before=len(old), parts=len(old), media=media, dropped=0)
        merged = _Merged(output, next_part(out))
        for number in old:
            merged.take(number, index.counting_rows(number))
        merged.flush()
        header = read_header(out)
        write_json_aside(output.local / HEADER, header | {"generation": header["generation"] + 1})
        output.publish(output.local / HEADER)
        for number in old:  # ascending: a superseded row is removed before the row that supersedes it
            for table in (VIDEOS_FOLDER, FRAMES_FOLDER):
                output.remove(f"{table}/{part_path(output.local, number).name}")
        return CompactReport(parts_before=len(old), parts=merged.written, media=media, dropped=rows - media)


class _Merged:
    """New parts, into which rows of old parts are copied."""

    def __init__(self, output: Output, first: int) -> None:
        self._output, self._number = output, first
        self.written = 0
        self._clear()

    def _clear(self) -> None:
        self._videos: list[pa.Table] = []
        self._writer: PartWriter | None = None
        self._group: list[pa.Table] = []
        self._group_packets = self._packets = 0

    def take(self, part: int, rows: NDArray[np.int64]) -> None:
        """Copy some rows of an old part.

        Args:
            part: number of the old part.
            rows: int64, row numbers in ascending order.
        """
        if not len(rows):
            return
        self._videos.append(
            as_videos(parquet_file(part_path(self._output.where / VIDEOS_FOLDER, part)).read()).take(rows)
        )
        for table in rows_by_group(parquet_file(part_path(self._output.where / FRAMES_FOLDER, part)), rows):
            lengths = pc.list_value_length(table["size"]).to_numpy()
            for first, end in _stretches(lengths, FRAMES_PER_ROW_GROUP):
                self._add(table.slice(first, end - first), int(lengths[first:end].sum()))
        if sum(map(len, self._videos)) >= MEDIA_A_PART or self._packets >= PACKETS_A_PART:
            self.flush()

    def _add(self, table: pa.Table, packets: int) -> None:
        if self._group and self._group_packets + packets > FRAMES_PER_ROW_GROUP:
            self._write_group()
        self._group.append(table)
        self._group_packets += packets
        self._packets += packets

    def _write_group(self) -> None:
        if self._writer is None:
            path = part_path(self._output.local / FRAMES_FOLDER, self._number)
            self._writer = PartWriter(path, FRAMES, version=SCHEMA_VERSION, delta=DELTA_COLUMNS)
        self._writer.write(pa.concat_tables(self._group).combine_chunks())
        self._group, self._group_packets = [], 0

    def flush(self) -> None:
        """Write the collected rows as a part, and make it visible."""
        if not self._videos:
            return
        self._write_group()
        assert self._writer is not None  # each row of videos has a row of frames
        self._writer.commit()
        self._output.publish(part_path(self._output.local / FRAMES_FOLDER, self._number))
        videos, path = pa.concat_tables(self._videos), part_path(self._output.local / VIDEOS_FOLDER, self._number)
        writer = PartWriter(path, VIDEOS, version=SCHEMA_VERSION)
        for first in range(0, len(videos), VIDEOS_A_ROW_GROUP):
            writer.write(videos.slice(first, VIDEOS_A_ROW_GROUP).combine_chunks())
        writer.commit()
        self._output.publish(path)
        self._number += 1
        self.written += 1
        self._clear()


def _stretches(lengths: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of runs of rows with at most `most` packets together, or of one row; `end` is exclusive."""
    first = total = 0
    for row, length in enumerate(lengths.tolist()):
        if row > first and total + length > most:
            yield first, row
            first, total = row, 0
        total += length
    if first < len(lengths):
        yield first, len(lengths)
