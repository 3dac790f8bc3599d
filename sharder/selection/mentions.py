"""Collect the input of policies: usable media, joined with their rows of the listing (mentions), filtered and split.

With `split: {keep: DATASET}`, groups of rows keep the splits that they have in an existing dataset. `check_ranges`
raises an error if the listing has ranges and the policy ignores them, because the policy would then make the same clips
for all rows of a video. `left_out` and `no_clips` make the errors for a filter that leaves out all media, and for a
dataset without clips.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.core.column_rules import reading
from framedex.core.words import SHOWN, counted, tally, values_text
from framedex.errors import INTERNAL_ERROR, PLEASE_REPORT, FormatError, NoClipsError, PolicyError
from framedex.files.changes import read_changes
from framedex.indexer.parts.index import Index, as_videos
from framedex.indexer.schema import FILE_ROW, LISTING, VIDEOS
from framedex.indexer.sources.discover import RESERVED_COLUMNS, media_id
from framedex.records.clip import Failure
from framedex.records.medium import OK
from framedex.sharder.clips.clip_source import MADE_FIELDS, media_field
from framedex.sharder.configuration.filters import columns_in, matches, no_column
from framedex.sharder.configuration.listing_rows import Split, group_text
from framedex.sharder.layout import dataset_header, read_layout
from framedex.sharder.policies.ranges import is_empty, range_columns
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.schema import COLUMNS_NAME, FIELDS, FIELDS_NAME
from framedex.storage.places import Place, place

SPLIT_COLUMN = "split"  # column of clips with the user's column of that name, or with the result of the policy's split
REMEDY = "use a dataset that was made with this split, by a version of framedex that records columns (3.5 or later)"


def kept_splits(split: Split, appended_to: Place | None = None) -> dict[str, str]:
    """Return the split of each group of rows in the dataset `split.keep`, or {} if `split.keep` is None.

    Args:
        split: The split of the policy.
        appended_to: A dataset whose groups keep their splits, too. They take precedence.

    Raises:
        FormatError: The dataset does not exist or lacks a column.
        PolicyError: In the dataset, a group has several splits, or its split is not a key of the policy's `shares`.
    """
    first = {} if split.keep is None else _kept_splits(split, place(split.keep))
    return first if appended_to is None else first | _kept_splits(split, appended_to)


def _kept_splits(split: Split, where: Place) -> dict[str, str]:
    dataset_header(where)
    groups, splits = (_column(where, name) for name in (split.by, SPLIT_COLUMN))
    pairs = pa.table({"group": groups, "split": splits}).group_by(["group", "split"]).aggregate([]).to_pylist()
    known, shares = dict[str, str](), split.shares or {}
    for pair in pairs:
        group, name = group_text(pair["group"]), pair["split"]
        if known.setdefault(group, name) != name:
            raise PolicyError(
                "a group has several splits in the dataset whose splits are kept",
                where=f"split, {where}, {split.by} {group!r}",
                found=f"{known[group]} and {name}",
                remedy="set `by` to the column by which that dataset was split",
            )
        if name not in shares:
            raise PolicyError(
                "the dataset whose splits are kept has a split for which the policy has no share",
                where=f"split, {where}",
                found=str(name),
                allowed=", ".join(shares),
            )
    return known


def _column(dataset: Place, name: str) -> pa.ChunkedArray:
    """Return the values of a column for all clips of a dataset."""
    path = dataset / (file := FIELDS_NAME if name in FIELDS.names else COLUMNS_NAME)
    with reading(str(path), REMEDY):
        if (table := read_layout(dataset).read(dataset, file, [name])) is not None and name in table.column_names:
            column: pa.ChunkedArray = table[name]
            return pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
    raise FormatError("the dataset has no such column", where=str(path), found=name, remedy=REMEDY)


Row = dict[str, Any]

MEDIA_AT_ONCE = 1024  # number of rows of `videos` that are converted to Python objects at a time
INDEXED_AT = "indexed_at"  # column for filters: when the run ended that wrote the medium's row, by the index's log
KEPT_NAMES = (LISTING.names[0], FILE_ROW)  # columns of the table `listing` that are kept beside the user's columns
NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """One row of the listing for a usable medium. For a medium without a row, there is one mention without columns.

    Attributes:
        number: The number of the mention among all mentions that the filter accepts.
        media_id: The id of the medium.
        name: The prefix of the names of the mention's clips. Each mention has a different prefix.
        columns: The values of the user's columns.
        file_row: The number of the row in the user's listing. None if the number is not known.
    """

    number: int
    media_id: str
    name: str
    columns: Row
    file_row: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MentionTable:
    """A table of all mentions that a filter accepts, in the order of the index.

    Attributes:
        media_id: string [mentions], the id of each mention's medium.
        number: int64 [mentions], the number of each mention among all mentions of its medium. -1 if the medium has only
            one mention.
        media_row: int64 [mentions], ascending: the number of each mention's medium among all usable media.
        facts: Some columns of `videos`, with one row per mention.
        columns: A table with one row per mention. Its columns are `media_id` (null if the listing has no row for the
            medium), `file_row`, and the user's columns.
    """

    media_id: pa.Array
    number: NDArray[np.int64]
    media_row: NDArray[np.int64]
    facts: pa.Table
    columns: pa.Table

    def __len__(self) -> int:
        return len(self.number)

    def mentions(self, some: Sequence[int]) -> list[Mention]:
        """Return the mentions with the given numbers."""
        places = pa.array(some, pa.int64())
        chosen, media = self.columns.take(places), self.media_id.take(places).to_pylist()
        own, file_rows = chosen.drop_columns(list(KEPT_NAMES)).to_pylist(), chosen[FILE_ROW].to_pylist()
        return [
            Mention(
                number=number,
                media_id=identity,
                name=identity if self.number[number] < 0 else f"{identity}-row{self.number[number]}",
                columns=row,
                file_row=at,
            )
            for number, identity, row, at in zip(some, media, own, file_rows, strict=True)
        ]


def user_columns(index: Index, split: Split | None) -> pa.Schema:
    """Return the schema of the columns that clips get from the listing and from the policy's split.

    Raises:
        PolicyError: A column of the listing has a reserved name, or it is called "split" although the policy adds a
            column of this name.
    """
    columns = pa.schema([entry for entry in index.listing.schema if entry.name not in LISTING.names])
    if clash := RESERVED_COLUMNS & set(columns.names):  # earlier versions could index listings with some of these names
        raise PolicyError(
            "a column of the listing has a name that framedex reserves",
            found=", ".join(sorted(clash)),
            remedy="rename the column, and index again",
        )
    if split is None:
        return columns
    if SPLIT_COLUMN in columns.names:
        if split.column != SPLIT_COLUMN:
            raise PolicyError(
                "the listing already has a column 'split', and the policy would add a column with this name",
                remedy="use this column by `split: {column: split}`, or rename the column",
            )
        columns = columns.remove(columns.get_field_index(SPLIT_COLUMN))
    return columns.append(pa.field(SPLIT_COLUMN, pa.string()))


def all_mentions(
    index: Index,
    filter_: pc.Expression | None,
    split: Split | None,
    facts: Sequence[str] = (),
    *,
    appended_to: Place | None = None,
) -> MentionTable:
    """Return all mentions that the filter accepts.

    The filter can use the columns of `videos`, MADE_FIELDS, INDEXED_AT and the listing's columns. If `videos` and the
    listing have columns with the same name, the filter uses the column of `videos`.

    Args:
        index: The index.
        filter_: The filter of the policy. If None, all mentions are returned.
        split: The split of the policy. If None, mentions are not assigned to splits.
        facts: The names of the columns of `videos` that the result contains.
        appended_to: A dataset whose groups keep their splits, if the split is stratified.

    Raises:
        PolicyError: The filter or the split requires a column that does not exist or has another type.
    """
    dealt = None
    if split is not None and split.stratify is not None:
        passed = (joined.filter(pa.array(_passes(joined, filter_))) for _, _, _, joined in joined_mentions(index))
        dealt = split.deal(split.stratify, passed, kept_splits(split, appended_to))
    media: list[pa.Array] = [pa.array([], pa.string())]
    kept = [as_videos(VIDEOS.empty_table(), facts)]
    numbers, rows, columns = [NO_ROWS], [NO_ROWS], list[pa.Table]()
    seen = 0
    for videos, mentioned, of_video, joined in joined_mentions(index):
        passes = _passes(joined, filter_)
        chosen = mentioned.filter(pa.array(passes))
        if split is not None:
            if SPLIT_COLUMN in chosen.column_names:
                chosen = chosen.drop_columns([SPLIT_COLUMN])
            chosen = chosen.append_column(SPLIT_COLUMN, split.assign(joined.filter(pa.array(passes)), dealt))
        counts = np.bincount(of_video, minlength=len(videos))
        number_in_video = np.arange(len(of_video)) - np.repeat(np.cumsum(counts) - counts, counts)
        number = np.where(counts[of_video] == 1, -1, number_in_video)
        of_passed = of_video[passes].astype(np.int64)
        media.append(videos["media_id"].combine_chunks().take(pa.array(of_passed)))
        kept.append(as_videos(videos, facts).take(pa.array(of_passed)))
        numbers.append(number[passes].astype(np.int64))
        rows.append(of_passed + seen)
        columns.append(chosen)
        seen += len(videos)
    return MentionTable(
        media_id=pa.concat_arrays(media),
        number=np.concatenate(numbers),
        media_row=np.concatenate(rows),
        facts=pa.concat_tables(kept).combine_chunks(),
        columns=pa.concat_tables(columns).combine_chunks() if columns else index.listing.slice(0, 0),
    )


def _passes(joined: pa.Table, filter_: pc.Expression | None) -> NDArray[np.bool_]:
    """Return bool [rows]: whether the filter accepts each row of a table of `joined_mentions`."""
    return np.ones(len(joined), np.bool_) if filter_ is None else matches(joined, filter_, "filter")


def joined_mentions(index: Index) -> Iterator[tuple[pa.Table, pa.Table, NDArray[np.int64], pa.Table]]:
    """Yield all mentions of usable media in batches of media, in the order of the index.

    Yields:
        Four values for each batch. 1. The rows of `videos`. 2. The listing's columns, with one row per mention.
            3. int64 [mentions], ascending: the row of each mention's video in the first table. 4. The columns that a
            filter can use, with one row per mention.
    """
    # KEPT_NAMES remain, as a table without columns would have no rows.
    listing = index.listing.drop_columns([name for name in LISTING.names if name not in KEPT_NAMES])
    rows_of: dict[str, list[int]] = {}
    for row, identity in enumerate(index.listing["media_id"].to_pylist()):
        rows_of.setdefault(identity, []).append(row)
    changes = read_changes(index.path)
    generations = pa.array([change.generation for change in changes], pa.int32())
    dates = pa.array([change.date for change in changes], pa.string())
    for some in index.some_videos(MEDIA_AT_ONCE):
        videos = some.filter(pc.equal(some["status"], OK))
        # A row of the listing for one medium in a file has precedence over a row for the whole file.
        listed = [
            rows_of.get(identity, rows_of.get(media_id(uri), [None]))
            for identity, uri in zip(videos["media_id"].to_pylist(), videos["uri"].to_pylist(), strict=True)
        ]
        counts = np.array([len(rows) for rows in listed], np.int64)
        of_video = np.repeat(np.arange(len(videos)), counts)
        mentioned = listing.take(pa.array([row for rows in listed for row in rows], pa.int64()))
        table = videos.take(of_video)
        for name in MADE_FIELDS:
            table = table.append_column(name, media_field(name, table))
        for name in mentioned.column_names:
            if name != FILE_ROW and name not in table.column_names:
                table = table.append_column(name, mentioned[name])
        if INDEXED_AT not in table.column_names:
            table = table.append_column(INDEXED_AT, dates.take(pc.index_in(table["generation"], generations)))
        yield videos, mentioned, of_video, table


def check_ranges(index: Index, file: PolicyFile) -> None:
    """Raise PolicyError if a policy ignores ranges of the listing, or reads columns that do not exist.

    A listing has ranges if `range_columns` finds two columns, and at least one row has a value in one of them. A policy
    with `range: null` samples whole videos on purpose, so there is no error.
    """
    names = _user_names(index.listing)
    ranges = file.policy.ranges(names)
    if ranges is not None:
        where = "range" if "range" in file.resolved else f"policy {file.resolved['policy']}"
        check_there(ranges.columns, index.listing, where=where, remedy="index a listing that has ranges")
        return
    found = None if "range" in file.resolved or file.policy.names_ranges else range_columns(tuple(names))
    if found is None:
        return
    start, end = found
    for uri, *cells in zip(*(index.listing[name] for name in ("listed_uri", start, end)), strict=True):
        places = [cell.as_py() for cell in cells]
        if not all(map(is_empty, places)):
            shown = " to ".join("(empty)" if is_empty(place) else str(place) for place in places)
            raise PolicyError(
                "the listing has ranges, and the policy ignores them",
                found=f"columns {start!r} and {end!r}: {shown} of {uri}",
                remedy=f"write `range: {{start: {start}, end: {end}}}` into the policy to sample these ranges, in "
                "seconds from a video's first frame (add `unit: frames` if they are frame numbers); or write "
                "`range: null` to sample whole videos",
            )


def check_there(wanted: Sequence[str], listing: pa.Table, *, where: str, remedy: str) -> None:
    """Raise PolicyError if a listing lacks a column.

    Args:
        wanted: The names of the columns that a policy reads.
        listing: The listing.
        where: The key of the policy that contains these names.
        remedy: The remedy in the error if the listing has no columns at all.
    """
    names = _user_names(listing)
    for name in wanted:
        if name not in names:
            raise no_column("listing", name, names, where=where, none=f"the listing has no columns; {remedy}")


def _user_names(listing: pa.Table) -> list[str]:
    return [name for name in listing.schema.names if name not in LISTING.names]


MAX_REASONS = 3  # maximum number of kinds of failures that a message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The usable media that the filter leaves out, because it accepts none of their mentions.

    Attributes:
        count: The number of these media.
        examples: The uris of the first of these media.
    """

    count: int = 0
    examples: list[str] = field(default_factory=list)


