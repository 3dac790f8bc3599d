"""The listing of an index: which media were listed, with the user's own columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from framedex.errors import OutputError, SourceError
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.media_rows import Row
from framedex.indexer.schema import LISTING
from framedex.indexer.sources.discover import RESERVED_COLUMNS, media_id
from framedex.indexer.sources.named_medium import NamedMedium
from framedex.indexer.sources.sidecars import Sidecar, as_text, sidecar_column, sidecar_columns
from framedex.storage.uris import relative


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
    rows: list[Row] = []
    of_sidecars: set[str] = set()
    own = [*LISTING.names, *RESERVED_COLUMNS]
    seen: dict[str, int] = {}
    for item in listed:
        uri = relative(item.path, root)
        inside = members.get(uri)
        if inside:
            seen.setdefault(media_id(uri), -1)  # the id of its listing rows before it was read
        alone: Mapping[str | None, str | None] = {item.member: None}
        for member, text in inside.items() if inside else alone.items():
            identity = media_id(uri, member=member)
            number = seen[identity] = seen.get(identity, -1) + 1
            beside = {} if text is None else sidecar_columns(text, sidecars, [*own, *item.columns])
            of_sidecars.update(beside)
            named = {"media_id": identity, "listing_row": number, "listed_uri": item.spelled}
            rows.append(named | item.columns | beside)
    names = list(dict.fromkeys(name for row in rows for name in row if name not in LISTING.names))
    table = pa.table(
        [pa.array([row[field.name] for row in rows], field.type) for field in LISTING]
        + [_user_column(name, [row.get(name) for row in rows], is_sidecar=name in of_sidecars) for name in names],
        names=LISTING.names + names,
    )
    if old is None:
        return table
    plain = {row["media_id"] for row in rows if len(row) == len(LISTING)} & set(old["media_id"].to_pylist())
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
