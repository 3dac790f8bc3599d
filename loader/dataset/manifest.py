"""Read the manifest of a dataset: single clips, or columns of all clips.

The whole manifest is never in memory.
"""

import contextlib
import difflib
import functools
import json
import os
import threading
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt, check_columns, check_header, check_row, reading
from framedex.core.limits import usual_clip_bytes
from framedex.core.words import counted
from framedex.errors import REOPEN, FormatError, FramedexError, PolicyError, StorageError
from framedex.files.headers import check_format, is_since
from framedex.files.parquet_parts import check_file, part_path, read_file
from framedex.files.row_blocks import RowBlocks, open_row_blocks
from framedex.indexer.parts.packets import check_video
from framedex.indexer.schema import SCANNED
from framedex.loader.dataset.earlier import EarlierClips, Generation
from framedex.loader.dataset.earlier_rows import EarlierRows, open_earlier_rows
from framedex.records.clip import ClipRecord
from framedex.records.columns import names_in
from framedex.records.medium import VIDEO
from framedex.sharder import schema as tables
from framedex.sharder.clips.clip import CONTENT_ALONE, ByteSource, Clip, Medium, ViewsOfClips, tell_unproven
from framedex.sharder.clips.clip_source import CLIP_FIELDS, FRAME_FIELDS, SIZES, ClipSource, frame_field
from framedex.sharder.clips.labels import Labels, plain, stored_labels
from framedex.sharder.clips.rows import check_objects, clip_from, is_heavy
from framedex.sharder.layout import MALFORMED, REMEDY, Layout, Numbers, layout_of, rows_name
from framedex.sharder.packing.pack_options import EncodeOptions, ImageOptions
from framedex.storage.places import OWN_STORE, Access, Locations, Place, Stored, parquet_file, place, small_bytes
from framedex.storage.reader import DiskCache

ORDER_BYTES = 48  # bytes of memory per clip that the order of an epoch needs


def changed_error(path: Place) -> StorageError:
    """Return the error for a dataset that was changed since it was opened. It ends a run, regardless of `on_error`."""
    what = "the dataset was changed since it was opened"
    return StorageError(what, kind=REOPEN, where=str(path), remedy="open it again")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetHeader:
    """The contents of a dataset's header.

    Attributes:
        root: The root folder of the sources.
        images: The options for stored frames (`--pack images`). None if frames are not stored as images.
        encode: The options for encoded clips (`--encode`). None if clips are not encoded.
        ffmpeg: The versions of FFmpeg's libraries with which the index was made.
        labels: The column of labels, and the numbers assigned to the labels. None if there are no labels.
        views: The names of the views, and the treatment of clips that lack a view. None if clips do not have several
            views.
        own: The columns of the table `clips` that framedex defines, in contrast to the user's columns.
        filed: The user's columns that are stored for all clips together in one file. None if the dataset is older than
            these files. The user's columns are then read from the parts of `clips`, which takes some seconds for a
            million clips.
        generation: The generation of the dataset: 1, and one more after each change.
        before: For each earlier generation, its number, the checksum of its header, and its number of clips.
        layout: The files of the dataset.
        first: For each table, the position of the first row of each part, followed by the number of all rows.
        proves: Whether videos of codecs that framedex does not parse were proven (decoded and compared) when they were
            indexed.
    """

    root: str
    images: ImageOptions | None
    encode: EncodeOptions | None
    ffmpeg: list[str]
    labels: Labels | None
    views: tuple[list[str], tables.Missing] | None
    own: list[str]
    filed: list[str] | None
    generation: int
    before: list[dict[str, Any]]
    layout: Layout
    first: dict[str, NDArray[np.int64]]
    proves: bool


