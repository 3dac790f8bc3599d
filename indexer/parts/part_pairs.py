"""Write the tables of an index: pairs of parts of `videos` and `frames`, and the listing.

A part is a numbered Parquet file with some rows of a table. The listing has the mentions of media (the rows of the
user's listings), with the user's columns.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from framedex.errors import OutputError, SourceError
from framedex.files.outputs import Output
from framedex.files.parquet_parts import UNSTORABLE, PartWriter, part_numbers, part_path, table_of
from framedex.indexer import schema
from framedex.indexer.sources import named_medium
from framedex.indexer.sources.discover import RESERVED_COLUMNS, media_id
from framedex.records.columns import Row
from framedex.records.medium import gaps_of
from framedex.storage.places import Place
from framedex.storage.uris import relative

# The number of files per part. A killed run loses the results of at most this many files. A slice of a run (--task)
# consists of whole parts, so it probes at least this many files if there are enough files.
FILES_A_PART = 256
VERIFIED_FILES_A_PART = 32  # the same with --verify, where probing a file takes longer
VIDEOS_A_ROW_GROUP = 8192  # number of rows per row group of `videos`; a lookup reads one row group (decision 0019)


class PartPairs:
    """A writer of pairs of parts: one part of `frames`, and one part of `videos` with the same number.

    The part of `frames` is written first. Readers see the pair as soon as the part of `videos` exists.

    All parts but the last have the rows of a fixed number of files. So the same files always become the same parts,
    whichever processes probe the files and however long this takes.

    Args:
        index: The index directory.
        numbers: The numbers of the parts to write. If None, the first number is the number after the existing parts.
        files_a_part: The number of files per part.
        generation: The generation of the index that is written. None if the rows have generations already.
    """

    def __init__(
        self,
        index: Path | Output,
        *,
        numbers: Iterable[int] | None = None,
        files_a_part: int = FILES_A_PART,
        generation: int | None = None,
    ) -> None:
        self._output = index if isinstance(index, Output) else Output(index)
        self._folders = self._output.local / schema.VIDEOS_FOLDER, self._output.local / schema.FRAMES_FOLDER
        self._numbers = iter(itertools.count(next_part(self._output.where)) if numbers is None else numbers)
        self._files_a_part, self._generation = files_a_part, generation
        self._clear()

    def _clear(self) -> None:
        self._writer: PartWriter | None = None
        self._number = -1
        self._videos: list[Any] = []
        self._group: list[Any] = []
        self._group_packets = self._packets = self._files = 0

    @staticmethod
    def _table(rows: list[Any], columns: pa.Schema) -> pa.Table:
        return table_of(rows, columns)

    def add(self, rows: Sequence[tuple[Row, Row]], files: int = 1) -> None:
        """Add the rows of the media in one file. If enough files have been added, write a pair of parts.

        Args:
            rows: The rows of `videos` and `frames` for each medium.
            files: The number of files that the rows count as.
        """
        for video, frames in rows:
            gaps = {
                f"{kind}gap": gaps_of(frames[f"{kind}offset"], frames[f"{kind}size"])
                for kind in ("", "audio_")
                if frames.get(f"{kind}offset") is not None
            }
            self._add_frames(frames | gaps, len(frames["size"]))
            self._videos.append(
                video | {"generation": self._generation}
            )  # last, so that an interrupt above leaves no video without frames
        self._files += files
        if self._files >= self._files_a_part:
            self.flush()

    def _add_frames(self, frames: Any, packets: int) -> None:
        """Add a medium's row of `frames` to the row group. If the group would become too large, start a new one.

        Args:
            frames: The row.
            packets: The number of packets in the row.
        """
        if self._group and self._group_packets + packets > schema.FRAMES_PER_ROW_GROUP:
            self._write_group()
        self._group.append(frames)
        self._group_packets += packets
        self._packets += packets

    def flush(self) -> None:
        """Write a pair of parts with the rows that have been added since the last pair."""
        if not self._files:
            return
        self._write_group().commit()
        self._output.publish(part_path(self._folders[1], self._number))
        videos, path = self._table(self._videos, schema.VIDEOS), part_path(self._folders[0], self._number)
        writer = PartWriter(path, schema.VIDEOS, version=schema.SCHEMA_VERSION)
        for first in range(0, max(1, len(videos)), VIDEOS_A_ROW_GROUP):
            writer.write(videos.slice(first, VIDEOS_A_ROW_GROUP).combine_chunks())
        writer.commit()
        self._output.publish(path)
        self._clear()

    def _write_group(self) -> PartWriter:
        if self._writer is None:
            self._number = next(self._numbers)
            path = part_path(self._folders[1], self._number)
            self._writer = PartWriter(path, schema.FRAMES, version=schema.SCHEMA_VERSION, delta=schema.DELTA_COLUMNS)
        self._writer.write(self._table(self._group, schema.FRAMES).combine_chunks())
        self._group, self._group_packets = [], 0
        return self._writer


def next_part(index: Place) -> int:
    """Return the number for the next part: one more than the highest part number of both tables."""
    numbers = *part_numbers(index / schema.VIDEOS_FOLDER), *part_numbers(index / schema.FRAMES_FOLDER)
    return max(numbers, default=-1) + 1


# The mentions that a run removes from a listing: by the id of the medium in the listing, the sources that do not name
# it any more. None stands for all sources.
Pruned = Mapping[str, Set[str] | None]
NOTHING_PRUNED: Pruned = {}
MAX_COLUMNS = 500  # largest number of columns from keys of JSON sidecars; with more keys, JSON texts are stored


def listing_table(
    old: pa.Table | None,
    listed: Sequence[named_medium.NamedMedium],
    root: str,
    members: Mapping[str, Mapping[str, str | None]],
    sidecars: Sequence[named_medium.Sidecar] = (),
    pruned: Pruned = NOTHING_PRUNED,
) -> pa.Table:
    """Return the new listing: the mentions of this run, and earlier mentions of media that this run does not mention.

    A mention without user columns does not replace earlier mentions of the medium that have user columns. For example,
    a user may add a file to an indexed folder and index the folder again. Then the other files keep their user columns.
    The sources of earlier mentions remain in `named_by`, after the sources that the values of user columns come from.

    Args:
        old: The previous listing. None if the index is new.
        listed: The mentions of this run.
        root: The folder that the URIs of media are relative to.
        members: For the URI of each tar or Parquet file, a dictionary from the names of its members to their sidecars
            as JSON or None. A mention of the file counts as a mention of each of its members.
        sidecars: The kinds of sidecars that become columns.
        pruned: The earlier mentions that sources no longer have.

    Raises:
        SourceError: A user column has values that cannot be stored.
        OutputError: The type of a user column differs from the type in the previous listing.
    """
    if old is not None:
        old = without_pruned(old, pruned)
    rows, of_sidecars = _rows(listed, root, members, sidecars, flat=True)
    if len(of_sidecars) > MAX_COLUMNS:
        rows, of_sidecars = _rows(listed, root, members, sidecars, flat=False)
    inside = {media_id(uri, member=name): text for uri, some in members.items() for name, text in some.items()}
    if old is not None:
        rows = _with_own_columns(rows, old, inside)
    seen = {row["media_id"] for row in rows}
    # Before the members of a tar or a Parquet file are known, the listing has a row for the whole file. This row is
    # replaced, too.
    seen |= {media_id(uri) for uri, some in members.items() if some}
    names = list(dict.fromkeys(name for row in rows for name in row if name not in schema.LISTING.names))
    table = pa.table(
        [pa.array([row[field.name] for row in rows], field.type) for field in schema.LISTING]
        + [_user_column(name, [row.get(name) for row in rows], is_sidecar=name in of_sidecars) for name in names],
        names=schema.LISTING.names + names,
    )
    if old is None:
        return table
    plain = {row["media_id"] for row in rows if len(row) == len(schema.LISTING) and inside.get(row["media_id"]) is None}
    identities = old["media_id"].to_pylist()
    plain &= set(identities)
    keep = [identity not in seen or identity in plain for identity in identities]
    old, table = _with_sources_of(old, table), _with_sources_of(table, old)
    table = table.filter(pa.array([row["media_id"] not in plain for row in rows], pa.bool_()))
    old, table = _of_one_type(old, table, of_sidecars)
    try:
        return pa.concat_tables([old.filter(pa.array(keep, pa.bool_())), table], promote_options="permissive")
    except pa.ArrowException as error:
        raise OutputError(
            "a user column changed its type since the last run",
            where="the listing of the index",
            found=error,
            remedy="keep the type of the column, or write a new index",
        ) from error


def without_pruned(listing: pa.Table, pruned: Pruned) -> pa.Table:
    """Return a listing of an earlier run without some mentions. If it lacks the column `named_by`, it gets the column.

    A mention of several sources remains if another source has it. If the values of its user's columns came from a
    source that no longer has it, they become null.
    """
    kind = schema.LISTING.field(schema.NAMED_BY).type
    if schema.NAMED_BY not in listing.column_names:
        place = sum(name in schema.LISTING.names for name in listing.column_names)  # before the user's columns
        listing = listing.add_column(place, schema.NAMED_BY, pa.nulls(len(listing), kind))
    if not pruned:
        return listing
    kept: list[int] = []
    named_by: list[list[str] | None] = []
    with_values: list[int | None] = []  # the rows of the user's columns; None for values to clear
    sources = listing[schema.NAMED_BY].to_pylist()
    for row, (identity, before) in enumerate(zip(listing["media_id"].to_pylist(), sources, strict=True)):
        after = before
        if identity in pruned:
            lost = pruned[identity]
            if lost is None:
                continue
            after = before and [name for name in before if name not in lost]
            if before and not after:
                continue
        kept.append(row)
        named_by.append(after)
        with_values.append(None if before and after and before[0] != after[0] else row)
    own = [name for name in listing.column_names if name not in schema.LISTING.names]
    columns = dict(zip(listing.column_names, listing.take(pa.array(kept, pa.int64())).columns, strict=True))
    columns |= dict(zip(own, listing.select(own).take(pa.array(with_values, pa.int64())).columns, strict=True))
    columns[schema.NAMED_BY] = pa.chunked_array([pa.array(named_by, kind)])
    return pa.table(list(columns.values()), schema=listing.schema)


def _with_sources_of(listing: pa.Table, other: pa.Table) -> pa.Table:
    """Add the sources that another listing has for a medium to the sources of each mention of the medium."""
    others: dict[str, list[str]] = {}
    for identity, some in zip(other["media_id"].to_pylist(), other[schema.NAMED_BY].to_pylist(), strict=True):
        others.setdefault(identity, []).extend(some or [])
    mine = zip(listing["media_id"].to_pylist(), listing[schema.NAMED_BY].to_pylist(), strict=True)
    values = [list(dict.fromkeys([*(some or []), *others.get(identity, [])])) or some for identity, some in mine]
    place = listing.column_names.index(schema.NAMED_BY)
    return listing.set_column(place, listing.schema.field(place), pa.array(values, listing.schema.field(place).type))


def _rows(
    listed: Sequence[named_medium.NamedMedium],
    root: str,
    members: Mapping[str, Mapping[str, str | None]],
    sidecars: Sequence[named_medium.Sidecar],
    *,
    flat: bool,
) -> tuple[list[Row], set[str]]:
    """Return (rows for the mentions of this run, names of the columns that are filled from sidecars).

    Args:
        listed: The mentions, as in `listing_table`.
        root: The root folder, as in `listing_table`.
        members: The members of files, as in `listing_table`.
        sidecars: The kinds of sidecars, as in `listing_table`.
        flat: Whether keys of JSON sidecars become columns, as in `sidecar_columns`.
    """
    rows: list[Row] = []
    of_sidecars: set[str] = set()
    own = [*schema.LISTING.names, *RESERVED_COLUMNS]
    seen: dict[str, int] = {}
    for item in listed:
        uri = relative(item.path, root)
        inside = members.get(uri)
        alone: Mapping[str | None, str | None] = {item.member: None}
        for member, text in inside.items() if inside else alone.items():
            identity = media_id(uri, member=member)
            number = seen[identity] = seen.get(identity, -1) + 1
            beside = (
                {} if text is None else named_medium.sidecar_columns(text, sidecars, [*own, *item.columns], flat=flat)
            )
            of_sidecars.update(beside)
            named = {"media_id": identity, "listing_row": number, "listed_uri": item.spelled, "file_row": item.row}
            named[schema.NAMED_BY] = list(item.sources)
            rows.append(named | item.columns | beside | _frame_table(item, root))
    return rows, of_sidecars


def _frame_table(item: named_medium.NamedMedium, root: str) -> Row:
    """Return the columns that locate the rows about a mention's frames: the path of a table and a row number."""
    table = item.frame_table
    return {} if table is None else {schema.FRAME_TABLE: relative(table.path, root), schema.FRAME_ROW: table.row}


