"""Change a dataset: write new files, replace the header, and delete the files that the header does not name any more.

Replacing the header is atomic, on a disk and in object storage, so readers see the dataset before or after the change.
If a run is killed, the same command completes the change.
"""

import contextlib
import hashlib
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.core.column_rules import reading
from framedex.errors import FormatError, OutputError
from framedex.files.changes import LOG_NAME, log_change, read_changes
from framedex.files.outputs import Output, StoredOutput, opened_output, remove_unfinished, write_json_aside
from framedex.files.parquet_parts import part_path, read_file
from framedex.indexer.sources.discover import media_id
from framedex.sharder.layout import REMEDY, Layout, Part
from framedex.sharder.packing.tars import index_path
from framedex.sharder.schema import (
    APPENDED_FOLDERS,
    CLAIM_NAME,
    FOLDER_NAMES,
    HEADER,
    MEDIA_FOLDER,
    OWN_NAME,
    POLICY_NAME,
    REMOVED_NAME,
    SHARDS_NAME,
)
from framedex.storage.objects import upload
from framedex.storage.places import Place, Stored, parquet_file, read_each

Row = dict[str, Any]

COMMAND = "shard"


def possible_ids(name: str) -> Iterator[str]:
    """Yield the ids that a medium of a name may have. It may be a medium in a file, whose name ends before a slash."""
    yield media_id(name)
    for at, character in enumerate(name):
        if character == "/":
            yield media_id(name[:at], member=name[at + 1 :])


def digest_of(*texts: str) -> str:
    """Return a digest of texts as 32 hex digits."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def rows_of(parts: Sequence[Part]) -> int:
    return sum(part.rows for part in parts)


def replace_header(
    output: Output, before: bytes, old: Layout, new: Layout, generation: int, facts: Row, digests: list[bytes]
) -> None:
    """Replace the header of a dataset, which makes a change visible to readers.

    Args:
        output: The dataset.
        before: The header before the change.
        old: The layout before the change.
        new: The layout after it.
        generation: The generation after it.
        facts: Other keys to replace.
        digests: Digests of the content that the change adds.
    """
    header = json.loads(before)
    digest = hashlib.blake2b(str(header.get("build")).encode(), digest_size=16)
    digest.update(json.dumps(new.facts(), sort_keys=True).encode() + b"".join(digests))
    earlier = {"generation": header.get("generation") or 1, "checksum": zlib.crc32(before), "clips": rows_of(old.clips)}
    kept = {name: value for name, value in header.items() if name not in ("clips_per_part", "media_per_part", "job")}
    kept |= new.facts() | facts | {"generation": generation, "before": [*(header.get("before") or []), earlier]}
    write_json_aside(output.local / HEADER, kept | {"build": digest.hexdigest()})
    output.publish(output.local / HEADER)


@contextlib.contextmanager
def opened_dataset(out: Place, asked: Row) -> Iterator[Output]:
    """Open a dataset for one change at a time. In object storage, a claim keeps other changes away."""
    with opened_output(out, HEADER, LOG_NAME, CLAIM_NAME) as output:
        claim = output.local / CLAIM_NAME
        if isinstance(out, Stored):
            mine = {"command": COMMAND, "options": asked}
            theirs = json.loads(claim.read_bytes()) if claim.exists() else None
            if theirs is not None and theirs != mine:
                raise OutputError(
                    "another run is changing this dataset, or was interrupted",
                    where=str(out / CLAIM_NAME),
                    found=json.dumps(theirs)[:200],
                    remedy="if it is running, wait for its end. If it was interrupted, repeat its command first, or "
                    "delete this object if the command cannot be repeated",
                )
            if theirs is None:
                write_json_aside(claim, mine)
                output.publish(claim)
        for folder in (output.local, *(output.local / name for name in FOLDER_NAMES)):
            remove_unfinished(folder)
        yield output
        if isinstance(out, Stored):
            output.remove(CLAIM_NAME)


def complete_log(output: Output, generation: int) -> None:
    """Complete the line of the log of a change that was killed after it had replaced the header."""
    last = next(reversed(read_changes(output.where)), None)
    if last is not None and last.counts is None and last.generation == generation:
        log_change(output, generation, last.command, last.options, {})


def remove_folder(folder: Path) -> None:
    """Delete a folder if it exists. Raises OSError if a file in it cannot be deleted."""
    if folder.exists():
        shutil.rmtree(folder)


def sweep(output: Output, layout: Layout) -> None:
    """Delete the files of a dataset that its header does not name, and clips that a killed run was about to append."""
    for name in APPENDED_FOLDERS:
        remove_folder(output.local / name)
    kept = {*layout.names(output.where), HEADER, LOG_NAME, CLAIM_NAME, POLICY_NAME}
    if (shards := layout.read(output.where, SHARDS_NAME, ["name"])) is not None:
        tars = [Path(name) for name in shards["name"].to_pylist()]
        kept.update(str(path) for tar in tars for path in (tar, index_path(tar)))
    for name in names_of(output.where):
        if OWN_NAME.fullmatch(name) and name not in kept:
            output.remove(name)


def names_of(where: Place) -> list[str]:
    """Return the names of all files of a dataset, relative to it."""
    if isinstance(where, Stored):
        return where.names()
    return [
        path.relative_to(where).as_posix()
        for folder in (where, *(where / name for name in FOLDER_NAMES))
        if folder.is_dir()
        for path in folder.iterdir()
        if path.name not in FOLDER_NAMES
    ]


def removed_of(out: Place, layout: Layout) -> list[Row]:
    """Return the rows of the table `removed` of a dataset."""
    table = table_in_files(out, layout, REMOVED_NAME)
    return [] if table is None else table.to_pylist()


def table_of_media(out: Place, layout: Layout) -> pa.Table:
    """Return the names of all media of a dataset, with the columns `media_id`, `uri` and `member`."""
    columns = ["media_id", "uri", "member"]
    tables = part_columns(out, layout, MEDIA_FOLDER, columns)
    return pa.concat_tables([table.select(columns) for table in tables]).combine_chunks()


def part_columns(out: Place, layout: Layout, folder: str, columns: list[str]) -> list[pa.Table]:
    """Return columns of each part of a table. A column that a part lacks is null."""

    def read(part: Part) -> pa.Table:
        path = part_path(out / folder, part.number)
        with reading(str(path), REMEDY), parquet_file(path) as file:
            table = read_file(file, path, columns)
        if len(table) != part.rows:
            raise FormatError(
                "the number of rows differs from the header", where=str(path), found=len(table), allowed=part.rows
            )
        for name in columns:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table), pa.string()))
        return table

    return read_each(out, read, layout.parts(folder))


def table_in_files(out: Place, layout: Layout, name: str) -> pa.Table | None:
    with reading(str(out / name), REMEDY):
        table = layout.read(out, name)
    return None if table is None else table.combine_chunks()


def publish(output: Output, path: Path) -> None:
    """Make a new file visible to readers. They ignore it until the header names it.

    An interrupted run of the same command wrote the same bytes, if it wrote the file.
    """
    if isinstance(output, StoredOutput):
        upload(path, f"{output.where}/{path.relative_to(output.local).as_posix()}")
        path.unlink()


def next_number(numbers: Any) -> int:
    """Return the least number that is greater than all given numbers."""
    return max(numbers, default=-1) + 1