def read_header(path: Place) -> DatasetHeader:
    """Read the header of a dataset. Raises FormatError if the header is missing, damaged or of another format."""
    stored = check_format(
        path, file_name=tables.HEADER, expected=tables.FORMAT, version=tables.SCHEMA_VERSION, what="a framedex dataset"
    )
    check_header(stored, tables.HEADER_KEYS, str(path / tables.HEADER), REMEDY)
    try:
        layout = layout_of(stored)
        clips, media = (np.cumsum([0, *(part.rows for part in parts)]) for parts in (layout.clips, layout.media))
        first = {tables.CLIPS_FOLDER: clips, tables.MEDIA_FOLDER: media}
        most = usual_clip_bytes() // ORDER_BYTES
        for folder, rows in first.items():
            if rows[-1] > most:
                raise ValueError(f"{rows[-1]:,} rows of {folder}; {most:,} are allowed")
        return DatasetHeader(
            root=stored["root"],
            images=None if (images := stored.get("images")) is None else ImageOptions(**images | _limits(images)),
            encode=_encode(stored.get("encode")),
            ffmpeg=stored.get("index_ffmpeg") or [],
            labels=stored_labels(stored.get("labels")),
            views=_views(stored.get("views")),
            own=names_in(ClipRecord, stored["schema_version"]),
            filed=stored.get("columns"),
            generation=stored.get("generation") or 1,
            before=stored.get("before") or [],
            layout=layout,
            first=first,
            proves=is_since(stored["schema_version"], tables.PROVES),
        )
    except (*MALFORMED, PolicyError) as error:
        raise FormatError(f"{tables.HEADER} is damaged", where=str(path), found=repr(error)) from error


def _views(stored: dict[str, Any] | None) -> tuple[list[str], tables.Missing] | None:
    """Return the names of the views, and the treatment of clips that lack a view. Raises ValueError if malformed."""
    if stored is None:
        return None
    names, missing = stored["names"], stored["missing"]
    if not all(isinstance(name, str) for name in names) or missing not in get_args(tables.Missing):
        raise ValueError(f"views {names}, missing {missing}")
    if len(names) > tables.MAX_VIEWS:
        raise ValueError(f"{len(names):,} views; {tables.MAX_VIEWS} are allowed")
    return list(names), missing


def _encode(stored: dict[str, Any] | None) -> EncodeOptions | None:
    """Return the options for encoded clips. The name of the encoder is left out, because readers do not need it."""
    if stored is None:
        return None
    own = {name: value for name, value in stored.items() if name != "encoder"}
    return EncodeOptions(**own | _limits(stored))


