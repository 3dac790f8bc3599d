"""Reads an index. Everything downstream sees an index through this module, `packets` and `schema`."""

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt, check_columns, check_row, reading, wrong_rows
from framedex.core.limits import usual_clip_bytes
from framedex.errors import INTERNAL_ERROR, FormatError
from framedex.files.headers import is_since
from framedex.files.parquet_parts import check_bytes, part_numbers, part_path, read_all, read_file, read_group
from framedex.indexer.parts.packets import (
    AUDIO_COLUMNS,
    VIDEO_COLUMNS,
    Packets,
    audio_packets_of,
    check_video,
    packets_of,
)
from framedex.indexer.schema import (
    FRAMES,
    FRAMES_FOLDER,
    LISTING,
    LISTING_NAME,
    NO_VIDEO,
    PROVES,
    REMEDY,
    SCANNED,
    UNPROVEN,
    VIDEO_RULES,
    VIDEOS,
    VIDEOS_FOLDER,
    read_header,
)
from framedex.records.medium import EVERY_FRAME, GONE, MAX_PIXELS, OK, REFUSED, VIDEO, AudioPackets
from framedex.storage.places import OWN_STORE, Access, Locations, Place, parquet_file, place, read_each, state_of

KEPT_GROUPS = 4  # row groups that are kept in memory
ROWS_TOGETHER = 16  # rows of `videos` that become Python objects together
ROW_BYTES = 200  # the id of a medium takes so much memory in Python, in a list and two dictionaries
PROOF_COLUMNS = ("kind", "codec", "proof", "status")
UNPROVEN_MESSAGE = (
    "an earlier version indexed it by its packets alone; frames of this codec count as a full decode shows them: run "
    "framedex index again"
)
SCHEMAS = {VIDEOS_FOLDER: VIDEOS, FRAMES_FOLDER: FRAMES}


