"""The listing of an index: which media were listed, with the user's own columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from framedex.errors import OutputError, SourceError
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.media_rows import Row
from framedex.indexer.schema import FRAME_ROW, FRAME_TABLE, LISTING
from framedex.indexer.sources.discover import RESERVED_COLUMNS, media_id
from framedex.indexer.sources.named_medium import NamedMedium
from framedex.indexer.sources.sidecars import (
    COLUMNS,
    SIDECARS,
    Sidecar,
    as_text,
    sidecar_column,
    sidecar_columns,
)
from framedex.storage.uris import relative

MOST_COLUMNS = 500  # of sidecars; if they have more keys, their objects stay JSON texts


def listing_table(
    old: pa.Table | None,
    listed: Sequence[NamedMedium],
    root: str,
    members: Mapping[str, Mapping[str, str | None]],
    sidecars: Sequence[Sidecar] = (),
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
    if len(of_sidecars) > MOST_COLUMNS:
        rows, of_sidecars = _rows(listed, root, members, sidecars, flat=False)
    inside = {media_id(uri, member=name): text for uri, some in members.items() for name, text in some.items()}
    if old is not None:
        rows = _with_own_columns(rows, old, inside)
    seen = {row["media_id"] for row in rows}
    seen |= {media_id(uri) for uri, some in members.items() if some}  # the ids of their rows before they were read
    names = list(dict.fromkeys(name for row in rows for name in row if name not in LISTING.names))
    table = pa.table(
        [pa.array([row[field.name] for row in rows], field.type) for field in LISTING]
        + [_user_column(name, [row.get(name) for row in rows], is_sidecar=name in of_sidecars) for name in names],
        names=LISTING.names + names,
    )
    if old is None:
        return table
    plain = {row["media_id"] for row in rows if len(row) == len(LISTING) and inside.get(row["media_id"]) is None}
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
    listed: Sequence[NamedMedium],
    root: str,
    members: Mapping[str, Mapping[str, str | None]],
    sidecars: Sequence[Sidecar],
    *,
    flat: bool,
) -> tuple[list[Row], set[str]]:
    """Return (the rows of mentions, the columns that come from sidecars). For arguments, see `listing_table`.

    Args:
        flat: as for `sidecar_columns`.
    """
    rows: list[Row] = []
    of_sidecars: set[str] = set()
    own = [*LISTING.names, *RESERVED_COLUMNS]
    seen: dict[str, int] = {}
    for item in listed:
        uri = relative(item.path, root)
        inside = members.get(uri)
        alone: Mapping[str | None, str | None] = {item.member: None}
        for member, text in inside.items() if inside else alone.items():
            identity = media_id(uri, member=member)
            number = seen[identity] = seen.get(identity, -1) + 1
            beside = {} if text is None else sidecar_columns(text, sidecars, [*own, *item.columns], flat=flat)
            of_sidecars.update(beside)
            named = {"media_id": identity, "listing_row": number, "listed_uri": item.spelled, "file_row": item.row}
            rows.append(named | item.columns | beside | _frame_table(item, root))
    return rows, of_sidecars


def _frame_table(item: NamedMedium, root: str) -> Row:
    """Return the columns that say where the rows of a mention's frames are."""
    table = item.frame_table
    return {} if table is None else {FRAME_TABLE: relative(table.path, root), FRAME_ROW: table.row}


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
        beside = sidecar_columns(texts[row["media_id"]], SIDECARS, (), flat=True)
        of_sidecars = {*beside, *(f"{kind}.{name}" for name in beside for kind in ("json", COLUMNS)), "json", COLUMNS}
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
    texts = pa.array([as_text(value) for value in table[name].to_pylist()], pa.string())
    return table.set_column(table.column_names.index(name), name, texts)


def _user_column(name: str, values: list[Any], *, is_sidecar: bool) -> pa.Array:
    if is_sidecar:
        return sidecar_column(values)
    try:
        return pa.array(values)
    except UNSTORABLE as error:
        raise SourceError(
            f"user column {name!r} cannot be stored", found=error, remedy="give it one plain type"
        ) from error
