"""Reads a dataset's manifest one clip at a time, without ever holding it in memory."""

from __future__ import annotations

import contextlib
import functools
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framedex.core.column_rules import RowAt, check_columns, check_header, check_row, reading
from framedex.core.memory import usual_clip_bytes
from framedex.errors import FormatError, PolicyError
from framedex.files.headers import check_format, is_since
from framedex.files.parquet_parts import part_path
from framedex.files.row_groups import checked_group, read_all, read_group
from framedex.indexer.parts.row_checks import check_video
from framedex.indexer.schema import SCANNED
from framedex.loader.dataset.clip_columns import REMEDY, ClipColumns
from framedex.records.clip import ClipRecord
from framedex.records.columns import names_in
from framedex.records.medium import VIDEO
from framedex.sharder.clips.byte_source import CONTENT_ALONE, ByteSource
from framedex.sharder.clips.clip import Clip, Failure
from framedex.sharder.clips.labels import stored_labels
from framedex.sharder.clips.medium import Medium, tell_unproven
from framedex.sharder.clips.rows import check_objects, clip_from, is_heavy
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
    MOST_VIEWS,
    PROVES,
    RECIPES,
    RECIPES_FOLDER,
    SCHEMA_VERSION,
    SHARD_NAME,
    SHARD_RULES,
    SHARDS,
    SHARDS_NAME,
    Missing,
)
from framedex.storage.cache import DiskCache
from framedex.storage.locations import OWN_STORE, Access, Locations
from framedex.storage.places import Stored, parquet_file, place, small_bytes

GROUP_ROWS = {
    CLIPS_FOLDER: CLIPS_PER_ROW_GROUP,
    RECIPES_FOLDER: CLIPS_PER_ROW_GROUP,
    MEDIA_FOLDER: MEDIA_PER_ROW_GROUP,
}
SCHEMAS = {CLIPS_FOLDER: CLIPS, RECIPES_FOLDER: RECIPES, MEDIA_FOLDER: MEDIA}
ROW_BYTES = 500  # a tar takes so much memory in Python
ORDER_BYTES = 48  # the order of an epoch takes so much memory for each clip
KEPT_GROUPS = 4  # row groups that are kept in memory
OPEN_PARTS = 256  # how many parts' footers are kept; a footer is about 1 MB in memory


