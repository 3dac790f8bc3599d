"""The subject of an audit: an index or a dataset on this machine. Tables in object storage are copied here first."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from framedex.errors import FormatError
from framedex.files.folder_kinds import remedy_for
from framedex.files.headers import check_format
from framedex.files.parquet_parts import part_numbers, part_path
from framedex.indexer.parts.layout import FRAMES_FOLDER, LISTING_NAME, VIDEOS_FOLDER, read_header
from framedex.indexer.parts.layout import HEADER as INDEX_HEADER
from framedex.sharder.schema import (
    CLIPS_FOLDER,
    FAILURES_NAME,
    FORMAT,
    MEDIA_FOLDER,
    RECIPES_FOLDER,
    SCHEMA_VERSION,
    SHARDS_NAME,
)
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
        single = [
            path for name in FILES[self.kind] if (path := self.file(name)) is not None and path.suffix == ".parquet"
        ]
        return {str(path.relative_to(self.folder)): path for path in [*parts, *single]}

    def files(self, table: str) -> list[Path]:
        """Return the files of a table that is written in parts."""
        return [part_path(self.folder / table, number) for number in self.parts[table]]

    def file(self, name: str) -> Path | None:
        """Return the path of a single file, or None if it does not exist."""
        path = self.folder / name
        return path if path.exists() else None


TABLES: dict[Kind, tuple[str, ...]] = {
    "index": (VIDEOS_FOLDER, FRAMES_FOLDER),
    "dataset": (CLIPS_FOLDER, RECIPES_FOLDER, MEDIA_FOLDER),
}
# Tables whose rows belong together, part by part. A part of the second table is written first.
PAIRED: dict[Kind, tuple[str, str]] = {
    "index": (VIDEOS_FOLDER, FRAMES_FOLDER),
    "dataset": (CLIPS_FOLDER, RECIPES_FOLDER),
}
FILES: dict[Kind, tuple[str, ...]] = {
    "index": (INDEX_HEADER, LISTING_NAME),
    "dataset": (DATASET_HEADER, FAILURES_NAME, SHARDS_NAME),
}


@contextlib.contextmanager
def opened(place: Place, *, frames: bool = True) -> Iterator[Audited]:
    """Open an index or a dataset. `frames`: whether an index's table of packets is needed. Raises FormatError."""
    kind = _kind_of(place)
    tables = [name for name in TABLES[kind] if frames or name != FRAMES_FOLDER]
    parts = {name: part_numbers(place / name) if name in tables else [] for name in TABLES[kind]}
    one, other = PAIRED[kind]
    lacking = sorted(set(parts[one]) - set(parts[other])) if other in tables else []
    if lacking:
        raise FormatError("a part of the tables is missing", where=str(place / other), found=f"no part {lacking[0]}")
    wanted = [name for name in FILES[kind] if (place / name).exists()]
    wanted += [f"{table}/{part_path(place / table, number).name}" for table in parts for number in parts[table]]
    with local_folder(place, wanted) as folder:
        header = json.loads(small_text(folder / FILES[kind][0]))
        yield Audited(kind=kind, place=place, folder=folder, header=header, parts=parts)


def _kind_of(place: Place) -> Kind:
    """Return whether a folder is an index or a dataset, after a check of its header."""
    if (place / INDEX_HEADER).exists():
        read_header(place)
        return "index"
    if (place / DATASET_HEADER).exists():
        check_format(
            place,
            file_name=DATASET_HEADER,
            expected=FORMAT,
            version=SCHEMA_VERSION,
            what="a framedex dataset",
        )
        return "dataset"
    raise FormatError(
        "is neither an index nor a dataset",
        where=str(place),
        found=f"no {INDEX_HEADER} and no {DATASET_HEADER}",
        remedy=remedy_for(place),
    )