class Index:
    """An index directory, opened for reading. Raises FormatError if the directory is not an index.

    A medium that was probed again appears in several parts. Its row in the latest part counts; if that row says that
    the medium is gone, no row counts.

    Args:
        path: the directory.
        before: parts from this number on do not count.
        access: which sources may be read.

    Attributes:
        access: which sources may be read.
        locations: where the sources lie.
        generation: how many runs have written the index.
        ffmpeg: the versions of FFmpeg's libraries with which its media were probed; empty in an index that framedex 0.1
            wrote.
    """

    def __init__(self, path: str | Place, *, before: int | None = None, access: Access = OWN_STORE) -> None:
        self.path: Place = place(path)
        header = read_header(self.path)
        self.root: str = header["root"]
        self.access = access
        self.locations = Locations(str(self.path), self.root, access)
        self.ffmpeg: list[str] = header.get("ffmpeg") or []
        self.generation: int = header["generation"]
        numbers = part_numbers(self.path / VIDEOS_FOLDER)  # once: a run may add parts meanwhile
        self._parts = [number for number in numbers if before is None or number < before]
        tables = read_each(self.path, lambda number: self._read_part(number, ["media_id", "status"]), self._parts)
        identities = [table["media_id"].to_pylist() for table in tables]
        self._part = np.repeat(self._parts, [len(part) for part in identities]).astype(np.int64)
        self._row = np.concatenate([np.arange(len(part)) for part in identities] or [np.zeros(0, np.int64)])
        last = {media_id: number for number, media_id in enumerate(itertools.chain(*identities))}
        gone = np.concatenate(
            [np.asarray(pc.equal(table["status"], GONE)) for table in tables] or [np.zeros(0, np.bool_)]
        )
        there = sorted((number, media_id) for media_id, number in last.items() if not gone[number])
        self._numbers = np.array([number for number, _ in there], np.int64)
        self._row_of = {media_id: row for row, (_, media_id) in enumerate(there)}

    def locate(self, uri: str) -> str:
        """Return where a source lies. Raises StorageError if it must not be read."""
        return self.locations.locate(uri, self._uris)

    def check_locations(self) -> None:
        """Check that the sources of all usable media may be read. Raises StorageError."""
        self.locations.check(self._uris())

    def _uris(self) -> pa.ChunkedArray:
        table = self.columns(["uri", "status"])
        return table["uri"].filter(pc.equal(table["status"], OK))

    @property
    def parts(self) -> list[int]:
        """The numbers of the parts, ascending."""
        return list(self._parts)

    def __len__(self) -> int:
        """Return the number of media."""
        return len(self._numbers)

    @property
    def rows(self) -> int:
        """Number of rows in all parts, including superseded ones."""
        return len(self._part)

    def counting_rows(self, number: int) -> NDArray[np.int64]:
        """Return the rows of a part that are not superseded: int64, ascending."""
        first, end = np.searchsorted(self._part, [number, number + 1])
        mine = self._numbers[slice(*np.searchsorted(self._numbers, [first, end]))]
        rows: NDArray[np.int64] = mine - first
        return rows

    def _videos_part(self, number: int) -> pq.ParquetFile:
        return self._opened(VIDEOS_FOLDER, number)

    def _read_part(self, number: int, names: Sequence[str]) -> pa.Table:
        """Return columns of a part of `videos`; columns that its minor version lacks are null."""
        part = part_path(self.path / VIDEOS_FOLDER, number)
        where, file = str(part), self._videos_part(number)
        with reading(where, REMEDY):
            needed = names if _proves(file.schema_arrow) else [*names, *(set(PROOF_COLUMNS) - set(names))]
            table = as_videos(read_file(file, part, needed, row_bytes=ROW_BYTES), needed)
            table.validate(full=True)  # texts that are not UTF-8 among them
            table = table.select(names)
        for name in names:
            if not VIDEOS.field(name).nullable and table[name].null_count:
                row = int(np.argmax(table[name].is_null().to_numpy()))
                raise RowAt(file=where, row=row, remedy=REMEDY).wrong(name, "null", "a value")
        return table

    def _opened(self, folder: str, number: int) -> pq.ParquetFile:
        part = part_path(self.path / folder, number)
        try:
            file = parquet_file(part)
            schema = file.schema_arrow
        except FileNotFoundError:
            raise FormatError(
                "the index was compacted since it was opened", where=str(self.path), remedy="open it again"
            ) from None
        except (OSError, pa.ArrowException, ValueError) as error:
            raise FormatError("a part of the index is damaged", where=str(part), found=error, remedy=REMEDY) from error
        check_columns(schema, SCHEMAS[folder], str(part), REMEDY)
        return file

    @functools.cached_property
    def videos(self) -> pa.Table:
        """The columns of `schema.VIDEOS`, one row per medium, all at once; `some_videos` yields them in pieces."""
        return self.columns(VIDEOS.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of `videos`, one row per medium."""
        parts: list[pa.Table] = []
        size_bytes = 0
        with reading(str(self.path / VIDEOS_FOLDER), REMEDY):
            for number in self._parts:
                parts.append(self._read_part(number, names))
                size_bytes += parts[-1].nbytes
                check_bytes(size_bytes, usual_clip_bytes(), "it")
        return (pa.concat_tables(parts) if parts else VIDEOS.empty_table().select(names)).take(self._numbers)

    def some_videos(self, most: int) -> Iterator[pa.Table]:
        """Yield the rows of `videos` in order, at most `most` at a time, never rows of two parts together."""
        for number in self._parts:
            rows, done = self.counting_rows(number), 0
            for table in self._groups(number, rows):
                table = as_videos(table)
                self._check_videos(table, number, rows[done : done + len(table)])
                done += len(table)
                for first in range(0, len(table), most):
                    yield table.slice(first, most)

    def _groups(self, number: int, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
        """Yield some rows of a part of `videos`, one table for each row group that has any."""
        with reading(str(part_path(self.path / VIDEOS_FOLDER, number)), REMEDY):
            yield from rows_by_group(self._videos_part(number), rows)

    def _check_videos(self, table: pa.Table, number: int, rows: NDArray[np.int64]) -> None:
        """Check rows of `videos`: usable rows must hold what reading them relies on. Raises FormatError."""
        where = str(part_path(self.path / VIDEOS_FOLDER, number))
        with reading(where, REMEDY):
            table.validate(full=True)
        usable = np.flatnonzero(pc.equal(table["status"], OK).to_numpy())
        chosen = table.take(usable)
        for name, rule in VIDEO_RULES.items():
            wrong = wrong_rows(chosen[name], rule)
            if len(wrong):
                at = RowAt(file=where, row=int(rows[usable[wrong[0]]]), remedy=REMEDY)
                raise at.wrong(name, chosen[name][int(wrong[0])].as_py(), rule.allowed())
        pixels = chosen["width"].to_numpy().astype(np.float64) * chosen["height"].to_numpy()
        if len(pixels) and pixels.max() > MAX_PIXELS:
            place = int(np.argmax(pixels))
            at = RowAt(file=where, row=int(rows[usable[place]]), remedy=REMEDY)
            raise at.wrong("width", f"{pixels[place]:,.0f} pixels", f"up to {MAX_PIXELS:,} in all")

    def video(self, media_id: str) -> dict[str, Any]:
        """Return one medium's row of `videos`. Raises KeyError for an unknown medium."""
        number = int(self._numbers[self._row_of[media_id]])
        part, place = int(self._part[number]), int(self._row[number])
        at = RowAt(file=str(part_path(self.path / VIDEOS_FOLDER, part)), row=place, remedy=REMEDY)
        _, first_rows = self._file(VIDEOS_FOLDER, part)
        group = int(np.searchsorted(first_rows, place, side="right")) - 1
        block, within = divmod(place - int(first_rows[group]), ROWS_TOGETHER)
        with reading(f"{at.file}, row {place}", REMEDY):
            row = dict(self._some_rows(part, group, block)[within])
        if row["status"] == OK:
            check_row(row, VIDEO_RULES, at)
            check_video(row, at)
        return row

    @functools.lru_cache(maxsize=KEPT_GROUPS)  # noqa: B019 - an Index lives as long as its process' job
    def _some_rows(self, part: int, group: int, block: int) -> list[dict[str, Any]]:
        """Return ROWS_TOGETHER rows of a row group of `videos`: one row alone takes as long as several."""
        rows: list[dict[str, Any]] = (
            self._videos_group(part, group).slice(block * ROWS_TOGETHER, ROWS_TOGETHER).to_pylist()
        )
        return rows

    @functools.lru_cache(maxsize=KEPT_GROUPS)  # noqa: B019 - an Index lives as long as its process' job
    def _videos_group(self, part: int, group: int) -> pa.Table:
        file, _ = self._file(VIDEOS_FOLDER, part)
        with reading(str(part_path(self.path / VIDEOS_FOLDER, part)), REMEDY):
            return as_videos(read_group(file, group, kept=KEPT_GROUPS))

    @functools.cached_property
    def unusable(self) -> int:
        """Number of media that are refused or failed."""
        return sum(status != OK for status in self.columns(["status"])["status"].to_pylist())

    @functools.cached_property
    def without_video(self) -> int:
        """Number of files that were skipped because they have no video stream; they are among the unusable ones."""
        columns = self.columns(["status", "error_kind"]).to_pylist()
        return sum((row["status"], row["error_kind"]) == (REFUSED, NO_VIDEO) for row in columns)

    @functools.cached_property
    def unproven(self) -> int:
        """Number of media that must be indexed again; they are among the unusable ones."""
        return sum(kind == UNPROVEN for kind in self.columns(["error_kind"])["error_kind"].to_pylist())

    @functools.cached_property
    def internal_errors(self) -> int:
        """Number of media at which framedex itself failed; they are among the unusable ones."""
        return sum(kind == INTERNAL_ERROR for kind in self.columns(["error_kind"])["error_kind"].to_pylist())

    def state(self) -> str:
        """Return 32 hex digits that change when anything is indexed again."""
        files = [
            part_path(self.path / folder, number) for folder in (VIDEOS_FOLDER, FRAMES_FOLDER) for number in self._parts
        ]
        digest = hashlib.blake2b(digest_size=16)
        listing = self.path / LISTING_NAME
        for path in [*files, *([listing] if listing.exists() else [])]:
            digest.update(f"{path.name} {state_of(path)}\n".encode())
        return digest.hexdigest()

    def content(self) -> str:
        """Return 32 hex digits that are the same for indexes of the same media and listing, wherever they lie."""
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
        """The rows of listings that mention media, with the user's columns."""
        path = self.path / LISTING_NAME
        if not path.exists():
            return LISTING.empty_table()
        with reading(str(path), REMEDY):
            table = read_all(path)
            table.validate(full=True)
        check_columns(table.schema, LISTING, str(path), REMEDY)
        for field in LISTING:
            if field.name not in table.column_names:  # an earlier minor version
                table = table.append_column(field, pa.nulls(len(table), field.type))
            if not field.nullable and table[field.name].null_count:
                row = int(np.argmax(table[field.name].is_null().to_numpy()))
                raise RowAt(file=str(path), row=row, remedy=REMEDY).wrong(field.name, "null", "a value")
        return table

    def packets(self, media_id: str) -> Packets:
        """Return the packets of one medium. Raises KeyError for an unknown medium."""
        record, at = self._record(media_id, VIDEO_COLUMNS)
        packets = packets_of(record, at)
        if packets.offset is None and len(packets.size) and self.video(media_id)["byte_addressable"]:
            raise at.unlike("gap", "byte_addressable of videos", "null")
        if packets.state.any():
            states = len(self.video(media_id)["states"] or [])
            if packets.state.max() >= states:
                raise at.wrong("start_state", packets.state.max(), f"0 to {states - 1}, the states in videos")
        return packets

    def audio(self, media_id: str) -> AudioPackets | None:
        """Return the audio packets of one medium, or None if it has none. Raises KeyError for an unknown medium."""
        record, at = self._record(media_id, AUDIO_COLUMNS)
        return audio_packets_of(record, at)

    def _record(self, media_id: str, columns: tuple[str, ...]) -> tuple[pa.RecordBatch, RowAt]:
        """Return some columns of one medium's row of `frames`, and where that row lies."""
        number = int(self._numbers[self._row_of[media_id]])
        file, first_rows = self._file(FRAMES_FOLDER, int(self._part[number]))
        row = int(self._row[number])
        at = RowAt(file=str(part_path(self.path / FRAMES_FOLDER, int(self._part[number]))), row=row, remedy=REMEDY)
        if row >= file.metadata.num_rows:
            raise at.wrong("media_id", "no such row", "as many rows as the part of videos has")
        group = int(np.searchsorted(first_rows, row, side="right")) - 1
        # Small media share a group, and most callers read one after the other. A long medium has its own group.
        shared = file.metadata.row_group(group).num_rows > 1
        read = self._shared_group if shared else self._read_group
        with reading(at.file, REMEDY):
            table = read(int(self._part[number]), group, columns)
            [record] = table.slice(row - int(first_rows[group]), 1).combine_chunks().to_batches()
            found = record["media_id"][0].as_py()
        if found != media_id:
            raise at.wrong("media_id", found, f"{media_id}, as in the part of videos")
        return record, at

    def _read_group(self, part: int, group: int, columns: tuple[str, ...]) -> pa.Table:
        file, _ = self._file(FRAMES_FOLDER, part)
        table = read_group(file, group, ["media_id", *columns])
        for name in columns:
            if name not in table.schema.names:  # of an earlier minor version
                table = table.append_column(FRAMES.field(name), pa.nulls(len(table), FRAMES.field(name).type))
        return table

    @functools.lru_cache(maxsize=2)  # noqa: B019 - an Index lives as long as its process' job
    def _shared_group(self, part: int, group: int, columns: tuple[str, ...]) -> pa.Table:
        """Return a row group of several media, of at most FRAMES_PER_ROW_GROUP packets."""
        return self._read_group(part, group, columns)

    @functools.lru_cache(maxsize=64)  # noqa: B019 - an Index lives as long as its process' job
    def _file(self, folder: str, part: int) -> tuple[pq.ParquetFile, NDArray[np.int64]]:
        """Return a part and the first row of each of its row groups."""
        file = self._opened(folder, part)
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        return file, np.cumsum([0, *rows])[:-1]


def _proves(schema: pa.Schema) -> bool:
    """Return whether the version that wrote a file proves every codec that needs it."""
    version = (schema.metadata or {}).get(b"framedex.schema_version", b"")
    return is_since(version.decode("ascii", "replace"), PROVES)


def as_videos(table: pa.Table, names: Sequence[str] = tuple(VIDEOS.names)) -> pa.Table:
    """Return columns of `videos`; columns that the part's minor version of the format lacks are null.

    With the columns of `PROOF_COLUMNS`, videos that lack a proof which their codec needs become refused ones.
    """
    columns = {
        name: table[name] if name in table.schema.names else pa.nulls(len(table), VIDEOS.field(name).type)
        for name in names
    }
    if columns.keys() >= set(PROOF_COLUMNS):
        unproven = _unproven(*(columns[name] for name in PROOF_COLUMNS))
        if pc.any(unproven).as_py():
            said = {"status": REFUSED, "error_kind": UNPROVEN, "error_message": UNPROVEN_MESSAGE}
            columns |= {name: pc.if_else(unproven, said[name], columns[name]) for name in said.keys() & columns.keys()}
    return pa.table(list(columns.values()), schema=pa.schema([VIDEOS.field(name).remove_metadata() for name in names]))


def _unproven(kind: pa.ChunkedArray, codec: pa.ChunkedArray, proof: pa.ChunkedArray, status: pa.ChunkedArray) -> Any:
    """Return the rows of usable videos that need a proof and have none: booleans, never null."""
    needs = pc.invert(pc.is_in(codec, pa.array(sorted(SCANNED), pa.string())))
    has = pc.fill_null(pc.equal(proof, EVERY_FRAME), False)
    usable = pc.and_(pc.equal(status, OK), pc.equal(kind, VIDEO))
    return pc.and_(pc.fill_null(usable, False), pc.and_(needs, pc.invert(has)))


def rows_by_group(file: pq.ParquetFile, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield some rows of a Parquet file, one table for each row group that has any. rows: int64, ascending."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        mine = rows[slice(*np.searchsorted(rows, [first, first + count]))] - first
        if len(mine):
            table = read_group(file, group).replace_schema_metadata(None)
            yield table if len(mine) == count else table.take(mine)
        first += count
