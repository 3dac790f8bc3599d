"""Remove media from a dataset: their clips, their rows, and their samples in tars, to the last byte.

The rows of `clips` close up. The numbers by which clips refer to media and tars stay as they are (`layout.Numbers`).
"""

import hashlib
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.core.column_rules import reading
from framedex.core.words import counted
from framedex.errors import FormatError, OutputError
from framedex.files.changes import listed_names, log_change
from framedex.files.outputs import Output
from framedex.files.parquet_parts import part_path, read_file, table_of, write_part
from framedex.indexer.parts.index import Index
from framedex.indexer.sources.discover import media_id
from framedex.sharder.changing.change import (
    COMMAND,
    complete_log,
    digest_of,
    next_number,
    opened_dataset,
    part_columns,
    possible_ids,
    publish,
    removed_of,
    replace_header,
    sweep,
    table_in_files,
    table_of_media,
)
from framedex.sharder.clips.clip import CONTENT_ALONE, ByteSource
from framedex.sharder.clips.samples import FileRanges, Member
from framedex.sharder.layout import (
    REMEDY,
    Layout,
    Numbers,
    Part,
    checked_header,
    dataset_header,
    file_name,
    read_layout,
)
from framedex.sharder.packing.tars import INDEX_VERSION, Tar, index_path
from framedex.sharder.planning.steps import NO_MEDIUM
from framedex.sharder.reading import Objects, SourceFiles, stale_as
from framedex.sharder.schema import (
    CLIPS_FOLDER,
    COLUMNS_NAME,
    FAILURES,
    FAILURES_NAME,
    FIELDS_NAME,
    HEADER,
    MEDIA_FOLDER,
    RECIPES_FOLDER,
    REMOVED,
    REMOVED_NAME,
    SCHEMA_VERSION,
    SHARDS,
    SHARDS_FOLDER,
    SHARDS_NAME,
    TAR_NAME,
)
from framedex.sharder.writing.whole import write_clips, write_media
from framedex.storage.objects import download
from framedex.storage.places import Place, parquet_file, small_bytes, small_text
from framedex.storage.reader import ASIDE
from framedex.storage.uris import is_remote, medium_name, rows_by_name, spellings

Row = dict[str, Any]

RANGES = ("range_offset", "audio_range_offset")  # columns of `recipes` with offsets into the tar
MULTIVIEW = "multiview_id"


