"""Build a dataset: plan the clips that a policy selects or the user lists, pack them, and write the dataset."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.errors import NoClipsError, PolicyError
from framedex.execution.engine import Engine, Slice, run_local
from framedex.execution.engines import Workers
from framedex.indexer.parts.index import Index
from framedex.records.clip import Failure
from framedex.records.medium import SAMPLE_KEYS
from framedex.sharder import slices
from framedex.sharder.clips.clip import AudioOptions
from framedex.sharder.clips.labels import WantedLabels, checked_labels
from framedex.sharder.clips.samples import Step
from framedex.sharder.packing.encoders import encoder_version
from framedex.sharder.packing.pack import (
    AudioFormat,
    ClipCutter,
    ClipFileOptions,
    Pack,
    cut_in_workers,
    recode_clips,
    with_audio,
)
from framedex.sharder.packing.pack_options import EncodeOptions, ImageOptions
from framedex.sharder.packing.tars import index_path
from framedex.sharder.planning.indexed_medium import OpenMedia, PlanningOptions
from framedex.sharder.planning.steps import (
    PIECE_FACTS,
    Piece,
    ReadGroup,
    Spools,
    explicit_pieces,
    plan,
    policy_pieces,
    skip_items,
)
from framedex.sharder.planning.units import units_of
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.policies.sampling import Choose
from framedex.sharder.schema import CLIPS, MAX_VIEWS, SCHEMA_VERSION
from framedex.sharder.selection.explicit_clips import ExplicitClips, Outside
from framedex.sharder.selection.mentions import user_columns
from framedex.sharder.writing.output import First
from framedex.sharder.writing.planned_rows import PlannedRows
from framedex.sharder.writing.report import ShardReport, finished_report, with_labels
from framedex.sharder.writing.shipment import shipped
from framedex.sharder.writing.tar_filling import SHARD_BYTES, TarLayout
from framedex.sharder.writing.writer import NEW, DatasetWriter
from framedex.storage.places import Place, Stored

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """The options of `framedex.shard` and `framedex shard` that apply to all clips.

    Attributes:
        overwrite: Whether an existing dataset may be replaced.
        keep_damaged: Whether clips may have frames of damaged GOPs.
        pack: The data to copy into tars. None if nothing is copied.
        shard_bytes: The maximum size of a tar in bytes. A clip that would exceed it goes into a new tar.
        images: The format, quality and size of stored images.
        encode: The codec, quality and size of encoded clips. If None, packets are copied.
        workers: The number of processes that plan, decode and encode clips. They run on this machine unless `engine` is
            a cluster.
        engine: The engine that runs the processes.
        audio: The options of the clips' audio. None if clips carry no audio.
        audio_format: The format of audio files in tars.
        labels: The column of labels, and the numbers of its values. None if the dataset records no labels.
        scratch: The local folder in which a dataset for object storage is written first. If None, a folder in the
            system's temporary folder is used.
        part: The share of the clips that this task plans (`--task`). If None, this run plans all clips.
        finish: Whether to write the dataset from the clips that earlier tasks planned, instead of planning clips.
        on_progress: A function that is called with (done, total) to show progress. Both numbers count media or scenes
            if a policy selects the clips, and clips if the user lists them.
    """

    overwrite: bool = False
    keep_damaged: bool = False
    pack: Pack | None = None
    shard_bytes: int = SHARD_BYTES
    images: ImageOptions = field(default_factory=ImageOptions)
    encode: EncodeOptions | None = None
    workers: int = os.cpu_count() or 1
    engine: Engine = run_local
    audio: AudioOptions | None = None
    audio_format: AudioFormat = "flac"
    labels: WantedLabels | None = None
    scratch: Path | None = None
    part: Slice | None = None
    finish: bool = False
    on_progress: Callable[[int, int], None] = lambda done, total: None

    def __post_init__(self) -> None:
        if self.encode is not None and self.pack != "clips":
            raise PolicyError("encode needs pack='clips'", found=f"pack={self.pack!r}")

    @property
    def processes(self) -> Workers:
        """The processes that plan, decode and encode clips."""
        return Workers(count=self.workers, engine=self.engine)

    def planning(self, index: Index) -> PlanningOptions:
        """Return the options of planning."""
        # Copied packets become a tiny file, which a player must decode as one stream. Images and encoded clips are made
        # of decoded frames, so the recipe from which they are decoded may have several runs.
        copied = self.pack == "clips" and self.encode is None
        return PlanningOptions(
            access=index.access,
            keep_damaged=self.keep_damaged,
            one_stream="all" if copied else "not addressable" if self.pack == "needed" else "none",
            audio=self.audio,
        )


DEFAULTS = ShardOptions()


def build_from_policy(index: Index, out: Place, file: PolicyFile, options: ShardOptions = DEFAULTS) -> ShardReport:
    """Write a dataset of the clips that a policy selects from all usable media. Raises OutputError, PolicyError.

    A clip that cannot be planned or packed becomes a row of failures.parquet.
    """
    # `build_pieces` also looks for a finished dataset, but only after the listing was read. With a filter, the listing
    # is needed in any case, because the report contains the media that the filter leaves out.
    job = job_of(index, file.resolved, options)
    if file.filter is None and (before := _finished(index, out, job, options)) is not None:
        return before
    schema = user_columns(index, file.policy.split)
    units, views = units_of(index, file, PIECE_FACTS), file.policy.views
    facts: Row = {}
    if options.labels is not None:
        columns = units.table.columns
        labels = checked_labels(options.labels, columns.column, schema.names, str(index.path), unit="row")
        facts["labels"] = labels.stored()
    total = len(index) - index.unusable - units.left_out.count  # the progress bar counts media
    if units.scenes is not None and views is not None:
        names, total = units.scenes.names, len(units)
        if len(names) > MAX_VIEWS:
            raise PolicyError(
                "there are too many views for one clip",
                where=f"column {views.view!r}",
                found=f"{len(names):,}",
                allowed=f"at most {MAX_VIEWS}",
            )
        facts["views"] = {"names": names, "missing": views.missing}
    report = build_pieces(index, out, job, schema, policy_pieces(units, file.policy), total, options, facts)
    return replace(report, filtered=units.left_out)


def build_from_requests(
    index: Index,
    out: Place,
    requests: ExplicitClips,
    *,
    choose: Choose,
    outside: Outside = "error",
    options: ShardOptions = DEFAULTS,
) -> ShardReport:
    """Write a dataset of explicit clips, in the order of the requests. Raises OutputError, PolicyError.

    A clip that cannot be planned or packed becomes a row of failures.parquet.
    """
    resolved = {"policy": "clips", "choose": choose, "outside": outside, "clips": requests.digest}
    pieces = explicit_pieces(index, requests, choose, outside)
    facts: Row = {}
    if options.labels is not None:
        names, where = requests.user_schema.names, str(requests.path)
        facts["labels"] = checked_labels(options.labels, requests.column, names, where).stored()
    job = job_of(index, resolved, options)
    return build_pieces(index, out, job, requests.user_schema, pieces, len(requests), options, facts)


def build_pieces(
    index: Index,
    out: Place,
    job: Row,
    user_schema: pa.Schema,
    pieces: Iterable[Piece],
    total: int,
    options: ShardOptions,
    facts: Row,
    first: First = NEW,
) -> ShardReport:
    """Write a dataset, or plan one slice of it.

    Args:
        index: The index.
        out: The folder or uri of the dataset.
        job: The values that identify the job (see `job_of`).
        user_schema: The schema of the user's columns of `clips`.
        pieces: The pieces of the plan.
        total: The final value of the progress bar: the number of media, scenes or explicit clips.
        options: The options of the run.
        facts: Further keys of the dataset's header.
        first: The first numbers, if the clips are appended to another dataset.
    """
    index.check_locations()
    clash = SAMPLE_KEYS & set(user_schema.names)
    if options.pack is not None and clash:
        raise PolicyError(
            "the name of a user column is reserved in the JSON of packed clips",
            found=", ".join(sorted(clash)),
            remedy="rename the column",
        )
    if (before := _finished(index, out, job, options)) is not None:
        return before
    schema = pa.unify_schemas([CLIPS, user_schema])
    run = slices.PlanningRun(index=index, options=options.planning(index), schema=schema, workers=options.processes)
    if options.part is not None:
        return slices.plan_slice(out, job, pieces, run, options.part)
    tars = TarLayout(prefix="images" if options.pack == "images" else "clips", size_bytes=options.shard_bytes)
    open_writer = functools.partial(DatasetWriter, job=job, user_schema=user_schema, tars=tars, first=first)

    def write(writer: DatasetWriter) -> ShardReport:
        if options.finish:
            _add_planned(writer, slices.read_slices(out, job, pieces, done=writer.done), options, total)
        elif options.pack is None and not options.processes.alone:
            _add_planned(writer, slices.plan_in_workers(run, pieces, done=writer.done), options, total)
        else:
            media = OpenMedia(index, run.options, kept=slices.MEDIA_IN_MEMORY)
            groups = skip_items((piece.items(media) for piece in pieces), writer.done)
            with Spools(writer.folder, needed=options.pack == "needed", settle=writer.settle) as spools:
                for step in _steps(index, groups, spools, options):
                    if isinstance(step.outcome, Failure):
                        writer.fail(step.outcome)
                    else:
                        writer.add(step.outcome, step.members)
                    options.on_progress(step.done, total)
        writer.check_clips(index)
        pack = {name: value for name, value in job["pack"].items() if name != "shard_bytes"}
        damaged = {"keep_damaged": True} if job["keep_damaged"] else {}
        return writer.commit(index=index, resolved=job["policy"], facts=pack | damaged | facts)

    try:
        if isinstance(out, Stored):
            report = _ship(out, job, open_writer, write, options)
        else:
            with open_writer(out, overwrite=options.overwrite) as writer:
                report = write(writer)
    except NoClipsError:  # raised only after all slices were read, so the files of the slices are not needed any more
        if options.finish:
            slices.remove_slices(out)
        raise
    if options.finish:
        slices.remove_slices(out)
    return with_labels(report, options.labels)


def _add_planned(writer: DatasetWriter, planned: Iterable[PlannedRows], options: ShardOptions, total: int) -> None:
    """Add planned rows to a dataset. If planning failed, first add the rows before the error, and then raise it."""
    for rows in planned:
        writer.add_planned(rows)
        if rows.error is not None:
            raise rows.error
        if len(rows.is_clip):
            options.on_progress(rows.done, total)


def job_of(index: Index, resolved: Row, options: ShardOptions) -> Row:
    """Return the values that identify a job. A run with equal values continues or keeps an existing dataset."""
    pack: Row = {"pack": options.pack} | ({"images": asdict(options.images)} if options.pack == "images" else {})
    if options.encode is not None:
        pack["encode"] = options.encode.facts() | {"encoder": encoder_version(options.encode)}
    if options.audio is not None:
        pack["audio"] = options.audio.facts() | ({} if options.pack is None else {"format": options.audio_format})
    return {
        "schema_version": SCHEMA_VERSION,
        "index": index.state(),
        "policy": resolved,
        "keep_damaged": options.keep_damaged,
        "pack": pack | {"shard_bytes": options.shard_bytes},
    }


def _finished(index: Index, out: Place, job: Row, options: ShardOptions) -> ShardReport | None:
    """Return the report of the dataset if an earlier run of the same job has finished it.

    Return None if no such dataset exists, or if `overwrite` is set.
    """
    before = None if options.overwrite else finished_report(out, job, index)
    return None if before is None else with_labels(before, options.labels)


def _ship(
    out: Stored,
    job: Row,
    open_writer: functools.partial[DatasetWriter],
    write: Callable[[DatasetWriter], ShardReport],
    options: ShardOptions,
) -> ShardReport:
    """Write a dataset into a local folder, and upload it to object storage.

    Args:
        out: The uri of the dataset.
        job: The values that identify the job (see `job_of`).
        open_writer: A function that opens the writer of the local dataset.
        write: A function that writes the whole dataset with that writer, and returns the report.
        options: The options of the run.
    """
    with shipped(out, job, overwrite=options.overwrite, scratch=options.scratch) as shipment:
        if (row := shipment.noted()) is None:

            def ship(tar: Path) -> None:
                shipment.ship(tar, index_path(tar), inside=tar.parent.parent)

            try:
                with open_writer(shipment.local, overwrite=True, on_tar=ship) as writer:
                    row = asdict(write(writer))
            except NoClipsError:
                shipment.withdraw()
                raise
            del row["out"], row["filtered"]  # the local folder, and a value that `build_from_policy` fills in
            shipment.note(row)
        shipment.deliver()
        return ShardReport(out=out, **row)


def _steps(index: Index, groups: Iterable[ReadGroup], spools: Spools, options: ShardOptions) -> Iterator[Step]:
    """Plan the clips of groups, pack them according to the options, and yield their steps."""
    if options.pack is None:
        return plan(groups, None)
    recoding = options.images if options.pack == "images" else options.encode
    if recoding is not None:
        return with_audio(recode_clips(plan(groups, spools), recoding, options.processes), options.audio_format)
    how = ClipFileOptions(
        planning=options.planning(index), needed=options.pack == "needed", audio_format=options.audio_format
    )
    if options.processes.alone:
        return ClipCutter(index, how, spools).steps(groups)
    return cut_in_workers(index, how, spools, groups, options.processes)
