"""Append clips of further media to a dataset, by the plan with which it was made.

The clips are written as a small dataset beside it, and then become a part of it by one change of its header.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from framedex.core.column_rules import reading
from framedex.errors import NoClipsError, OutputError
from framedex.files.changes import log_change
from framedex.files.outputs import Output
from framedex.files.parquet_parts import part_path, table_of, write_part
from framedex.indexer.parts.index import Index
from framedex.sharder.build import ShardOptions, build_pieces, job_of
from framedex.sharder.changing.change import (
    COMMAND,
    complete_log,
    digest_of,
    finish_change,
    generation_of_change,
    names_of,
    next_number,
    opened_dataset,
    publish,
    removed_of,
    replace_header,
    rows_of,
    sweep,
    table_in_files,
    table_of_media,
)
from framedex.sharder.changing.remove import without_media
from framedex.sharder.clips.labels import stored_labels
from framedex.sharder.layout import REMEDY, Layout, Numbers, Part, checked_header, dataset_header, file_name
from framedex.sharder.packing.tars import index_path
from framedex.sharder.planning.steps import PIECE_FACTS, policy_pieces
from framedex.sharder.planning.units import units_of
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.schema import (
    CLIPS,
    CLIPS_FOLDER,
    COLUMNS_NAME,
    FAILURES,
    FAILURES_NAME,
    FIELDS_NAME,
    HEADER,
    MEDIA_FOLDER,
    OWN_NAME,
    POLICY_NAME,
    RECIPES_FOLDER,
    REMOVED_NAME,
    SCHEMA_VERSION,
    SHARDS,
    SHARDS_NAME,
)
from framedex.sharder.selection.mentions import user_columns
from framedex.sharder.writing.output import First
from framedex.sharder.writing.report import ShardReport, finished_report, with_labels
from framedex.storage.places import Place, local_of, parquet_file, small_bytes, small_text
from framedex.storage.reader import ASIDE
from framedex.storage.uris import medium_name

Row = dict[str, Any]


def append_from_policy(
    index: Index, out: Place, file: PolicyFile, options: ShardOptions, *, replan_scenes: bool = False
) -> ShardReport:
    """Append the clips that a policy selects from media that a dataset does not have and never had.

    Args:
        index: The index.
        out: The dataset.
        file: The policy, which must be the one of the dataset.
        options: The options, which must be those of the dataset, except for the size of tars.
        replan_scenes: Whether to plan scenes of the dataset again that have new views.

    Raises:
        OutputError: The plan differs from that of the dataset, or another run is changing the dataset.
        PolicyError: A scene of the dataset has a new view, and `replan_scenes` is False.
    """
    dataset_header(out)  # for an error that is about the whole dataset
    before = small_bytes(out / HEADER)
    header, layout = checked_header(out)
    job = job_of(index, file.resolved, options)
    check_plan(index, out, header, job)
    split = file.policy.split
    if split is not None and split.stratify is not None and split.keep is None:  # groups keep the splits that they have
        file = replace(file, policy=replace(file.policy, split=replace(split, keep=str(out))))
    schema = user_columns(index, file.policy.split)
    _check_columns(out, layout, schema)
    removed = removed_of(out, layout)
    units = units_of(index, file, PIECE_FACTS)
    there = _known_media(index, out, layout)
    new, again = units.new(there, {row["media_id"] for row in removed} - {None}, replan=replan_scenes)
    asked: Row = {"append": True, "index": str(index.path), "index_generation": index.generation}
    asked |= {"replan_scenes": True} if replan_scenes else {}
    folder = _folder_beside(out, options)
    nothing = ShardReport(out=out, clips=0, media=0, frames=0, shards=0, resumed=0, failures=[], finished=True)
    what = digest_of(index.content(), str(job["policy"]))
    if not new:
        finish_change(out, asked, what)
        _remove(folder)
        return replace(nothing, filtered=units.left_out)
    tars = layout.read(out, SHARDS_NAME, ["name"])
    first = First(
        clip=sum(part.rows for part in layout.clips) + sum(row["stop_clip"] - row["first_clip"] for row in removed),
        medium=_next(layout.media_numbers, sum(part.rows for part in layout.media)),
        tar=_next(layout.shard_numbers, 0 if tars is None else len(tars)),
    )
    of_new = units.table.columns.take(pa.array(sorted({row for unit in new for row in units.rows(unit)})))
    labels = _labels(header, of_new)
    views = _views(out, header, [] if units.scenes is None else units.scenes.names)
    job |= {"appended_to": hashlib.blake2b(before, digest_size=16).hexdigest()}
    pieces = policy_pieces(units, file.policy, new)
    own = replace(options, overwrite=True, labels=None)
    report = finished_report(folder, job, index)  # if a run was killed after it had made the folder
    try:
        if report is None:
            _remove(folder)
            report = build_pieces(index, folder, job, schema, pieces, len(new), own, {}, first)
    except NoClipsError as error:
        return replace(nothing, failures=error.failures, filtered=units.left_out)
    names = units.table.facts.select(["uri", "member"]).append_column("media_id", units.table.media_id)
    replaced = names.take(pa.array(sorted({row for unit in again for row in units.rows(unit)}), pa.int64()))
    append_dataset(out, folder, replaced, before=before, facts=labels | views, asked=asked, what=what)
    _remove(folder)
    return with_labels(replace(report, out=out, filtered=units.left_out), None)


def _folder_beside(out: Place, options: ShardOptions) -> Path:
    """Return the local folder into which the new clips are written first."""
    folder = local_of(out)
    if folder is not None:
        return Path(f"{os.path.realpath(folder)}.appended")
    name = hashlib.blake2b(str(out).encode(), digest_size=8).hexdigest()
    base = Path(tempfile.gettempdir()) / f"framedex-{os.getuid()}" if options.scratch is None else options.scratch
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    return base / f"append-{name}"


def _remove(folder: Path) -> None:
    """Delete a folder in which clips were written first. Raises OutputError if it has other files."""
    if not folder.exists():
        return
    other = [name for name in names_of(folder) if not OWN_NAME.fullmatch(name)]
    if other:
        raise OutputError(
            "the folder in which new clips are written first has other files",
            where=str(folder),
            found=", ".join(other[:5]),
            remedy="rename the folder",
        )
    shutil.rmtree(folder)


def _next(numbers: Numbers, rows: int) -> int:
    """Return the number of the next row of a table that has `rows` rows."""
    return int(numbers.of_row(np.array([rows]))[0])


def _known_media(index: Index, out: Place, layout: Layout) -> Set[str]:
    """Return the ids of all media that a dataset has, or of which it has failures."""
    failures, videos = layout.read(out, FAILURES_NAME, ["uri"]), index.columns(["media_id", "uri", "member"])
    names = pa.array(map(medium_name, videos["uri"].to_pylist(), videos["member"].to_pylist()), pa.string())
    failed = pa.array([], pa.string()) if failures is None else failures["uri"].combine_chunks()
    of_failures = videos["media_id"].filter(pc.is_in(names, failed, skip_nulls=True))
    return {*table_of_media(out, layout)["media_id"].to_pylist(), *of_failures.to_pylist()}


def check_plan(index: Index, out: Place, header: Mapping[str, Any], job: Row) -> None:
    """Raise OutputError with the first difference between the plan of a dataset and the plan of a job."""
    with reading(str(out / POLICY_NAME), REMEDY):
        policy = yaml.safe_load(small_text(out / POLICY_NAME))
    pack = {name: value for name, value in job["pack"].items() if name != "shard_bytes"}
    pack["encode"] = {name: value for name, value in pack.get("encode", {}).items() if name != "encoder"} or None
    then = {name: header.get(name) for name in ("pack", "images", "audio")}
    then["encode"] = {name: value for name, value in (header.get("encode") or {}).items() if name != "encoder"} or None
    pairs: list[tuple[str, Any, Any]] = [
        ("version of the format", header["schema_version"], SCHEMA_VERSION),
        ("root of the sources", header["root"], index.root),
        *((f"policy, {name}", *both) for name, both in _both(policy, job["policy"]).items()),
        *((f"option {name}", *both) for name, both in _both(then, pack).items()),
        ("option damaged", bool(header.get("keep_damaged")), job["keep_damaged"]),
    ]
    for name, one, other in pairs:
        if one != other:
            raise OutputError(
                "the dataset was made by another plan",
                where=f"{out}, {name}",
                found=other,
                allowed=one,
                remedy="append with the policy and the options with which the dataset was made",
            )


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (one.get(name), other.get(name)) for name in [*one, *(name for name in other if name not in one)]}


def _check_columns(out: Place, layout: Layout, schema: pa.Schema) -> None:
    """Raise OutputError if the user's columns of new clips are not those of the dataset."""
    path = part_path(out / CLIPS_FOLDER, layout.clips[0].number)
    with reading(str(path), REMEDY), parquet_file(path) as opened:
        there = {field.name: field.type for field in opened.schema_arrow if field.name not in CLIPS.names}
    new = {field.name: field.type for field in schema}
    for name in [*there, *(name for name in new if name not in there)]:
        if there.get(name) != new.get(name):
            raise OutputError(
                "the columns of the listing are not those of the dataset",
                where=f"{out}, column {name}",
                found=str(new.get(name, "no such column")),
                allowed=str(there.get(name, "no such column")),
                remedy="index a listing with the same columns, or make the dataset anew",
            )


