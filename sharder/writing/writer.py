"""Writing a dataset: parts and checkpoints in a folder `OUT.unfinished`, which gets the dataset's name when all is there.

After each checkpoint, what was written stays valid: a run that is killed or finds the disk full is completed by the same
command. A checkpoint is a line of `progress.jsonl`; what no line speaks of is written anew. Where clips are packed into
tars, there is a checkpoint whenever a tar is complete, and never while one is not: so the same plan gives the same parts
and the same tars, however often it was interrupted.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

from framedex.errors import INTERNAL_ERROR, OutputError, StaleError
from framedex.files.atomic import write_aside, write_json_aside
from framedex.files.locks import LOCK_NAME, held
from framedex.files.parquet_parts import library_versions, part_path, table_of, write_part
from framedex.indexer.parts.index import Index
from framedex.sharder.clips.audio import AudioFile
from framedex.sharder.clips.clip import Clip, Failure, failure_of
from framedex.sharder.clips.medium import Medium
from framedex.sharder.clips.rows import clip_row, recipe_row
from framedex.sharder.clips.samples import Member
from framedex.sharder.packing.tars import TAR_END, Tar, sample_bytes
from framedex.sharder.reading.sources import SourceFiles
from framedex.sharder.schema import (
    CLIPS,
    CLIPS_PER_PART,
    FAILURES,
    FAILURES_NAME,
    FORMAT,
    HEADER,
    MEDIA,
    MEDIA_FOLDER,
    POLICY_NAME,
    SCHEMA_VERSION,
    SHARDS,
    SHARDS_FOLDER,
    SHARDS_NAME,
)
from framedex.sharder.selection.left_out import LeftOut
from framedex.sharder.writing.checkpoints import JOB_NAME, PROGRESS_NAME, Checkpoint, take_up
from framedex.sharder.writing.completion import Completion
from framedex.sharder.writing.output import check_output, publish
from framedex.sharder.writing.tables import Tables, write_empty
from framedex.storage.places import Place

Row = dict[str, Any]

FAILURES_PER_CHECKPOINT = 65_536
MOST_ITEMS_A_TAR = 65_536  # clips and failures; bounds what a run holds in memory and what it does again
KEY_DIGITS = 9
COPIES_IN_FLIGHT = 4  # clips whose members are being copied or wait for it
DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What a dataset holds, this run's and earlier runs' work together.

    resumed: items that earlier runs dealt with. filtered: the media that the policy's filter leaves out.
    """

    out: Place
    clips: int
    media: int
    frames: int
    shards: int
    resumed: int
    failures: list[Row]
    filtered: LeftOut = field(default_factory=LeftOut)

    @property
    def failed(self) -> int:
        """How many clips failed, without what a policy left out by its own rules, and without internal errors."""
        return sum(bool(failure["counts"]) for failure in self.failures) - self.internal

    @property
    def internal(self) -> int:
        """At how many clips framedex itself failed."""
        return sum(1 for failure in self.failures if failure["kind"] == INTERNAL_ERROR)

    @property
    def left_out(self) -> dict[str, int]:
        """How many clips a policy left out by its own rules, by kind."""
        kinds = [failure["kind"] for failure in self.failures if not failure["counts"]]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


@dataclass(frozen=True, slots=True, kw_only=True)
class TarLayout:
    """How tars are cut. prefix: of their names. size_bytes: a new one begins when a clip would not fit."""

    prefix: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copying:
    """A clip whose members are being copied. packed: with its place in the tar."""

    wanted: Clip
    members: Sequence[Member]
    packed: Clip


