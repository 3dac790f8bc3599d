"""Build a dataset: index and policy (or requests) → frames → recipes → the manifest's tables."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from framedex.errors import DamageError, FormatError, OutputError, PolicyError
from framedex.indexer.discover import media_id
from framedex.indexer.index import Index
from framedex.indexer.parts import (
    ASIDE,
    UNSTORABLE,
    PartWriter,
    check_format,
    library_versions,
    part_path,
    table_of,
    write_aside,
    write_json_aside,
    write_part,
)
from framedex.indexer.schema import LISTING, OK
from framedex.sharder.medium import Medium
from framedex.sharder.policies import Policy
from framedex.sharder.recipe import Recipe
from framedex.sharder.requests import Request, UriResolver, frames_of
from framedex.sharder.sampling import Choose
from framedex.sharder.schema import (
    CLIPS,
    CLIPS_FOLDER,
    CLIPS_PER_PART,
    CLIPS_PER_ROW_GROUP,
    CUTS_FOLDER,
    DELTA_COLUMNS,
    FAILURES,
    FAILURES_NAME,
    FORMAT,
    HEADER,
    MEDIA,
    MEDIA_FOLDER,
    PAD,
    POLICY_NAME,
    RECIPES,
    RECIPES_FOLDER,
    SCHEMA_VERSION,
)

Row = dict[str, Any]

OWN_ENTRIES = {HEADER, POLICY_NAME, FAILURES_NAME, CLIPS_FOLDER, RECIPES_FOLDER, MEDIA_FOLDER, CUTS_FOLDER}
MEDIA_IN_MEMORY = 256  # whose packets are kept while explicit clips go back and forth between them


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What a run wrote."""

    out: Path
    clips: int
    media: int
    frames: int
    skipped_media: int
    failures: list[Row] = field(default_factory=list)

    @property
    def left_out(self) -> int:
        """How many clips a policy found and damage took; a dataset without them is what was asked for."""
        return sum(failure["kind"] in ("damaged", "short", "tolerance") for failure in self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedClip:
    """A clip before it is planned. columns: the user's."""

    clip_id: str
    frames: NDArray[np.int64]
    columns: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """How datasets are written. keep_damaged: plan frames of damaged GOPs, too. cut: copy packets of media that are not
    addressable by bytes into the dataset. on_progress: called with (done, total).
    """

    overwrite: bool = False
    keep_damaged: bool = False
    cut: bool = False
    on_progress: Callable[[int, int], None] = lambda done, total: None


DEFAULTS = ShardOptions()


def build_from_policy(
    index: Index, out: Path, policy: Policy, resolved: Row, options: ShardOptions = DEFAULTS
) -> ShardReport:
    """Write a dataset of the clips that a policy finds in every usable medium. Raises OutputError, StaleError.

    A clip that cannot be had becomes a row of failures.parquet.
    """
    listed: dict[str, list[Row]] = {}
    for row in index.listing.drop_columns(LISTING.names[1:]).to_pylist():
        listed.setdefault(row.pop("media_id"), []).append(row)
    user_schema = _user_schema(index.listing.schema)
    usable = [row for row in index.videos.to_pylist() if row["status"] == OK]

    with DatasetWriter(out, user_schema, overwrite=options.overwrite) as writer:
        for number, video in enumerate(usable, 1):
            medium = Medium(index, video, keep_damaged=options.keep_damaged)
            mentions = listed.get(media_id(video["uri"]), [{}])
            samplings = [policy.sample(medium.track, columns) for columns in mentions]
            if options.cut:
                medium.cut([clip.frames for sampling in samplings for clip in sampling.clips], writer.folder)
            for mention, (columns, sampling) in enumerate(zip(mentions, samplings, strict=True)):
                prefix = video["media_id"] if len(mentions) == 1 else f"{video['media_id']}-row{mention}"
                for clip in sampling.clips:
                    wanted = WantedClip(clip_id=f"{prefix}-{clip.number:06d}", frames=clip.frames, columns=columns)
                    writer.try_add(medium, wanted)
                for missed in sampling.missed:
                    writer.fail(clip_id=prefix, uri=video["uri"], kind=missed.kind, message=missed.message)
            options.on_progress(number, len(usable))
        return writer.commit(index, resolved, skipped_media=len(index.videos) - len(usable))


def build_from_requests(
    index: Index, out: Path, requests: list[Request], *, choose: Choose, options: ShardOptions = DEFAULTS
) -> ShardReport:
    """Write a dataset of explicitly requested clips, in the order requested. Raises OutputError, StaleError.

    A request that cannot be met becomes a row of failures.parquet.
    """
    resolver = UriResolver(index)
    identities = [resolver.media_id(request.uri, request.stream) for request in requests]
    asked: dict[str, list[Request]] = {}
    for identity, request in zip(identities, requests, strict=True):
        asked.setdefault(identity or "", []).append(request)
    videos = {row["media_id"]: row for row in index.videos.to_pylist()}
    media: dict[str, Medium] = {}
    with DatasetWriter(out, _requested_schema(requests), overwrite=options.overwrite) as writer:
        for number, (identity, request) in enumerate(zip(identities, requests, strict=True), 1):
            try:
                if identity is None or identity not in videos:
                    raise PolicyError("the index has no such medium", remedy="index it first")
                if identity not in media:
                    if len(media) == MEDIA_IN_MEMORY:
                        media.pop(next(iter(media)))
                    medium = Medium(index, _usable(videos[identity]), keep_damaged=options.keep_damaged)
                    if options.cut:
                        medium.cut(_frames_of_all(asked[identity], medium, choose), writer.folder)
                    media[identity] = medium
                frames = frames_of(request, media[identity].track, choose)
                writer.add(media[identity], WantedClip(clip_id=request.clip_id, frames=frames, columns=request.columns))
            except PolicyError as error:
                kind = "damaged" if isinstance(error, DamageError) else "request"
                writer.fail(
                    clip_id=request.clip_id, uri=request.uri, kind=kind, message=f"line {request.line}: {error}"
                )
            options.on_progress(number, len(requests))
        return writer.commit(index, {"policy": "clips", "choose": choose}, skipped_media=0)


def _frames_of_all(requests: list[Request], medium: Medium, choose: Choose) -> list[NDArray[np.int64]]:
    """Return the frames of every request that can be met."""
    found = []
    for request in requests:
        with contextlib.suppress(PolicyError):
            found.append(frames_of(request, medium.track, choose))
    return found


def _usable(video: Row) -> Row:
    if video["status"] != OK:
        raise PolicyError(f"the medium is {video['status']}: {video['error_message']}")
    return video


def _user_schema(listing: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in listing if field.name not in LISTING.names])


