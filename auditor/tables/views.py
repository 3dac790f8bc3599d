"""The SQL of every view of an index or a dataset. Pure: returns statements for paths and columns.

This module creates the views that read the files. The views that users query are in views/*/*.sql and build on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from importlib.resources import files

import pyarrow as pa

from framedex.auditor.tables.subject import Audited, Kind
from framedex.indexer.parts.index import UNPROVEN_MESSAGE
from framedex.indexer.parts.layout import FRAMES_FOLDER, LISTING_NAME, VIDEOS_FOLDER
from framedex.indexer.schema import FRAMES, LISTING, SCANNED, UNPROVEN, VIDEOS
from framedex.indexer.timeline import CONTAINER, COUNTED, DEALT, FILLED, JOINED, LISTED, UNSHOWN
from framedex.records.medium import COLOR_RANGES, EVERY_FRAME, FAILED, FIELD_ORDERS, GONE, IMAGES, OK, REFUSED, VIDEO
from framedex.sharder.schema import (
    CLIPS,
    CLIPS_FOLDER,
    FAILURES,
    FAILURES_NAME,
    MEDIA,
    MEDIA_FOLDER,
    RECIPES,
    RECIPES_FOLDER,
    SHARDS,
    SHARDS_NAME,
)

# The views in the order in which they build on each other.
VIEWS: dict[Kind, tuple[str, ...]] = {
    "index": (
        "repeated",
        "superseded",
        "media",
        "videos",
        "packets",
        "frames",
        "gops",
        "listing",
        "failures",
        "formats",
        "nvdec",
    ),
    "dataset": ("videos", "shards", "clips", "clip_frames", "failures"),
}
INNER = ("repeated", "superseded", "media")  # views that only other views use
# Columns of `videos` that show whether a source is unchanged.
OF_SOURCES = ("media_id", "uri", "kind", "container", "size_bytes", "mtime_ns", "fingerprint")
# Columns with few different texts, and these texts, sorted. As enums they are copied and compared faster.
FEW_VALUES = {
    name: sorted(values)
    for name, values in {
        "status": (OK, REFUSED, FAILED, GONE),
        "kind": (VIDEO, IMAGES),
        "pts_source": (CONTAINER, FILLED, JOINED, DEALT, COUNTED, LISTED),
        "color_range": COLOR_RANGES.values(),
        "field_order": FIELD_ORDERS.values(),
    }.items()
}
PARTS: dict[str, pa.Schema] = {
    VIDEOS_FOLDER: VIDEOS,
    FRAMES_FOLDER: FRAMES,
    CLIPS_FOLDER: CLIPS,
    RECIPES_FOLDER: RECIPES,
    MEDIA_FOLDER: MEDIA,
}
FILES: dict[Kind, dict[str, tuple[str, pa.Schema]]] = {
    "index": {"listing": (LISTING_NAME, LISTING)},
    "dataset": {"failures": (FAILURES_NAME, FAILURES), "shards": (SHARDS_NAME, SHARDS)},
}
TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BLOB",
    pa.binary(16): "BLOB",
}

FILE_COLUMN = "_framedex_file"  # a name that no other column has
PLAIN = "hive_partitioning = false"
PROTOCOL = "framedex"  # of the files of the index or dataset

Columns = Mapping[str, Iterable[str]]  # the columns in the files of each table


class Names(Enum):
    """How queries name files: by `table_files`, by their paths, or by a pattern that also matches later parts."""

    OURS = "ours"
    PATHS = "paths"
    PATTERN = "pattern"


def url(name: str) -> str:
    """Return the name of a file of the index or dataset in queries."""
    return f"{PROTOCOL}://{name}"


def statements(audited: Audited, columns: Columns, names: Names) -> dict[str, str]:
    """Return the query of each view by name. Each view comes after those that it builds on."""
    found = {f"{table}_parts": _parts(audited, table, columns, names) for table in audited.parts}
    for name, (file, schema) in FILES[audited.kind].items():
        where = url(file) if names is Names.OURS else str(audited.folder / file)
        there = audited.file(file) is not None
        found[f"{name}_file"] = f"SELECT * FROM read_parquet({literal(where)}, {PLAIN})" if there else _empty(schema)
    for name in VIEWS[audited.kind]:
        text = (files("framedex.auditor") / "views" / audited.kind / f"{name}.sql").read_text(encoding="utf-8")
        found[name] = _filled(text, audited, columns)
    return found


def described(kind: Kind) -> dict[str, str]:
    """Return a description of each view that users query, in one sentence."""
    found = {}
    for name in VIEWS[kind]:
        if name not in INNER:
            text = (files("framedex.auditor") / "views" / kind / f"{name}.sql").read_text(encoding="utf-8")
            lines = [line.removeprefix("-- ") for line in text.splitlines() if line.startswith("-- ")]
            found[name] = " ".join(lines)
    return found


def _filled(text: str, audited: Audited, columns: Columns) -> str:
    """Return the query of a view. Each {…} is replaced by a value that depends on the index or dataset."""
    values = {
        "unshown": str(UNSHOWN),
        "scanned": ", ".join(map(literal, sorted(SCANNED))),
        "every_frame": literal(EVERY_FRAME),
        "unproven": literal(UNPROVEN),
        "unproven_message": literal(UNPROVEN_MESSAGE),
    }
    if audited.kind == "dataset":
        own = [name for name in columns[CLIPS_FOLDER] if name not in CLIPS.names]
        values["user_columns"] = "".join(f", c.{quoted(name)}" for name in own)
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], "\n".join(lines)).strip()


def _parts(audited: Audited, table: str, columns: Columns, names: Names) -> str:
    """Return a query of the rows of all parts of a table, with the number of the part and the row's position in it."""
    schema = PARTS[table]
    if not audited.parts[table]:
        return f"SELECT 0 AS _part, 0::BIGINT AS _row, * FROM ({_empty(schema)})"
    had = set(columns[table])
    absent = [field for field in schema if field.name not in had]
    rows = reader(audited, table, names)
    if absent:  # by name, since parts that are written later may have them
        rows = f"(SELECT * FROM {rows} UNION ALL BY NAME {_empty(absent)})"
    return f"""SELECT regexp_extract({FILE_COLUMN}, 'part-(\\d+)\\.parquet$', 1)::INTEGER AS _part, \
file_row_number AS _row,
    * EXCLUDE ({FILE_COLUMN}, file_row_number)
FROM {rows}"""


