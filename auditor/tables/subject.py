"""The index or dataset that is audited, and the SQL of its views.

Tables in object storage are copied to this machine first. The SQL of the views that read the Parquet files is written
by this module. The SQL of the views that users query is in views/*/*.sql and uses the former views.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from framedex.errors import FormatError
from framedex.files.headers import remedy_for
from framedex.files.parquet_parts import part_numbers, part_path
from framedex.indexer import schema as index_schema
from framedex.indexer.parts.index import UNPROVEN_MESSAGE
from framedex.indexer.schema import HEADER as INDEX_HEADER
from framedex.indexer.timeline import CONTAINER, COUNTED, DEALT, FILLED, JOINED, LISTED, UNSHOWN
from framedex.records.medium import COLOR_RANGES, EVERY_FRAME, FAILED, FIELD_ORDERS, GONE, IMAGES, OK, REFUSED, VIDEO
from framedex.sharder import schema as dataset_schema
from framedex.sharder.layout import Numbers, dataset_header, layout_of, read_layout, rows_name
from framedex.sharder.schema import HEADER as DATASET_HEADER
from framedex.storage.places import Place, local_folder, names_in, small_text

Kind = Literal["index", "dataset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The index or dataset that is audited.

    Attributes:
        kind: `index` or `dataset`.
        place: The path or uri that the user gave.
        folder: The local folder that contains the tables.
        header: The JSON header of the index or dataset.
        parts: The numbers of each table's parts at the time when the index or dataset was opened, in order.
        table_files: The names of the files of each table of TABLE_FILES, in order.
    """

    kind: Kind
    place: Place
    folder: Path
    header: dict[str, Any]
    parts: dict[str, list[int]]
    table_files: dict[str, list[str]]

    def tables(self) -> dict[str, Path]:
        """Return the paths of all Parquet files, by their paths relative to the folder."""
        parts = [part for table in self.parts for part in self.files(table)]
        single = [self.folder / name for names in self.table_files.values() for name in names]
        return {str(path.relative_to(self.folder)): path for path in [*parts, *single]}

    def files(self, table: str) -> list[Path]:
        """Return the paths of the parts of a table."""
        return [part_path(self.folder / table, number) for number in self.parts[table]]


# The tables that consist of parts. The first two tables have the same rows in the same order, part by part. Each part
# of the second table is written before the part of the first table with the same number. So if a part of the first
# table exists, the part of the second table must also exist.
TABLES: dict[Kind, tuple[str, ...]] = {
    "index": (index_schema.VIDEOS_FOLDER, index_schema.FRAMES_FOLDER),
    "dataset": (dataset_schema.CLIPS_FOLDER, dataset_schema.RECIPES_FOLDER, dataset_schema.MEDIA_FOLDER),
}
HEADERS: dict[Kind, str] = {"index": INDEX_HEADER, "dataset": DATASET_HEADER}


@contextlib.contextmanager
def opened(place: Place, *, frames: bool = True) -> Iterator[Audited]:
    """Open an index or a dataset. Raises FormatError.

    Args:
        place: The path or uri.
        frames: Whether to open the table of packets, if it is an index.
    """
    kind = _check_kind(place)
    tables = [name for name in TABLES[kind] if frames or name != index_schema.FRAMES_FOLDER]
    layout = read_layout(place) if kind == "dataset" else None
    if layout is not None:
        parts = {name: [part.number for part in layout.parts(name)] for name in TABLES[kind]}
        files = {
            name: [path.name for path in layout.paths(place, file)] for name, (file, _) in TABLE_FILES[kind].items()
        }
    else:
        parts = {name: part_numbers(place / name) if name in tables else [] for name in TABLES[kind]}
        single = TABLE_FILES[kind].items()
        files = {name: [file] if (place / file).exists() else [] for name, (file, _) in single}
    one, other = TABLES[kind][:2]
    there = {other: parts[other]} if layout is None else {name: part_numbers(place / name) for name in parts}
    for table, numbers in there.items():
        lacking = sorted({*parts[one if layout is None else table]}.difference(numbers)) if table in tables else []
        if lacking:
            raise FormatError(
                "a part of the tables is missing", where=str(place / table), found=f"no part {lacking[0]}"
            )
    if layout is not None and layout.has_rows:
        rows = place / dataset_schema.ROWS_FOLDER
        both = (dataset_schema.CLIPS_FOLDER, dataset_schema.MEDIA_FOLDER)
        names = {rows_name(table, number) for table in both for number in parts[table]}
        lost = sorted(names.difference(f"{rows.name}/{name}" for name in names_in(rows)))
        if lost:
            raise FormatError("a file of rows is missing", where=str(place / lost[0]))
    wanted = [HEADERS[kind], *(name for names in files.values() for name in names)]
    wanted += [f"{table}/{part_path(place / table, number).name}" for table in parts for number in parts[table]]
    with local_folder(place, wanted) as folder:
        for name in wanted:  # DuckDB would wait forever for the content of a pipe
            if not (folder / name).is_file():
                raise FormatError("is missing or not a regular file", where=str(place / name))
        header = json.loads(small_text(folder / HEADERS[kind]))
        yield Audited(kind=kind, place=place, folder=folder, header=header, parts=parts, table_files=files)