def left_out(index: Index, file: PolicyFile, table: MentionTable) -> LeftOut:
    """Return the usable media that a policy's filter leaves out.

    Args:
        index: The index.
        file: The policy.
        table: The mentions that the filter accepts.

    Raises:
        PolicyError: The filter leaves out all usable media.
    """
    if file.filter is None:
        return LeftOut()
    usable = len(index) - index.unusable
    chosen = np.unique(table.media_row)
    if usable and not len(chosen):
        text = str(file.resolved["filter"])
        values: dict[str, Counter[str]] = {name: Counter() for name in columns_in(text)}
        for _, _, _, joined in joined_mentions(index):
            for name, counts in values.items():
                counts.update(tally(joined[name].chunks))
        raise PolicyError(
            f"the filter leaves out {'the only usable medium' if usable == 1 else f'all {usable:,} usable media'}",
            where=f"filter, applied to {index.path}",
            found=text,
            allowed=values_text(values),
            remedy="compare with values that exist in the columns",
        )
    media = index.columns(["uri", "status"])
    others = np.setdiff1d(np.arange(usable), chosen)[:SHOWN]
    examples = media.filter(pc.equal(media["status"], OK))["uri"].take(pa.array(others)).to_pylist()
    return LeftOut(count=usable - len(chosen), examples=examples)


