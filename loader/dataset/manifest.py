"""Reads a dataset's manifest one clip at a time, without ever holding it in memory."""

from __future__ import annotations

import contextlib
import difflib
import functools
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from framedex.core.arrays import column_as_numpy
from framedex.core.column_rules import RowAt, check_columns, check_header, check_row, reading
from framedex.core.tallies import counted, no_clip_has, tally
from framedex.errors import FormatError, FramedexError, PolicyError
from framedex.files.headers import check_format
from framedex.files.parquet_parts import part_path
from framedex.indexer.parts.row_checks import check_video
from framedex.sharder.clips.byte_source import CONTENT_ALONE, ByteSource
from framedex.sharder.clips.clip import Clip, Failure
from framedex.sharder.clips.fields import (
    CLIP_FIELDS,
    FIELDS,
    FRAME_FIELDS,
    frame_field,
    media_columns_of,
    media_field,
    no_such_column,
)
from framedex.sharder.clips.medium import Locations, Medium, Root
from framedex.sharder.clips.multiview import ViewsOfClips
from framedex.sharder.clips.rows import clip_from, own_columns
from framedex.sharder.clips.shapes import SIZE_COLUMNS, shapes_of
from framedex.sharder.configuration.views import Missing
from framedex.sharder.packing.encode_options import EncodeOptions
from framedex.sharder.packing.image_files import ImageOptions
from framedex.sharder.schema import (
    CLIPS,
    CLIPS_FOLDER,
    CLIPS_PER_ROW_GROUP,
    FORMAT,
    HEADER,
    HEADER_KEYS,
    MEDIA,
    MEDIA_FOLDER,
    MEDIA_PER_ROW_GROUP,
    MEDIA_RULES,
    RECIPES,
    RECIPES_FOLDER,
    SCHEMA_VERSION,
    SHARD_NAME,
    SHARD_RULES,
    SHARDS,
    SHARDS_NAME,
)
from framedex.storage.cache import DiskCache
from framedex.storage.places import Stored, parquet_file, place

GROUP_ROWS = {
    CLIPS_FOLDER: CLIPS_PER_ROW_GROUP,
    RECIPES_FOLDER: CLIPS_PER_ROW_GROUP,
    MEDIA_FOLDER: MEDIA_PER_ROW_GROUP,
}
SCHEMAS = {CLIPS_FOLDER: CLIPS, RECIPES_FOLDER: RECIPES, MEDIA_FOLDER: MEDIA}
REMEDY = "the dataset is damaged: shard again, or fetch it again from where it came"
CLOSE_MATCHES = 3  # how many names are suggested for one that does not exist
SEARCHED_FOR_CLOSE = 100_000  # how many clips are searched for these names
OPEN_PARTS = 256  # how many parts' footers are kept; a footer is about 1 MB in memory


