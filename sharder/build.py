"""Builds a dataset: index and policy (or explicit clips) → wanted clips → planned clips → packed clips → the writer."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.errors import PolicyError
from framedex.execution.engine import Engine
from framedex.execution.local_pool import run_local
from framedex.indexer.parts.index import Index
from framedex.indexer.schema import OK
from framedex.sharder.clips.audio import AudioOptions
from framedex.sharder.clips.clip import Failure, WantedClip
from framedex.sharder.clips.samples import Step
from framedex.sharder.configuration.parameters import located
from framedex.sharder.packing.cutting import ClipCutter, Making, cut_in_workers
from framedex.sharder.packing.image_files import ImageOptions
from framedex.sharder.packing.pack import JSON_KEYS, ImagePacking, Pack
from framedex.sharder.packing.pack_audio import AudioFormat, with_audio
from framedex.sharder.packing.tars import index_path
from framedex.sharder.planning.batches import Batch, Round, behind, missed_clip, plan, wanted_clip
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.planning.spools import Spools
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.policies.sampling import Choose
from framedex.sharder.schema import PAD, SCHEMA_VERSION
from framedex.sharder.selection.explicit_clips import ExplicitClip, ExplicitClips, UriResolver, frames_of
from framedex.sharder.selection.left_out import left_out
from framedex.sharder.selection.listing_ranges import check_ranges
from framedex.sharder.selection.mentions import usable_media, user_columns
from framedex.sharder.writing.report import ShardReport
from framedex.sharder.writing.shipment import as_row, shipped
from framedex.sharder.writing.tar_filling import TarLayout
from framedex.sharder.writing.writer import DatasetWriter
from framedex.storage.places import Place, Stored

Row = dict[str, Any]

MEDIA_IN_MEMORY = 256  # media whose packets are kept while explicit clips switch between them
REQUESTS_AT_ONCE = 256
SHARD_BYTES = 512_000_000
IMAGE_DEFAULTS = ImageOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """How datasets are written.

    Attributes:
        keep_damaged: Plan frames of damaged GOPs, too.
        pack: What tars hold; None for no tars.
        shard_bytes: A new tar begins when a clip would not fit.
        images: How frames are stored.
        workers: Number of processes that plan, decode and encode clips. They run on this machine unless `engine` is a
            cluster.
        audio: The clips' audio; None for no audio.
        audio_format: Format in which tars store audio.
        scratch: Where a dataset of object storage is written first; None for the system's temporary folder.
        on_progress: Called with (done, total).
    """

    overwrite: bool = False
    keep_damaged: bool = False
    pack: Pack | None = None
    shard_bytes: int = SHARD_BYTES
    images: ImageOptions = IMAGE_DEFAULTS
    workers: int = os.cpu_count() or 1
    engine: Engine = run_local
    audio: AudioOptions | None = None
    audio_format: AudioFormat = "flac"
    scratch: Path | None = None
    on_progress: Callable[[int, int], None] = lambda done, total: None

    @property
    def making(self) -> Making:
        """The options that concern the clips themselves."""
        return Making(keep_damaged=self.keep_damaged, pack=self.pack, audio=self.audio, audio_format=self.audio_format)


DEFAULTS = ShardOptions()


def build_from_policy(index: Index, out: Place, file: PolicyFile, options: ShardOptions = DEFAULTS) -> ShardReport:
    """Write a dataset of the clips that a policy selects from every usable medium. Raises OutputError, PolicyError.

    A clip that cannot be made becomes a row of failures.parquet.
    """
    schema = user_columns(index, file.split)
    check_ranges(index, file)
    skipped = left_out(index, file)
    total = len(index) - index.unusable - skipped.count
    report = _build(index, out, file.resolved, schema, _policy_batches(index, file, options.making), total, options)
    return replace(report, filtered=skipped)


def _policy_batches(index: Index, file: PolicyFile, making: Making) -> Iterator[Round]:
    """Yield what a policy wants, medium by medium in the order of the index."""
    for number, mentioned in enumerate(usable_media(index, file.filter, file.split), 1):
        medium = making.open(index, mentioned.video)
        items: list[WantedClip | Failure] = []
        for mention in mentioned.mentions:
            try:
                sampling = file.policy.sample(medium.timeline, mention.columns)
            except PolicyError as error:
                raise located(error, mentioned.video["uri"]) from error
            items += [wanted_clip(mention.name, clip, mention.columns) for clip in sampling.clips]
            items += [missed_clip(mentioned.video["uri"], mention.name, missed) for missed in sampling.missed]
        yield [Batch(medium=medium, items=items, done=number)]


def build_from_requests(
    index: Index, out: Place, requests: ExplicitClips, *, choose: Choose, options: ShardOptions = DEFAULTS
) -> ShardReport:
    """Write a dataset of explicitly requested clips, in the order requested. Raises OutputError, PolicyError.

    A request that cannot be met becomes a row of failures.parquet.
    """
    resolved = {"policy": "clips", "choose": choose, "clips": requests.digest}
    batches = _request_batches(index, requests, choose, options.making)
    return _build(index, out, resolved, requests.user_schema, batches, len(requests), options)


def _request_batches(index: Index, requests: ExplicitClips, choose: Choose, making: Making) -> Iterator[Round]:
    """Yield what explicit clips want, in the order requested."""
    resolver = UriResolver(index)

    @functools.lru_cache(MEDIA_IN_MEMORY)
    def medium_of(identity: str) -> IndexedMedium:
        video = index.video(identity)
        if video["status"] != OK:
            raise PolicyError(f"the medium is {video['status']}: {video['error_message']}")
        return making.open(index, video)

    number = 0
    for chunk in _chunks(requests, REQUESTS_AT_ONCE):
        found = [_find(request, resolver, medium_of, choose) for request in chunk]
        yield [Batch(medium=medium, items=[item], done=done) for done, (medium, item) in enumerate(found, number + 1)]
        number += len(found)


def _chunks(requests: ExplicitClips, size: int) -> Iterator[list[ExplicitClip]]:
    left = iter(requests)
    while chunk := list(itertools.islice(left, size)):
        yield chunk


def _find(
    request: ExplicitClip, resolver: UriResolver, medium_of: Callable[[str], IndexedMedium], choose: Choose
) -> tuple[IndexedMedium | None, WantedClip | Failure]:
    """Return the medium that a request means, and the frames that it wants, or why they are not available."""
    line = f"line {request.line}"
    medium: IndexedMedium | None = None
    try:
        identity = resolver.media_id(request.uri, request.stream)
        if identity is None:
            stream = {} if request.stream is None else {"found": f"stream {request.stream}"}
            raise PolicyError("the index has no such medium", **stream, remedy="index it first")
        medium = medium_of(identity)
        frames = frames_of(request, medium.timeline, choose)
    except PolicyError as error:
        return medium, Failure(clip_id=request.clip_id, uri=request.uri, kind="request", message=f"{line}: {error}")
    return medium, WantedClip(
        clip_id=request.clip_id, frames=frames, mask=frames != PAD, columns=request.columns, asked_in=line
    )


def _build(
    index: Index,
    out: Place,
    resolved: Row,
    user_schema: pa.Schema,
    rounds: Iterable[Round],
    total: int,
    options: ShardOptions,
) -> ShardReport:
    _check_columns(user_schema, options.pack)
    job = {
        "schema_version": SCHEMA_VERSION,
        "index": index.state(),
        "policy": resolved,
        "keep_damaged": options.keep_damaged,
        "pack": _pack_facts(options) | {"shard_bytes": options.shard_bytes},
    }
    prefix = "images" if options.pack == "images" else "clips"
    tars = None if options.pack is None else TarLayout(prefix=prefix, size_bytes=options.shard_bytes)
    how = {"job": job, "user_schema": user_schema, "tars": tars}

    def write(writer: DatasetWriter) -> ShardReport:
        with Spools(writer.folder, needed=options.pack == "needed", settle=writer.settle) as spools:
            for step in _steps(index, behind(rounds, writer.done), spools, options):
                if isinstance(step.outcome, Failure):
                    writer.fail(step.outcome)
                else:
                    writer.add(step.outcome, step.members)
                options.on_progress(step.done, total)
        return writer.commit(index=index, resolved=resolved, pack=_pack_facts(options))

    if isinstance(out, Stored):
        return _ship(out, job, how, write, options)
    with DatasetWriter(out, **how, overwrite=options.overwrite) as writer:
        return write(writer)


def _ship(
    out: Stored, job: Row, how: Row, write: Callable[[DatasetWriter], ShardReport], options: ShardOptions
) -> ShardReport:
    """Write a dataset into object storage."""
    with shipped(out, job, overwrite=options.overwrite, scratch=options.scratch) as shipment:
        row = shipment.noted()
        if row is None:

            def ship(tar: Path) -> None:
                shipment.ship(tar, index_path(tar), inside=tar.parent.parent)

            with DatasetWriter(shipment.local, **how, overwrite=True, on_tar=ship) as writer:
                row = as_row(write(writer))
            shipment.note(row)
        shipment.deliver()
        return ShardReport(out=out, **row)


def _pack_facts(options: ShardOptions) -> Row:
    """Return what determines the content of tars, as dataset.json records it."""
    facts: Row = {"pack": options.pack} | ({"images": asdict(options.images)} if options.pack == "images" else {})
    if options.audio is None:
        return facts
    form = {} if options.pack is None else {"format": options.audio_format}
    return facts | {"audio": options.audio.facts() | form}


def _steps(index: Index, rounds: Iterable[Round], spools: Spools, options: ShardOptions) -> Iterator[Step]:
    """Yield planned clips, packed according to the options."""
    if options.pack is None:
        return plan(rounds, None)
    if options.pack == "images":
        packing = ImagePacking(options.images, workers=options.workers, engine=options.engine)
        return with_audio(packing.pack(plan(rounds, spools)), options.audio_format)
    if options.workers == 1 and options.engine is run_local:
        return ClipCutter(index, options.making, spools).steps(rounds)
    return cut_in_workers(index, options.making, spools, rounds, workers=options.workers, engine=options.engine)


def _check_columns(user_schema: pa.Schema, pack: Pack | None) -> None:
    """Raise PolicyError if a user's column has the name of another key of a sample's JSON."""
    clash = JSON_KEYS & set(user_schema.names)
    if pack is not None and clash:
        raise PolicyError(
            "a user column has a name that the JSON of packed clips uses",
            found=", ".join(sorted(clash)),
            remedy="rename the column",
        )
