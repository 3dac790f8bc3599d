"""Per-frame tables: Parquet files with one row per frame of a video, such as states and actions of a robot.

A listing has the path of such a file, relative to the root of the index, in the column `frame_table`. A clip's stretch
is the range of frames from which the policy samples, or the whole video. The listing's column `frame_row` has the
number of the table's row that belongs to the first frame of the stretch.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from framedex.core.limits import usual_clip_bytes
from framedex.core.words import counted, size_text
from framedex.errors import FormatError, FramedexError, StorageError
from framedex.files.parquet_parts import read_group
from framedex.indexer.schema import FRAME_ROW, FRAME_TABLE
from framedex.sharder.clips.clip import Clip
from framedex.storage.places import parquet_file, place
from framedex.storage.reader import DiskCache

FrameColumns = Sequence[str] | Mapping[str, Sequence[float] | None]

TIME, NUMBER = "timestamp", "frame_index"  # table columns: the frame's time in seconds, and its number in the stretch
MAX_FILES = 64  # maximum number of open files; LeRobot stores a few hundred episodes per file
MAX_KEPT_BYTES = 256 << 20  # maximum size of cached columns per worker, so that many workers fit into memory
UNREADABLE = (OSError, StorageError, ValueError, pa.ArrowException)


class _Rows(NamedTuple):
    """The rows [begin, end) of a table that belong to a clip's stretch. `frame` is the first row's frame number."""

    path: str
    begin: int
    end: int
    frame: int


class FrameTables:
    """Reads columns of per-frame tables for clips. Picklable.

    Args:
        wanted: The names of columns, or a mapping from names to times in seconds relative to the clip's anchor frame.
            If the times of a column are None, its values are read at the frames of the clip.
        locate: A function that returns the location of a file, given the path relative to the root of the index.
        cache: A cache for tables in object storage.
    """

    def __init__(self, wanted: FrameColumns, locate: Callable[[str], str], cache: DiskCache | None) -> None:
        self._wanted = checked_columns(wanted)
        self._locate, self._cache = locate, cache
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # pyarrow's readers are not thread-safe
        self._file = functools.lru_cache(MAX_FILES)(self._open)
        self._kept: OrderedDict[tuple[str, int, str], NDArray[Any]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_wanted", "_locate", "_cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __call__(self, clip: Clip) -> dict[str, NDArray[Any]]:
        """Return the values of the wanted columns for a clip, by the names of the columns.

        Returns:
            For columns that are wanted at the clip's frames, arrays [F, …], with zeros where `frame_index` is -1. For
            columns that are wanted at times, arrays [times, …] with the values of the rows that are nearest in time,
            and masks, bool [times], under the column's name with the suffix `_mask`. The mask is False for a time if
            the nearest row is further away than half the time between two rows.

        Raises:
            FramedexError: The clip has no table, or the table lacks a column.
            FormatError: The table cannot be read, or its rows do not correspond to the clip's frames.
        """
        found: dict[str, NDArray[Any]] = {}
        with self._lock:
            rows = self._rows(clip)
            for name, seconds in self._wanted.items():
                values = self._column(rows, name)
                if seconds is None:
                    is_padding = clip.frames < 0  # blank frames, for which values are zeros
                    found[name] = values[np.where(is_padding, 0, clip.frames - rows.frame)]
                    found[name][is_padding] = 0
                else:
                    found[name], found[f"{name}_mask"] = self._at(rows, values, seconds, clip)
        return found

    def _rows(self, clip: Clip) -> _Rows:
        table, row = clip.columns.get(FRAME_TABLE), clip.columns.get(FRAME_ROW)
        if table is None or row is None or clip.stretch is None:
            raise FramedexError(
                "the clip has no per-frame table",
                where=clip.clip_id,
                found=f"{FRAME_TABLE}: {table}, {FRAME_ROW}: {row}",
                remedy=f"add the columns {FRAME_TABLE} and {FRAME_ROW} to the listing, and select clips by a policy",
            )
        first, stop = clip.stretch
        rows = _Rows(self._locate(str(table)), int(row), int(row) + stop - first, first)
        file = self._file(rows.path)
        if not 0 <= rows.begin < rows.end <= file.metadata.num_rows:
            raise FormatError(
                "the per-frame table is too short",
                where=rows.path,
                found=counted(file.metadata.num_rows, "row"),
                allowed=f"rows {rows.begin} to {rows.end}, for clip {clip.clip_id}",
            )
        if NUMBER in file.schema_arrow.names:
            numbers = self._column(rows, NUMBER)
            if not np.array_equal(numbers, np.arange(stop - first)):
                raise FormatError(
                    "the frame numbers in the table do not correspond to the clip's stretch",
                    where=f"{rows.path}, rows {rows.begin} to {rows.end}, column {NUMBER}",
                    found=f"{numbers[0]} to {numbers[-1]}",
                    allowed=f"0 to {stop - first - 1}",
                    remedy="index the dataset again if it was changed",
                )
        return rows

    def _at(
        self, rows: _Rows, values: NDArray[Any], seconds: NDArray[np.float64], clip: Clip
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return a column's values at times relative to the clip's anchor, and whether each time has a row."""
        times = self._column(rows, TIME).astype(np.float64)
        # The clip may begin with blank frames, which have no frame number.
        anchor = int(clip.frames[clip.frames >= 0][0]) if clip.anchor_frame is None else clip.anchor_frame
        wanted = times[anchor - rows.frame] + seconds
        after = np.clip(np.searchsorted(times, wanted), 1, max(1, len(times) - 1))
        before = after - 1
        after = np.minimum(after, len(times) - 1)
        nearest = np.where(wanted - times[before] <= times[after] - wanted, before, after)
        half = np.median(np.diff(times)) / 2 if len(times) > 1 else np.inf
        return values[nearest], np.abs(times[nearest] - wanted) <= half

    def _column(self, rows: _Rows, name: str) -> NDArray[Any]:
        """Return the values of a column in some rows, [rows, …]."""
        file = self._file(rows.path)
        if name not in file.schema_arrow.names:
            raise FramedexError(
                "the per-frame table has no such column",
                where=rows.path,
                found=name,
                allowed=", ".join(file.schema_arrow.names),
            )
        parts, first = [], 0
        for group in range(file.metadata.num_row_groups):
            stop = first + file.metadata.row_group(group).num_rows
            if first < rows.end and stop > rows.begin:
                values = self._values(rows.path, group, name)
                need = values.nbytes // len(values) * (rows.end - rows.begin)
                most = usual_clip_bytes() // 2  # during `concatenate`, parts and result are both in memory
                if need > most:
                    raise FormatError(
                        f"column {name!r} of a clip's stretch takes too much memory",
                        where=f"{rows.path}, rows {rows.begin} to {rows.end}",
                        found=size_text(need),
                        allowed=size_text(most),
                    )
                parts.append(values[max(0, rows.begin - first) : rows.end - first])
            first = stop
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _open(self, path: str) -> pq.ParquetFile:
        try:
            return parquet_file(place(path, self._cache))
        except UNREADABLE as error:
            raise FormatError("the per-frame table cannot be read", where=path, found=error) from error

    def _values(self, path: str, group: int, name: str) -> NDArray[Any]:
        """Return a column of a row group. The column is cached, because the next clips often need it, too."""
        key = path, group, name
        if key not in self._kept:
            try:
                column = read_group(self._file(path), group, [name], threads=True)[name]
                self._kept[key] = _as_array(column.combine_chunks())
            except UNREADABLE as error:
                raise FormatError(f"column {name!r} of the table cannot be read", where=path, found=error) from error
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(values.nbytes for values in self._kept.values()) > MAX_KEPT_BYTES:
            self._kept.popitem(last=False)
        return self._kept[key]


