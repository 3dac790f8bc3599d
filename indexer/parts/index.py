"""Read an index. Other stages (sharder, loader, auditor) read indexes only with this module, `packets` and `schema`."""

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt, check_columns, check_row, reading, wrong_rows
from framedex.core.limits import usual_clip_bytes
from framedex.errors import FormatError
from framedex.files.headers import is_since
from framedex.files.parquet_parts import check_bytes, part_numbers, part_path, read_all, read_file, read_group
from framedex.indexer import schema
from framedex.indexer.parts.packets import (
    AUDIO_COLUMNS,
    VIDEO_COLUMNS,
    Packets,
    audio_packets_of,
    check_video,
    packets_of,
)
from framedex.records.columns import Row
from framedex.records.medium import EVERY_FRAME, GONE, MAX_PIXELS, OK, REFUSED, VIDEO, AudioPackets
from framedex.storage.places import OWN_STORE, Access, Locations, Place, parquet_file, place, read_each, state_of

KEPT_GROUPS = 4  # number of row groups kept in memory
ROWS_TOGETHER = 16  # number of rows of `videos` that are converted to Python objects in one call
ROW_BYTES = 200  # number of bytes that the id of a medium occupies in Python's memory (a list and two dictionaries)
PROOF_COLUMNS = ("kind", "codec", "proof", "status")
UNPROVEN_MESSAGE = (
    "an earlier version of framedex indexed the medium without decoding it, but this codec needs a full decode; "
    "run framedex index again"
)
SCHEMAS = {schema.VIDEOS_FOLDER: schema.VIDEOS, schema.FRAMES_FOLDER: schema.FRAMES}