def _labels(header: Mapping[str, Any], columns: pa.Table) -> Row:
    """Return the labels of a dataset for its header. New values have the next numbers, in sorted order."""
    labels = stored_labels(header.get("labels"))
    if labels is None:
        return {}
    new = sorted({*columns[labels.column].drop_null().to_pylist()} - labels.numbers.keys())
    first = max(labels.numbers.values()) + 1
    numbers = labels.numbers | {value: first + at for at, value in enumerate(new)}
    return {"labels": replace(labels, numbers=numbers).stored()}


def _views(out: Place, header: Mapping[str, Any], names: list[str]) -> Row:
    """Return the names of the views of a dataset for its header. New views follow after the others.

    Raises:
        OutputError: Clips must have all views, and the listing has other views than the dataset.
    """
    stored = header.get("views")
    if stored is None:
        return {}
    if stored["missing"] != "mask" and {*names} != {*stored["names"]}:
        raise OutputError(
            "clips must have all views, but the listing has others than the dataset",
            where=str(out),
            found=", ".join(names),
            allowed=", ".join(stored["names"]),
            remedy="complete the listing, or make the dataset anew with `missing: mask` or with the new views",
        )
    return {"views": stored | {"names": [*stored["names"], *(name for name in names if name not in stored["names"])]}}


