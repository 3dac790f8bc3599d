"""Columns of all clips of a manifest, and the clips that have some values."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt, check_columns, reading
from framedex.core.tallies import counted
from framedex.errors import FormatError, FramedexError
from framedex.files.parquet_parts import part_path
from framedex.files.row_groups import check_file, read_file
from framedex.sharder.clips.byte_source import ByteSource
from framedex.sharder.clips.fields import (
    CLIP_FIELDS,
    FIELD_NAMES,
    FRAME_FIELDS,
    frame_field,
    media_columns_of,
    media_field,
    no_such_column,
)
from framedex.sharder.clips.labels import Labels, plain
from framedex.sharder.clips.multiview import ViewsOfClips
from framedex.sharder.clips.shapes import SHAPE_FIELDS, SIZE_FIELDS, shapes_of
from framedex.sharder.schema import CLIPS, CLIPS_FOLDER, COLUMNS_NAME, FIELDS, FIELDS_NAME, MEDIA, MEDIA_FOLDER, Missing
from framedex.storage.places import Stored, parquet_file

REMEDY = "the dataset is damaged: shard again, or fetch it again from where it came"
NO_COLUMNS = pa.schema([])
CLOSE_MATCHES = 3  # how many names are suggested for one that does not exist
SEARCHED_FOR_CLOSE = 100_000  # how many clips are searched for these names


class ClipColumns:
    """What a manifest knows of all clips, read by column. The base of `Manifest`, which reads single clips.

    Attributes:
        path: the dataset.
        labels: the labels that the dataset records; None if it records none.
        _filed: the user's columns that have a file of all clips (COLUMNS_NAME). None: the dataset is older than these
            files, and columns are read from the parts, which takes some seconds for a million clips.
        _first: by table, the number of the first row of each part, and behind them the number of all rows.
        _own: framedex's own columns of `clips`.
        _views: the views that clips have, and what becomes of clips that lack one; None if each clip stands alone.
    """

    path: Path | Stored
    _filed: list[str] | None
    _first: dict[str, NDArray[np.int64]]
    _own: list[str]
    _views: tuple[list[str], Missing] | None
    _lock: threading.Lock
    labels: Labels | None

    def __len__(self) -> int:
        return int(self._first[CLIPS_FOLDER][-1])

    @property
    def media_count(self) -> int:
        """How many media the clips come from."""
        return int(self._first[MEDIA_FOLDER][-1])

    def _open_part(self, folder: str, part: int) -> pq.ParquetFile:
        """Open a part of a table, checked. Raises FormatError."""
        raise NotImplementedError

    @property
    def _shards(self) -> list[ByteSource]:
        """The tars of the dataset."""
        raise NotImplementedError

    def _file(self, folder: str, part: int) -> str:
        """Return the name of a part in messages."""
        raise NotImplementedError

    def _at(self, folder: str, number: int) -> RowAt:
        """Return the position of a row, for errors."""
        raise NotImplementedError

    def _check_unchanged(self) -> None:
        """Raise FormatError if the dataset was replaced since it was opened."""
        raise NotImplementedError

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the user's, a field of `sharder.clips.fields`, or one that no list is, of all clips.

        Texts may be encoded.

        Reads only what it is made of.

        Raises:
            FramedexError: the clips have no such column.
            FormatError: a file is missing or damaged.
        """
        if self._filed is not None and name in self._filed:
            return self._filed_column(COLUMNS_NAME, name, NO_COLUMNS)
        own = self._user_columns()
        if name in own:
            return self._part_column(name)
        if name in self._own and not pa.types.is_list(CLIPS.field(name).type):
            return self._clip_column(name)
        if name not in FIELD_NAMES:
            raise no_such_column(name, own, self.path)
        if self._filed is not None and name in FIELDS.names:
            return self._filed_column(FIELDS_NAME, name, FIELDS)
        if name in CLIP_FIELDS:
            return self._part_column(name)
        if name in FRAME_FIELDS:
            return frame_field(name, self._part_column(FRAME_FIELDS[name]))
        return media_field(name, self._media(media_columns_of(name))).take(pa.array(self.media_rows()))

    def shapes(self, *, upright: bool) -> NDArray[np.int64]:
        """Return int64 [clips, 3]: frames (padding included), height and width, as stored or as turned upright.

        Raises:
            FormatError: a file is missing or damaged.
        """
        if self._filed is not None:
            frames, *sides = (plain(self._filed_column(FIELDS_NAME, name, FIELDS)) for name in SHAPE_FIELDS)
        else:
            media, rows = self._media(SIZE_FIELDS), pa.array(self.media_rows())
            frames = frame_field("wanted_frames", self._part_column("mask"))  # as long as the frames, and smaller
            sides = [media[name].take(rows) for name in SIZE_FIELDS]
        if any(column.null_count for column in (frames, *sides)):
            raise FormatError("a clip has no shape", where=str(self.path), found="null", remedy=REMEDY)
        return shapes_of(frames, *sides, upright=upright)

    def label_values(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column that are numbered: those of all clips. Raises FramedexError."""
        return self.column(name)

    def _user_columns(self) -> list[str]:
        """Return the user's columns, those of a dataset without clips included."""
        raise NotImplementedError

    def _filed_column(self, file: str, name: str, schema: pa.Schema) -> pa.ChunkedArray:
        """Return a column of a file of all clips. `schema`: the columns that it must have."""
        where = str(self.path / file)
        with reading(where, REMEDY):
            self._check_unchanged()
            try:
                opened = parquet_file(self.path / file, read_dictionary=[name])
            except KeyError as error:
                raise ValueError(f"there are no plain values {name!r}") from error
            check_columns(_plain_schema(opened.schema_arrow), schema, where, REMEDY)
            rows, names = opened.metadata.num_rows, opened.schema_arrow.names
            if rows == len(self) and name in names:
                check_file(opened, [name])  # texts stay encoded
                table = opened.read([name])
            else:
                table = None
        if table is None:
            found = counted(rows, "row") if name in names else f"no column {name!r}"
            raise FormatError(
                "does not belong to the dataset",
                where=where,
                found=found,
                allowed=f"{counted(len(self), 'row')} with a column {name!r}",
                remedy=REMEDY,
            )
        return table[name]

    def _clip_column(self, name: str) -> pa.ChunkedArray:
        """Return a column of `clips`, of all clips. Raises KeyError."""
        if self._filed is not None:
            in_fields = name in FIELDS.names and name in CLIPS.names
            if in_fields or name in self._filed:
                file, schema = (FIELDS_NAME, FIELDS) if in_fields else (COLUMNS_NAME, NO_COLUMNS)
                return plain(self._filed_column(file, name, schema))
        return self._part_column(name)

    def _part_column(self, name: str) -> pa.ChunkedArray:
        """Return a column of `clips` from its parts. Raises KeyError."""
        parts = []
        for part in range(len(self._first[CLIPS_FOLDER]) - 1):
            with self._lock, reading(f"{self._file(CLIPS_FOLDER, part)}, column {name}", REMEDY):
                opened = self._open_part(CLIPS_FOLDER, part)  # does not keep the footer
                if name not in opened.schema_arrow.names and name in self._own:  # a nullable column was left out
                    column = pa.chunked_array([pa.nulls(opened.metadata.num_rows, CLIPS.field(name).type)])
                else:
                    column = read_file(opened, part_path(self.path / CLIPS_FOLDER, part), [name], threads=False)[name]
            parts.append(column)
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)

    def _media(self, names: Sequence[str]) -> pa.Table:
        """Return columns of `media`."""
        tables = []
        for part in range(len(self._first[MEDIA_FOLDER]) - 1):
            with self._lock, reading(self._file(MEDIA_FOLDER, part), REMEDY):
                opened = self._open_part(MEDIA_FOLDER, part)
                read = read_file(opened, part_path(self.path / MEDIA_FOLDER, part), names, threads=False)
            columns = [
                read[name] if name in read.column_names else pa.nulls(len(read), MEDIA.field(name).type)
                for name in names
            ]
            tables.append(pa.table(columns, list(names)))
        return pa.concat_tables(tables)

    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the row in `media` of every clip's medium. Reads only that column."""
        rows: NDArray[np.int64] = self._clip_column("media_row").fill_null(-1).to_numpy().astype(np.int64)
        wrong = np.flatnonzero((rows < 0) | (rows >= self.media_count))
        if len(wrong):
            at = self._at(CLIPS_FOLDER, int(wrong[0]))
            raise at.wrong("media_row", rows[wrong[0]], f"0 to {self.media_count - 1}")
        return rows

    def tar_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the tar of every clip. Reads only that column.

        A clip that is not in a tar has the number of the last tar before it, or -1.

        Raises:
            FramedexError: no clip is in a tar.
        """
        rows = self._own_tars()
        if len(rows) and rows.max() < 0:
            raise FramedexError("the dataset has no tars", where=str(self.path), remedy="--pack makes them")
        return np.maximum.accumulate(rows)  # tars are numbered in the order of clips

    def views(self) -> ViewsOfClips | None:
        """Return which clips are views of one clip of several views; None if each clip stands alone.

        Reads two columns.

        Raises:
            FormatError: the columns contradict each other or the header.
        """
        if self._views is None:
            return None
        names, missing = self._views
        shared, own = (self._clip_column(name) for name in ("multiview_id", "view_name"))
        view = pc.index_in(own, pa.array(names, pa.string())).fill_null(-1).to_numpy().astype(np.int64)
        item = shared.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
        wrong = np.flatnonzero((view < 0) | (item < 0))
        if len(wrong):
            at = self._at(CLIPS_FOLDER, int(wrong[0]))
            raise at.wrong("view_name", repr(own[int(wrong[0])].as_py()), ", ".join(names))
        _, first, count = np.unique(item * len(names) + view, return_index=True, return_counts=True)
        if (count > 1).any():
            at = self._at(CLIPS_FOLDER, int(first[np.argmax(count > 1)]))
            raise at.wrong(
                "view_name", "a view that another clip of the same multiview_id is", "one clip for each view"
            )
        return ViewsOfClips(names=names, missing=missing, item=item, view=view)

    def packed_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the tar of every clip, of a dataset whose clips are all in tars. Reads one column.

        Raises:
            FramedexError: a clip is not in a tar.
            FormatError: a number is that of no tar.
        """
        rows = self._own_tars()
        outside = int(np.count_nonzero(rows < 0))
        if outside:
            raise FramedexError(
                "a stream needs clips that are in tars",
                where=str(self.path),
                found=f"{outside} of {counted(len(rows), 'clip')} point into their sources",
                allowed="a dataset of --pack clips or --pack images",
                remedy="shard with --pack clips or --pack images, or load it with ClipDataset",
            )
        if len(rows) and rows.max() >= len(self._shards):
            at = self._at(CLIPS_FOLDER, int(np.argmax(rows)))
            raise at.wrong("shard", rows.max(), f"0 to {len(self._shards) - 1}")
        return rows

    def _own_tars(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the tar of every clip, -1 for a clip that is not in one."""
        rows: NDArray[np.int64] = self._clip_column("shard").fill_null(-1).to_numpy().astype(np.int64)
        return rows

    def find_all(self, name: str) -> list[int]:
        """Return the number of the clip with this name, or of all views that share it. Raises FramedexError."""
        if self._views is not None:
            found = np.flatnonzero(pc.equal(self._clip_column("multiview_id"), name).fill_null(False).to_numpy())
            if len(found):
                return found.tolist()
        return [self.find(name)]

    def find(self, clip_id: str) -> int:
        """Return the number of the clip with this name. Reads one column. Raises FramedexError."""
        names = self._clip_column("clip_id")
        row = pc.index(names, clip_id).as_py()
        if row >= 0:
            return int(row)
        close = difflib.get_close_matches(clip_id, names.slice(0, SEARCHED_FOR_CLOSE).to_pylist(), CLOSE_MATCHES)
        remedy = f"names like it: {', '.join(close)}" if close else "the column clip_id of DATASET/clips has them all"
        raise FramedexError("the dataset has no such clip", where=str(self.path), found=clip_id, remedy=remedy)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of columns that are not encoded by dictionaries."""
    return pa.schema([field.with_type(plain(pa.chunked_array([], field.type)).type) for field in schema])