def reader(audited: Audited, table: str, names: Names) -> str:
    """Return the SQL that reads all parts of a table. There must be at least one part."""
    if names is Names.PATTERN:
        where = literal(str(audited.folder / table / "part-*.parquet"))
    else:
        paths = [url(f"{table}/{path.name}") if names is Names.OURS else str(path) for path in audited.files(table)]
        where = f"[{', '.join(map(literal, paths))}]"
    # A folder name such as `split=train` in the path is not a column.
    return f"read_parquet({where}, filename = {FILE_COLUMN}, file_row_number = true, union_by_name = true, {PLAIN})"


def sql_type(kind: pa.DataType) -> str:
    """Return DuckDB's name of an Arrow type."""
    return f"{sql_type(kind.value_type)}[]" if pa.types.is_list(kind) else TYPES[kind]


def in_memory(query: str, columns: Iterable[str], *, few_values: Mapping[str, list[str]] = FEW_VALUES) -> str:
    """Return a query of some columns of another query, for a table in memory that is queried often.

    Args:
        query: The query.
        columns: The columns to keep.
        few_values: All texts of the columns that have only a few values.
    """
    chosen = [
        f"{name}::ENUM({', '.join(map(literal, few_values[name]))}) AS {name}" if name in few_values else quoted(name)
        for name in columns
    ]
    return f"SELECT {', '.join(chosen)} FROM ({query})"


def _empty(schema: Iterable[pa.Field]) -> str:
    columns = ", ".join(f"NULL::{sql_type(field.type)} AS {quoted(field.name)}" for field in schema)
    return f"SELECT {columns} WHERE false"


def literal(value: str) -> str:
    """Return a string as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def quoted(value: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + value.replace('"', '""') + '"'