def _check_kind(place: Place) -> Kind:
    """Return the kind of a folder, and check its header. Raises FormatError."""
    if (place / INDEX_HEADER).exists():
        index_schema.read_header(place)
        return "index"
    if (place / DATASET_HEADER).exists():
        dataset_header(place)
        return "dataset"
    raise FormatError(
        "is neither an index nor a dataset",
        where=str(place),
        found=f"no {INDEX_HEADER} and no {DATASET_HEADER}",
        remedy=remedy_for(place),
    )


# The views. Each view uses only views before it.
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
INNER = ("repeated", "superseded", "media")  # views that only other views use, and that are not documented
# The columns of `videos` from which `source_files` determines whether a source is unchanged.
OF_SOURCES = ("media_id", "uri", "kind", "container", "size_bytes", "mtime_ns", "fingerprint")
# Text columns with few distinct values, and their values. They are stored as enums, which DuckDB copies and compares
# faster than texts. DuckDB sorts enums by the positions of their values, so the values are in alphabetical order.
FEW_VALUES = {
    "status": sorted((OK, REFUSED, FAILED, GONE)),
    "kind": sorted((VIDEO, IMAGES)),
    "pts_source": sorted((CONTAINER, FILLED, JOINED, DEALT, COUNTED, LISTED)),
    "color_range": sorted(COLOR_RANGES.values()),
    "field_order": sorted(FIELD_ORDERS.values()),
}
PARTS: dict[str, pa.Schema] = {
    index_schema.VIDEOS_FOLDER: index_schema.VIDEOS,
    index_schema.FRAMES_FOLDER: index_schema.FRAMES,
    dataset_schema.CLIPS_FOLDER: dataset_schema.CLIPS,
    dataset_schema.RECIPES_FOLDER: dataset_schema.RECIPES,
    dataset_schema.MEDIA_FOLDER: dataset_schema.MEDIA,
}
TABLE_FILES: dict[Kind, dict[str, tuple[str, pa.Schema]]] = {
    "index": {"listing": (index_schema.LISTING_NAME, index_schema.LISTING)},
    "dataset": {
        "failures": (dataset_schema.FAILURES_NAME, dataset_schema.FAILURES),
        "shards": (dataset_schema.SHARDS_NAME, dataset_schema.SHARDS),
    },
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

FILE_COLUMN = "_framedex_file"  # name of the column with the path of the Parquet file. No other column has this name
PLAIN = "hive_partitioning = false"  # folder names such as `split=train` in the path must not become columns
PROTOCOL = "framedex"  # protocol of the uris by which queries refer to the files of the index or dataset

Columns = Mapping[str, Iterable[str]]  # names of the columns in the Parquet files, by table


class Names(Enum):
    """How queries refer to files.

    OURS: By uris of PROTOCOL. PATHS: By their paths. PATTERN: By a pattern that also matches parts of an index that are
    written later. A dataset must not have changed.
    """

    OURS = "ours"
    PATHS = "paths"
    PATTERN = "pattern"


def url(name: str) -> str:
    """Return the uri of PROTOCOL for a file of the index or dataset. `name` is its path relative to the folder."""
    return f"{PROTOCOL}://{name}"


def statements(audited: Audited, columns: Columns, names: Names) -> dict[str, str]:
    """Return the query of each view, by the name of the view. A view comes after all views that it uses."""
    found = {f"{table}_parts": _parts(audited, table, columns, names) for table in audited.parts}
    for name, (_, schema) in TABLE_FILES[audited.kind].items():
        paths = [url(file) if names is Names.OURS else str(audited.folder / file) for file in audited.table_files[name]]
        where = f"[{', '.join(map(literal, paths))}]"
        found[f"{name}_file"] = f"SELECT * FROM read_parquet({where}, {PLAIN})" if paths else _empty(schema)
    if audited.kind == "dataset" and names is Names.PATTERN:
        found = {name: f"SELECT * FROM ({query}) WHERE {_unchanged(audited)}" for name, query in found.items()}
    values = {
        "unshown": str(UNSHOWN),
        "scanned": ", ".join(map(literal, sorted(index_schema.SCANNED))),
        "every_frame": literal(EVERY_FRAME),
        "unproven": literal(index_schema.UNPROVEN),
        "unproven_message": literal(UNPROVEN_MESSAGE),
    }
    if audited.kind == "dataset":
        own = [name for name in columns[dataset_schema.CLIPS_FOLDER] if name not in dataset_schema.CLIPS.names]
        layout = layout_of(audited.header)
        values["media_shift"] = _shift_after(layout.media_numbers, "p.first + m._row")
        values["shard_shift"] = _shift_after(layout.shard_numbers, "row")
        values["user_columns"] = "".join(f", c.{quoted(name)}" for name in own)
    for name in VIEWS[audited.kind]:
        query = "\n".join(line for line in _view_lines(audited.kind, name) if not line.startswith("--"))
        found[name] = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], query).strip()
    return found


