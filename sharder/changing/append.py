"""Append clips of further media to a dataset, by the plan with which it was made.

The clips are written as a small dataset of their own, and then become a part of it by one change of its header.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from framedex.core.column_rules import reading
from framedex.errors import NoClipsError, OutputError
from framedex.files.changes import log_change
from framedex.files.outputs import Output
from framedex.files.parquet_parts import part_path
from framedex.indexer.parts.index import Index
from framedex.sharder.build import ShardOptions, build_pieces, job_of
from framedex.sharder.changing.change import (
    COMMAND,
    complete_log,
    digest_of,
    next_number,
    opened_dataset,
    part_columns,
    publish,
    remove_folder,
    removed_of,
    replace_header,
    rows_of,
    sweep,
    table_of_media,
)
from framedex.sharder.changing.remove import MULTIVIEW, without_media
from framedex.sharder.clips.labels import Labels, WantedLabels, stored_labels
from framedex.sharder.layout import (
    FILES,
    REMEDY,
    Layout,
    Numbers,
    Part,
    checked_header,
    dataset_header,
    file_name,
    part_files,
)
from framedex.sharder.packing.tars import index_path
from framedex.sharder.planning.indexed_medium import OpenMedia
from framedex.sharder.planning.steps import PIECE_FACTS, policy_pieces
from framedex.sharder.planning.units import SceneMedia, Unit, Units, units_of
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.schema import (
    APPENDED_FOLDERS,
    CLIPS,
    CLIPS_FOLDER,
    FAILURES_NAME,
    HEADER,
    MEDIA_FOLDER,
    POLICY_NAME,
    SCHEMA_VERSION,
    SHARDS_NAME,
)
from framedex.sharder.selection.mentions import SPLIT_COLUMN, user_columns
from framedex.sharder.writing.output import First
from framedex.sharder.writing.report import ShardReport, finished_report, with_labels
from framedex.storage.places import Place, Stored, local_of, parquet_file, small_bytes, small_text
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
        replan_scenes: Whether scenes with new views or files, and new scenes with files of the dataset, may be planned
            again, with all scenes that share files with them. Their clips are replaced.

    Raises:
        FramedexError: A new row of the listing has no label, or there are too many labels.
        OutputError: The plan differs from that of the dataset, or another run is changing the dataset.
        PolicyError: Scenes must be planned again, and `replan_scenes` is False.
    """
    dataset_header(out)  # before a folder is created
    job = job_of(index, file.resolved, options)
    asked: Row = {"append": True, "index": str(index.path), "index_generation": index.generation}
    asked |= {"replan_scenes": True} if replan_scenes else {}
    folder = _folder_for(out, options)
    with contextlib.ExitStack() as stack:
        # Nothing else changes a folder while clips are packed. In a bucket, a removal need not wait for that.
        output = None if isinstance(out, Stored) else stack.enter_context(opened_dataset(out, asked))
        addition = _planned(index, out, file, job, options, replan_scenes=replan_scenes)
        own_job = addition.job(job)
        report = _packed(index, folder, addition, file, own_job, options)
        if output is None:
            what = digest_of(json.dumps(own_job, sort_keys=True))
            output = stack.enter_context(opened_dataset(out, asked | {"what": what}))
        is_there = not report.clips or finished_report(folder, own_job, index) is not None
        if small_bytes(out / HEADER) != addition.before or not is_there:
            raise OutputError(
                "another run has changed the dataset meanwhile",
                where=str(out),
                remedy="run the same command again; clips that are packed are kept",
            )
        complete_log(output, addition.generation)
        new = _append(output, out, folder, addition, asked) if report.clips else addition.layout
        sweep(output, new)
        remove_folder(folder)
    return replace(report, out=out, filtered=addition.units.left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Addition:
    """The new clips of a dataset, before they are packed.

    Attributes:
        before: The header of the dataset.
        layout: The files of the dataset.
        generation: The generation of the dataset.
        units: The units of the policy.
        new: The numbers of the units from which clips are made.
        replaced: The ids of media of the dataset whose clips are replaced.
        first: The first numbers of new rows.
        labels: The labels with those of new rows. None if the dataset records no labels.
        views: The key `views` of the new header. None if clips do not have several views.
    """

    before: bytes
    layout: Layout
    generation: int
    units: Units
    new: list[int]
    replaced: Set[str]
    first: First
    labels: Labels | None
    views: Row | None

    @property
    def rows(self) -> pa.Array:
        """int64 [mentions], the numbers of the mentions of the new units."""
        return pa.array(sorted({row for unit in self.new for row in self.units.rows(unit)}), pa.int64())

    def job(self, job: Row) -> Row:
        """Return the values that identify the small dataset of the new clips."""
        names = [name for name in (SPLIT_COLUMN,) if name in self.units.table.columns.column_names]
        rows = self.units.table.columns.select(names).append_column("media_id", self.units.table.media_id)
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, rows.schema) as stream:
            stream.write_table(rows.take(self.rows).combine_chunks())
        digest = hashlib.blake2b(content.getvalue(), digest_size=16).hexdigest()
        return job | {"appended": asdict(self.first) | {"rows": digest}}