def append_dataset(
    out: Place, folder: Path, replaced: pa.Table, *, before: bytes, facts: Row, asked: Row, what: str
) -> None:
    """Make the files of a small dataset a part of a dataset.

    Args:
        out: The dataset.
        folder: The small dataset, which was made with the first numbers that the dataset does not have.
        replaced: The media whose clips the small dataset replaces, with the columns `media_id`, `uri` and `member`.
        before: The header of the dataset when the small one was planned.
        facts: Keys of the header to replace.
        asked: The options, for the log.
        what: A digest of the index and the policy.

    Raises:
        OutputError: The dataset was changed since the small one was planned, or another run is changing it.
    """
    with opened_dataset(out, asked | {"what": what}) as output:
        if small_bytes(out / HEADER) != before:
            raise OutputError(
                "another run has changed the dataset meanwhile", where=str(out), remedy="run the same command again"
            )
        header, layout = checked_header(out)
        added, own = checked_header(folder)
        generation = header.get("generation") or 1
        complete_log(output, generation)
        next_one = generation_of_change(out, generation, asked)
        log_change(output, next_one, COMMAND, asked)
        digests, left = [str(added["build"]).encode()], layout
        if len(replaced):
            left, own_digests = without_media(output, out, replaced, next_one)
            digests += own_digests
        adding = _Adding(output=output, out=out, folder=folder, before=layout, layout=left, added=own)
        new = adding.written()
        ffmpeg = sorted({*(header.get("index_ffmpeg") or []), *(added.get("index_ffmpeg") or [])})
        more = {"index_generation": added["index_generation"], "index_ffmpeg": ffmpeg} | facts
        replace_header(output, before, layout, new, next_one, more, digests)
        counts = {
            "clips": rows_of(own.clips),
            "media": rows_of(own.media),
            "tars": adding.tars,
            "failures": adding.failures,
        }
        log_change(output, next_one, COMMAND, asked, {name: count for name, count in counts.items() if count})
        sweep(output, new)