class Manifest(ClipColumns):
    """A dataset, in a folder or in object storage, opened for reading. It is picklable; open files are not pickled.

    Args:
        path: the dataset.
        access: which sources may be read.
        cache: a cache for what is read from a dataset in object storage.

    Attributes:
        images: how frames were stored (`--pack images`), else None.
        encode: how clips were encoded (`--encode`), else None.
        labels: the numbers that the values of a column have, else None.
        ffmpeg: the versions of FFmpeg's libraries that made the index, as in `Index.ffmpeg`.

    Raises:
        FormatError: there is no dataset at `path`, or it is damaged.
        StorageError: the sources below the root must not be read, and clips are not in tars.
    """

    def __init__(
        self, path: str | Path | Stored, *, access: Access = OWN_STORE, cache: DiskCache | None = None
    ) -> None:
        self.path = place(path, cache).absolute()
        header = check_format(
            self.path, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex dataset"
        )
        check_header(header, HEADER_KEYS, str(self.path / HEADER), REMEDY)
        try:
            self._locations = Locations(str(self.path), header["root"], access)
            self.images = _images(header.get("images"))
            self.encode = _encode(header.get("encode"))
            self.ffmpeg: list[str] = header.get("index_ffmpeg") or []
            self._views = _views(header.get("views"))
            self._own = names_in(ClipRecord, header["schema_version"])
            self._filed = header.get("columns")
            self.labels = stored_labels(header.get("labels"))
            self._first = {
                CLIPS_FOLDER: np.cumsum([0, *header["clips_per_part"]]),
                MEDIA_FOLDER: np.cumsum([0, *header["media_per_part"]]),
            }
            self._first[RECIPES_FOLDER] = self._first[CLIPS_FOLDER]
            self._check_counts()
        except (KeyError, TypeError, ValueError, PolicyError) as error:
            raise FormatError(f"{HEADER} is damaged", where=str(self.path), found=repr(error)) from error
        self._header = small_bytes(self.path / HEADER)
        self._open()
        if not self._locations.allows_root:
            self.check_locations()
        if not is_since(header["schema_version"], PROVES):
            self._tell_unproven()

    def _tell_unproven(self) -> None:
        media = self._media(["kind", "codec"])
        codecs = set(media.filter(pc.equal(media["kind"], VIDEO))["codec"].unique().to_pylist()) - SCANNED
        if codecs:
            tell_unproven(str(self.path), tuple(sorted(codecs)))

    def _check_counts(self) -> None:
        """Raise ValueError if the header states more clips or media than fit into memory."""
        most = usual_clip_bytes() // ORDER_BYTES
        for folder, first in self._first.items():
            if first[-1] > most:
                raise ValueError(f"{first[-1]:,} rows of {folder}; {most:,} are allowed")

    def _open(self) -> None:
        # These caches belong to this process alone; see __getstate__.
        self._lock = threading.Lock()
        self._heavy = set[tuple[int, int]]()  # row groups of `clips`, by part and number, whose rows are checked each
        self._part = functools.lru_cache(OPEN_PARTS)(self._open_part)
        self._group = functools.lru_cache(KEPT_GROUPS)(self._read_group)
        self._constants = functools.lru_cache(OPEN_PARTS)(self._find_constants)
        self.medium = functools.lru_cache(4096)(self._read_medium)

    def __getstate__(self) -> dict[str, Any]:
        kept = (
            "path",
            "images",
            "encode",
            "ffmpeg",
            "_locations",
            "_first",
            "_header",
            "_views",
            "_own",
            "_filed",
            "labels",
        )
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def checksum(self) -> int:
        """Return the CRC-32 of the dataset's header, which holds a digest of all of its clips."""
        return zlib.crc32(self._header)

    @property
    def is_packed(self) -> bool:
        """Whether some of the first clips are in tars."""
        if not len(self):
            return False
        shard = pa.schema([CLIPS.field("shard")])
        return constant_columns(self._part(CLIPS_FOLDER, 0), shard) != {"shard": None}

    def locate(self, uri: str) -> str:
        """Return where a source lies. Raises StorageError if it must not be read."""
        return self._locations.locate(uri, self._uris)

    def check_locations(self) -> None:
        """Check that the sources of all clips may be read. Raises StorageError.

        If the dataset has tars, a clip that is not in them is checked when it is read.
        """
        if not self.is_packed:
            self._locations.check(self._uris())

    def _uris(self) -> pa.ChunkedArray:
        return self._media(["uri"])["uri"]

    def clip(self, number: int, epoch: int = 0) -> Clip:
        """Return clip `number`, which is the same in every epoch.

        Raises:
            IndexError: there is no such clip.
            FormatError: its rows have values that are not possible.
            StorageError: its source must not be read.
        """
        at, recipe_at = self._at(CLIPS_FOLDER, number), self._at(RECIPES_FOLDER, number)
        with self._lock:  # pyarrow's readers are not safe for several threads at once
            row, recipe = self._row(CLIPS_FOLDER, number), self._row(RECIPES_FOLDER, number)
            if self._group_of(CLIPS_FOLDER, number)[:2] in self._heavy:
                check_objects(row, at)
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
        if shard is None:
            self.locate(medium.uri)
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

    def failures(self) -> Iterator[Failure]:
        """Yield nothing: what could not be planned is listed in failures.parquet."""
        return iter(())

    @property
    def media_count(self) -> int:
        """How many media the clips come from."""
        return int(self._first[MEDIA_FOLDER][-1])

    def _row(self, folder: str, number: int) -> pa.RecordBatch:
        """Return one row of a table that is written in parts, each in row groups of GROUP_ROWS."""
        first = self._first[folder]
        if not 0 <= number < first[-1]:
            raise IndexError(f"row {number} of {first[-1]} {folder}")
        part, group, row = self._group_of(folder, number)
        return self._group(folder, part, group).slice(row, 1)

    def _group_of(self, folder: str, number: int) -> tuple[int, int, int]:
        """Return the part and the row group that a row of a table lies in, and its place there."""
        part = self._part_of(folder, number)
        return part, *divmod(number - int(self._first[folder][part]), GROUP_ROWS[folder])

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
            table = read_group(file, group, names, kept=KEPT_GROUPS)
            rows = table.combine_chunks().to_batches()[0]
        if folder == CLIPS_FOLDER and is_heavy(rows):
            self._heavy.add((part, group))
        return rows

    def _find_constants(self, part: int) -> dict[str, Any]:
        """Return the columns that are the same for all media of a part, with their values. Reads only its footer."""
        file = self._part(MEDIA_FOLDER, part)
        with reading(self._file(MEDIA_FOLDER, part), REMEDY):
            return constant_columns(file, MEDIA)

    def _check_unchanged(self) -> None:
        """Raise FormatError if the dataset was replaced since it was opened. Raises OSError, too."""
        if small_bytes(self.path / HEADER) != self._header:
            raise FormatError(
                "the dataset was replaced since it was opened", where=str(self.path), remedy="open it again"
            )

    def _user_columns(self) -> list[str]:
        """Return the user's columns, those of a dataset without clips included."""
        return [name for name in self._part(CLIPS_FOLDER, 0).schema_arrow.names if name not in self._own]

    def _open_part(self, folder: str, part: int) -> pq.ParquetFile:
        try:
            self._check_unchanged()
            file = parquet_file(part_path(self.path / folder, part))
            schema = file.schema_arrow
        except (OSError, pa.ArrowException, ValueError) as error:
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
        return Medium(path=self._locations.path(facts["uri"]), **facts)

    @functools.cached_property
    def _shards(self) -> list[ByteSource]:
        """The tars of the dataset."""
        try:
            table = read_all(self.path / SHARDS_NAME, row_bytes=ROW_BYTES)
            check_columns(table.schema, SHARDS, str(self.path / SHARDS_NAME), REMEDY)
            rows = table.select(SHARDS.names).to_pylist()
        except (OSError, pa.ArrowException, ValueError) as error:
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


def constant_columns(file: pq.ParquetFile, schema: pa.Schema) -> dict[str, Any]:
    """Return the columns of integers, booleans and strings that hold one value, or only nulls, in a whole file.

    Only the file's footer is used. A column is left out if the footer does not say enough about it.
    """
    metadata = file.metadata
    groups = [checked_group(file, number) for number in range(metadata.num_row_groups)]
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
    if len(names) > MOST_VIEWS:
        raise ValueError(f"{len(names):,} views; {MOST_VIEWS} are allowed")
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
