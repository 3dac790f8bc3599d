"""The input of policies: usable media with the listing's rows that mention them, filtered and split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.indexer.schema import LISTING, OK
from framedex.indexer.sources.discover import media_id
from framedex.sharder.configuration.filters import matches
from framedex.sharder.configuration.splits import Split

Row = dict[str, Any]

MEDIA_AT_ONCE = 1024  # rows of `videos` that are Python objects at a time
SPLIT_COLUMN = "split"  # of clips: the user's column of that name, or the result of the policy's split
DURATION_COLUMN = "duration_seconds"  # for filters, in addition to the columns of `videos`


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """One row of the listing about a medium.

    Attributes:
        name: Unique beginning of its clips' names.
        columns: The user's columns.
    """

    name: str
    columns: Row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mentions:
    """The mentions of some usable media, as tables.

    Attributes:
        videos: The media's rows of `videos`.
        video: int64 [mentions], ascending, the row in `videos` of each mention's medium.
        number: int64 [mentions], the mention's place among all mentions of that medium, -1 for the only one.
        columns: One row per mention: `media_id` (null if nothing lists the medium) and the user's columns.
    """

    videos: pa.Table
    video: NDArray[np.int64]
    number: NDArray[np.int64]
    columns: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Mentioned:
    """A usable medium, its row of `videos`, and its mentions.

    Media that nothing lists have one mention without columns.
    """

    video: Row
    mentions: list[Mention]


def user_columns(index: Index, split: Split | None) -> pa.Schema:
    """Return the columns that clips get from the listing and from the split. Raises PolicyError if these clash."""
    columns = pa.schema([entry for entry in index.listing.schema if entry.name not in LISTING.names])
    if split is None:
        return columns
    if SPLIT_COLUMN in columns.names:
        if split.column != SPLIT_COLUMN:
            raise PolicyError(
                "the listing has a column 'split' already, and the policy makes another",
                remedy="split by that column, or rename it",
            )
        columns = columns.remove(columns.get_field_index(SPLIT_COLUMN))
    return columns.append(pa.field(SPLIT_COLUMN, pa.string()))


def usable_media(index: Index, filter_: pc.Expression | None, split: Split | None) -> Iterator[Mentioned]:
    """Yield usable media that have a mention which passes the filter, in the order of the index.

    The filter sees the columns of `videos`, DURATION_COLUMN and the listing's columns. If a column of the listing
    shares a name with one of `videos`, the latter is used.

    Raises:
        PolicyError: The filter or the split does not fit the columns.
    """
    for several in mentions(index, filter_, split):
        chosen = np.unique(several.video)
        found: dict[int, list[Mention]] = {place: [] for place in chosen.tolist()}
        identities = several.videos["media_id"].take(pa.array(several.video)).to_pylist()
        for place, identity, number, own in zip(
            several.video.tolist(), identities, several.number.tolist(), own_rows(several.columns), strict=True
        ):
            found[place].append(Mention(name=mention_name(identity, number), columns=own))
        for video, own_mentions in zip(several.videos.take(pa.array(chosen)).to_pylist(), found.values(), strict=True):
            yield Mentioned(video=video, mentions=own_mentions)


def mention_name(identity: str, number: int) -> str:
    """Return the beginning of the names of a mention's clips. `number`: as in `Mentions`."""
    return identity if number < 0 else f"{identity}-row{number}"


def mentions(index: Index, filter_: pc.Expression | None, split: Split | None) -> Iterator[Mentions]:
    """Yield the mentions that pass the filter, of some media at a time, in the order of the index.

    The filter sees the same columns as in `usable_media`, and the same errors are raised.
    """
    for videos, mentioned, of_video, joined in joined_mentions(index):
        passed = np.ones(len(joined), np.bool_) if filter_ is None else matches(joined, filter_, "filter")
        columns = mentioned.filter(pa.array(passed))
        if split is not None:
            columns = _with_split(columns, split.assign(joined.filter(pa.array(passed))))
        counts = np.bincount(of_video, minlength=len(videos))
        number_in_video = np.arange(len(of_video)) - np.repeat(np.cumsum(counts) - counts, counts)
        number = np.where(counts[of_video] == 1, -1, number_in_video)
        yield Mentions(
            videos=videos,
            video=of_video[passed].astype(np.int64),
            number=number[passed].astype(np.int64),
            columns=columns,
        )


def joined_mentions(index: Index) -> Iterator[tuple[pa.Table, pa.Table, NDArray[np.int64], pa.Table]]:
    """Yield all mentions of usable media, of some media at a time, in the order of the index.

    Yields:
        The rows of `videos`; the listing's columns, one row per mention; int64 [mentions], ascending, the row of each
            mention's video; and the columns that a filter sees for each mention.
    """
    listing = index.listing.drop_columns(LISTING.names[1:])  # a table without columns would lose its number of rows
    rows_of: dict[str, list[int]] = {}
    for row, identity in enumerate(index.listing["media_id"].to_pylist()):
        rows_of.setdefault(identity, []).append(row)
    for some in index.some_videos(MEDIA_AT_ONCE):
        videos = some.filter(pc.equal(some["status"], OK))
        # A row that names one of several media of a file is more specific than one that names the file.
        listed = [
            rows_of.get(identity, rows_of.get(media_id(uri), [None]))
            for identity, uri in zip(videos["media_id"].to_pylist(), videos["uri"].to_pylist(), strict=True)
        ]
        counts = np.array([len(rows) for rows in listed], np.int64)
        of_video = np.repeat(np.arange(len(videos)), counts)
        mentioned = listing.take(pa.array([row for rows in listed for row in rows], pa.int64()))
        yield videos, mentioned, of_video, _joined(videos, mentioned, of_video)


def _joined(videos: pa.Table, mentioned: pa.Table, of_video: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
    """Return one row per mention: the columns of `videos`, and the listing's."""
    table = videos.take(of_video)
    seconds = pc.divide(
        pc.multiply(pc.cast(table["duration_pts"], pa.float64(), safe=False), table["time_base_num"]),
        pc.cast(table["time_base_den"], pa.float64()),
    )
    table = table.append_column(DURATION_COLUMN, seconds)
    for name in mentioned.column_names:
        if name not in table.column_names:
            table = table.append_column(name, mentioned[name])
    return table


def _with_split(columns: pa.Table, splits: pa.Array) -> pa.Table:
    if SPLIT_COLUMN in columns.column_names:
        columns = columns.drop_columns([SPLIT_COLUMN])
    return columns.append_column(SPLIT_COLUMN, splits)


def own_rows(columns: pa.Table) -> list[Row]:
    """Return the user's columns of mentions."""
    rows: list[Row] = columns.to_pylist()
    return [{name: value for name, value in row.items() if name != LISTING.names[0]} for row in rows]