def _unchanged(audited: Audited) -> str:
    """Return an SQL condition that is true, or an error if the header of the dataset is not the audited one."""
    header = audited.folder / DATASET_HEADER
    now = f"(SELECT md5(content) FROM read_blob({literal(str(header))}))"
    then = literal(hashlib.md5(header.read_bytes(), usedforsecurity=False).hexdigest())
    what = literal(f"{audited.place}: the dataset was changed, so write this database again")
    return f"CASE WHEN {now} = {then} THEN true ELSE error({what}) END"


def _shift_after(numbers: Numbers, position: str) -> str:
    """Return the SQL expression of the difference between a row's number and its position, given as an expression."""
    shifts = ", ".join(f"({at}, {shift})" for at, shift in numbers.shifts.tolist())
    if not shifts:
        return "0"
    table = f"(VALUES {shifts}) AS shifts(begin_row, shift)"
    return f"coalesce((SELECT max(shift) FROM {table} WHERE begin_row <= {position}), 0)"


def described(kind: Kind) -> dict[str, str]:
    """Return a description of each view that users query, by the name of the view."""
    return {
        name: " ".join(line.removeprefix("-- ") for line in _view_lines(kind, name) if line.startswith("-- "))
        for name in VIEWS[kind]
        if name not in INNER
    }


def _view_lines(kind: Kind, name: str) -> list[str]:
    """Return the lines of a view's .sql file, which has a comment, and a query with placeholders in braces."""
    return (files("framedex.auditor") / "views" / kind / f"{name}.sql").read_text(encoding="utf-8").splitlines()


def _parts(audited: Audited, table: str, columns: Columns, names: Names) -> str:
    """Return a query of all rows of a table. It adds the number of each row's part, and the position in the part."""
    schema = PARTS[table]
    if not audited.parts[table]:
        return f"SELECT 0 AS _part, 0::BIGINT AS _row, * FROM ({_empty(schema)})"
    existing = set(columns[table])
    absent = [field for field in schema if field.name not in existing]
    rows = reader(audited, table, names)
    if absent:  # UNION ALL BY NAME, since parts that are written later may have these columns
        rows = f"(SELECT * FROM {rows} UNION ALL BY NAME {_empty(absent)})"
    part = f"regexp_extract({FILE_COLUMN}, 'part-(\\d+)\\.parquet$', 1)::INTEGER"
    if audited.kind == "dataset":  # its parts are in the order of the header
        part = f"(list_position({audited.parts[table]}, {part}) - 1)"
    return f"""SELECT {part} AS _part, file_row_number AS _row,
    * EXCLUDE ({FILE_COLUMN}, file_row_number)
FROM {rows}"""


def reader(audited: Audited, table: str, names: Names) -> str:
    """Return the SQL expression that reads all parts of a table. There must be at least one part."""
    if names is Names.PATTERN and audited.kind == "index":
        where = literal(str(audited.folder / table / "part-*.parquet"))
    else:
        paths = [url(f"{table}/{path.name}") if names is Names.OURS else str(path) for path in audited.files(table)]
        where = f"[{', '.join(map(literal, paths))}]"
    return f"read_parquet({where}, filename = {FILE_COLUMN}, file_row_number = true, union_by_name = true, {PLAIN})"


def sql_type(kind: pa.DataType) -> str:
    """Return the name of the DuckDB type for an Arrow type."""
    return f"{sql_type(kind.value_type)}[]" if pa.types.is_list(kind) else TYPES[kind]


def in_memory(query: str, columns: Iterable[str], *, few_values: Mapping[str, list[str]] = FEW_VALUES) -> str:
    """Return a query that selects columns of another query, to create a table in memory.

    Args:
        query: The other query.
        columns: The names of the columns to select.
        few_values: The values of columns that become enums, by column.
    """
    enums = {name: f"{name}::ENUM({', '.join(map(literal, values))}) AS {name}" for name, values in few_values.items()}
    return f"SELECT {', '.join(enums.get(name) or quoted(name) for name in columns)} FROM ({query})"


def _empty(schema: Iterable[pa.Field]) -> str:
    columns = ", ".join(f"NULL::{sql_type(field.type)} AS {quoted(field.name)}" for field in schema)
    return f"SELECT {columns} WHERE false"


def literal(value: str) -> str:
    """Return a string as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def quoted(value: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + value.replace('"', '""') + '"'
