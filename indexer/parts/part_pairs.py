"""Writes the rows of media as pairs of parts of an index.

The listing of an index: which media were listed, with the user's own columns.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from framedex.errors import OutputError, SourceError
from framedex.files.outputs import Output
from framedex.files.parquet_parts import UNSTORABLE, PartWriter, part_numbers, part_path, table_of, write_part
from framedex.indexer import schema
from framedex.indexer.facts import Row
from framedex.indexer.sources import named_medium
from framedex.indexer.sources.discover import RESERVED_COLUMNS, media_id
from framedex.records.medium import gaps_of
from framedex.storage.places import Place
from framedex.storage.uris import relative

FILES_A_PART = 256  # what a killed run loses at most, and what one task of many does at least
VERIFIED_FILES_A_PART = 32  # where every frame is decoded, too


class PartPairs:
    """Writes rows as pairs of parts: frames first, then videos, which makes the pair visible.

    A part holds the rows of a fixed number of files, so that the same files give the same parts, whoever probes them
    and however fast.

    Args:
        index: the index directory.
        numbers: numbers of the parts to write; None for the numbers after the index's own parts.
        files_a_part: files per part; None for FILES_A_PART.
    """

    def __init__(
        self, index: Path | Output, *, numbers: Iterable[int] | None = None, files_a_part: int | None = None
    ) -> None:
        self._output = index if isinstance(index, Output) else Output(index)
        self._folders = self._output.local / schema.VIDEOS_FOLDER, self._output.local / schema.FRAMES_FOLDER
        self._numbers = iter(itertools.count(next_part(self._output.where)) if numbers is None else numbers)
        self._files_a_part = files_a_part or FILES_A_PART
        self._clear()

    def _clear(self) -> None:
        self._writer: PartWriter | None = None
        self._number = -1
        self._videos: list[Row] = []
        self._group: list[Row] = []
        self._packets = self._files = 0

    def add(self, rows: Sequence[tuple[Row, Row]], files: int = 1) -> None:
        """Add the rows of `videos` and `frames` of the media of one file; write a pair of parts if it is full.

        Args:
            rows: of the media.
            files: how many files they count as.
        """
        for video, frames in rows:
            if self._group and self._packets + len(frames["size"]) > schema.FRAMES_PER_ROW_GROUP:
                self._write_group()
            self._videos.append(video)
            self._group.append(frames | _gaps(frames))
            self._packets += len(frames["size"])
        self._files += files
        if self._files >= self._files_a_part:
            self.flush()

    def flush(self) -> None:
        """Write the rows added since the last pair of parts."""
        if not self._files:
            return
        self._write_group()
        if self._writer is not None:
            self._writer.commit()
            self._output.publish(part_path(self._folders[1], self._number))
        videos = part_path(self._folders[0], self._number)
        write_part(videos, table_of(self._videos, schema.VIDEOS), version=schema.SCHEMA_VERSION)
        self._output.publish(videos)
        self._clear()

    def _write_group(self) -> None:
        if self._writer is None:
            self._number = next(self._numbers)
            path = part_path(self._folders[1], self._number)
            self._writer = PartWriter(path, schema.FRAMES, version=schema.SCHEMA_VERSION, delta=schema.DELTA_COLUMNS)
        self._writer.write(table_of(self._group, schema.FRAMES))
        self._group, self._packets = [], 0


def next_part(index: Place) -> int:
    """Return the number after those of all existing parts, including halves of pairs that a killed run left."""
    return (
        max([*part_numbers(index / schema.VIDEOS_FOLDER), *part_numbers(index / schema.FRAMES_FOLDER)], default=-1) + 1
    )


def _gaps(frames: Row) -> Row:
    return {
        f"{kind}gap": gaps_of(frames[f"{kind}offset"], frames[f"{kind}size"])
        for kind in ("", "audio_")
        if frames.get(f"{kind}offset") is not None
    }


MAX_COLUMNS = 500  # of sidecars; if they have more keys, their objects stay JSON texts


def listing_table(
    old: pa.Table | None,
    listed: Sequence[named_medium.NamedMedium],
    root: str,
    members: Mapping[str, Mapping[str, str | None]],
    sidecars: Sequence[named_medium.Sidecar] = (),
) -> pa.Table:
    """Return the new listing: this run's mentions, and earlier mentions of media that this run does not name.

    A mention without user columns does not replace earlier mentions that have some: adding a file by naming its folder
    must not remove the labels of the other files.

    Args:
        old: the listing so far.
        listed: the media that this run names.
        root: uris of media are relative to it.
        members: the media in each tar, by the tar's uri, and the sidecars of each as JSON; a mention of a tar counts as
            a mention of each medium.
        sidecars: kinds of sidecars that become columns.

    Raises:
        SourceError: if columns cannot be stored.
        OutputError: if a column changed its type.
    """
    rows, of_sidecars = _rows(listed, root, members, sidecars, flat=True)
    if len(of_sidecars) > MAX_COLUMNS:
        rows, of_sidecars = _rows(listed, root, members, sidecars, flat=False)
    inside = {media_id(uri, member=name): text for uri, some in members.items() for name, text in some.items()}
    if old is not None:
        rows = _with_own_columns(rows, old, inside)
    seen = {row["media_id"] for row in rows}
    seen |= {media_id(uri) for uri, some in members.items() if some}  # the ids of their rows before they were read
    names = list(dict.fromkeys(name for row in rows for name in row if name not in schema.LISTING.names))
    table = pa.table(
        [pa.array([row[field.name] for row in rows], field.type) for field in schema.LISTING]
        + [_user_column(name, [row.get(name) for row in rows], is_sidecar=name in of_sidecars) for name in names],
        names=schema.LISTING.names + names,
    )
    if old is None:
        return table
    plain = {row["media_id"] for row in rows if len(row) == len(schema.LISTING) and inside.get(row["media_id"]) is None}
    plain &= set(old["media_id"].to_pylist())
    keep = [identity not in seen or identity in plain for identity in old["media_id"].to_pylist()]
    table = table.filter(pa.array([row["media_id"] not in plain for row in rows], pa.bool_()))
    old, table = _of_one_type(old, table, of_sidecars)
    try:
        return pa.concat_tables([old.filter(pa.array(keep, pa.bool_())), table], promote_options="permissive")
    except pa.ArrowException as error:
        raise OutputError(
            "a user column changed its type since the last run",
            where="the listing of the index",
            found=error,
            remedy="keep the type, or write a new index",
        ) from error


def _rows(
    listed: Sequence[named_medium.NamedMedium],
    root: str,
    members: Mapping[str, Mapping[str, str | None]],
    sidecars: Sequence[named_medium.Sidecar],
    *,
    flat: bool,
) -> tuple[list[Row], set[str]]:
    """Return (the rows of mentions, the columns that come from sidecars). For arguments, see `listing_table`.

    Args:
        flat: as for `sidecar_columns`.
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
            rows.append(named | item.columns | beside | _frame_table(item, root))
    return rows, of_sidecars


def _frame_table(item: named_medium.NamedMedium, root: str) -> Row:
    """Return the columns that say where the rows of a mention's frames are."""
    table = item.frame_table
    return {} if table is None else {schema.FRAME_TABLE: relative(table.path, root), schema.FRAME_ROW: table.row}


def _with_own_columns(rows: list[Row], old: pa.Table, inside: Mapping[str, str | None]) -> list[Row]:
    """Return rows in which mentions without user columns keep those that earlier mentions gave to videos inside files.

    Args:
        rows: of this run.
        old: the listing so far.
        inside: the sidecars of videos inside files as JSON, by media id; None for other media inside files.
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
        of_sidecars = {
            *beside,
            *(f"{kind}.{name}" for name in beside for kind in ("json", named_medium.COLUMNS)),
            "json",
            named_medium.COLUMNS,
        }
        own = {name: value for name, value in before.items() if name not in of_sidecars and value is not None}
        found.append(own | row)
    return found


def _of_one_type(old: pa.Table, new: pa.Table, names: Iterable[str]) -> tuple[pa.Table, pa.Table]:
    """Return two listings with columns of sidecars as texts where they have no type in common."""
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
            f"user column {name!r} cannot be stored", found=error, remedy="give it one plain type"
        ) from error