def no_clips(index: Index, failures: Iterable[Failure]) -> NoClipsError:
    """Return the error for a dataset that would have no clips, with the most frequent reasons.

    Args:
        index: The index from which clips were planned.
        failures: The failures of all clips that could not be made.
    """
    every = list(failures)
    rows = [asdict(one) for one in every]
    kinds, first = Counter(one.kind for one in every), {one.kind: one for one in reversed(every)}
    if len(index) == index.unusable:
        media = index.columns(["status", "error_kind", "error_message", "uri"]).to_pylist()
        errors = Counter((row["status"], row["error_kind"]) for row in media if row["status"] != OK)
        why = ", ".join(f"{count:,} {status} ({kind})" for (status, kind), count in errors.most_common(MAX_REASONS))
        example = f"; {media[0]['uri']}: {media[0]['error_message']}" if media else ""
        count = counted(len(media), "medium", "media")
        found = f"{count}, none of which is usable{': ' if why else ''}{why}{example}"
        remedy = "run framedex audit to see the media of the index and their errors"
    else:
        reasons = [
            f"{count:,} × {kind}, such as {first[kind].uri}: {first[kind].message}"
            for kind, count in kinds.most_common(MAX_REASONS)
        ]
        usable = counted(len(index) - index.unusable, "usable medium", "usable media")
        found = "\n".join(reasons) or f"{usable}, from which the policy selects no clips"
        remedy = "change the policy or the list of clips"
    if INTERNAL_ERROR in first:
        remedy = PLEASE_REPORT
    error = NoClipsError("there would be no clips", where=str(index.path), found=found, remedy=remedy, failures=rows)
    if INTERNAL_ERROR in first:
        error.add_note(first[INTERNAL_ERROR].traceback or "")
    return error
