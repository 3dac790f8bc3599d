"""CONTRACT: reading an index. Everything downstream sees an index through this module and `schema`."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from framedex.errors import INTERNAL_ERROR, FormatError
from framedex.indexer.parts import check_format, part_numbers, part_path
from framedex.indexer.schema import FORMAT, GONE, LISTING, NO_VIDEO, OK, REFUSED, SCHEMA_VERSION, VIDEOS
from framedex.indexer.timeline import NO_PTS, START, STATED
from framedex.storage.objects import at_once
from framedex.storage.places import Place, Stored, parquet_file, place

HEADER = "index.json"
LISTING_NAME = "listing.parquet"
VIDEO_COLUMNS = ("pts", "gap", "size", "flags", "start_state", "md5", "path", "crc32")
AUDIO_COLUMNS = ("audio_sample", "audio_gap", "audio_size")
VIDEOS_FOLDER, FRAMES_FOLDER = "videos", "frames"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """The packets of one medium in decode order: a row of `frames` as numpy columns.

    pts: int64 [packets], `timeline.NO_PTS` where null. offset: int64 [packets], None where the medium is not
    addressable by bytes. size: int64 [packets]. flags: int32 [packets], 0 where not read. read: bool [packets], whether
    flags were read. state: int32 [packets], which of the medium's decoder states a start point needs. md5: 16 bytes or
    None a packet, or None for all. path: of loose images, the file of each; else None. crc32: int64 [packets], None but for
    images.
    """

    pts: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]
    flags: NDArray[np.int32]
    read: NDArray[np.bool_]
    state: NDArray[np.int32]
    md5: list[bytes | None] | None = None
    path: list[str] | None = None
    crc32: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.pts, self.size, self.flags, self.read, self.state)}
        lengths |= {len(column) for column in (self.offset, self.md5, self.path, self.crc32) if column is not None}
        if len(lengths) != 1:
            raise ValueError(f"packet columns of different lengths: {sorted(lengths)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPackets:
    """The audio packets of one medium in decode order, columns int64 [packets].

    sample: position of each packet's first decoded sample, sample n being at n / `videos.audio_rate` seconds. It counts
    all that the packet is coded to hold: a decoder that trims by itself (Opus' pre-skip) must be told not to. offset:
    None where packets are not one range of the file each.
    """

    sample: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.sample, self.offset, self.size) if column is not None}
        if len(lengths) != 1:
            raise ValueError(f"audio packet columns of different lengths: {sorted(lengths)}")


class Index:
    """An index directory, opened for reading. Raises FormatError where it is not one.

    A medium that was probed again appears in several parts; its row in the latest part counts, and none where that says that
    it is gone. before: parts from this number on do not count. generation: how many runs have written it. ffmpeg: the versions
    of FFmpeg's libraries by which its media were probed; none in an index that framedex 0.1 wrote.
    """

    def __init__(self, path: str | Place, *, before: int | None = None) -> None:
        self.path: Place = place(path)
        header = read_header(self.path)
        self.root: str = header["root"]
        self.ffmpeg: list[str] = header.get("ffmpeg", [])
        self.generation: int = header["generation"]
        numbers = part_numbers(self.path / VIDEOS_FOLDER)  # once: a run may add parts meanwhile
        self._parts = [number for number in numbers if before is None or number < before]
        read = at_once if isinstance(self.path, Stored) else map
        tables = list(read(lambda number: self._videos_part(number).read(["media_id", "status"]), self._parts))
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

    @property
    def parts(self) -> list[int]:
        """The numbers of the parts, ascending."""
        return list(self._parts)

    def __len__(self) -> int:
        """Return how many media there are."""
        return len(self._numbers)

    @property
    def rows(self) -> int:
        """How many rows the parts have, superseded ones among them."""
        return len(self._part)

    def counting_rows(self, number: int) -> NDArray[np.int64]:
        """Return int64, ascending: the rows of a part that count."""
        first, end = np.searchsorted(self._part, [number, number + 1])
        mine = self._numbers[slice(*np.searchsorted(self._numbers, [first, end]))]
        rows: NDArray[np.int64] = mine - first
        return rows

    def _videos_part(self, number: int) -> pq.ParquetFile:
        return self._opened(part_path(self.path / VIDEOS_FOLDER, number))

    def _opened(self, part: Place) -> pq.ParquetFile:
        try:
            return parquet_file(part)
        except FileNotFoundError:
            raise FormatError(
                "the index was compacted since it was opened", where=str(self.path), remedy="open it again"
            ) from None
        except pa.ArrowException as error:
            raise FormatError("a part of the index is damaged", where=str(part), found=error) from error

    @functools.cached_property
    def videos(self) -> pa.Table:
        """A row a medium: the columns of `schema.VIDEOS`. All at once; `some_videos` gives them bit by bit."""
        return self.columns(VIDEOS.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of `videos`, a row a medium."""
        parts = [as_videos(self._videos_part(number).read(names), names) for number in self._parts]
        return (pa.concat_tables(parts) if parts else VIDEOS.empty_table().select(names)).take(self._numbers)

    def some_videos(self, most: int) -> Iterator[pa.Table]:
        """Yield the rows of `videos` in order, at most so many at a time, never those of two parts together."""
        for number in self._parts:
            rows = self.counting_rows(number)
            for table in rows_by_group(self._videos_part(number), rows):
                table = as_videos(table)
                for first in range(0, len(table), most):
                    yield table.slice(first, most)

    def video(self, media_id: str) -> dict[str, Any]:
        """Return one medium's row of `videos`. Raises KeyError for an unknown one."""
        number = int(self._numbers[self._row_of[media_id]])
        table, first = self._videos_rows(int(self._part[number]), int(self._row[number]))
        row: dict[str, Any] = table.slice(int(self._row[number]) - first, 1).to_pylist()[0]
        return row

    def _videos_rows(self, part: int, row: int) -> tuple[pa.Table, int]:
        """Return the row group of a part of `videos` that holds a row, and the number of its first row."""
        _, first_rows = self._file(VIDEOS_FOLDER, part)
        group = int(np.searchsorted(first_rows, row, side="right")) - 1
        return self._videos_group(part, group), int(first_rows[group])

    @functools.lru_cache(maxsize=4)  # noqa: B019 - an Index lives as long as its process' job
    def _videos_group(self, part: int, group: int) -> pa.Table:
        file, _ = self._file(VIDEOS_FOLDER, part)
        return as_videos(file.read_row_group(group, use_threads=False))

    @functools.cached_property
    def unusable(self) -> int:
        """How many media are refused or failed."""
        return sum(status != OK for status in self.columns(["status"])["status"].to_pylist())

    @functools.cached_property
    def without_video(self) -> int:
        """How many files have no video stream, and were skipped for that; they are among the unusable ones."""
        columns = self.columns(["status", "error_kind"]).to_pylist()
        return sum((row["status"], row["error_kind"]) == (REFUSED, NO_VIDEO) for row in columns)

    @functools.cached_property
    def internal_errors(self) -> int:
        """At how many media framedex itself failed; they are among the unusable ones."""
        return sum(kind == INTERNAL_ERROR for kind in self.columns(["error_kind"])["error_kind"].to_pylist())

    def state(self) -> str:
        """Return 32 hex digits that change when anything is indexed anew."""
        files = [
            part_path(self.path / folder, number) for folder in (VIDEOS_FOLDER, FRAMES_FOLDER) for number in self._parts
        ]
        digest = hashlib.blake2b(digest_size=16)
        listing = self.path / LISTING_NAME
        for path in [*files, *([listing] if listing.exists() else [])]:
            digest.update(f"{path.name} {_state_of(path)}\n".encode())
        return digest.hexdigest()

    @functools.cached_property
    def listing(self) -> pa.Table:
        """The rows by which media were listed, with the user's columns."""
        path = self.path / LISTING_NAME
        return parquet_file(path).read() if path.exists() else LISTING.empty_table()

    def packets(self, media_id: str) -> Packets:
        """Return the packets of one medium. Raises KeyError for an unknown one."""
        return _packets(self._record(media_id, VIDEO_COLUMNS))

    def audio(self, media_id: str) -> AudioPackets | None:
        """Return the audio packets of one medium, None where it has none. Raises KeyError for an unknown medium."""
        record = self._record(media_id, AUDIO_COLUMNS)
        if not record["audio_sample"][0].is_valid:
            return None
        sample, gap, size = (
            record[name].combine_chunks().flatten().to_numpy().astype(np.int64) for name in AUDIO_COLUMNS
        )
        addressable = record["audio_gap"][0].is_valid
        return AudioPackets(sample=sample, offset=offsets_of(gap, size) if addressable else None, size=size)

    def _record(self, media_id: str, columns: tuple[str, ...]) -> pa.Table:
        """Return some columns of one medium's row of `frames`."""
        number = int(self._numbers[self._row_of[media_id]])
        file, first_rows = self._file(FRAMES_FOLDER, int(self._part[number]))
        row = int(self._row[number])
        group = int(np.searchsorted(first_rows, row, side="right")) - 1
        # Small media share a group, and most callers ask for one after the other; a long one has its group for itself.
        shared = file.metadata.row_group(group).num_rows > 1
        read = self._shared_group if shared else self._read_group
        table = read(int(self._part[number]), group, columns)
        record = table.slice(row - int(first_rows[group]), 1)
        if record["media_id"][0].as_py() != media_id:
            raise ValueError(f"frames row {row} does not belong to medium {media_id}")
        return record

    def _read_group(self, part: int, group: int, columns: tuple[str, ...]) -> pa.Table:
        file, _ = self._file(FRAMES_FOLDER, part)
        return file.read_row_group(group, columns=["media_id", *columns], use_threads=False)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - an Index lives as long as its process' job
    def _shared_group(self, part: int, group: int, columns: tuple[str, ...]) -> pa.Table:
        """Return a row group of several media, of FRAMES_PER_ROW_GROUP packets at most."""
        return self._read_group(part, group, columns)

    @functools.lru_cache(maxsize=64)  # noqa: B019 - an Index lives as long as its process' job
    def _file(self, folder: str, part: int) -> tuple[pq.ParquetFile, NDArray[np.int64]]:
        """Return a part and the first row of each of its row groups."""
        file = self._opened(part_path(self.path / folder, part))
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        return file, np.cumsum([0, *rows])[:-1]


def as_videos(table: pa.Table, names: Sequence[str] = tuple(VIDEOS.names)) -> pa.Table:
    """Return columns of `videos` that a part has, and nulls for those that its minor version of the format did not have."""
    columns = [
        table[name] if name in table.schema.names else pa.nulls(len(table), VIDEOS.field(name).type) for name in names
    ]
    return pa.table(columns, schema=pa.schema([VIDEOS.field(name).remove_metadata() for name in names]))


def rows_by_group(file: pq.ParquetFile, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield some rows of a Parquet file, ascending, a table for each row group that has any."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        mine = rows[slice(*np.searchsorted(rows, [first, first + count]))] - first
        if len(mine):
            table = file.read_row_group(group, use_threads=False).replace_schema_metadata(None)
            yield table if len(mine) == count else table.take(mine)
        first += count


def _state_of(path: Place) -> str:
    if isinstance(path, Stored):
        return path.facts().tag
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def read_header(path: Place) -> dict[str, Any]:
    """Return what index.json says. Raises FormatError."""
    header = check_format(path, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex index")
    return {"generation": 0} | header


def _packets(record: pa.Table) -> Packets:
    """Return the one row of `record` as columns."""
    values = {name: record[name].combine_chunks().flatten() for name in ("pts", "gap", "size", "flags")}
    size = values["size"].to_numpy().astype(np.int64)
    stored = values["flags"].fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
    flags, looked_at = stored & ~STATED, (stored & STATED) == 0
    state = np.zeros(len(flags), np.int32)
    if record["start_state"][0].is_valid:
        state[np.flatnonzero(flags & START)] = record["start_state"].combine_chunks().flatten().to_numpy()
    return Packets(
        pts=pc.fill_null(values["pts"], NO_PTS).to_numpy(zero_copy_only=False),
        offset=offsets_of(values["gap"].to_numpy(), size) if record["gap"][0].is_valid else None,
        size=size,
        flags=flags,
        read=values["flags"].is_valid().to_numpy(zero_copy_only=False) & looked_at,
        state=state,
        md5=record["md5"][0].as_py(),
        path=record["path"][0].as_py(),
        crc32=record["crc32"].combine_chunks().flatten().to_numpy() if record["crc32"][0].is_valid else None,
    )


def gaps_of(offset: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the `frames.gap` column, int64 [packets]; smaller numbers than offsets, and mostly zeros."""
    ends = offset + size
    return offset - np.append(np.int64(0), ends[:-1])


def offsets_of(gap: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where packets begin, int64 [packets]."""
    ends: NDArray[np.int64] = np.cumsum(gap + size)
    return ends - size