def _with_own_columns(rows: list[Row], old: pa.Table, inside: Mapping[str, str | None]) -> list[Row]:
    """Add the user columns of earlier rows to the rows of videos in tars and Parquet files. Return all rows.

    Args:
        rows: The rows of this run.
        old: The previous listing.
        inside: The sidecars of each medium in a tar or a Parquet file as JSON, by media id. None for images.
    """
    texts = {identity: text for identity, text in inside.items() if text is not None}
    known = old.filter(pc.is_in(old["media_id"], pa.array(list(texts), pa.string()))).to_pylist()
    earlier = {(row["media_id"], row["listing_row"]): row for row in known}
    found = []
    for row in rows:
        before = earlier.get((row["media_id"], row["listing_row"]))
        if before is None:
            found.append(row)
            continue
        beside = named_medium.sidecar_columns(texts[row["media_id"]], named_medium.SIDECARS, (), flat=True)
        kinds = ("json", named_medium.COLUMNS)
        of_sidecars = {*beside, *kinds, *(f"{kind}.{name}" for name in beside for kind in kinds)}
        own = {name: value for name, value in before.items() if name not in of_sidecars and value is not None}
        found.append(own | row)
    return found


def _of_one_type(old: pa.Table, new: pa.Table, names: Iterable[str]) -> tuple[pa.Table, pa.Table]:
    """Return two listings whose sidecar columns have the same types. If types cannot be unified, values become texts.

    Args:
        old: The previous listing.
        new: The new rows.
        names: The names of the sidecar columns.
    """
    for name in names:
        if name not in old.column_names:
            continue
        types = [pa.schema([table.schema.field(name)]) for table in (old, new)]
        try:
            pa.unify_schemas(types, promote_options="permissive")
        except pa.ArrowException:
            old, new = (_with_texts(table, name) for table in (old, new))
    return old, new


def _with_texts(table: pa.Table, name: str) -> pa.Table:
    texts = pa.array([named_medium.as_text(value) for value in table[name].to_pylist()], pa.string())
    return table.set_column(table.column_names.index(name), name, texts)


def _user_column(name: str, values: list[Any], *, is_sidecar: bool) -> pa.Array:
    if is_sidecar:
        return named_medium.sidecar_column(values)
    try:
        return pa.array(values)
    except UNSTORABLE as error:
        raise SourceError(
            f"user column {name!r} cannot be stored",
            found=error,
            remedy="write values of the same simple type in all rows",
        ) from error