@dataclass(kw_only=True)
class _Adding:
    """Makes the files of a small dataset files of a dataset.

    Attributes:
        output: The dataset.
        out: The place from which its files are read.
        folder: The small dataset.
        before: The files of the dataset before the change.
        layout: The files of the dataset that stay.
        added: The files of the small dataset.
        tars: The number of tars that were added.
        failures: The number of failures that were added.
    """

    output: Output
    out: Place
    folder: Path
    before: Layout
    layout: Layout
    added: Layout
    tars: int = 0
    failures: int = 0

    def written(self) -> Layout:
        """Add all files, and return the new layout."""
        for row in self._rows(self.folder, self.added, SHARDS_NAME):
            self.tars += 1
            for path in (Path(row["name"]), index_path(Path(row["name"]))):
                self._copy(self.folder / path, self.output.local / path)
        numbers = {
            name: [*self.layout.numbers(self.out, name), *self._file(name)] for name in (FIELDS_NAME, COLUMNS_NAME)
        }
        numbers |= {REMOVED_NAME: self.layout.numbers(self.out, REMOVED_NAME)}
        for name, columns in ((FAILURES_NAME, FAILURES), (SHARDS_NAME, SHARDS)):
            numbers[name] = self._joined(name, columns)
        return replace(
            self.layout,
            clips=[*self.layout.clips, *self._parts(RECIPES_FOLDER, CLIPS_FOLDER)],
            media=[*self.layout.media, *self._parts(MEDIA_FOLDER)],
            files=numbers,
        )

    @staticmethod
    def _rows(place: Place, layout: Layout, name: str) -> list[Row]:
        table = table_in_files(place, layout, name)
        return [] if table is None else table.to_pylist()

    def _parts(self, *folders: str) -> list[Part]:
        old = (part.number for layout in (self.before, self.layout) for part in layout.parts(folders[0]))
        first, added = next_number(old), self.added.parts(folders[0])
        found = [replace(part, number=first + at) for at, part in enumerate(added)]
        for folder in folders:
            for part, new in zip(added, found, strict=True):
                target = part_path(self.output.local / folder, new.number)
                self._copy(part_path(self.folder / folder, part.number), target)
        return found

    def _file(self, name: str) -> list[int]:
        """Add the file of `fields` or `columns`, and return its number."""
        number = self._next(name)
        for path in self.added.paths(self.folder, name):
            self._copy(Path(str(path)), self.output.local / file_name(name, number))
            return [number]
        return []

    def _next(self, name: str) -> int:
        """Return the number of the next file of a table of FILES."""
        old = (number for layout in (self.before, self.layout) for number in layout.numbers(self.out, name))
        return max(1, next_number(old))

    def _joined(self, name: str, columns: pa.Schema) -> list[int]:
        """Write all rows of a table into a new file if rows are added, and return the numbers of its files."""
        old, rows = self.layout.numbers(self.out, name), self._rows(self.folder, self.added, name)
        if name == FAILURES_NAME:
            self.failures = len(rows)
        if not rows:
            return old
        target = self.output.local / file_name(name, number := self._next(name))
        write_part(target, table_of([*self._rows(self.out, self.layout, name), *rows], columns), version=SCHEMA_VERSION)
        publish(self.output, target)
        return [number]

    def _copy(self, path: Path, target: Path) -> None:
        """Make a file of the small dataset a file of the dataset, too, if possible without a copy of its content."""
        target.parent.mkdir(exist_ok=True)
        aside = target.with_name(ASIDE + target.name)
        aside.unlink(missing_ok=True)
        try:
            os.link(path, aside)
        except OSError:  # the file system has no links, or it is another one
            shutil.copyfile(path, aside)
        os.replace(aside, target)
        aside.unlink(missing_ok=True)  # it stays if both names already stood for the same file
        publish(self.output, target)