class Index:
    """An index directory, opened for reading.

    An index consists of numbered parts, which are Parquet files with some rows. A medium that was probed again has rows
    in several parts. Only the medium's row in the latest part is valid. If that row has the status `gone`, the medium
    is not in the index.

    Args:
        path: The index directory.
        before: Only parts with smaller numbers are read. If None, all parts are read.
        access: The sources that may be read.

    Attributes:
        path: The index directory.
        root: The folder that the URIs of sources are relative to.
        access: The sources that may be read.
        locations: The object that finds sources by their URIs.
        generation: The number of runs that have written the index.
        ffmpeg: The versions of FFmpeg's libraries with which the media were probed. Empty in an index of framedex 0.1.
        parts: The numbers of the parts, ascending.

    Raises:
        FormatError: The directory is not an index, or the index is damaged.
    """

    def __init__(self, path: str | Place, *, before: int | None = None, access: Access = OWN_STORE) -> None:
        self.path: Place = place(path)
        header = schema.read_header(self.path)
        self.root: str = header["root"]
        self.access = access
        self.locations = Locations(str(self.path), self.root, access)
        self.ffmpeg: list[str] = header.get("ffmpeg") or []
        self.generation: int = header["generation"]
        numbers = part_numbers(self.path / schema.VIDEOS_FOLDER)  # listed only once, because a run may add parts
        self.parts = [number for number in numbers if before is None or number < before]
        tables = read_each(self.path, lambda number: self._read_part(number, ["media_id", "status"]), self.parts)
        identities = [table["media_id"].to_pylist() for table in tables]
        self._part = np.repeat(self.parts, [len(part) for part in identities]).astype(np.int64)
        self._row = np.concatenate([np.arange(len(part)) for part in identities] or [np.zeros(0, np.int64)])
        last = {media_id: number for number, media_id in enumerate(itertools.chain(*identities))}
        gone = np.concatenate(
            [np.asarray(pc.equal(table["status"], GONE)) for table in tables] or [np.zeros(0, np.bool_)]
        )
        there = sorted((number, media_id) for media_id, number in last.items() if not gone[number])
        self._numbers = np.array([number for number, _ in there], np.int64)
        self._row_of = {media_id: row for row, (_, media_id) in enumerate(there)}

    def locate(self, uri: str) -> str:
        """Return the location of a source. Raises StorageError if the source must not be read."""
        return self.locations.locate(uri, self._uris)

    def check_locations(self) -> None:
        """Check that the sources of all usable media may be read. Raises StorageError if a source must not be read."""
        self.locations.check(self._uris())

    def _uris(self) -> pa.ChunkedArray:
        table = self.columns(["uri", "status"])
        return table["uri"].filter(pc.equal(table["status"], OK))

    def __len__(self) -> int:
        """Return the number of media."""
        return len(self._numbers)

    @property
    def rows(self) -> int:
        """The number of rows in all parts, including superseded ones."""
        return len(self._part)

    def counting_rows(self, number: int) -> NDArray[np.int64]:
        """Return the numbers of a part's valid rows as int64, ascending.

        A row is valid if no later row supersedes it and its status is not `gone`.
        """
        first, end = np.searchsorted(self._part, [number, number + 1])
        rows: NDArray[np.int64] = self._numbers[slice(*np.searchsorted(self._numbers, [first, end]))] - first
        return rows

    def _read_part(self, number: int, names: Sequence[str]) -> pa.Table:
        """Return columns of a part of `videos`. Columns that the part lacks because it is older are null."""
        part = part_path(self.path / schema.VIDEOS_FOLDER, number)
        where, file = str(part), self._opened(schema.VIDEOS_FOLDER, number)
        with reading(where, schema.REMEDY):
            version = (file.schema_arrow.metadata or {}).get(b"framedex.schema_version", b"").decode("ascii", "replace")
            # Earlier versions did not compare the frames of every codec that needs a proof.
            needed = names if is_since(version, schema.PROVES) else [*names, *(set(PROOF_COLUMNS) - set(names))]
            table = as_videos(read_file(file, part, needed, row_bytes=ROW_BYTES), needed)
            table.validate(full=True)  # also checks that texts are valid UTF-8
            table = table.select(names)
        _check_not_null(table, map(schema.VIDEOS.field, names), where)
        return table

    def _opened(self, folder: str, number: int) -> pq.ParquetFile:
        part = part_path(self.path / folder, number)
        try:
            file = parquet_file(part)
            found = file.schema_arrow
        except FileNotFoundError:
            raise FormatError(
                "the index was compacted since it was opened", where=str(self.path), remedy="open it again"
            ) from None
        except (OSError, pa.ArrowException, ValueError) as error:
            what = "a part of the index is damaged"
            raise FormatError(what, where=str(part), found=error, remedy=schema.REMEDY) from error
        check_columns(found, SCHEMAS[folder], str(part), schema.REMEDY)
        return file

    @functools.cached_property
    def videos(self) -> pa.Table:
        """The whole table `videos` in memory, one row per medium. `some_videos` yields the table in pieces."""
        return self.columns(schema.VIDEOS.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of `videos`, one row per medium."""
        parts: list[pa.Table] = []
        size_bytes = 0
        with reading(str(self.path / schema.VIDEOS_FOLDER), schema.REMEDY):
            for number in self.parts:
                parts.append(self._read_part(number, names))
                size_bytes += parts[-1].nbytes
                check_bytes(size_bytes, usual_clip_bytes(), "it")
        return (pa.concat_tables(parts) if parts else schema.VIDEOS.empty_table().select(names)).take(self._numbers)

    def some_videos(self, most: int) -> Iterator[pa.Table]:
        """Yield the rows of `videos` in order, in tables of at most `most` rows. No table has rows of two parts."""
        for number in self.parts:
            rows, done = self.counting_rows(number), 0
            where = str(part_path(self.path / schema.VIDEOS_FOLDER, number))
            with reading(where, schema.REMEDY):
                for group in rows_by_group(self._opened(schema.VIDEOS_FOLDER, number), rows):
                    table = as_videos(group)
                    table.validate(full=True)
                    self._check_videos(table, where, rows[done : done + len(table)])
                    done += len(table)
                    for first in range(0, len(table), most):
                        yield table.slice(first, most)

    def _check_videos(self, table: pa.Table, where: str, rows: NDArray[np.int64]) -> None:
        """Check that the values in usable rows of `videos` obey `VIDEO_RULES`. Raises FormatError if a value does not.

        Args:
            table: Some rows of a part.
            where: The path of the part, for the error message.
            rows: int64, the row number of each row in the part.
        """
        usable = np.flatnonzero(pc.equal(table["status"], OK).to_numpy())
        chosen = table.take(usable)
        for name, rule in schema.VIDEO_RULES.items():
            wrong = wrong_rows(chosen[name], rule)
            if len(wrong):
                at = RowAt(file=where, row=int(rows[usable[wrong[0]]]), remedy=schema.REMEDY)
                raise at.wrong(name, chosen[name][int(wrong[0])].as_py(), rule.allowed())
        pixels = chosen["width"].to_numpy().astype(np.float64) * chosen["height"].to_numpy()
        if len(pixels) and pixels.max() > MAX_PIXELS:
            place = int(np.argmax(pixels))
            at = RowAt(file=where, row=int(rows[usable[place]]), remedy=schema.REMEDY)
            raise at.wrong("width", f"{pixels[place]:,.0f} pixels", f"up to {MAX_PIXELS:,} in all")

    def video(self, media_id: str) -> dict[str, Any]:
        """Return a medium's row of `videos`. Raises KeyError if the medium is not in the index."""
        part, at = self._find(schema.VIDEOS_FOLDER, media_id)
        _, first_rows = self._file(schema.VIDEOS_FOLDER, part)
        group = int(np.searchsorted(first_rows, at.row, side="right")) - 1
        block, within = divmod(at.row - int(first_rows[group]), ROWS_TOGETHER)
        with reading(f"{at.file}, row {at.row}", schema.REMEDY):
            row = dict(self._some_rows(part, group, block)[within])
        if row["status"] == OK:
            check_row(row, schema.VIDEO_RULES, at)
            check_video(row, at)
        return row

    def _find(self, folder: str, media_id: str) -> tuple[int, RowAt]:
        """Return (part number, position) of a medium's row in a table. Raises KeyError for an unknown medium.

        Args:
            folder: The folder of the table.
            media_id: The id of the medium.
        """
        number = int(self._numbers[self._row_of[media_id]])
        part = int(self._part[number])
        file = str(part_path(self.path / folder, part))
        return part, RowAt(file=file, row=int(self._row[number]), remedy=schema.REMEDY)

    @functools.lru_cache(maxsize=KEPT_GROUPS)  # noqa: B019 - an Index lives as long as its process' job
    def _some_rows(self, part: int, group: int, block: int) -> list[Row]:
        """Return a block of ROWS_TOGETHER rows of a row group of `videos`. Converting a single row would take as long.

        Args:
            part: The number of the part.
            group: The number of the row group in the part.
            block: The number of the block in the row group.
        """
        rows: list[Row] = self._videos_group(part, group).slice(block * ROWS_TOGETHER, ROWS_TOGETHER).to_pylist()
        return rows

    @functools.lru_cache(maxsize=KEPT_GROUPS)  # noqa: B019 - an Index lives as long as its process' job
    def _videos_group(self, part: int, group: int) -> pa.Table:
        file, _ = self._file(schema.VIDEOS_FOLDER, part)
        with reading(str(part_path(self.path / schema.VIDEOS_FOLDER, part)), schema.REMEDY):
            return as_videos(read_group(file, group, kept=KEPT_GROUPS))

    @functools.cached_property
    def problems(self) -> Counter[tuple[str, str]]:
        """The number of media that are refused or failed, by (status, error kind)."""
        columns = self.columns(["status", "error_kind"])
        columns = columns.filter(pc.not_equal(columns["status"], OK))
        return Counter(zip(columns["status"].to_pylist(), columns["error_kind"].to_pylist(), strict=True))

    @property
    def unusable(self) -> int:
        """The number of media that are refused or failed."""
        return self.problems.total()

    def state(self) -> str:
        """Return 32 hex digits that change whenever a run changes a file of the index."""
        folders = (self.path / schema.VIDEOS_FOLDER, self.path / schema.FRAMES_FOLDER)
        files = [part_path(folder, number) for folder in folders for number in self.parts]
        digest = hashlib.blake2b(digest_size=16)
        listing = self.path / schema.LISTING_NAME
        for path in [*files, *([listing] if listing.exists() else [])]:
            digest.update(f"{path.name} {state_of(path)}\n".encode())
        return digest.hexdigest()

    def content(self) -> str:
        """Return 32 hex digits that depend only on the media and the listing, not on the location of the index."""
        digest = hashlib.blake2b(digest_size=16)
        for table in (self.columns(["media_id", "status", "fingerprint", "depth"]), self.listing):
            plain = table.replace_schema_metadata(None).combine_chunks()
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, plain.schema) as writer:
                writer.write_table(plain)
            digest.update(sink.getvalue())
        return digest.hexdigest()

    @functools.cached_property
    def listing(self) -> pa.Table:
        """The mentions of media (the rows of the user's listings), with the user's columns."""
        path = self.path / schema.LISTING_NAME
        if not path.exists():
            return schema.LISTING.empty_table()
        with reading(str(path), schema.REMEDY):
            table = read_all(path)
            table.validate(full=True)
        check_columns(table.schema, schema.LISTING, str(path), schema.REMEDY)
        table = _with_missing(table, schema.LISTING)
        _check_not_null(table, schema.LISTING, str(path))
        return table

    def packets(self, media_id: str) -> Packets:
        """Return the packets of a medium. Raises KeyError if the medium is not in the index."""
        record, at = self._record(media_id, VIDEO_COLUMNS)
        packets = packets_of(record, at)
        if packets.offset is None and len(packets.size) and self.video(media_id)["byte_addressable"]:
            raise at.unlike("gap", "byte_addressable of videos", "null")
        if packets.state.any():
            states = len(self.video(media_id)["states"] or [])
            if packets.state.max() >= states:
                raise at.wrong("start_state", packets.state.max(), f"0 to {states - 1}, as in column states of videos")
        return packets

    def audio(self, media_id: str) -> AudioPackets | None:
        """Return the audio packets of a medium, or None if it has no audio. Raises KeyError for an unknown medium."""
        record, at = self._record(media_id, AUDIO_COLUMNS)
        return audio_packets_of(record, at)

    def _record(self, media_id: str, columns: tuple[str, ...]) -> tuple[pa.RecordBatch, RowAt]:
        """Return (some columns of a medium's row of `frames`, the position of the row)."""
        part, at = self._find(schema.FRAMES_FOLDER, media_id)
        file, first_rows = self._file(schema.FRAMES_FOLDER, part)
        if at.row >= file.metadata.num_rows:
            raise at.wrong("media_id", "no such row", "as many rows as in the same part of videos")
        group = int(np.searchsorted(first_rows, at.row, side="right")) - 1
        # Row groups of several media are kept in memory, because most callers read media one after the other. A row
        # group with a single, long medium is not kept.
        read = self._shared_group if file.metadata.row_group(group).num_rows > 1 else self._read_group
        with reading(at.file, schema.REMEDY):
            table = read(part, group, columns)
            [record] = table.slice(at.row - int(first_rows[group]), 1).combine_chunks().to_batches()
            found = record["media_id"][0].as_py()
        if found != media_id:
            raise at.wrong("media_id", found, f"{media_id}, as in the same row of videos")
        return record, at

    def _read_group(self, part: int, group: int, columns: tuple[str, ...]) -> pa.Table:
        file, _ = self._file(schema.FRAMES_FOLDER, part)
        return _with_missing(read_group(file, group, ["media_id", *columns]), map(schema.FRAMES.field, columns))

    # The row groups that hold several media. Such a row group has at most FRAMES_PER_ROW_GROUP packets.
    _shared_group = functools.lru_cache(maxsize=2)(_read_group)  # an Index lives as long as its process' job

    @functools.lru_cache(maxsize=64)  # noqa: B019 - an Index lives as long as its process' job
    def _file(self, folder: str, part: int) -> tuple[pq.ParquetFile, NDArray[np.int64]]:
        """Return (an opened part of a table, the number of the first row of each row group in the part)."""
        file = self._opened(folder, part)
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        return file, np.cumsum([0, *rows])[:-1]