def _limits(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the option `size` of stored frames, as a dict. Raises ValueError if a size is malformed."""
    size = None if stored["size"] is None else tuple(stored["size"])
    sides = (*(size or ()), stored.get("short_side"), stored.get("box"))
    if any(type(side) not in (int, type(None)) for side in sides) or (size is not None and len(size) != 2):
        raise ValueError(f"frames of size {size}")
    return {"size": size}


SCHEMAS = {tables.CLIPS_FOLDER: tables.CLIPS, tables.MEDIA_FOLDER: tables.MEDIA}
# Table → the columns of the files from which its single rows are read: all, or those of the structs by their names.
ROW_SCHEMAS: dict[str, dict[str | None, pa.Schema]] = {
    tables.CLIPS_FOLDER: {"clip": tables.CLIPS, "recipe": tables.RECIPES.remove(0)},
    tables.MEDIA_FOLDER: {None: tables.MEDIA},
}
ROW_BYTES = 500  # bytes of memory that the row of a tar needs in Python
KEPT_BLOCKS = 4  # number of blocks of rows of clips and media that are cached
OPEN_PARTS = 4096  # number of parts of which the positions of blocks (a few kB) are cached
OPEN_FILES = 256  # the same for object storage and for earlier datasets, whose open files take up to 1 MB each
SEARCHED_FOR_CLOSE = 100_000  # number of names that are searched for similar names; each takes some 10 microseconds


class Manifest(ClipSource):
    """The manifest of a dataset in a folder or in object storage. It is picklable, without its open files.

    Args:
        path: The path or URI of the dataset.
        access: The rules for which sources may be read.
        cache: A cache for a dataset in object storage.

    Attributes:
        header: The contents of the dataset's header.
        labels: The column of labels, and the numbers assigned to the labels. None if there are no labels.
        ffmpeg: The versions of FFmpeg's libraries with which the index was made, as in `Index.ffmpeg`.

    Raises:
        FormatError: The dataset does not exist, or is damaged.
        StorageError: Clips are not in tars, and their sources must not be read.
    """

    def __init__(
        self, path: str | Path | Stored, *, access: Access = OWN_STORE, cache: DiskCache | None = None
    ) -> None:
        self.path = place(path, cache).absolute()
        self.header = read_header(self.path)
        self._header_bytes = small_bytes(self.path / tables.HEADER)
        if (json.loads(self._header_bytes).get("generation") or 1) != self.header.generation:  # changed in between
            raise changed_error(self.path)
        self.ffmpeg, self.labels, self._first = self.header.ffmpeg, self.header.labels, self.header.first
        self._locations = Locations(str(self.path), self.header.root, access)
        self._open()
        if not self._locations.allows_root:
            self.check_locations()
        if not self.header.proves:
            media = self._media(["kind", "codec"])
            codecs = set(media.filter(pc.equal(media["kind"], VIDEO))["codec"].unique().to_pylist()) - SCANNED
            if codecs:
                tell_unproven(str(self.path), tuple(sorted(codecs)))

    def __len__(self) -> int:
        return int(self._first[tables.CLIPS_FOLDER][-1])

    @property
    def media_count(self) -> int:
        """The number of media from which the clips were planned."""
        return int(self._first[tables.MEDIA_FOLDER][-1])

    def _open(self) -> None:
        # These caches are not pickled (see `__getstate__`), so each process has its own.
        self._header_state: tuple[int, ...] = ()  # see `_file_state`; from when the header was last compared
        self._grown = b""  # the header after clips were appended, which this object does not have
        self._lock = threading.Lock()
        self._heavy = set[tuple[int, int]]()  # (part, block) of `clips` whose rows may need much memory in Python
        is_small = isinstance(self.path, Path) and self.header.layout.has_rows
        self._rows = functools.lru_cache(OPEN_PARTS if is_small else OPEN_FILES)(self._open_rows)
        self._rows_place = functools.lru_cache(KEPT_BLOCKS)(self._find_rows)
        self._block = functools.lru_cache(KEPT_BLOCKS)(self._read_block)
        self.medium = functools.lru_cache(4096)(self._read_medium)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("path", "header", "ffmpeg", "labels", "_first", "_locations", "_header_bytes")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def checksum(self) -> int:
        """Return the CRC-32 of the dataset's header. The header contains a digest of all clips."""
        return zlib.crc32(self._header_bytes)

    @property
    def version(self) -> str | None:
        """The generation and the checksum of a dataset that was changed. None if it was never changed."""
        return _version(self.header.generation, self.checksum())

    def earlier(self, version: str | None) -> EarlierClips | None:
        """Return the clips that the dataset had in an earlier version (see `version`), or None if it had no such one.

        Raises:
            FormatError: The records of removed clips are damaged.
        """
        where = str(self.path / tables.REMOVED_NAME)
        with reading(where, REMEDY):
            removed = self.header.layout.read(self.path, tables.REMOVED_NAME)
            if removed is None:
                removed = tables.REMOVED.empty_table()
            check_columns(removed.schema, tables.REMOVED, where, REMEDY)
            before = [(int(one["generation"]), int(one["checksum"]), int(one["clips"])) for one in self.header.before]
            return EarlierClips(
                version=self.version,
                numbers=np.arange(len(self), dtype=np.int64),
                media=self._stored_numbers("media_row"),
                tars=self._stored_numbers("shard"),
                removed=removed,
                generations=[
                    Generation(number, _version(number, checksum), clips) for number, checksum, clips in before
                ],
            ).earlier(version)

    @property
    def is_packed(self) -> bool:
        """Whether clips are in tars."""
        return bool(self.header.layout.numbers(self.path, tables.SHARDS_NAME))

    def locate(self, uri: str) -> str:
        """Return the location of a source. Raises StorageError if the source must not be read."""
        return self._locations.locate(uri, self._uris)

    def check_locations(self) -> None:
        """Raise StorageError if a source of the dataset must not be read.

        If the dataset has tars, this does not check sources, because most of them are not read. The source of a clip
        that is not in a tar is then checked when the clip is read.
        """
        if not self.is_packed:
            self._locations.check(self._uris())

    def _uris(self) -> pa.ChunkedArray:
        return self._media(["uri"])["uri"]

    def clip(self, number: int, epoch: int = 0) -> Clip:
        """Return the record of clip `number`, which is the same in every epoch.

        Raises:
            IndexError: The clip does not exist.
            FormatError: A row of the clip has impossible values.
            StorageError: The source of the clip must not be read.
        """
        self._check_file_unchanged()
        with self._lock:  # pyarrow's readers are not thread-safe
            part, block, place = self._place_of(tables.CLIPS_FOLDER, number)
            row, recipe = (rows.slice(place, 1) for rows in self._block(tables.CLIPS_FOLDER, part, block))
            at = self._row_at(tables.CLIPS_FOLDER, number)
            if (part, block) in self._heavy:
                check_objects(row, at)
            media_row = row["media_row"][0].as_py()
            row_of_medium = _row_of(self.header.layout.media_numbers, media_row)
            if not 0 <= row_of_medium < self.media_count:
                raise at.wrong("media_row", media_row, _allowed(self.header.layout.media_numbers, self.media_count))
            medium = self.medium(row_of_medium)
        shard = row["shard"][0].as_py() if "shard" in row.schema.names else None
        if shard is None:
            self.locate(medium.uri)
            source = medium.source
        else:
            row_of_tar = _row_of(self.header.layout.shard_numbers, shard)
            if not 0 <= row_of_tar < len(self._shards):
                raise at.wrong("shard", shard, _allowed(self.header.layout.shard_numbers, len(self._shards)))
            source = self._shards[row_of_tar]
        return clip_from(row, recipe, medium, source, at, self.header.own)

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The Arrow type of each of the user's columns."""
        where = self._place(tables.CLIPS_FOLDER, 0)
        with reading(str(where), REMEDY), parquet_file(where) as file:
            return {field.name: field.type for field in file.schema_arrow if field.name not in self.header.own}

    def clip_id(self, number: int) -> str:
        """Return the name of clip `number`, even if other values of the clip's row are damaged.

        If the name itself is damaged, return "".

        Raises:
            IndexError: The clip does not exist.
        """
        with contextlib.suppress(FormatError, ValueError), self._lock:
            part, block, place = self._place_of(tables.CLIPS_FOLDER, number)
            return str(self._block(tables.CLIPS_FOLDER, part, block)[0]["clip_id"][place].as_py() or "")
        return ""

    def _place_of(self, folder: str, number: int) -> tuple[int, int, int]:
        """Return the part, the block, and the index within the block, of row `number` of a table."""
        first = self._first[folder]
        if not 0 <= number < first[-1]:
            raise IndexError(f"row {number} of {first[-1]} {folder}")
        part = self._part_of(folder, number)
        return part, *divmod(number - int(first[part]), self._rows(folder, part).rows)

    def _part_of(self, folder: str, number: int) -> int:
        return int(np.searchsorted(self._first[folder], number, side="right")) - 1

    def _place(self, folder: str, part: int) -> Place:
        return part_path(self.path / folder, self.header.layout.parts(folder)[part].number)

    def _file(self, folder: str, part: int) -> str:
        return str(self._place(folder, part))

    def _at(self, folder: str, number: int) -> RowAt:
        """Return the file and the index of a row, for error texts."""
        part = self._part_of(folder, number)
        row = number - int(self._first[folder][max(part, 0)])
        return RowAt(file=self._file(folder, part), row=row, remedy=REMEDY)

    def _row_at(self, folder: str, number: int) -> RowAt:
        """Return the file from which a row is read alone, and the index of the row in it, for error texts."""
        part = self._part_of(folder, number)
        first = int(self._first[folder][part])
        return RowAt(file=str(self._rows_place(folder, part)), row=number - first, remedy=REMEDY)

    def _find_rows(self, folder: str, part: int) -> Place:
        """Return the file from which single rows of a part are read."""
        number = self.header.layout.parts(folder)[part].number
        return self.path / rows_name(folder, number) if self.header.layout.has_rows else self._place(folder, part)

    def _open_rows(self, folder: str, part: int) -> RowBlocks | EarlierRows:
        """Open the file of the rows of a part."""
        where, layout = self._rows_place(folder, part), self.header.layout
        with reading(str(where), REMEDY):
            self._check_unchanged()
            if layout.has_rows:
                file: RowBlocks | EarlierRows = open_row_blocks(where)
            else:
                file = open_earlier_rows(self.path, folder, layout.parts(folder)[part].number)
            for name, expected in ROW_SCHEMAS[folder].items():
                found = file.schema if name is None else _struct_of(file.schema, name)
                if len(set(found.names)) < len(found):
                    raise ValueError("two columns have the same name")
                known = [field for field in expected if name != "clip" or field.name in self.header.own]
                check_columns(found, pa.schema(known), str(where), REMEDY)
        self._check_count(where, file.count, folder, part)
        return file

    def _check_count(self, where: Place, rows: int, folder: str, part: int) -> None:
        """Raise FormatError if a file of a part has another number of rows than the part has in the header."""
        expected = self.header.layout.parts(folder)[part].rows
        if rows != expected:
            raise FormatError(
                f"the number of rows differs from the number in {tables.HEADER}",
                where=str(where),
                found=counted(rows, "row"),
                allowed=counted(expected, "row"),
                remedy=REMEDY,
            )

    def _read_block(self, folder: str, part: int, block: int) -> list[pa.RecordBatch]:
        """Return a block: [rows of `clips`, their rows of `recipes`] for clips, [rows of `media`] for media."""
        file = self._rows(folder, part)
        with reading(str(self._rows_place(folder, part)), REMEDY):
            try:
                rows = file.block(block, usual_clip_bytes() // KEPT_BLOCKS)
            except (ValueError, OSError, pa.ArrowException):
                self._check_unchanged()  # if the dataset was replaced, the file is another one
                raise
            if folder == tables.MEDIA_FOLDER:
                return [rows]
            clips, recipes = (pa.RecordBatch.from_struct_array(rows[name]) for name in ("clip", "recipe"))
        if is_heavy(clips):
            self._heavy.add((part, block))
        return [clips, recipes]

    def was_changed(self) -> bool:
        """Return whether the dataset was changed since it was opened, except for clips that were appended.

        Raises:
            OSError, StorageError: The header cannot be read.
        """
        try:
            now = small_bytes(self.path / tables.HEADER)
        except FileNotFoundError:
            return True
        if now not in (self._header_bytes, self._grown) and self._grew_to(now):
            self._grown = now
        return now not in (self._header_bytes, self._grown)

    def _grew_to(self, header_bytes: bytes) -> bool:
        """Return whether a header is that of this dataset after clips were appended."""
        try:
            header = json.loads(header_bytes)
            is_later = any(one["checksum"] == self.checksum() for one in header.get("before") or [])
            return is_later and layout_of(header).continues(self.header.layout)
        except MALFORMED:
            return False

    def _check_file_unchanged(self) -> None:
        """Raise StorageError if the dataset is on a disk and was changed since it was opened. This takes microseconds.

        Clips of parts that are open would still be delivered after they were removed.
        """
        if isinstance(self.path, Path) and (state := _file_state(self.path / tables.HEADER)) != self._header_state:
            with reading(str(self.path / tables.HEADER), REMEDY):
                self._check_unchanged()
            self._header_state = state

    def _check_unchanged(self) -> None:
        """Raise StorageError if the dataset was changed since it was opened. Raises OSError if reading fails."""
        if self.was_changed():
            raise changed_error(self.path)

    def _read_medium(self, number: int) -> Medium:
        part, block, place = self._place_of(tables.MEDIA_FOLDER, number)
        rows, at = self._block(tables.MEDIA_FOLDER, part, block)[0], self._row_at(tables.MEDIA_FOLDER, number)
        facts: dict[str, Any] = dict.fromkeys(tables.MEDIA.names)
        with reading(f"{at.file}, row {at.row}", REMEDY):
            names = [name for name in rows.schema.names if name in facts]
            facts |= {name: rows[name][place].as_py() for name in names}
        check_row(facts, tables.MEDIA_RULES, at)
        check_video(facts, at)
        return Medium(path=self._locations.path(facts["uri"]), **facts)

    @functools.cached_property
    def _shards(self) -> list[ByteSource]:
        """The tars of the dataset, by their numbers."""
        where = str(self.path / tables.SHARDS_NAME)
        with reading(where, REMEDY):
            self._check_unchanged()
            table = self.header.layout.read(self.path, tables.SHARDS_NAME, row_bytes=ROW_BYTES)
            if table is None:
                return []
            check_columns(table.schema, tables.SHARDS, where, REMEDY)
            rows = table.select(tables.SHARDS.names).to_pylist()
        for number, row in enumerate(rows):
            at = RowAt(file=where, row=number, remedy=REMEDY)
            check_row(row, tables.SHARD_RULES, at)
            if not tables.SHARD_NAME.fullmatch(row["name"]):
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

    @property
    def columns(self) -> list[str]:
        """The user's columns. This list is empty for a dataset without clips, which has no record of its columns."""
        return super().columns if len(self) else []

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of all clips, like `ClipSource.column`. It is read from a file of all clips if possible."""
        return self._user_column(name) if name in (self.header.filed or ()) else super().column(name)

    def _user_column(self, name: str) -> pa.ChunkedArray:
        if name in (self.header.filed or ()):
            return self._filed_column(tables.COLUMNS_NAME, name, pa.schema([]))
        return self._part_column(name)

    def _field(self, name: str) -> pa.ChunkedArray:
        if self.header.filed is not None and name in tables.FIELDS.names:
            return self._filed_column(tables.FIELDS_NAME, name, tables.FIELDS)
        return super()._field(name)

    def _sizes(self) -> list[pa.ChunkedArray]:
        if self.header.filed is None:
            return super()._sizes()
        return [plain(self._filed_column(tables.FIELDS_NAME, name, tables.FIELDS)) for name in SIZES]

    def _clip_field(self, name: str) -> pa.ChunkedArray:
        if name in CLIP_FIELDS:
            return self._clip_column(name)
        # The number of wanted frames is the length of any list with one value per frame. `mask` is the smallest such
        # column.
        return frame_field(name, self._part_column("mask" if name == "wanted_frames" else FRAME_FIELDS[name]))

    def _filed_column(self, file: str, name: str, schema: pa.Schema) -> pa.ChunkedArray:
        """Return a column of a file that has a row for each clip of the dataset.

        Args:
            file: The name of the file.
            name: The name of the column.
            schema: The columns that the file must have.

        Raises:
            FormatError: The file is damaged, or does not belong to the dataset.
        """
        found: list[pa.ChunkedArray] = []
        where = str(self.path / file)
        with reading(where, REMEDY):
            self._check_unchanged()
        for path in self.header.layout.paths(self.path, file):
            where = str(path)
            with reading(where, REMEDY):
                try:
                    opened = parquet_file(path, read_dictionary=[name])
                except KeyError as error:
                    raise ValueError(f"the column {name!r} is missing or nested") from error
                fields = opened.schema_arrow
                decoded = [field.with_type(plain(pa.chunked_array([], field.type)).type) for field in fields]
                check_columns(pa.schema(decoded), schema, where, REMEDY)
                if name not in fields.names:
                    raise ValueError(f"the column {name!r} is missing")
                check_file(opened, [name])  # texts stay dictionary-encoded
                found.append(opened.read([name])[name])
        rows = sum(map(len, found))
        if found and rows == len(self):
            return pa.chunked_array([chunk for column in found for chunk in column.chunks], found[0].type)
        raise FormatError(
            "the file does not belong to the dataset",
            where=where,
            found=counted(rows, "row"),
            allowed=counted(len(self), "row"),
            remedy=REMEDY,
        )

    def _clip_column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the table `clips` for all clips. Raises KeyError if it does not exist."""
        if self.header.filed is not None and name in tables.FIELDS.names and name in tables.CLIPS.names:
            return plain(self._filed_column(tables.FIELDS_NAME, name, tables.FIELDS))
        return self._part_column(name)

    def _part_column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the table `clips`, read from the parts. Raises KeyError if it does not exist."""
        parts = [table[name] for table in self._part_tables(tables.CLIPS_FOLDER, [name], self.header.own)]
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)

    def _media(self, names: Sequence[str]) -> pa.Table:
        """Return columns of the table `media`."""
        return pa.concat_tables(list(self._part_tables(tables.MEDIA_FOLDER, names, tables.MEDIA.names)))

    def _part_tables(self, folder: str, names: Sequence[str], own: Collection[str]) -> Iterator[pa.Table]:
        """Yield columns of each part of a table. If a column in `own` is missing in a part, its values are null."""
        schema = SCHEMAS[folder]
        known = pa.schema([field for field in schema if field.name in own])
        for part in range(len(self._first[folder]) - 1):
            where = self._place(folder, part)
            with self._lock, reading(f"{where}, column {', '.join(names)}", REMEDY):
                self._check_unchanged()
                opened = parquet_file(where)
                check_columns(opened.schema_arrow, known, str(where), REMEDY)
                missing = [name for name in names if name in own and name not in opened.schema_arrow.names]
                here = [name for name in names if name not in missing]
                table = read_file(opened, where, here, threads=False)
            rows = opened.metadata.num_rows
            self._check_count(where, rows, folder, part)
            nulls = {name: pa.nulls(rows, schema.field(name).type) for name in missing}
            yield pa.table({name: nulls[name] if name in nulls else table[name] for name in names})

    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the row of each clip's medium in the table `media`. This reads one column."""
        numbers = self._stored_numbers("media_row")
        rows = self.header.layout.media_numbers.row_of(numbers)
        allowed = _allowed(self.header.layout.media_numbers, self.media_count)
        self._check_rows("media_row", numbers, rows, self.media_count, allowed)
        return rows

    def tar_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of the tar that contains each clip. This reads one column.

        A clip that is not in a tar gets the number of the previous clip's tar, or -1 if no previous clip is in a tar.

        Raises:
            FramedexError: The dataset has no tars.
        """
        rows = self.header.layout.shard_numbers.row_of(self._stored_numbers("shard"))
        if len(rows) and rows.max() < 0:
            raise FramedexError(
                "the dataset has no tars", where=str(self.path), remedy="shard with --pack, which stores clips in tars"
            )
        return np.maximum.accumulate(rows)  # tars are numbered in the order of clips

    def views(self) -> ViewsOfClips | None:
        """Return the table of the clips that are views of the same item, or None if clips do not have several views.

        This reads two columns.

        Raises:
            FormatError: The columns contradict each other or the header.
        """
        if self.header.views is None:
            return None
        names, missing = self.header.views
        shared, own = (self._clip_column(name) for name in ("multiview_id", "view_name"))
        view = pc.index_in(own, pa.array(names, pa.string())).fill_null(-1).to_numpy().astype(np.int64)
        item = shared.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
        wrong = np.flatnonzero((view < 0) | (item < 0))
        if len(wrong):
            at = self._at(tables.CLIPS_FOLDER, int(wrong[0]))
            raise at.wrong("view_name", repr(own[int(wrong[0])].as_py()), ", ".join(names))
        _, first, count = np.unique(item * len(names) + view, return_index=True, return_counts=True)
        if (count > 1).any():
            at = self._at(tables.CLIPS_FOLDER, int(first[np.argmax(count > 1)]))
            raise at.wrong("view_name", "the view of another clip with the same multiview_id", "one clip for each view")
        return ViewsOfClips(names=names, missing=missing, item=item, view=view)

    def packed_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of the tar that contains each clip. All clips must be in tars.

        This reads one column.

        Raises:
            FramedexError: A clip is not in a tar.
            FormatError: A clip has the number of a tar that does not exist.
        """
        numbers = self._stored_numbers("shard")
        outside = int(np.count_nonzero(numbers < 0))
        if outside:
            raise FramedexError(
                "a stream needs a dataset whose clips are in tars",
                where=str(self.path),
                found=f"{outside} of {counted(len(numbers), 'clip')} are not in tars",
                allowed="a dataset of --pack clips or --pack images",
                remedy="shard with --pack clips or --pack images, or load the dataset with ClipDataset",
            )
        of_shards, count = self.header.layout.shard_numbers, len(self._shards) if len(numbers) else 0
        rows = of_shards.row_of(numbers)
        self._check_rows("shard", numbers, rows, count, _allowed(of_shards, count))
        return rows

    def _check_rows(
        self, name: str, numbers: NDArray[np.int64], rows: NDArray[np.int64], count: int, allowed: str
    ) -> None:
        """Raise FormatError if a row of a column of numbers is not one of `count` rows."""
        wrong = np.flatnonzero((rows < 0) | (rows >= count))
        if len(wrong):
            raise self._at(tables.CLIPS_FOLDER, int(wrong[0])).wrong(name, numbers[wrong[0]], allowed)

    def _stored_numbers(self, name: str) -> NDArray[np.int64]:
        """Return int64 [clips]: a column of the table `clips` that contains numbers of rows, with -1 for null."""
        numbers: NDArray[np.int64] = self._clip_column(name).fill_null(-1).to_numpy().astype(np.int64)
        return numbers

    def find_all(self, name: str) -> list[int]:
        """Return the number of the clip with this name, or the numbers of all views that share this name, as a list.

        Raises:
            FramedexError: There is no such clip.
        """
        if self.header.views is not None:
            found = np.flatnonzero(pc.equal(self._clip_column("multiview_id"), name).fill_null(False).to_numpy())
            if len(found):
                return found.tolist()
        return [self.find(name)]

    def find(self, clip_id: str) -> int:
        """Return the number of the clip with this name. This reads one column.

        Raises:
            FramedexError: There is no such clip.
        """
        names = self._clip_column("clip_id")
        row = pc.index(names, clip_id).as_py()
        if row >= 0:
            return int(row)
        close = difflib.get_close_matches(clip_id, names.slice(0, SEARCHED_FOR_CLOSE).to_pylist())
        remedy = (
            f"similar names: {', '.join(close)}" if close else "see the column clip_id of DATASET/clips for all names"
        )
        raise FramedexError("the dataset has no such clip", where=str(self.path), found=clip_id, remedy=remedy)


def _struct_of(schema: pa.Schema, name: str) -> pa.Schema:
    """Return the columns of the only struct with a name. Raises ValueError if it does not exist."""
    places = schema.get_all_field_indices(name)
    if len(places) != 1 or not pa.types.is_struct(kind := schema.field(places[0]).type):
        raise ValueError(f"it does not have a column {name!r} of structs")
    return pa.schema([kind.field(number) for number in range(kind.num_fields)])


def _file_state(path: Path) -> tuple[int, ...]:
    """Return numbers that are different after a file was replaced. They are empty if it does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _version(generation: int, checksum: int) -> str | None:
    return None if generation == 1 else f"generation {generation}, CRC-32 {checksum:08x}"


def _row_of(numbers: Numbers, number: int | None) -> int:
    """Return the position of the row with a number, or -1 if no row has it."""
    if number is None or not len(numbers.gone):
        return -1 if number is None else number
    return int(numbers.row_of(np.array([number]))[0])


def _allowed(numbers: Numbers, count: int) -> str:
    """Return the numbers of `count` rows, for a message."""
    most = f"0 to {int(numbers.of_row(np.array([count]))[0]) - 1}"
    return f"{most}, without numbers of removed rows" if len(numbers.gone) else most
