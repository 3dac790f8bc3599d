"""Write the rows of media as pairs of parts of an index.

Make the listing of an index: the mentions of media, with the user's columns.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from framedex.errors import OutputError, SourceError
from framedex.files.outputs import Output
from framedex.files.parquet_parts import UNSTORABLE, PartWriter, part_numbers, part_path, table_of
from framedex.indexer import schema
from framedex.indexer.facts import Row
from framedex.indexer.sources import named_medium
from framedex.indexer.sources.discover import RESERVED_COLUMNS, media_id
from framedex.records.medium import gaps_of
from framedex.storage.places import Place
from framedex.storage.uris import relative

FILES_A_PART = 256  # the most files that a killed run loses, and the fewest that one task of many probes
VERIFIED_FILES_A_PART = 32  # if every frame is decoded, too
VIDEOS_A_ROW_GROUP = 8192  # looking up one video reads one row group (decision 0019)


class PartPairs:
    """Writes rows as pairs of parts: frames first, then videos, which makes the pair visible.

    A part has the rows of a fixed number of files. So the same files become the same parts, whichever processes probe
    them and however fast.

    Args:
        index: The index directory.
        numbers: The numbers of the parts to write. Default: those after the index's own parts.
        files_a_part: The number of files of a part.
    """

    def __init__(
        self, index: Path | Output, *, numbers: Iterable[int] | None = None, files_a_part: int = FILES_A_PART
    ) -> None:
        self._output = index if isinstance(index, Output) else Output(index)
        self._folders = self._output.local / schema.VIDEOS_FOLDER, self._output.local / schema.FRAMES_FOLDER
        self._numbers = iter(itertools.count(next_part(self._output.where)) if numbers is None else numbers)
        self._files_a_part = files_a_part
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
        """Add the rows of `videos` and `frames` of the media of one file. Write a pair of parts if it is full.

        Args:
            rows: The rows of the media.
            files: The number of files that they count as.
        """
        for video, frames in rows:
            self._add_frames(frames | _gaps(frames), len(frames["size"]))
            self._videos.append(video)  # an interrupt while frames are written must not leave a video without frames
        self._files += files
        if self._files >= self._files_a_part:
            self.flush()

    def _add_frames(self, frames: Any, packets: int) -> None:
        """Add rows of `frames` to the row group. Write the rows before them if the group would get too large."""
        if self._group and self._group_packets + packets > schema.FRAMES_PER_ROW_GROUP:
            self._write_group()
        self._group.append(frames)
        self._group_packets += packets
        self._packets += packets

    def flush(self) -> None:
        """Write the rows added since the last pair of parts."""
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
    """Return the number of the next part: one more than the highest number of a part of either table."""
    return (
        max([*part_numbers(index / schema.VIDEOS_FOLDER), *part_numbers(index / schema.FRAMES_FOLDER)], default=-1) + 1
    )


def _gaps(frames: Row) -> Row:
    return {
        f"{kind}gap": gaps_of(frames[f"{kind}offset"], frames[f"{kind}size"])
        for kind in ("", "audio_")
        if frames.get(f"{kind}offset") is not None
    }


MAX_COLUMNS = 500  # if the objects in sidecars have more keys, they stay JSON texts


def listing_table(
    old: pa.Table | None,
    listed: Sequence[named_medium.NamedMedium],
    root: str,
    members: Mapping[str, Mapping[str, str | None]],
    sidecars: Sequence[named_medium.Sidecar] = (),
) -> pa.Table:
    """Return the new listing: this run's mentions, and earlier mentions of media that this run does not name.

    A mention without user columns does not replace earlier mentions that have user columns. So adding a file by naming
    its folder keeps the labels of the other files.

    Args:
        old: The previous listing.
        listed: The mentions of this run.
        root: The folder that uris of media are relative to.
        members: The media in each tar by the tar's uri, and the sidecars of each medium as JSON. A mention of a tar
            counts as a mention of each of its media.
        sidecars: The kinds of sidecars that become columns.

    Raises:
        SourceError: A column cannot be stored.
        OutputError: A column changed its type.
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
        flat: See `sidecar_columns`.
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
    """Return the columns with the place of the rows about the frames of a mention."""
    table = item.frame_table
    return {} if table is None else {schema.FRAME_TABLE: relative(table.path, root), schema.FRAME_ROW: table.row}


def _with_own_columns(rows: list[Row], old: pa.Table, inside: Mapping[str, str | None]) -> list[Row]:
    """Return the rows of this run. Videos inside files keep the user columns of their earlier rows.

    Args:
        rows: The rows of this run.
        old: The previous listing.
        inside: The sidecars of videos inside files as JSON, by media id. None for images inside files.
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
    """Return two listings whose columns of sidecars have common types. If there is none, values become texts."""
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