class Manifest:
    """A dataset, in a folder or in object storage, opened for reading. It is picklable; open files are not pickled.

    Args:
        path: the dataset.
        root: where the sources are now, if they moved: a folder that replaces the recorded root, or a mapping {old
            prefix: new prefix} that is applied to absolute paths.
        cache: a cache for what is read from a dataset in object storage.

    Attributes:
        images: how frames were stored (`--pack images`), else None.
        encode: how clips were encoded (`--encode`), else None.
        ffmpeg: the versions of FFmpeg's libraries that made the index, as in `Index.ffmpeg`.

    Raises:
        FormatError: there is no dataset at `path`, or it is damaged.
    """

    def __init__(self, path: str | Path | Stored, *, root: Root | None = None, cache: DiskCache | None = None) -> None:
        self.path = place(path, cache).absolute()
        header = check_format(
            self.path, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex dataset"
        )
        check_header(header, HEADER_KEYS, str(self.path / HEADER), REMEDY)
        try:
            self.locations = Locations(header["root"], root)
            self.images = _images(header.get("images"))
            self.encode = _encode(header.get("encode"))
            self.ffmpeg: list[str] = header.get("index_ffmpeg") or []
            self._views = _views(header.get("views"))
            self._own = own_columns(header["schema_version"])
            self._first = {
                CLIPS_FOLDER: np.cumsum([0, *header["clips_per_part"]]),
                MEDIA_FOLDER: np.cumsum([0, *header["media_per_part"]]),
            }
            self._first[RECIPES_FOLDER] = self._first[CLIPS_FOLDER]
        except (KeyError, TypeError, ValueError, PolicyError) as error:
            raise FormatError(f"{HEADER} is damaged", where=str(self.path), found=repr(error)) from error
        self._header = (self.path / HEADER).read_bytes()
        self._open()

    def _open(self) -> None:
        # These caches belong to this process alone; see __getstate__.
        self._lock = threading.Lock()
        self._part = functools.lru_cache(OPEN_PARTS)(self._open_part)
        self._group = functools.lru_cache(4)(self._read_group)
        self._constants = functools.lru_cache(OPEN_PARTS)(self._find_constants)
        self.medium = functools.lru_cache(4096)(self._read_medium)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("path", "images", "encode", "ffmpeg", "locations", "_first", "_header", "_views", "_own")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int(self._first[CLIPS_FOLDER][-1])

    def checksum(self) -> int:
        """Return the CRC-32 of the dataset's header, which holds a digest of all of its clips."""
        return zlib.crc32(self._header)

    def clip(self, number: int, epoch: int = 0) -> Clip:
        """Return clip `number`, which is the same in every epoch.

        Raises:
            IndexError: there is no such clip.
            FormatError: its rows have values that are not possible.
        """
        at, recipe_at = self._at(CLIPS_FOLDER, number), self._at(RECIPES_FOLDER, number)
        with self._lock:  # pyarrow's readers are not safe for several threads at once
            row, recipe = self._row(CLIPS_FOLDER, number), self._row(RECIPES_FOLDER, number)
            media_row = row["media_row"][0].as_py()
            if media_row is None or not 0 <= media_row < self.media_count:
                raise at.wrong("media_row", media_row, f"0 to {self.media_count - 1}")
            medium = self.medium(media_row)
        if not row["clip_id"].equals(recipe["clip_id"]):
            where = recipe_at.wrong("clip_id", "another name").where
            raise FormatError("clips and recipes do not belong together", where=where, remedy=REMEDY)
        shard = row["shard"][0].as_py() if "shard" in row.schema.names else None
        if shard is not None and not 0 <= shard < len(self._shards):
            raise at.wrong("shard", shard, f"0 to {len(self._shards) - 1}")
        source = medium.source if shard is None else self._shards[shard]
        return clip_from(row, recipe, medium, source, at, recipe_at, self._own)

    @property
    def columns(self) -> list[str]:
        """The user's columns, which every clip has."""
        return self._user_columns() if len(self) else []

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The types of the user's columns."""
        return {name: self._part(CLIPS_FOLDER, 0).schema_arrow.field(name).type for name in self.columns}

    def clip_id(self, number: int) -> str:
        """Return the name of clip `number`, whose row may be damaged.

        Returns:
            The name, or "" if the name is damaged too.

        Raises:
            IndexError: there is no such clip.
        """
        with contextlib.suppress(FormatError, ValueError), self._lock:
            return str(self._row(CLIPS_FOLDER, number)["clip_id"][0].as_py() or "")
        return ""

    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the row in `media` of every clip's medium. Reads only that column of all parts."""
        parts = [part.fill_null(-1).to_numpy() for part in self._column("media_row")]
        rows = np.concatenate(parts or [np.zeros(0)]).astype(np.int64)
        wrong = np.flatnonzero((rows < 0) | (rows >= self.media_count))
        if len(wrong):
            at = self._at(CLIPS_FOLDER, int(wrong[0]))
            raise at.wrong("media_row", rows[wrong[0]], f"0 to {self.media_count - 1}")
        return rows

    def tar_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the tar of every clip. Reads only that column of all parts.

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

        Reads two columns of all parts.

        Raises:
            FormatError: the columns contradict each other or the header.
        """
        if self._views is None:
            return None
        names, missing = self._views
        shared, own = (
            pa.chunked_array([chunk for part in self._column(name) for chunk in part.chunks], pa.string())
            for name in ("multiview_id", "view_name")
        )
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
        parts = [part.fill_null(-1).to_numpy() for part in self._column("shard")]
        return np.concatenate(parts or [np.zeros(0)]).astype(np.int64)

    def failures(self) -> Iterator[Failure]:
        """Yield nothing: what could not be planned is listed in failures.parquet."""
        return iter(())

    def where(self, wanted: Mapping[str, object]) -> NDArray[np.int64]:
        """Return int64: the numbers of the clips whose columns have these values, ascending.

        Reads only these columns of all parts.

        Raises:
            FramedexError: the clips have no such column, the column's type has no such value, or no clip has these
                values.
        """
        chosen = np.ones(len(self), np.bool_)
        for name, value in wanted.items():
            try:
                parts = [pc.equal(part, pa.scalar(value, part.type)).fill_null(False) for part in self._column(name)]
            except KeyError:
                raise FramedexError(
                    "the clips have no such column",
                    where=str(self.path),
                    found=name,
                    allowed=", ".join(self._part(CLIPS_FOLDER, 0).schema_arrow.names),
                ) from None
            except (pa.ArrowException, TypeError) as error:
                raise FramedexError(
                    f"column {name!r} never has such a value", where=str(self.path), found=repr(value)
                ) from error
            chosen &= np.concatenate([part.to_numpy() for part in parts] or [np.zeros(0, np.bool_)]).astype(np.bool_)
        found = np.flatnonzero(chosen)
        if wanted and not len(found):
            values = {name: tally(chunk for part in self._column(name) for chunk in part.chunks) for name in wanted}
            raise no_clip_has(wanted, values, self.path)
        return found

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the user's, or a field of `sharder.clips.fields`, of all clips.

        Reads only what it is made of.

        Raises:
            FramedexError: the clips have no such column.
            FormatError: a part is missing or damaged.
        """
        own = self._user_columns()
        if name in own or name in CLIP_FIELDS:
            return self._whole_column(name)
        if name in FRAME_FIELDS:
            return frame_field(name, self._whole_column(FRAME_FIELDS[name]))
        if name not in FIELDS:
            raise no_such_column(name, own, self.path)
        return media_field(name, self._media(media_columns_of(name))).take(pa.array(self.media_rows()))

    def shapes(self, *, upright: bool) -> NDArray[np.int64]:
        """Return int64 [clips, 3]: frames (padding included), height and width, as stored or as turned upright.

        Reads two columns of all parts of the clips, and the sizes of media.

        Raises:
            FormatError: a part is missing or damaged.
        """
        frames = column_as_numpy(frame_field("wanted_frames", self._whole_column("frames")), "frames")
        return shapes_of(frames, self._media(SIZE_COLUMNS), self.media_rows(), upright=upright)

    def _user_columns(self) -> list[str]:
        """Return the user's columns, those of a dataset without clips included."""
        return [name for name in self._part(CLIPS_FOLDER, 0).schema_arrow.names if name not in self._own]

    def _whole_column(self, name: str) -> pa.ChunkedArray:
        """Return a column of `clips`. There must be such a column."""
        parts = list(self._column(name))
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)

    def _media(self, names: Sequence[str]) -> pa.Table:
        """Return columns of `media`."""
        tables = []
        for part in range(len(self._first[MEDIA_FOLDER]) - 1):
            with self._lock, reading(self._file(MEDIA_FOLDER, part), REMEDY):
                read = self._open_part(MEDIA_FOLDER, part).read(list(names), use_threads=False)
            columns = [
                read[name] if name in read.column_names else pa.nulls(len(read), MEDIA.field(name).type)
                for name in names
            ]
            tables.append(pa.table(columns, list(names)))
        return pa.concat_tables(tables)

    def _column(self, name: str) -> Iterator[pa.ChunkedArray]:
        """Yield a column of `clips`, part by part. Raises KeyError."""
        for part in range(len(self._first[CLIPS_FOLDER]) - 1):
            with self._lock, reading(f"{self._file(CLIPS_FOLDER, part)}, column {name}", REMEDY):
                opened = self._open_part(CLIPS_FOLDER, part)  # does not keep the footer
                if name not in opened.schema_arrow.names and name in self._own:  # a nullable column was left out
                    column = pa.chunked_array([pa.nulls(opened.metadata.num_rows, CLIPS.field(name).type)])
                else:
                    column = opened.read([name], use_threads=False)[name]
            yield column

    @property
    def media_count(self) -> int:
        """How many media the clips come from."""
        return int(self._first[MEDIA_FOLDER][-1])

    def find_all(self, name: str) -> list[int]:
        """Return the number of the clip with this name, or of all views that share it. Raises FramedexError."""
        if self._views is not None:
            shared = pa.chunked_array([chunk for part in self._column("multiview_id") for chunk in part.chunks])
            found = np.flatnonzero(pc.equal(shared, name).fill_null(False).to_numpy())
            if len(found):
                return found.tolist()
        return [self.find(name)]

    def find(self, clip_id: str) -> int:
        """Return the number of the clip with this name. Reads one column, part by part. Raises FramedexError."""
        close: list[str] = []
        for first, names in zip(self._first[CLIPS_FOLDER].tolist(), self._column("clip_id"), strict=False):
            row = pc.index(names, clip_id).as_py()
            if row >= 0:
                return int(first + row)
            if first < SEARCHED_FOR_CLOSE:
                close = difflib.get_close_matches(clip_id, close + names.to_pylist(), CLOSE_MATCHES)
        remedy = f"names like it: {', '.join(close)}" if close else "the column clip_id of DATASET/clips has them all"
        raise FramedexError("the dataset has no such clip", where=str(self.path), found=clip_id, remedy=remedy)

    def _row(self, folder: str, number: int) -> pa.RecordBatch:
        """Return one row of a table that is written in parts, each in row groups of GROUP_ROWS."""
        first = self._first[folder]
        if not 0 <= number < first[-1]:
            raise IndexError(f"row {number} of {first[-1]} {folder}")
        part = self._part_of(folder, number)
        group, row = divmod(number - int(first[part]), GROUP_ROWS[folder])
        return self._group(folder, part, group).slice(row, 1)

    def _part_of(self, folder: str, number: int) -> int:
        return int(np.searchsorted(self._first[folder], number, side="right")) - 1

    def _file(self, folder: str, part: int) -> str:
        return str(part_path(self.path / folder, part))

    def _at(self, folder: str, number: int) -> RowAt:
        """Return the position of a row, for errors."""
        part = self._part_of(folder, number)
        row = number - int(self._first[folder][max(part, 0)])
        return RowAt(file=self._file(folder, part), row=row, remedy=REMEDY)

    def _read_group(self, folder: str, part: int, group: int) -> pa.RecordBatch:
        file = self._part(folder, part)
        names = None
        if folder == MEDIA_FOLDER:  # many columns, most of them the same for all media: see `_read_medium`
            names = [name for name in MEDIA.names if name not in self._constants(part)]
        with reading(self._file(folder, part), REMEDY):
            table = file.read_row_group(group, columns=names, use_threads=False)
            return table.combine_chunks().to_batches()[0]

    def _find_constants(self, part: int) -> dict[str, Any]:
        """Return the columns that are the same for all media of a part, with their values. Reads only its footer."""
        file = self._part(MEDIA_FOLDER, part)
        with reading(self._file(MEDIA_FOLDER, part), REMEDY):
            return constant_columns(file.metadata, MEDIA)

    def _open_part(self, folder: str, part: int) -> pq.ParquetFile:
        try:
            if (self.path / HEADER).read_bytes() != self._header:
                raise FormatError(
                    "the dataset was replaced since it was opened", where=str(self.path), remedy="open it again"
                )
            file = parquet_file(part_path(self.path / folder, part))
            schema = file.schema_arrow
        except (OSError, pa.ArrowException) as error:
            raise FormatError(
                "a part of the dataset is missing or damaged", where=str(self.path), found=error, remedy=REMEDY
            ) from error
        where = self._file(folder, part)
        known = SCHEMAS[folder]
        if folder == CLIPS_FOLDER:
            known = pa.schema([field for field in known if field.name in self._own])
        check_columns(schema, known, where, REMEDY)
        self._check_rows(file.metadata, folder, part, where)
        return file

    def _check_rows(self, footer: pq.FileMetaData, folder: str, part: int, where: str) -> None:
        """Raise FormatError if a part does not have the rows and row groups by which its rows are found."""
        rows, most = int(np.diff(self._first[folder])[part]), GROUP_ROWS[folder]
        groups = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        expected = [most] * (rows // most) + [rows % most] * (rows % most > 0)
        if [count for count in groups if count] != expected:
            raise FormatError(
                f"has other rows than {HEADER} says",
                where=where,
                found=f"{sum(groups)} in {len(groups)} groups",
                allowed=f"{rows} in groups of {most}",
                remedy=REMEDY,
            )

    def _read_medium(self, number: int) -> Medium:
        row, at = self._row(MEDIA_FOLDER, number), self._at(MEDIA_FOLDER, number)
        facts: dict[str, Any] = dict.fromkeys(MEDIA.names) | self._constants(self._part_of(MEDIA_FOLDER, number))
        with reading(f"{at.file}, row {at.row}", REMEDY):
            facts |= {name: row[name][0].as_py() for name in row.schema.names}
        check_row(facts, MEDIA_RULES, at)
        check_video(facts, at)
        return Medium(path=self.locations.path(facts["uri"]), **facts)

    @functools.cached_property
    def _shards(self) -> list[ByteSource]:
        """The tars of the dataset."""
        try:
            table = parquet_file(self.path / SHARDS_NAME).read()
            check_columns(table.schema, SHARDS, str(self.path / SHARDS_NAME), REMEDY)
            rows = table.select(SHARDS.names).to_pylist()
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise FormatError(
                f"{SHARDS_NAME} is missing or damaged", where=str(self.path), found=error, remedy=REMEDY
            ) from error
        for number, row in enumerate(rows):
            at = RowAt(file=str(self.path / SHARDS_NAME), row=number, remedy=REMEDY)
            check_row(row, SHARD_RULES, at)
            if not SHARD_NAME.fullmatch(row["name"]):
                raise at.wrong("name", repr(row["name"]), "a tar in the dataset's folder shards")
        return [
            ByteSource(
                path=str(self.path / row["name"]),
                size_bytes=row["size_bytes"],
                mtime_ns=CONTENT_ALONE,
                fingerprint=row["fingerprint"],
            )
            for row in rows
        ]


def constant_columns(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the columns of integers, booleans and strings that hold one value, or only nulls, in a whole file.

    Only the file's footer is used. A column is left out if the footer does not say enough about it.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    found: dict[str, Any] = {}
    for field in schema:
        if field.name not in leaves or pa.types.is_floating(field.type):
            continue
        columns = [(group.num_rows, group.column(leaves[field.name]).statistics) for group in groups]
        if any(statistics is None or not statistics.has_null_count for _, statistics in columns):
            continue
        if all(statistics.null_count == rows for rows, statistics in columns):
            found[field.name] = None
        elif all(statistics.has_min_max and not statistics.null_count for _, statistics in columns):
            ends = {end for _, statistics in columns for end in (statistics.min, statistics.max)}
            if len(ends) == 1:
                found[field.name] = ends.pop()
    return found


def _views(stored: dict[str, Any] | None) -> tuple[list[str], Missing] | None:
    """Return the views that clips have, and what becomes of clips that lack one, as the header says."""
    if stored is None:
        return None
    names, missing = stored["names"], stored["missing"]
    if not all(isinstance(name, str) for name in names) or missing not in get_args(Missing):
        raise ValueError(f"views {names}, missing {missing}")
    return list(names), missing


def _images(stored: dict[str, Any] | None) -> ImageOptions | None:
    """Return how frames were stored, as the header says."""
    return None if stored is None else ImageOptions(**stored | _limits(stored))


def _encode(stored: dict[str, Any] | None) -> EncodeOptions | None:
    """Return how clips were encoded, as the header says. The encoder that it names does not matter to readers."""
    if stored is None:
        return None
    own = {name: value for name, value in stored.items() if name != "encoder"}
    return EncodeOptions(**own | _limits(stored))


def _limits(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the limits of the size of stored frames. Raises ValueError for values that are no sizes."""
    size = None if stored["size"] is None else tuple(stored["size"])
    if any(
        type(side) not in (int, type(None)) for side in (*(size or ()), stored.get("short_side"), stored.get("box"))
    ):
        raise ValueError(f"frames of size {size}")
    if size is not None and len(size) != 2:
        raise ValueError(f"frames of size {size}")
    return {"size": size}
