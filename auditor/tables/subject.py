"""The subject of an audit, an index or a dataset, and the SQL of its views.

Tables in object storage are copied to this machine first. This module writes the views that read the files. The views
that users query are in views/*/*.sql and build on them.
"""

import contextlib
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
from framedex.files.headers import check_format, remedy_for
from framedex.files.parquet_parts import part_numbers, part_path
from framedex.indexer import schema as index_schema
from framedex.indexer.parts.index import UNPROVEN_MESSAGE
from framedex.indexer.schema import HEADER as INDEX_HEADER
from framedex.indexer.timeline import CONTAINER, COUNTED, DEALT, FILLED, JOINED, LISTED, UNSHOWN
from framedex.records.medium import COLOR_RANGES, EVERY_FRAME, FAILED, FIELD_ORDERS, GONE, IMAGES, OK, REFUSED, VIDEO
from framedex.sharder import schema as dataset_schema
from framedex.sharder.schema import HEADER as DATASET_HEADER
from framedex.storage.places import Place, local_folder, small_text

Kind = Literal["index", "dataset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The index or dataset of an audit.

    Attributes:
        kind: `index` or `dataset`.
        place: The path or uri that the user gave.
        folder: The local folder with its tables.
        header: Its JSON header.
        parts: The numbers of the parts of each table when it was opened.
    """

    kind: Kind
    place: Place
    folder: Path
    header: dict[str, Any]
    parts: dict[str, list[int]]

    def tables(self) -> dict[str, Path]:
        """Return the paths of all its tables by their names in the folder."""
        parts = [part for table in self.parts for part in self.files(table)]
        single = [path for file, _ in TABLE_FILES[self.kind].values() if (path := self.folder / file).exists()]
        return {str(path.relative_to(self.folder)): path for path in [*parts, *single]}

    def files(self, table: str) -> list[Path]:
        """Return the files of a table that is written in parts."""
        return [part_path(self.folder / table, number) for number in self.parts[table]]


# The rows of the first two tables belong together, part by part. A part of the second table is written first, so it
# must be there.
TABLES: dict[Kind, tuple[str, ...]] = {
    "index": (index_schema.VIDEOS_FOLDER, index_schema.FRAMES_FOLDER),
    "dataset": (dataset_schema.CLIPS_FOLDER, dataset_schema.RECIPES_FOLDER, dataset_schema.MEDIA_FOLDER),
}
HEADERS: dict[Kind, str] = {"index": INDEX_HEADER, "dataset": DATASET_HEADER}


@contextlib.contextmanager
def opened(place: Place, *, frames: bool = True) -> Iterator[Audited]:
    """Open an index or a dataset. `frames`: whether an index's table of packets is needed. Raises FormatError."""
    kind = _check_kind(place)
    tables = [name for name in TABLES[kind] if frames or name != index_schema.FRAMES_FOLDER]
    parts = {name: part_numbers(place / name) if name in tables else [] for name in TABLES[kind]}
    one, other = TABLES[kind][:2]
    lacking = sorted(set(parts[one]) - set(parts[other])) if other in tables else []
    if lacking:
        raise FormatError("a part of the tables is missing", where=str(place / other), found=f"no part {lacking[0]}")
    files = [HEADERS[kind], *(file for file, _ in TABLE_FILES[kind].values())]
    wanted = [name for name in files if (place / name).exists()]
    wanted += [f"{table}/{part_path(place / table, number).name}" for table in parts for number in parts[table]]
    with local_folder(place, wanted) as folder:
        header = json.loads(small_text(folder / HEADERS[kind]))
        yield Audited(kind=kind, place=place, folder=folder, header=header, parts=parts)


def _check_kind(place: Place) -> Kind:
    """Return whether a folder is an index or a dataset, after a check of its header."""
    if (place / INDEX_HEADER).exists():
        index_schema.read_header(place)
        return "index"
    if (place / DATASET_HEADER).exists():
        check_format(
            place,
            file_name=DATASET_HEADER,
            expected=dataset_schema.FORMAT,
            version=dataset_schema.SCHEMA_VERSION,
            what="a framedex dataset",
        )
        return "dataset"
    raise FormatError(
        "is neither an index nor a dataset",
        where=str(place),
        found=f"no {INDEX_HEADER} and no {DATASET_HEADER}",
        remedy=remedy_for(place),
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
# Columns with few different texts, and these texts, sorted. DuckDB copies and compares enums faster than texts. DuckDB
# orders an enum by the positions of its values, so sorted values keep the order of the texts.
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

FILE_COLUMN = "_framedex_file"  # a name that no other column has
PLAIN = "hive_partitioning = false"  # a folder name such as `split=train` in the path is not a column
PROTOCOL = "framedex"  # queries name the files of the index or dataset by uris of this protocol

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
    """Return the query of each view by name. Views come after the views that they build on."""
    found = {f"{table}_parts": _parts(audited, table, columns, names) for table in audited.parts}
    for name, (file, schema) in TABLE_FILES[audited.kind].items():
        where = literal(url(file) if names is Names.OURS else str(audited.folder / file))
        exists = (audited.folder / file).exists()
        found[f"{name}_file"] = f"SELECT * FROM read_parquet({where}, {PLAIN})" if exists else _empty(schema)
    values = {
        "unshown": str(UNSHOWN),
        "scanned": ", ".join(map(literal, sorted(index_schema.SCANNED))),
        "every_frame": literal(EVERY_FRAME),
        "unproven": literal(index_schema.UNPROVEN),
        "unproven_message": literal(UNPROVEN_MESSAGE),
    }
    if audited.kind == "dataset":
        own = [name for name in columns[dataset_schema.CLIPS_FOLDER] if name not in dataset_schema.CLIPS.names]
        values["user_columns"] = "".join(f", c.{quoted(name)}" for name in own)
    for name in VIEWS[audited.kind]:
        query = "\n".join(line for line in _view_lines(audited.kind, name) if not line.startswith("--"))
        found[name] = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], query).strip()
    return found


def described(kind: Kind) -> dict[str, str]:
    """Return a description of each view that users query, in one sentence."""
    comments = {
        name: [line.removeprefix("-- ") for line in _view_lines(kind, name) if line.startswith("-- ")]
        for name in VIEWS[kind]
        if name not in INNER
    }
    return {name: " ".join(lines) for name, lines in comments.items()}


def _view_lines(kind: Kind, name: str) -> list[str]:
    """Return the lines of the file of a view: a comment, and a query with values in braces."""
    return (files("framedex.auditor") / "views" / kind / f"{name}.sql").read_text(encoding="utf-8").splitlines()


def _parts(audited: Audited, table: str, columns: Columns, names: Names) -> str:
    """Return a query of the rows of all parts of a table, with the number of the part and the row's position in it."""
    schema = PARTS[table]
    if not audited.parts[table]:
        return f"SELECT 0 AS _part, 0::BIGINT AS _row, * FROM ({_empty(schema)})"
    existing = set(columns[table])
    absent = [field for field in schema if field.name not in existing]
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