def _planned(
    index: Index, out: Place, file: PolicyFile, job: Row, options: ShardOptions, *, replan_scenes: bool
) -> _Addition:
    """Return what to append to a dataset. Raises the errors of `append_from_policy`."""
    before = small_bytes(out / HEADER)
    header, layout = checked_header(out)
    check_plan(index, out, header, job)
    _check_columns(out, layout, user_columns(index, file.policy.split))
    units = units_of(index, file, PIECE_FACTS, appended_to=out)
    media = OpenMedia(index, options.planning(index))

    def has_more(unit: Unit, known: Set[tuple[str, str]]) -> bool:
        clips = unit.sample(file.policy, media.timeline).clips
        return any((clip.multiview.view_name, clip.mention.media_id) not in known for clip in clips if clip.multiview)

    removed = removed_of(out, layout)
    gone = {row["media_id"] for row in removed} - {None}
    new, replaced = units.new(_media_there(out, layout), gone, has_more, replan=replan_scenes)
    tars = layout.read(out, SHARDS_NAME, ["name"])
    first = First(
        clip=rows_of(layout.clips) + sum(row["stop_clip"] - row["first_clip"] for row in removed),
        medium=_next(layout.media_numbers, rows_of(layout.media)),
        tar=_next(layout.shard_numbers, 0 if tars is None else len(tars)),
    )
    addition = _Addition(
        before=before,
        layout=layout,
        generation=header.get("generation") or 1,
        units=units,
        new=new,
        replaced=replaced,
        first=first,
        labels=stored_labels(header.get("labels")),
        views=_views(out, header, units.scenes.names) if new and units.scenes is not None else None,
    )
    if addition.labels is None or not new:
        return addition
    values = units.table.columns[addition.labels.column].take(addition.rows)
    return replace(addition, labels=addition.labels.extended(values, str(index.path), "new row"))


def _packed(
    index: Index, folder: Path, addition: _Addition, file: PolicyFile, job: Row, options: ShardOptions
) -> ShardReport:
    """Write the new clips as a small dataset, and return its report. If no clips can be made, nothing is written."""
    nothing = ShardReport(out=folder, clips=0, media=0, frames=0, shards=0, resumed=0, failures=[], finished=True)
    if not addition.new:
        return nothing
    labels = addition.labels
    wanted = None if labels is None else WantedLabels(column=labels.column, numbers=labels.numbers)
    if (before := finished_report(folder, job, index)) is not None:
        return with_labels(replace(before, finished=False), wanted)
    remove_folder(folder)
    schema, pieces = user_columns(index, file.policy.split), policy_pieces(addition.units, file.policy, addition.new)
    options, count = replace(options, overwrite=True, labels=wanted), len(addition.new)
    try:
        return build_pieces(index, folder, job, schema, pieces, count, options, {}, addition.first)
    except NoClipsError as error:
        return replace(nothing, failures=error.failures)


def _media_there(out: Place, layout: Layout) -> SceneMedia:
    """Return the media of a dataset, and the views of its scenes."""
    ids = table_of_media(out, layout)["media_id"].to_pylist()
    of_scene: dict[str, set[tuple[str, str]]] = {}
    columns = ["media_row", MULTIVIEW, "view_name"]
    for table in part_columns(out, layout, CLIPS_FOLDER, columns):
        if table[MULTIVIEW].null_count == len(table):
            continue
        media = layout.media_numbers.row_of(table["media_row"].to_numpy().astype(np.int64)).tolist()
        for row, name, view in zip(media, table[MULTIVIEW].to_pylist(), table["view_name"].to_pylist(), strict=True):
            of_scene.setdefault(name.rpartition("-")[0], set()).add((view, ids[row]))
    return SceneMedia(media={*ids}, of_scene=of_scene)


def _folder_for(out: Place, options: ShardOptions) -> Path:
    """Return the local folder into which the new clips are written first."""
    if not isinstance(out, Stored):
        return out / APPENDED_FOLDERS[0]
    name = hashlib.blake2b(str(out).encode(), digest_size=8).hexdigest()
    base = Path(tempfile.gettempdir()) / f"framedex-{os.getuid()}" if options.scratch is None else options.scratch
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    return base / f"append-{name}"