class DatasetWriter:
    """Takes the clips and failures of a plan in order. A context manager: it holds `OUT.unfinished` for itself alone.

    job: what makes two runs the same, plain JSON values; an unfinished dataset of another job is refused. done: items that
    an earlier run dealt with, which are not to be given again. tars: where clips are packed; None where none is. on_tar: called
    with each tar that is complete and counts, beside what goes on. Raises OutputError.
    """

    def __init__(
        self,
        out: Path,
        *,
        job: Row,
        user_schema: pa.Schema,
        overwrite: bool,
        tars: TarLayout | None = None,
        on_tar: Callable[[Path], None] | None = None,
    ) -> None:
        self._named, self._job, self._overwrite = out, job, overwrite
        self._out = Path(os.path.realpath(out))
        self._folder = self._out.with_name(f"{self._out.name}.unfinished")
        self._clips_schema = pa.unify_schemas([CLIPS, user_schema])
        self._checkpoints: list[Checkpoint] = []
        self._media_rows: dict[str, int] = {}
        self._layout, self._sources, self._on_tar = tars, SourceFiles(), on_tar
        self._beside = ThreadPoolExecutor(1)  # completes checkpoints while clips go on
        self._completing: Future[None] | None = None
        self._completion: Completion | None = None  # of it, or of one that went wrong
        self._copying: collections.deque[_Copying] = collections.deque()
        self._begin_checkpoint()

    def _begin_checkpoint(self) -> None:
        self._current, self._tables = Checkpoint(), Tables()
        self._tar: Tar | None = None

    @property
    def folder(self) -> Path:
        """Where the dataset lies until it is complete."""
        return self._folder

    def __enter__(self) -> DatasetWriter:
        check_output(self._out, overwrite=self._overwrite)
        with contextlib.ExitStack() as stack:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(held(self._folder))
                self._resume()
            except OSError as error:
                raise OutputError(
                    "the output folder cannot be written", where=str(self._folder), found=error
                ) from error
            self._held = stack.pop_all()
        self.done = sum(checkpoint.items for checkpoint in self._checkpoints)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._tar is not None:
            self._tar.abandon()  # first, which makes room for what is being completed
        self._beside.shutdown()
        with contextlib.suppress(Exception):
            self._completed()
        with contextlib.suppress(Exception):  # of which a line less of progress remains
            self._rescue()
        self._held.close()
        if self._folder.exists() and not self._checkpoints:
            shutil.rmtree(self._folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
            raise self._full(error) from error

    def _full(self, error: OSError) -> OutputError:
        return OutputError(
            "the dataset cannot be written to the end",
            where=str(self._folder),
            found=error.strerror,
            remedy=f"make room and run the same command again: {self._clips_done} clips are kept",
        )

    def _resume(self) -> None:
        """Take up an unfinished dataset of the same job."""
        self._checkpoints = take_up(self._folder, self._job, overwrite=self._overwrite)
        for number in range(sum(checkpoint.media > 0 for checkpoint in self._checkpoints)):
            names = pq.read_table(part_path(self._folder / MEDIA_FOLDER, number), columns=["media_id"])["media_id"]
            self._media_rows |= {name: len(self._media_rows) + row for row, name in enumerate(names.to_pylist())}
        self._tars = sum(len(checkpoint.shards) for checkpoint in self._checkpoints)

    @property
    def key(self) -> str:
        """The name of the next clip's sample: the clip's number in the dataset."""
        return f"{self._clips_done + len(self._tables.clips) + len(self._copying):0{KEY_DIGITS}d}"

    @property
    def _clips_done(self) -> int:
        return sum(sum(checkpoint.parts) for checkpoint in self._checkpoints)

    def add(self, clip: Clip, members: Sequence[Member] = ()) -> None:
        """Write a clip, and where it has members, them into a tar; then its ranges count in their joined content.

        Members are copied while the caller goes on. Where a file of theirs is gone or changed, the clip becomes a failure.
        Raises OSError, also for what was added before.
        """
        if not members:
            self.settle()
            self._take(clip, None)
            return
        self._settle_all_but(COPIES_IN_FLIGHT - 1)
        if self._current.items + len(self._copying) >= MOST_ITEMS_A_TAR:
            self.settle()
        tar = self._tar_for(members)
        packed = _shifted(clip, _shift_into(members, tar.add(self.key, members)))
        self._copying.append(_Copying(wanted=clip, members=members, packed=packed))

    def fail(self, failure: Failure) -> None:
        """Note a clip that cannot be had."""
        self.settle()
        self._current.failures.append(asdict(failure))
        self._item_done()

    def settle(self) -> None:
        """Wait until the members of all clips are copied. Raises OSError."""
        self._settle_all_but(0)

    def _settle_all_but(self, most: int) -> None:
        """Take clips whose members are copied, until no more than some are left that are not."""
        while len(self._copying) > most and self._tar is not None:
            try:
                self._tar.settle()
            except StaleError as error:
                first, *others = self._copying
                self._copying.clear()
                self.fail(failure_of(first.wanted, error))
                for copying in others:  # which begin where the one that failed would have begun
                    self.add(copying.wanted, copying.members)
            else:
                self._take(self._copying.popleft().packed, self._tars)

    def _take(self, clip: Clip, shard: int | None) -> None:
        self._tables.clips.append(clip_row(clip, media_row=self._media_row(clip.medium), shard=shard))
        self._tables.recipes.append(recipe_row(clip))
        self._current.frames += len(clip.frame_index)
        self._item_done()

    def _media_row(self, medium: Medium) -> int:
        if medium.media_id not in self._media_rows:
            self._media_rows[medium.media_id] = len(self._media_rows)
            self._tables.media.append({name: getattr(medium, name) for name in MEDIA.names})
        return self._media_rows[medium.media_id]

    def _tar_for(self, members: Sequence[Member]) -> Tar:
        """Return the tar that a sample goes into: the one begun, while it has room."""
        assert self._layout is not None  # members come with a layout
        size = sample_bytes(members) + len(TAR_END)
        if self._is_full_for(size):
            self.settle()
        if self._is_full_for(size):
            self._checkpoint()
        if self._tar is None:
            path = self._folder / SHARDS_FOLDER / f"{self._layout.prefix}-{self._tars:06d}.tar"
            self._tar = Tar(path, self._sources)
        return self._tar

    def _is_full_for(self, size: int) -> bool:
        assert self._layout is not None
        return self._tar is not None and self._tar.samples > 0 and self._tar.size + size > self._layout.size_bytes

    def _item_done(self) -> None:
        self._current.items += 1
        if self._tar is not None:
            due = self._current.items >= MOST_ITEMS_A_TAR
        else:
            many = len(self._current.failures) >= FAILURES_PER_CHECKPOINT
            due = len(self._tables.clips) >= CLIPS_PER_PART or many
        if due:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Begin to write what has gathered, and then the line that says so."""
        current, tables, tar = self._current, self._tables, self._tar
        if not current.items:
            return
        self._completed()
        if tar is not None and tar.samples:
            self._tars += 1
        elif tar is not None:
            tar.abandon()
            tar = None
        current.parts, current.media = tables.parts, len(tables.media)
        media_part = sum(checkpoint.media > 0 for checkpoint in self._checkpoints)
        clips_part = sum(len(checkpoint.parts) for checkpoint in self._checkpoints)
        self._begin_checkpoint()
        self._checkpoints.append(current)
        self._completion = Completion(
            folder=self._folder,
            schema=self._clips_schema,
            checkpoint=current,
            tables=tables,
            tar=tar,
            media_part=media_part,
            clips_part=clips_part,
            on_tar=self._on_tar,
        )
        self._completing = self._beside.submit(self._completion.run)

    def _completed(self) -> None:
        """Wait for the checkpoint that is being written, and raise what went wrong with it."""
        if self._completing is None:
            return
        error = self._completing.exception()  # an interrupt of the waiting leaves all as it is
        self._completing = None
        if error is not None:
            self._checkpoints.pop()
            raise error
        self._completion = None

    def _rescue(self) -> None:
        """Complete, now that the open tar is gone, the checkpoint whose rows found no room beside it."""
        if self._completion is not None and self._completion.rescue():
            self._checkpoints.append(self._completion.checkpoint)

    def commit(self, *, index: Index, resolved: Row, pack: Row) -> ShardReport:
        """Write what is left, give the dataset its name, and return what it holds.

        pack: what tars hold.
        """
        self.settle()
        self._checkpoint()
        self._completed()
        done, folder = self._checkpoints, self._folder
        failures = [row for checkpoint in done for row in checkpoint.failures]
        shards = [row for checkpoint in done for row in checkpoint.shards]
        write_part(folder / FAILURES_NAME, table_of(failures, FAILURES), version=SCHEMA_VERSION)
        if shards:
            write_part(folder / SHARDS_NAME, table_of(shards, SHARDS), version=SCHEMA_VERSION)
        write_aside(folder / POLICY_NAME, yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True).encode())
        clips = [count for checkpoint in done for count in checkpoint.parts]
        media = [checkpoint.media for checkpoint in done if checkpoint.media]
        if not clips:
            write_empty(folder, self._clips_schema)
            clips, media = [0], [0]
        header = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "root": index.root,
            "index_generation": index.generation,
            "index_ffmpeg": index.ffmpeg,
            **pack,
            "clips_per_part": clips,
            "media_per_part": media,
            "build": hashlib.blake2b(
                "".join(checkpoint.digest for checkpoint in done).encode(), digest_size=16
            ).hexdigest(),
            "libraries": library_versions(),
        }
        write_json_aside(folder / HEADER, header)
        for name in (JOB_NAME, PROGRESS_NAME, LOCK_NAME):
            (folder / name).unlink(missing_ok=True)
        publish(folder, self._out, overwrite=self._overwrite)
        return ShardReport(
            out=self._named,
            clips=sum(clips),
            media=sum(media),
            frames=sum(checkpoint.frames for checkpoint in done),
            shards=len(shards),
            resumed=self.done,
            failures=failures,
        )


def _shift_into(members: Sequence[Member], offsets: Sequence[int]) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a function that turns positions in the joined content of members into positions in their tar."""
    begins = np.cumsum([0, *map(len, members)])
    shift = np.array(offsets, np.int64) - begins[:-1]
    return lambda position: position + shift[np.searchsorted(begins, position, side="right") - 1]


def _shifted(clip: Clip, shift: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Clip:
    """Return a clip whose ranges, and whose audio file, lie in a tar."""
    clip = replace(clip, recipe=replace(clip.recipe, range_offset=shift(clip.recipe.range_offset)))
    if clip.audio is None:
        return clip
    assert isinstance(clip.audio.recipe, AudioFile)  # what is packed has its audio beside it
    offset = int(shift(np.array([clip.audio.recipe.offset]))[0])
    return replace(clip, audio=replace(clip.audio, recipe=replace(clip.audio.recipe, offset=offset)))
