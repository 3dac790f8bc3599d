"""The listing of an index: which media were listed, with the user's own columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from framedex.errors import OutputError, SourceError
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.media_rows import Row
from framedex.indexer.schema import LISTING
from framedex.indexer.sources.discover import media_id
from framedex.indexer.sources.named_medium import NamedMedium
from framedex.storage.uris import relative


def listing_table(
    old: pa.Table | None, listed: Sequence[NamedMedium], root: str, members: Mapping[str, Sequence[str]]
) -> pa.Table:
    """Return the new listing: this run's mentions, and earlier mentions of media that this run does not name.

    A mention without user columns does not replace earlier mentions that have some: adding a file by naming its folder
    must not remove the labels of the other files.

    Args:
        old: the listing so far.
        listed: the media that this run names.
        root: uris of media are relative to it.
        members: the sequences in each tar, by the tar's uri; a mention of a tar counts as a mention of each sequence.

    Raises:
        SourceError: if columns cannot be stored.
        OutputError: if a column changed its type.
    """
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for item in listed:
        uri = relative(item.path, root)
        inside = members.get(uri, ())
        if inside:
            seen.setdefault(media_id(uri), -1)  # the id of its listing rows before it was read
        for member in inside or (item.member,):
            identity = media_id(uri, member=member)
            number = seen[identity] = seen.get(identity, -1) + 1
            rows.append({"media_id": identity, "listing_row": number, "listed_uri": item.spelled, **item.columns})
    names = list(dict.fromkeys(name for row in rows for name in row if name not in LISTING.names))
    table = pa.table(
        [pa.array([row[field.name] for row in rows], field.type) for field in LISTING]
        + [_user_column(name, [row.get(name) for row in rows]) for name in names],
        names=LISTING.names + names,
    )
    if old is None:
        return table
    plain = {row["media_id"] for row in rows if len(row) == len(LISTING)} & set(old["media_id"].to_pylist())
    keep = [identity not in seen or identity in plain for identity in old["media_id"].to_pylist()]
    table = table.filter(pa.array([row["media_id"] not in plain for row in rows], pa.bool_()))
    try:
        return pa.concat_tables([old.filter(pa.array(keep, pa.bool_())), table], promote_options="permissive")
    except pa.ArrowException as error:
        raise OutputError(
            "a user column changed its type since the last run",
            where="the listing of the index",
            found=error,
            remedy="keep the type, or write a new index",
        ) from error


def _user_column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except UNSTORABLE as error:
        raise SourceError(
            f"user column {name!r} cannot be stored", found=error, remedy="give it one plain type"
        ) from error
