"""Files of planned rows, which a slice of a run writes and the last step of the run reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from framedex.errors import FormatError
from framedex.files.parquet_parts import table_of, write_part
from framedex.records.dataset import Failure
from framedex.sharder.schema import MEDIA, SCHEMA_VERSION
from framedex.sharder.writing.planned_rows import PlannedRows
from framedex.storage.places import Place, parquet_file

# One row for each `PlannedRows`. Tables are Arrow streams.
PLANNED = pa.schema(
    [
        ("clips", pa.large_binary()),
        ("recipes", pa.large_binary()),
        ("media", pa.large_binary()),
        ("frames", pa.large_list(pa.int64())),
        ("failures", pa.large_string()),
        ("is_clip", pa.large_list(pa.bool_())),
        ("done", pa.int64()),
    ]
)


def write_planned(path: Path, several: Sequence[PlannedRows]) -> None:
    """Write planned rows as a file. Raises OSError."""
    rows = [
        {
            "clips": _stream(one.clips),
            "recipes": _stream(one.recipes),
            "media": _stream(table_of(one.media, MEDIA)),
            "frames": one.frames,
            "failures": json.dumps([asdict(failure) for failure in one.failures]),
            "is_clip": one.is_clip,
            "done": one.done,
        }
        for one in several
    ]
    write_part(path, pa.Table.from_pylist(rows, PLANNED), version=SCHEMA_VERSION)


def read_planned(path: Place) -> list[PlannedRows]:
    """Return the planned rows of a file. Raises FormatError, OSError, StorageError."""
    try:
        return [
            PlannedRows(
                clips=_table(row["clips"]),
                recipes=_table(row["recipes"]),
                media=_table(row["media"]).to_pylist(),
                frames=np.array(row["frames"], np.int64),
                failures=[Failure(**failure) for failure in json.loads(row["failures"])],
                is_clip=np.array(row["is_clip"], np.bool_),
                done=row["done"],
            )
            for row in parquet_file(path).read().to_pylist()
        ]
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            "a slice is damaged", where=str(path), found=error, remedy="delete the file, and run its slice again"
        ) from error


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _table(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