def _requested_schema(requests: list[Request]) -> pa.Schema:
    """Return the user columns of explicit clips, typed by their values. Raises PolicyError for mixed types."""
    names = list(dict.fromkeys(name for request in requests for name in request.columns))
    fields = []
    for name in names:
        try:
            fields.append(pa.field(name, pa.array([request.columns.get(name) for request in requests]).type))
        except UNSTORABLE as error:
            raise PolicyError(f"user column {name!r} cannot be stored", found=error) from error
    return pa.schema(fields)


class DatasetWriter:
    """Writes the manifest's tables into a folder aside, which `commit` renames; leaving without it removes all."""

    def __init__(self, out: Path, user_schema: pa.Schema, *, overwrite: bool) -> None:
        self._named = out
        self._out, self._overwrite = Path(os.path.realpath(out)), overwrite
        _check_output(self._out, overwrite)
        self._clips_schema = pa.unify_schemas([CLIPS, user_schema])
        self._media_rows: dict[str, int] = {}
        self._media: list[Row] = []
        self._failures: list[Row] = []
        self._clips: list[Row] = []
        self._recipes: list[Row] = []
        self._counts: list[int] = []
        self._frames = 0

    def __enter__(self) -> DatasetWriter:
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._aside = Path(tempfile.mkdtemp(prefix=f"{ASIDE}{self._out.name}-", dir=self._out.parent))
        self._aside.chmod(0o777 & ~_umask())
        self.folder = self._aside  # where the dataset is being written
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)

    def add(self, medium: Medium, wanted: WantedClip) -> None:
        """Plan a clip and write it. Raises PolicyError for frames that the medium does not have."""
        medium.read_headers(wanted.frames)
        recipe = medium.planner.plan(wanted.frames)
        if medium.video["media_id"] not in self._media_rows:
            self._media_rows[medium.video["media_id"]] = len(self._media)
            self._media.append({name: medium.video.get(name) for name in MEDIA.names})
        self._clips.append(self._clip_row(medium, wanted))
        self._recipes.append(_recipe_row(wanted.clip_id, recipe))
        self._frames += len(wanted.frames)
        if len(self._clips) == CLIPS_PER_PART:
            self._write_part()

    def try_add(self, medium: Medium, wanted: WantedClip) -> None:
        """Plan a clip and write it, or note why it cannot be had."""
        try:
            self.add(medium, wanted)
        except PolicyError as error:
            kind = "damaged" if isinstance(error, DamageError) else "policy"
            self.fail(clip_id=wanted.clip_id, uri=medium.video["uri"], kind=kind, message=error.text())

    def fail(self, *, clip_id: str | None, uri: str | None, kind: str, message: str) -> None:
        """Note a clip that cannot be had."""
        self._failures.append({"clip_id": clip_id, "uri": uri, "kind": kind, "message": message})

    def _clip_row(self, medium: Medium, wanted: WantedClip) -> Row:
        padded = wanted.frames == PAD
        pts = medium.track.pts[wanted.frames]
        seconds = pts * medium.track.time_base.numerator / medium.track.time_base.denominator
        return {
            "clip_id": wanted.clip_id,
            "media_row": self._media_rows[medium.video["media_id"]],
            "frames": wanted.frames,
            "pts": _null_where(padded, pts),
            "seconds": _null_where(padded, seconds),
            "md5": medium.md5(wanted.frames),
            **wanted.columns,
        }

    def _write_part(self) -> None:
        number = len(self._counts)
        for folder, schema, rows, delta in (
            (CLIPS_FOLDER, self._clips_schema, self._clips, ()),
            (RECIPES_FOLDER, RECIPES, self._recipes, DELTA_COLUMNS),
        ):
            writer = PartWriter(part_path(self._aside / folder, number), schema, version=SCHEMA_VERSION, delta=delta)
            for group in _groups(rows, CLIPS_PER_ROW_GROUP):
                writer.write(table_of(group, schema))
            writer.commit()
        self._counts.append(len(self._clips))
        self._clips, self._recipes = [], []

    def commit(self, index: Index, resolved: Row, *, skipped_media: int) -> ShardReport:
        """Write what is left, give the dataset its name, and return what was written."""
        if self._clips:
            self._write_part()
        for path, schema, rows in (
            (part_path(self._aside / MEDIA_FOLDER, 0), MEDIA, self._media),
            (self._aside / FAILURES_NAME, FAILURES, self._failures),
        ):
            write_part(path, table_of(rows, schema), version=SCHEMA_VERSION)
        write_aside(self._aside / POLICY_NAME, yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True).encode())
        header = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "root": index.root,
            "clips_per_part": self._counts,
            "build": uuid.uuid4().hex,
            "libraries": library_versions(),
        }
        write_json_aside(self._aside / HEADER, header)
        self._publish()
        return ShardReport(
            out=self._named,
            clips=sum(self._counts),
            media=len(self._media),
            frames=self._frames,
            skipped_media=skipped_media,
            failures=self._failures,
        )

    def _publish(self) -> None:
        _check_output(self._out, self._overwrite)  # once more: much may have happened since the run began
        if self._overwrite and self._out.exists():
            replaced = self._aside.with_name(f"{self._aside.name}-replaced")
            self._out.rename(replaced)
            self._aside.rename(self._out)
            shutil.rmtree(replaced)
        else:
            self._aside.rename(self._out)  # onto nothing or an empty folder; anything else is an error


def _check_output(out: Path, overwrite: bool) -> None:
    """Raise OutputError unless `out` is new, empty, or a dataset that may be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    strange = sorted({path.name for path in out.iterdir()} - OWN_ENTRIES) if out.is_dir() else [out.name]
    try:
        check_format(out, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex dataset")
    except FormatError as error:
        strange = strange or [error.what]
    if strange:
        raise OutputError(
            "the output folder holds something else than a dataset",
            where=str(out),
            found=", ".join(strange[:5]),
            remedy="choose a new or empty folder",
        )
    if not overwrite:
        raise OutputError(
            "the output folder holds a dataset already",
            where=str(out),
            remedy="pass --overwrite, or choose another folder",
        )


def _null_where(padded: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[Any]:
    if padded.any():
        values = values.astype(object)
        values[padded] = None
    return values


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _groups(rows: list[Row], size: int) -> Iterator[list[Row]]:
    for at in range(0, len(rows), size):
        yield rows[at : at + size]


def _recipe_row(clip_id: str, recipe: Recipe) -> Row:
    return {"clip_id": clip_id} | {name: getattr(recipe, name) for name in RECIPES.names[1:]}