Choose = Callable[[pa.Table, pa.Table, str, set[str]], tuple[NDArray[np.int64], set[str], list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedReport:
    """The result of removing media from a dataset.

    Attributes:
        media: The number of media.
        clips: The number of clips.
        failures: The number of rows of `failures`.
        tars: The number of tars that had samples of the clips, and were written anew without them.
        left: The number of clips that the dataset has now.
        unknown: The names that no medium of the dataset has or had.
    """

    media: int
    clips: int
    failures: int
    tars: int
    left: int
    unknown: list[str]


def remove_from_dataset(out: Place, names: Sequence[str]) -> RemovedReport:
    """Remove media from a dataset.

    Args:
        out: The dataset.
        names: The names of media, as in the dataset or as paths, or "@LIST" for a text file with one name per line. The
            name of a tar or a Parquet file stands for all media in it.

    Raises:
        FormatError: The dataset cannot be read.
        OutputError: Another run is changing the dataset, or no clip would be left.
        SourceError: A list cannot be read.
        StaleError: A tar is not the tar that the dataset recorded.
    """
    wanted = listed_names(names)

    def choose(
        media: pa.Table, failures: pa.Table, root: str, earlier: set[str]
    ) -> tuple[NDArray[np.int64], set[str], list[str]]:
        by_name = rows_by_name(media["uri"].to_pylist(), media["member"].to_pylist())
        failed = {*failures["uri"].to_pylist()}
        rows: set[int] = set()
        uris: set[str] = set()
        unknown = []
        for name in wanted:
            possible = spellings(name, root)
            known = [one for one in possible if one in by_name or one in failed][:1]
            rows.update(row for one in known for row in by_name.get(one, []))
            uris.update(known)
            if not known and earlier.isdisjoint(identity for one in possible for identity in possible_ids(one)):
                unknown.append(name)
        return np.array(sorted(rows), np.int64), uris, unknown

    return _change(out, {"remove": len(wanted)}, choose, digest_of(*wanted))


def follow_index(out: Place, index: Index, *, at_most: float) -> RemovedReport:
    """Remove the media from a dataset that are not in an index any more.

    Args:
        out: The dataset.
        index: The index.
        at_most: The maximum share of the dataset's media to remove.

    Raises:
        FormatError: The dataset cannot be read.
        OutputError: More media would be removed, no clip would be left, or another run is changing the dataset.
        StaleError: A tar is not the tar that the dataset recorded.
    """
    there = index.columns(["media_id", "uri", "member"])
    names = {*there["uri"].to_pylist(), *map(medium_name, there["uri"].to_pylist(), there["member"].to_pylist())}

    def choose(
        media: pa.Table, failures: pa.Table, root: str, earlier: set[str]
    ) -> tuple[NDArray[np.int64], set[str], list[str]]:
        stays = pc.is_in(media["media_id"], there["media_id"].combine_chunks()).to_numpy()
        rows = np.flatnonzero(~stays)
        if len(rows) > at_most * len(media):
            raise OutputError(
                "the index lacks so many media of the dataset that it may be another index, or incomplete",
                where=str(index.path),
                found=f"{len(rows):,} of {counted(len(media), 'medium', 'media')} ({len(rows) / len(media):.0%})",
                allowed=f"up to {at_most:.0%} are removed",
                remedy=f"complete the index, or pass --prune-at-most {np.ceil(100 * len(rows) / len(media)) / 100:g}",
            )
        lost = {row["uri"] for row in failures.to_pylist() if NO_MEDIUM not in row["message"]} - {None}
        return rows, lost - names, []

    return _change(out, {"follow": str(index.path)}, choose, digest_of(index.content()))


def _change(out: Place, asked: Row, choose: Choose, what: str) -> RemovedReport:
    """Remove the media that a function chooses, and everything that an interrupted change left.

    Args:
        out: The dataset.
        asked: The options, for the log.
        choose: A function of some columns of `media`, of `failures`, of the root, and of the ids of media that were
            removed earlier. It returns the positions of the media to remove, the uris of further failures to remove,
            and the names that it did not find.
        what: A digest of the operands, because the log does not name media.
    """
    dataset_header(out)  # before a folder is created
    with opened_dataset(out, asked | {"what": what}) as output:
        before = small_bytes(out / HEADER)
        header, layout = checked_header(out)
        generation = header.get("generation") or 1
        complete_log(output, generation)
        media = table_of_media(out, layout)
        failures = table_in_files(out, layout, FAILURES_NAME)
        failures = FAILURES.empty_table() if failures is None else failures
        ids = {row["media_id"] for row in removed_of(out, layout)}
        rows, uris, unknown = choose(media, failures, header["root"], ids)
        all_views = (header.get("views") or {}).get("missing") in ("error", "skip")
        gone = _Gone.of(out, layout, media, rows, all_views=all_views)
        lost = gone.failures(failures, media, uris)
        if not len(rows) and not np.any(lost):
            sweep(output, layout)
            return _report(gone, 0, 0, unknown)
        if not gone.left:
            raise OutputError("no clip would be left", where=str(out), remedy="delete the whole dataset instead")
        next_one = generation + 1
        log_change(output, next_one, COMMAND, asked)
        writer = _Rewriting(output=output, out=out, layout=layout, gone=gone, generation=next_one)
        others = uris - {*map(medium_name, media["uri"].to_pylist(), media["member"].to_pylist())}
        new = writer.written(failures.filter(pa.array(~lost)), others)
        replace_header(output, before, layout, new, next_one, {}, writer.digests)
        counts = {"media": len(rows), "clips": gone.clips, "tars": len(gone.tars), "failures": int(np.sum(lost))}
        log_change(output, next_one, COMMAND, asked, {name: count for name, count in counts.items() if count})
        sweep(output, new)
        return _report(gone, int(np.sum(lost)), len(gone.tars), unknown)


def without_media(
    output: Output, out: Place, ids: Set[str], names: Set[str], generation: int
) -> tuple[Layout, list[bytes]]:
    """Write the files of a dataset without media whose clips are planned again.

    Args:
        output: The dataset.
        out: The place from which its files are read.
        ids: The ids of the media. The dataset may lack some of them.
        names: The names of media whose failures leave.
        generation: The generation of the dataset without their clips.

    Returns:
        The new layout, and the digests of all new files.

    Raises:
        FormatError: The dataset cannot be read.
        StaleError: A tar is not the tar that the dataset recorded.
    """
    layout = read_layout(out)
    there, failures = table_of_media(out, layout), table_in_files(out, layout, FAILURES_NAME)
    failures = FAILURES.empty_table() if failures is None else failures
    is_replaced = pc.is_in(there["media_id"], pa.array(sorted(ids), pa.string())).to_numpy()
    if not is_replaced.any() and names.isdisjoint(failures["uri"].to_pylist()):
        return layout, []
    gone = _Gone.of(out, layout, there, np.flatnonzero(is_replaced), all_views=True)
    gone = replace(gone, names=[None] * len(gone.names))  # these media were not taken down
    lost = gone.failures(failures, there, {*names})
    writer = _Rewriting(output=output, out=out, layout=layout, gone=gone, generation=generation)
    return writer.written(failures.filter(pa.array(~lost)), set()), writer.digests


def _report(gone: "_Gone", failures: int, tars: int, unknown: list[str]) -> RemovedReport:
    return RemovedReport(
        media=len(gone.media), clips=gone.clips, failures=failures, tars=tars, left=gone.left, unknown=unknown
    )


def _check_numbers(out: Place, column: str, numbers: Numbers, found: NDArray[np.int64], count: int) -> None:
    """Raise FormatError if a number in a column of `clips` is not the number of one of `count` rows."""
    rows = numbers.row_of(found)
    wrong = found[(rows < 0) | (rows >= count)]
    if len(wrong):
        raise FormatError(
            "a clip has a number that no row has",
            where=f"{out / CLIPS_FOLDER}, column {column}",
            found=int(wrong[0]),
            allowed=f"numbers of {count:,} rows",
            remedy=REMEDY,
        )


@dataclass(frozen=True, kw_only=True)
class _Gone:
    """The rows that leave a dataset.

    Attributes:
        media: int64 [removed media], the positions in `media`, ascending.
        media_numbers: int64 [removed media], their numbers.
        names: The `media_id` of each of them. None if it is not recorded, because the medium is planned again.
        clip_media: int64 [clips], the number of each clip's medium.
        clip_shard: int64 [clips], the number of each clip's tar, or -1.
        is_gone: bool [clips].
        tars: int64 [tars], the numbers of the tars that have samples of removed clips.
    """

    media: NDArray[np.int64]
    media_numbers: NDArray[np.int64]
    names: list[str | None]
    clip_media: NDArray[np.int64]
    clip_shard: NDArray[np.int64]
    is_gone: NDArray[np.bool_]
    tars: NDArray[np.int64]

    @classmethod
    def of(cls, out: Place, layout: Layout, media: pa.Table, rows: NDArray[np.int64], *, all_views: bool) -> "_Gone":
        """Return the rows of media and their clips.

        Args:
            out: The dataset.
            layout: Its files.
            media: The names of all media.
            rows: The positions of those that leave.
            all_views: Whether the other views of their clips leave, too.

        Raises:
            FormatError: A clip has the number of a medium or of a tar that the dataset lacks.
        """
        numbers = layout.media_numbers.of_row(rows)
        clips = pa.concat_tables(
            table.select(["media_row", "shard", MULTIVIEW]).cast(
                pa.schema([("media_row", pa.int64()), ("shard", pa.int64()), (MULTIVIEW, pa.string())])
            )
            for table in part_columns(out, layout, CLIPS_FOLDER, ["media_row", "shard", MULTIVIEW])
        )
        of_media = clips["media_row"].to_numpy()
        shards = clips["shard"].fill_null(-1).to_numpy()
        _check_numbers(out, "media_row", layout.media_numbers, of_media, len(media))
        tars = layout.read(out, SHARDS_NAME, ["name"])
        _check_numbers(out, "shard", layout.shard_numbers, shards[shards >= 0], 0 if tars is None else len(tars))
        is_gone = np.isin(of_media, numbers)
        if all_views:
            shared = clips[MULTIVIEW].filter(pa.array(is_gone)).drop_null().unique()
            is_gone = is_gone | pc.is_in(clips[MULTIVIEW], shared).to_numpy()
        return cls(
            media=rows,
            media_numbers=numbers,
            names=media["media_id"].take(pa.array(rows)).to_pylist(),
            clip_media=of_media,
            clip_shard=shards,
            is_gone=is_gone,
            tars=np.setdiff1d(shards[is_gone], [-1]),
        )

    @property
    def count(self) -> int:
        """The number of clips before the change."""
        return len(self.is_gone)

    @property
    def clips(self) -> int:
        """The number of removed clips."""
        return int(np.count_nonzero(self.is_gone))

    @property
    def left(self) -> int:
        """The number of clips after the change."""
        return self.count - self.clips

    def failures(self, failures: pa.Table, media: pa.Table, uris: set[str]) -> NDArray[np.bool_]:
        """Return bool [failures]: whether a failure is of a removed medium, or of one of further uris."""
        own = media.take(pa.array(self.media)).to_pylist()
        stay = {row["uri"] for row in media.take(pa.array(np.setdiff1d(np.arange(len(media)), self.media))).to_pylist()}
        named = uris | {medium_name(row["uri"], row["member"]) for row in own}
        named |= {row["uri"] for row in own} - stay
        ids = tuple(f"{name}-" for name in self.names if name is not None)
        found = [
            row["uri"] in named or (row.get("clip_id") or "").startswith(ids) or row.get("clip_id") in self.names
            for row in failures.to_pylist()
        ]
        return np.array(found, bool)

    def removed(self, generation: int, uris: set[str]) -> pa.Table:
        """Return the rows of the table `removed`: the ids of the media, and the positions that their clips had.

        Args:
            generation: The generation of the dataset without them.
            uris: The names of media that have only failures, and of files whose media leave.
        """
        clips = np.flatnonzero(self.is_gone)
        facts = np.stack([clips - np.arange(len(clips)), self.clip_media[clips], self.clip_shard[clips]])
        begins = np.flatnonzero((np.diff(facts, axis=1, prepend=-2) != 0).any(axis=0))
        ends = np.append(begins[1:], len(clips))[: len(begins)]
        names = dict(zip(self.media_numbers.tolist(), self.names, strict=True))
        found: list[Row] = [
            {
                "generation": generation,
                "media_id": names.get(int(self.clip_media[clips[begin]])),
                "media_row": int(self.clip_media[clips[begin]]),
                "shard": None if self.clip_shard[clips[begin]] < 0 else int(self.clip_shard[clips[begin]]),
                "first_clip": int(clips[begin]),
                "stop_clip": int(clips[end - 1]) + 1,
            }
            for begin, end in zip(begins, ends, strict=True)
        ]
        known = {number for number, name in names.items() if name is not None}
        without = known - {row["media_row"] for row in found}
        none = {"generation": generation, "first_clip": 0, "stop_clip": 0}
        found += [none | {"media_id": names[number], "media_row": number} for number in sorted(without)]
        found += [none | {"media_id": media_id(uri)} for uri in sorted(uris)]
        return table_of(found, REMOVED)


@dataclass(kw_only=True)
class _Rewriting:
    """Writes the new files of a dataset.

    Attributes:
        output: The dataset.
        out: The place from which the old files are read.
        layout: The files before the change.
        gone: The rows that leave.
        generation: The generation after the change.
    """

    output: Output
    out: Place
    layout: Layout
    gone: _Gone
    generation: int

    def __post_init__(self) -> None:
        self.digests: list[bytes] = []  # the digests of all new files, in order
        self._shift = np.zeros(self.gone.count, np.int64)  # bytes by which a clip's sample moves in its tar

    def written(self, failures: pa.Table, uris: set[str]) -> Layout:
        """Write all new files, and return the new layout.

        Args:
            failures: The failures that stay.
            uris: The names of removed media that have only failures, and of files whose media leave.
        """
        shards, shard_numbers = self._tars()
        clips, media = self._clips(), self._media()
        files = {
            FIELDS_NAME: self._columns(FIELDS_NAME),
            COLUMNS_NAME: self._columns(COLUMNS_NAME),
            FAILURES_NAME: self._file(FAILURES_NAME, failures),
            SHARDS_NAME: self._file(SHARDS_NAME, shards),
            REMOVED_NAME: self._file(REMOVED_NAME, self.gone.removed(self.generation, uris), more=True),
        }
        return replace(
            self.layout,
            clips=clips,
            media=media,
            files=files,
            media_numbers=self.layout.media_numbers.without(self.gone.media_numbers),
            shard_numbers=shard_numbers,
        )

    def _tars(self) -> tuple[pa.Table | None, Numbers]:
        """Write the tars anew that have samples of removed clips. Return the rows of `shards`, and their numbers."""
        table, numbers = table_in_files(self.out, self.layout, SHARDS_NAME), self.layout.shard_numbers
        if table is None:
            return None, numbers
        rows, empty = table.to_pylist(), []
        for number in self.gone.tars.tolist():
            row = int(numbers.row_of(np.array([number]))[0])
            if (shard := self._tar(rows[row], number)) is None:
                empty.append((row, number))
            else:
                rows[row] = shard
        for row, _ in reversed(empty):
            del rows[row]
        return table_of(rows, SHARDS), numbers.without(np.array([number for _, number in empty], np.int64))

    def _tar(self, shard: Row, number: int) -> Row | None:
        """Write a tar without the samples of removed clips. Return its row of `shards`, or None if none are left.

        An object is copied to a file first, because a request for each sample takes longer.
        """
        old = self.out / shard["name"]
        clips = np.flatnonzero(self.gone.clip_shard == number)
        samples = _samples(index_place(self.out, shard["name"]))
        if len(samples) != len(clips):
            raise FormatError(
                "a tar has another number of samples than the dataset has clips in it",
                where=str(old),
                found=len(samples),
                allowed=len(clips),
                remedy=REMEDY,
            )
        if self.gone.is_gone[clips].all():
            return None
        source = ByteSource(
            path=str(old), size_bytes=shard["size_bytes"], mtime_ns=CONTENT_ALONE, fingerprint=shard["fingerprint"]
        )
        match = TAR_NAME.fullmatch(Path(shard["name"]).name)
        name = f"{SHARDS_FOLDER}/{match[1] if match else Path(shard['name']).stem}-{self.generation}.tar"
        tar = Tar(self.output.local / name, SourceFiles())
        copy = tar.path.with_name(f"{ASIDE}old-{tar.path.name}")
        try:
            if is_remote(source.path):
                with stale_as(source):
                    download(source.path, Objects(None).facts(source), copy)
                source = replace(source, path=str(copy))
            for clip, sample in zip(clips.tolist(), samples, strict=True):
                if self.gone.is_gone[clip]:
                    continue
                members = [
                    Member(suffix=one.suffix, pieces=[FileRanges(source=source, ranges=[(one.offset, one.size_bytes)])])
                    for one in sample
                ]
                first, *_ = tar.add(sample[0].key, members)
                self._shift[clip] = first - sample[0].offset
                tar.settle()
            mark = tar.close()
        except BaseException:
            tar.abandon()
            raise
        finally:
            copy.unlink(missing_ok=True)
        self.digests.append(mark.encode())
        self._publish(tar.path, index_path(tar.path))
        return {"name": name, "size_bytes": tar.size, "fingerprint": mark, "clips": tar.samples}

    def _clips(self) -> list[Part]:
        """Write the parts of `clips` and `recipes` anew that have removed or moved clips."""
        found: list[Part] = []
        number, first = next_number(part.number for part in self.layout.clips), 0
        moved = np.isin(self.gone.clip_shard, self.gone.tars)
        for part in self.layout.clips:
            here = slice(first, first + part.rows)
            first += part.rows
            if not (self.gone.is_gone[here] | moved[here]).any():
                found.append(part)
                continue
            stays = ~self.gone.is_gone[here]
            if not stays.any():
                continue
            clips, recipes = (
                self._part(folder, part).filter(pa.array(stays)) for folder in (CLIPS_FOLDER, RECIPES_FOLDER)
            )
            recipes = _shifted(recipes, self._shift[here][stays])
            has_rows = self.layout.has_rows
            self._publish(*write_clips(self.output.local, number, clips, recipes, has_rows=has_rows))
            found.append(Part(number=number, rows=int(np.count_nonzero(stays))))
            number += 1
        return found

    def _media(self) -> list[Part]:
        """Write the parts of `media` anew that have removed media."""
        found: list[Part] = []
        number, first = next_number(part.number for part in self.layout.media), 0
        for part in self.layout.media:
            own = self.gone.media[(self.gone.media >= first) & (self.gone.media < first + part.rows)] - first
            first += part.rows
            if not len(own):
                found.append(part)
            elif len(own) < part.rows:
                stays = np.setdiff1d(np.arange(part.rows), own)
                media = self._part(MEDIA_FOLDER, part).take(pa.array(stays))
                self._publish(*write_media(self.output.local, number, media, has_rows=self.layout.has_rows))
                found.append(Part(number=number, rows=len(stays)))
                number += 1
        return found

    def _part(self, folder: str, part: Part) -> pa.Table:
        path = part_path(self.out / folder, part.number)
        with reading(str(path), REMEDY), parquet_file(path) as file:
            return read_file(file, path).combine_chunks()

    def _columns(self, name: str) -> list[int]:
        """Write the files of `fields` or `columns` anew that have removed clips. Return the numbers of all files.

        Each row group becomes a file, so that later changes write less.
        """
        found: list[int] = []
        old = self.layout.numbers(self.out, name)
        number, first = next_number(old), 0
        for one, path in zip(old, self.layout.paths(self.out, name), strict=True):
            with reading(str(path), REMEDY), parquet_file(path) as file:
                rows = file.metadata.num_rows
                stays = ~self.gone.is_gone[first : first + rows]
                first += rows
                if stays.all():
                    found.append(one)
                    continue
                at = 0
                for group in range(file.metadata.num_row_groups):
                    table = file.read_row_group(group, use_threads=False).replace_schema_metadata(None)
                    kept = table.filter(pa.array(stays[at : at + len(table)]))
                    at += len(table)
                    if len(kept):
                        target = self.output.local / file_name(name, number)
                        write_part(target, kept, version=SCHEMA_VERSION)
                        self._publish(target)
                        found.append(number)
                        number += 1
        if old and first != self.gone.count:
            raise FormatError(
                "the file does not belong to the dataset",
                where=str(self.out / name),
                found=counted(first, "row"),
                allowed=counted(self.gone.count, "row"),
                remedy=REMEDY,
            )
        return found

    def _file(self, name: str, table: pa.Table | None, *, more: bool = False) -> list[int]:
        """Write a table into a new file if it has other rows than before, and return the numbers of its files.

        Args:
            name: The name of the table.
            table: The rows. None if the dataset does not have the table.
            more: Whether the rows are added to those of earlier files.
        """
        old = self.layout.numbers(self.out, name)
        if table is None or (more and not len(table)):
            return old
        before = None if more else table_in_files(self.out, self.layout, name)
        if before is not None and before.equals(table.combine_chunks()):
            return old
        number = max(1, next_number(old))
        target = self.output.local / file_name(name, number)
        write_part(target, table.replace_schema_metadata(None), version=SCHEMA_VERSION)
        self._publish(target)
        return [*old, number] if more else [number]

    def _publish(self, *paths: Path) -> None:
        for path in paths:
            if path.suffix in (".parquet", ".rows"):
                self.digests.append(hashlib.blake2b(path.read_bytes()).digest())
            publish(self.output, path)


def _shifted(recipes: pa.Table, shift: NDArray[np.int64]) -> pa.Table:
    """Add a number of bytes to all offsets of each row of `recipes`."""
    for name in RANGES:
        if name not in recipes.column_names or not shift.any():
            continue
        column = recipes[name].combine_chunks()
        lists = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        lengths = lists.value_lengths().fill_null(0).to_numpy()
        values = lists.flatten().to_numpy() + np.repeat(shift, lengths)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        moved = pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), pa.array(values, lists.type.value_type), type=lists.type, mask=lists.is_null()
        )
        recipes = recipes.set_column(recipes.column_names.index(name), recipes.schema.field(name), moved)
    return recipes


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file in a tar.

    Attributes:
        key: The name of its sample.
        suffix: The part of its name after the key and a dot.
        offset: The offset of its content in the tar.
        size_bytes: The size of its content.
    """

    key: str
    suffix: str
    offset: int
    size_bytes: int


def index_place(out: Place, name: str) -> Place:
    """Return the place of the index of a tar of a dataset."""
    return out / str(index_path(Path(name)))


def _samples(path: Place) -> list[list[_File]]:
    """Return the files of each sample of a tar, from its index. Raises FormatError."""
    with reading(str(path), REMEDY):
        first, *lines = small_text(path).splitlines()
        if first.split() != [INDEX_VERSION, str(len(lines))]:
            raise ValueError(f"{first[:80]!r} is not the first line of an index of {len(lines)} samples")
        return [_sample(line.split(" ")) for line in lines]


def _sample(words: list[str]) -> list[_File]:
    if not words or len(words) % 4:
        raise ValueError(f"{' '.join(words)[:80]!r} is not a sample")
    return [
        _File(key=name.removesuffix(f".{suffix}"), suffix=suffix, offset=int(offset), size_bytes=int(size))
        for suffix, offset, size, name in zip(*(words[at::4] for at in range(4)), strict=True)
    ]