def _next(numbers: Numbers, rows: int) -> int:
    """Return the number of the next row of a table that has `rows` rows."""
    return int(numbers.of_row(np.array([rows]))[0])


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


def _views(out: Place, header: Mapping[str, Any], names: list[str]) -> Row | None:
    """Return the key `views` of a dataset's header with new names of views after the others. None if it has no views.

    Raises:
        OutputError: Clips must have all views, and the listing has other views than the dataset.
    """
    stored: Row | None = header.get("views")
    if stored is None:
        return None
    if stored["missing"] != "mask" and {*names} != {*stored["names"]}:
        raise OutputError(
            "clips must have all views, but the listing has others than the dataset",
            where=str(out),
            found=", ".join(names),
            allowed=", ".join(stored["names"]),
            remedy="complete the listing, or make the dataset anew with `missing: mask` or with the new views",
        )
    return stored | {"names": [*stored["names"], *(name for name in names if name not in stored["names"])]}


def _append(output: Output, out: Place, folder: Path, addition: _Addition, asked: Row) -> Layout:
    """Make the files of the small dataset in a folder a part of a dataset, and return the new layout."""
    added, own = checked_header(folder)
    generation = addition.generation + 1
    log_change(output, generation, COMMAND, asked)
    # Failures of media that are planned once more are replaced, and so are clips of scenes that are planned again.
    facts = addition.units.table.facts.select(["uri", "member"]).take(addition.rows)
    names = {*map(medium_name, facts["uri"].to_pylist(), facts["member"].to_pylist())}
    planned = {*addition.units.table.media_id.take(addition.rows).to_pylist()}
    left, digests = without_media(output, out, addition.replaced | planned, names, generation)
    adding = _Adding(output=output, out=out, folder=folder, before=addition.layout, layout=left, added=own)
    new = adding.written()
    header = json.loads(addition.before)
    ffmpeg = sorted({*(header.get("index_ffmpeg") or []), *(added.get("index_ffmpeg") or [])})
    more: Row = {"index_generation": added["index_generation"], "index_ffmpeg": ffmpeg}
    more |= {} if addition.labels is None else {"labels": addition.labels.stored()}
    more |= {} if addition.views is None else {"views": addition.views}
    digests = [str(added["build"]).encode(), *digests]
    replace_header(output, addition.before, addition.layout, new, generation, more, digests)
    counts = {
        "clips": rows_of(own.clips),
        "media": rows_of(own.media),
        "tars": adding.tars,
        "failures": adding.failures,
        "replaced": rows_of(addition.layout.clips) - rows_of(left.clips),
    }
    log_change(output, generation, COMMAND, asked, {name: count for name, count in counts.items() if count})
    return new


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
        tars = self.added.read(self.folder, SHARDS_NAME, ["name"])
        for name in [] if tars is None else tars["name"].to_pylist():
            self.tars += 1
            for path in (Path(name), index_path(Path(name))):
                self._copy(self.folder / path, self.output.local / path)
        numbers = {name: [*self.layout.numbers(self.out, name), *self._file(name)] for name in FILES}
        return replace(
            self.layout,
            clips=[*self.layout.clips, *self._parts(CLIPS_FOLDER)],
            media=[*self.layout.media, *self._parts(MEDIA_FOLDER)],
            files=numbers,
        )

    def _parts(self, table: str) -> list[Part]:
        """Add the parts of `clips` together with their parts of `recipes`, or the parts of `media`. Return them."""
        old = (part.number for layout in (self.before, self.layout) for part in layout.parts(table))
        first, added = next_number(old), self.added.parts(table)
        found = [replace(part, number=first + at) for at, part in enumerate(added)]
        for part, new in zip(added, found, strict=True):
            for theirs, own in zip(*(part_files(table, one.number) for one in (part, new)), strict=True):
                self._copy(self.folder / theirs, self.output.local / own)
        return found

    def _file(self, name: str) -> list[int]:
        """Add the file of a table of FILES if it has rows, and return its number."""
        layouts = (self.before, self.layout)
        number = max(1, next_number(one for layout in layouts for one in layout.numbers(self.out, name)))
        rows = 0
        for path in map(local_of, self.added.paths(self.folder, name)):
            assert path is not None
            rows += pq.read_metadata(path).num_rows
            if rows:
                self._copy(path, self.output.local / file_name(name, number))
        if name == FAILURES_NAME:
            self.failures = rows
        return [number] if rows else []

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
