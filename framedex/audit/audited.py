"""What is audited: an index or a dataset, on this machine; from object storage its tables are copied here first."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from framedex.errors import FormatError
from framedex.indexer import index as index_tables
from framedex.indexer.parts import check_format, part_numbers, part_path
from framedex.sharder import schema as dataset_tables
from framedex.storage.places import Place, Stored

Kind = Literal["index", "dataset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What is audited. place: as it was named. folder: where its tables lie on this machine. header: its JSON header. parts:
    the numbers of each table's parts, as they were when it was opened.
    """

    kind: Kind
    place: Place
    folder: Path
    header: dict[str, Any]
    parts: dict[str, list[int]]

    def tables(self) -> dict[str, Path]:
        """Return all files of it by their names in its folder."""
        parts = [part for table in self.parts for part in self.files(table)]
        single = [
            path for name in FILES[self.kind] if (path := self.file(name)) is not None and path.suffix == ".parquet"
        ]
        return {str(path.relative_to(self.folder)): path for path in [*parts, *single]}

    def files(self, table: str) -> list[Path]:
        """Return the files of a table that is written in parts."""
        return [part_path(self.folder / table, number) for number in self.parts[table]]

    def file(self, name: str) -> Path | None:
        """Return one file by its name, None where it is not there."""
        path = self.folder / name
        return path if path.exists() else None


TABLES: dict[Kind, tuple[str, ...]] = {
    "index": (index_tables.VIDEOS_FOLDER, index_tables.FRAMES_FOLDER),
    "dataset": (dataset_tables.CLIPS_FOLDER, dataset_tables.RECIPES_FOLDER, dataset_tables.MEDIA_FOLDER),
}
FILES: dict[Kind, tuple[str, ...]] = {
    "index": (index_tables.HEADER, index_tables.LISTING_NAME),
    "dataset": (dataset_tables.HEADER, dataset_tables.FAILURES_NAME, dataset_tables.SHARDS_NAME),
}


@contextlib.contextmanager
def opened(place: Place, *, frames: bool = True) -> Iterator[Audited]:
    """Open an index or a dataset. frames: an index's table of packets is needed, too. Raises FormatError."""
    kind = _kind_of(place)
    tables = [name for name in TABLES[kind] if frames or name != index_tables.FRAMES_FOLDER]
    parts = {name: part_numbers(place / name) if name in tables else [] for name in TABLES[kind]}
    if isinstance(place, Stored):
        with tempfile.TemporaryDirectory(prefix="framedex-audit-") as folder:
            _copy(place, kind, parts, Path(folder))
            yield _audited(kind, place, Path(folder), parts)
    else:
        yield _audited(kind, place, place.absolute(), parts)


def _kind_of(place: Place) -> Kind:
    """Return which of both a folder is; its header is checked by whoever reads it, for one."""
    if (place / index_tables.HEADER).exists():
        index_tables.read_header(place)
        return "index"
    if (place / dataset_tables.HEADER).exists():
        check_format(
            place,
            file_name=dataset_tables.HEADER,
            expected=dataset_tables.FORMAT,
            version=dataset_tables.SCHEMA_VERSION,
            what="a framedex dataset",
        )
        return "dataset"
    raise FormatError(
        "is neither an index nor a dataset",
        where=str(place),
        found=f"no {index_tables.HEADER} and no {dataset_tables.HEADER}",
        remedy="name the folder that framedex index or framedex shard wrote",
    )


def _audited(kind: Kind, place: Place, folder: Path, parts: dict[str, list[int]]) -> Audited:
    header = json.loads((folder / FILES[kind][0]).read_text(encoding="utf-8"))
    return Audited(kind=kind, place=place, folder=folder, header=header, parts=parts)


def _copy(place: Stored, kind: Kind, parts: dict[str, list[int]], folder: Path) -> None:
    """Copy the tables of an index or a dataset of object storage."""
    wanted = [name for name in FILES[kind] if (place / name).exists()]
    for table, numbers in parts.items():
        (folder / table).mkdir()
        wanted += [f"{table}/{part_path(place / table, number).name}" for number in numbers]
    for name in wanted:
        with (place / name).open() as source, open(folder / name, "wb") as copy:
            shutil.copyfileobj(source, copy, 8 << 20)