def _with_missing(table: pa.Table, fields: Iterable[pa.Field]) -> pa.Table:
    """Add the columns that a table of an earlier minor version of the format lacks. Their values are null."""
    there = set(table.column_names)  # computed once, because pyarrow makes a new list for each access
    for field in fields:
        if field.name not in there:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


def _check_not_null(table: pa.Table, fields: Iterable[pa.Field], where: str) -> None:
    """Raise FormatError if a column has a null although its field is not nullable."""
    for field in fields:
        if not field.nullable and table[field.name].null_count:
            row = int(np.argmax(table[field.name].is_null().to_numpy()))
            raise RowAt(file=where, row=row, remedy=schema.REMEDY).wrong(field.name, "null", "a value")


def as_videos(table: pa.Table, names: Sequence[str] = tuple(schema.VIDEOS.names)) -> pa.Table:
    """Return columns of `videos`. Columns that the part lacks because it is older are null.

    If all of `PROOF_COLUMNS` are among the columns, the status of some usable videos becomes `refused`. These are the
    videos whose codec needs a proof of every frame, but whose frames were not all compared.

    Args:
        table: Rows of a part, with all columns that the part has.
        names: The columns to return.
    """
    fields = [schema.VIDEOS.field(name).remove_metadata() for name in names]
    table = _with_missing(table, fields)
    columns = {name: table[name] for name in names}
    if columns.keys() >= set(PROOF_COLUMNS):
        kind, codec, proof, status = (columns[name] for name in PROOF_COLUMNS)
        needs = pc.invert(pc.is_in(codec, pa.array(sorted(schema.SCANNED), pa.string())))
        has = pc.fill_null(pc.equal(proof, EVERY_FRAME), False)
        usable = pc.and_(pc.equal(status, OK), pc.equal(kind, VIDEO))
        unproven = pc.and_(pc.fill_null(usable, False), pc.and_(needs, pc.invert(has)))
        if pc.any(unproven).as_py():
            said = {"status": REFUSED, "error_kind": schema.UNPROVEN, "error_message": UNPROVEN_MESSAGE}
            columns |= {name: pc.if_else(unproven, said[name], columns[name]) for name in said.keys() & columns.keys()}
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def rows_by_group(file: pq.ParquetFile, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield some rows of a Parquet file, as one table for each row group with such rows.

    Args:
        file: The file.
        rows: int64, the row numbers, ascending.
    """
    first = 0
    for group in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        mine = rows[slice(*np.searchsorted(rows, [first, first + count]))] - first
        if len(mine):
            table = read_group(file, group).replace_schema_metadata(None)
            yield table if len(mine) == count else table.take(mine)
        first += count
