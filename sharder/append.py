"""Append clips of further media to a dataset, by the plan with which it was made.

The clips are written as a small dataset beside it, and then become a part of it by one change of its header.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from framedex.core.column_rules import reading
from framedex.errors import NoClipsError, OutputError
from framedex.files.parquet_parts import part_path
from framedex.indexer.parts.index import Index
from framedex.sharder.build import ShardOptions, build_pieces, job_of
from framedex.sharder.clips.labels import stored_labels
from framedex.sharder.layout import REMEDY, Layout, Numbers, checked_header, dataset_header
from framedex.sharder.planning.steps import PIECE_FACTS, policy_pieces
from framedex.sharder.planning.units import units_of
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.schema import (
    CLIPS,
    CLIPS_FOLDER,
    FAILURES_NAME,
    HEADER,
    OWN_NAME,
    POLICY_NAME,
    SCHEMA_VERSION,
    SHARDS_NAME,
)
from framedex.sharder.selection.mentions import user_columns
from framedex.sharder.writing.changing import (
    append_dataset,
    digest_of,
    finish_change,
    names_of,
    possible_ids,
    removed_of,
    table_of_media,
)
from framedex.sharder.writing.output import First
from framedex.sharder.writing.report import ShardReport, finished_report, with_labels
from framedex.storage.places import Place, local_of, parquet_file, small_bytes, small_text

Row = dict[str, Any]


def append_from_policy(index: Index, out: Place, file: PolicyFile, options: ShardOptions) -> ShardReport:
    """Append the clips that a policy selects from media that a dataset does not have and never had.

    Args:
        index: The index.
        out: The dataset.
        file: The policy, which must be the one of the dataset.
        options: The options, which must be those of the dataset, except for the size of tars.

    Raises:
        OutputError: The plan differs from that of the dataset, or another run is changing the dataset.
        NoClipsError: No clip of the new media can be made. Nothing is appended.
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
    new = units.without(_known_media(out, layout, removed))
    asked = {"append": True, "index": str(index.path), "index_generation": index.generation}
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
    views = _views(header, [] if units.scenes is None else units.scenes.names)
    job |= {"appended_to": hashlib.blake2b(before, digest_size=16).hexdigest()}
    pieces = policy_pieces(units, file.policy, new)
    own = replace(options, overwrite=True, labels=None)
    report = finished_report(folder, job, index)  # of a run that was killed when it changed the dataset
    try:
        if report is None:
            _remove(folder)
            report = build_pieces(index, folder, job, schema, pieces, len(new), own, {}, first)
    except NoClipsError as error:
        return replace(nothing, failures=error.failures, filtered=units.left_out)
    append_dataset(out, folder, before=before, facts=labels | views, asked=asked, what=what)
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


def _known_media(out: Place, layout: Layout, removed: list[Row]) -> Set[str]:
    """Return the ids of all media that a dataset has or had, or of which it has failures."""
    failures = layout.read(out, FAILURES_NAME, ["uri"])
    uris = [] if failures is None else failures["uri"].drop_null().unique().to_pylist()
    failed = {identity for uri in uris for identity in possible_ids(uri)}
    there = table_of_media(out, layout)["media_id"].to_pylist()
    return {*there, *(row["media_id"] for row in removed), *failed} - {None}


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


def _views(header: Mapping[str, Any], names: list[str]) -> Row:
    """Return the names of the views of a dataset for its header. New views follow after the others."""
    stored = header.get("views")
    if stored is None:
        return {}
    return {"views": stored | {"names": [*stored["names"], *(name for name in names if name not in stored["names"])]}}