def checked_columns(wanted: FrameColumns) -> dict[str, NDArray[np.float64] | None]:
    """Check the argument `frame_columns`. Return the times of each column, as a dict. Raises FramedexError.

    Times are float64, or None for the frames of the clip.
    """
    if isinstance(wanted, str) or not wanted:
        raise FramedexError(
            "frame_columns must be a list of columns, or a mapping {column: times in seconds}", found=repr(wanted)
        )
    if not isinstance(wanted, Mapping):
        return dict.fromkeys(wanted)
    found: dict[str, NDArray[np.float64] | None] = {}
    for name, seconds in wanted.items():
        try:
            times = None if seconds is None else np.array(seconds, np.float64)
        except (TypeError, ValueError):
            times = np.array(np.nan)
        if times is not None and (times.ndim != 1 or not len(times) or not np.isfinite(times).all()):
            raise FramedexError(
                "the times of a column in frame_columns must be a list of numbers", where=name, found=repr(seconds)[:80]
            )
        found[name] = times
    return found


def _as_array(column: pa.Array) -> NDArray[Any]:
    """Convert a column of numbers, of booleans, or of lists of equal length to an array.

    Raises:
        ValueError: The column has another type, a value is missing, or lists have different lengths.
    """
    if column.null_count:
        raise ValueError(f"{column.null_count} values are missing")
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        inner = _as_array(column.flatten())
        length = len(inner) // max(1, len(column))
        if not isinstance(column, pa.FixedSizeListArray) and set(column.value_lengths().to_pylist()) - {length}:
            raise ValueError("its lists have different lengths")
        return inner.reshape(len(column), length, *inner.shape[1:])
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise ValueError(f"{column.type}, not numbers")
    return np.asarray(column.to_numpy(zero_copy_only=False))
