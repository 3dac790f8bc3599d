"""Writing of a dataset: parts and checkpoints in a folder `OUT.unfinished`, which is renamed when all is complete.

After each checkpoint, what was written stays valid: a run that is killed or finds the disk full is completed by the
same command. A checkpoint is one line of `progress.jsonl`; everything that no line covers is written again. If clips
are packed into tars, there is a checkpoint whenever a tar is complete, and never before. So the same plan gives the
same parts and the same tars, however often it was interrupted.

The checkpoints of a dataset: those that count, and the one that is being completed while clips are added.

Completes a checkpoint in the background: closes its tar, writes its rows into parts, and then writes its line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.errors import NoClipsError, OutputError
from framedex.files.outputs import check_unfinished, full_disk, held
from framedex.files.parquet_parts import part_path, read_all
from framedex.indexer.parts.index import Index
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import Clip, failure_of
from framedex.sharder.clips.rows import clip_row, recipe_row
from framedex.sharder.clips.samples import Member
from framedex.sharder.packing.tars import Tar
from framedex.sharder.schema import CLIPS, CLIPS_PER_PART, MEDIA_FOLDER, SHARDS_FOLDER
from framedex.sharder.selection.mentions import no_clips
from framedex.sharder.writing.output import Checkpoint, check_output, note, publish, take_up, unfinished_of
from framedex.sharder.writing.planned_rows import PlannedRows, media_columns
from framedex.sharder.writing.report import ShardReport
from framedex.sharder.writing.tar_filling import NotCopied, TarFilling, TarLayout
from framedex.sharder.writing.whole import Tables, failures_of, write_whole


@dataclass(slots=True, kw_only=True)
class Completion:
    """A checkpoint that is to be written into a folder.

    Attributes:
        tar: The tar with its samples, which is closed by this; None if there is none.
        media_part: Number of its first part of media.
        clips_part: Number of its first part of clips.
        on_tar: Called with the tar once the checkpoint counts.
        noted: Whether the checkpoint counts.
    """

    folder: Path
    checkpoint: Checkpoint
    tables: Tables
    tar: Tar | None
    media_part: int
    clips_part: int
    on_tar: Callable[[Path], None] | None = None
    noted: bool = False

    def run(self) -> None:
        """Write the checkpoint. Raises OSError; afterwards `rescue` may write what is left."""
        if self.tar is not None:
            try:
                mark = self.tar.close()
            except BaseException:
                self.tar.abandon()
                raise
            name = str(self.tar.path.relative_to(self.folder))
            facts = {"name": name, "size_bytes": self.tar.size, "fingerprint": mark, "clips": self.tar.samples}
            self.checkpoint.shards.append(facts)
        self._write_rows()
        if self.tar is not None and self.on_tar is not None:
            self.on_tar(self.tar.path)

    def rescue(self) -> bool:
        """Write the rows once there is room again; return whether this was possible.

        It is possible only if the tar was closed.
        """
        if self.noted:  # the error came after the line was written
            return True
        if self.tar is not None and not self.checkpoint.shards:
            return False
        self._write_rows()
        return True

    def _write_rows(self) -> None:
        parts = {"media_part": self.media_part, "clips_part": self.clips_part}
        digests = self.tables.write(self.folder, **parts)
        content = b"".join([*digests, json.dumps(self.checkpoint.shards).encode()])
        self.checkpoint.digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        note(self.folder, self.checkpoint)
        self.noted = True


class Progress:
    """The part of a dataset that is written, by checkpoints.

    Args:
        folder: Folder of the unfinished dataset.
        on_tar: Called in the background with each tar that is complete and counts.
    """

    def __init__(self, folder: Path, on_tar: Callable[[Path], None] | None) -> None:
        self.checkpoints: list[Checkpoint] = []
        self._folder, self._on_tar = folder, on_tar
        self._beside = ThreadPoolExecutor(1)  # completes checkpoints while clips are added
        self._completing: Future[None] | None = None
        self._completion: Completion | None = None  # of the current checkpoint, or of one that failed

    def resume(self, job: Row, *, overwrite: bool) -> None:
        """Continue from what an earlier run of the same job left. Raises OutputError, OSError."""
        self.checkpoints = take_up(self._folder, job, overwrite=overwrite)

    def media_ids(self) -> list[str]:
        """Return the media that are written, in their order."""
        names: list[str] = []
        for number in range(self._media_parts):
            part = part_path(self._folder / MEDIA_FOLDER, number)
            names += read_all(part, ["media_id"])["media_id"].to_pylist()
        return names

    @property
    def items(self) -> int:
        """Number of clips and failures that were processed."""
        return sum(checkpoint.items for checkpoint in self.checkpoints)

    @property
    def clips(self) -> int:
        """Number of clips that are written."""
        return sum(sum(checkpoint.parts) for checkpoint in self.checkpoints)

    @property
    def shards(self) -> int:
        """Number of complete tars."""
        return sum(len(checkpoint.shards) for checkpoint in self.checkpoints)

    @property
    def _media_parts(self) -> int:
        return sum(checkpoint.media > 0 for checkpoint in self.checkpoints)

    def complete(self, checkpoint: Checkpoint, tables: Tables, tar: Tar | None) -> None:
        """Start to write a checkpoint, and then its line. The previous checkpoint must be complete (see `wait`)."""
        checkpoint.parts, checkpoint.media = tables.parts, len(tables.media)
        completion = Completion(
            folder=self._folder,
            checkpoint=checkpoint,
            tables=tables,
            tar=tar,
            media_part=self._media_parts,
            clips_part=sum(len(earlier.parts) for earlier in self.checkpoints),
            on_tar=self._on_tar,
        )
        self.checkpoints.append(checkpoint)
        self._completion = completion
        self._completing = self._beside.submit(completion.run)

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and raise its error, if any."""
        if self._completing is None:
            return
        error = self._completing.exception()  # interrupting the wait changes nothing
        self._completing = None
        if error is not None:
            self.checkpoints.pop()
            raise error
        self._completion = None

    def close(self) -> None:
        """Wait for what is being written.

        The open tar is gone by now, so rows that did not fit on the disk beside it are written, too.
        """
        self._beside.shutdown()
        with contextlib.suppress(Exception):
            self.wait()
        with contextlib.suppress(Exception):  # then one line of progress is lost
            if self._completion is not None and self._completion.rescue():
                self.checkpoints.append(self._completion.checkpoint)


Row = dict[str, Any]

FAILURES_PER_CHECKPOINT = 65_536
MAX_ITEMS_A_TAR = 65_536  # clips and failures; bounds the memory of a run and the work that it repeats
KEY_DIGITS = 9
COPIES_IN_FLIGHT = 4  # clips whose members are being copied or wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a dataset is written.

    Attributes:
        named: The path as the user spells it.
        out: The complete dataset, with links followed.
        overwrite: Whether an existing dataset may be replaced.
    """

    named: Path
    out: Path
    overwrite: bool

    @property
    def unfinished(self) -> Path:
        """Where the dataset lies until it is complete."""
        return unfinished_of(self.out)


class DatasetWriter:
    """Takes the clips and failures of a plan in order. A context manager that holds `OUT.unfinished` for itself alone.

    `done` is the number of items that an earlier run processed; they must not be given again.

    Args:
        out: The folder that the dataset gets.
        job: What makes two runs the same, as plain JSON values. An unfinished dataset of another job is refused.
        user_schema: Columns of clips besides framedex's own.
        overwrite: Whether a dataset at `out` may be replaced.
        tars: How tars are cut; None if no clips are packed.
        on_tar: Called in the background with each tar that is complete and counts.

    Raises:
        OutputError: The folder cannot be used, or the disk is full.
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
        self._destination = Destination(named=out, out=Path(os.path.realpath(out)), overwrite=overwrite)
        self._job, self._layout = job, tars
        self._schema = pa.unify_schemas([CLIPS, user_schema])
        self._progress = Progress(self.folder, on_tar)
        self._filling: TarFilling | None = None
        self._media_rows: dict[str, int] = {}
        self._current, self._tables = Checkpoint(), Tables(self._schema)

    @property
    def folder(self) -> Path:
        """Where the dataset lies until it is complete."""
        return self._destination.unfinished

    @property
    def schema(self) -> pa.Schema:
        """The schema of `clips`, with the user's columns."""
        return self._schema

    def __enter__(self) -> DatasetWriter:
        check_output(self._destination.out, overwrite=self._destination.overwrite)
        with contextlib.ExitStack() as stack:
            check_unfinished(self.folder)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(held(self.folder))
                self._resume()
            except OSError as error:
                raise OutputError("the output folder cannot be written", where=str(self.folder), found=error) from error
            self._held = stack.pop_all()
        self.done = self._progress.items
        return self

    def _resume(self) -> None:
        """Continue an unfinished dataset of the same job."""
        self._progress.resume(self._job, overwrite=self._destination.overwrite)
        self._media_rows = {name: row for row, name in enumerate(self._progress.media_ids())}
        if self._layout is not None:
            self._filling = TarFilling(self.folder / SHARDS_FOLDER, self._layout, number=self._progress.shards)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._filling is not None:
            self._filling.abandon()  # first, which makes room for what is being completed
        self._progress.close()
        self._held.close()
        if self.folder.exists() and (not self._progress.checkpoints or isinstance(error, NoClipsError)):
            shutil.rmtree(self.folder, ignore_errors=True)
        full = full_disk(error, "the dataset", self.folder, lambda: f"{self._progress.clips} clips are kept")
        if full is not None:
            raise full from error

    @property
    def key(self) -> str:
        """The name of the next clip's sample: the clip's number in the dataset."""
        return f"{self._progress.clips + len(self._tables.clips) + self._waiting:0{KEY_DIGITS}d}"

    @property
    def _waiting(self) -> int:
        """Number of clips that are being copied."""
        return 0 if self._filling is None else self._filling.waiting

    def add(self, clip: Clip, members: Sequence[Member] = ()) -> None:
        """Write a clip, and its members into a tar, if it has any; its ranges then count in their joined content.

        Members are copied in the background. If one of their files is missing or changed, the clip becomes a failure.

        Raises:
            OSError: Writing failed, possibly for an item that was added before.
        """
        if not members:
            self.settle()
            self._take(clip, None)
            return
        assert self._filling is not None  # members come with a layout
        self._settle_all_but(COPIES_IN_FLIGHT - 1)
        if self._current.items + self._waiting >= MAX_ITEMS_A_TAR:
            self.settle()
        if not self._filling.has_room(members):
            self.settle()
        if not self._filling.has_room(members):
            self._checkpoint()
        self._filling.add(self.key, clip, members)

    def add_planned(self, planned: PlannedRows) -> None:
        """Write items of the plan that have no members. Checkpoints come where they come for items one by one."""
        self.settle()
        clips = failures = at = 0
        while at < len(planned.is_clip):
            count = self._until_checkpoint(planned.is_clip[at:])
            new_clips = int(np.count_nonzero(planned.is_clip[at : at + count]))
            self._take_rows(planned, clips, new_clips)
            new = planned.failures[failures : failures + count - new_clips]
            self._current.failures += map(asdict, new)
            self._current.items += count
            clips, failures, at = clips + new_clips, failures + len(new), at + count
            self._checkpoint_if_due()

    def _until_checkpoint(self, is_clip: NDArray[np.bool_]) -> int:
        """Return how many items fit before the next checkpoint is due, that which makes it due included."""
        clips = len(self._tables.clips) + np.cumsum(is_clip)
        failures = len(self._current.failures) + np.cumsum(~is_clip)
        due = (clips >= CLIPS_PER_PART) | (failures >= FAILURES_PER_CHECKPOINT)
        return int(np.argmax(due)) + 1 if due.any() else len(is_clip)

    def _take_rows(self, planned: PlannedRows, first: int, count: int) -> None:
        """Add the rows of some clips, and of the media that are new with them."""
        clips = planned.clips.slice(first, count)
        own = clips["media_row"].to_numpy()
        used, begins = np.unique(own, return_index=True)
        rows = np.zeros(len(planned.media), np.int64)
        for medium in used[np.argsort(begins)].tolist():
            columns = planned.media[medium]
            rows[medium] = self._media_row(columns["media_id"], columns.copy)
        place = self._schema.get_field_index("media_row")
        kind = self._schema.field(place)
        self._tables.clips.extend(clips.set_column(place, kind, pa.array(rows[own], kind.type)))
        self._tables.recipes.extend(planned.recipes.slice(first, count))
        self._current.frames += int(planned.frames[first : first + count].sum())

    def fail(self, failure: Failure) -> None:
        """Note a clip that is not available."""
        self.settle()
        self._current.failures.append(asdict(failure))
        self._item_done()

    def settle(self) -> None:
        """Wait until the members of all clips are copied. Raises OSError."""
        self._settle_all_but(0)

    def _settle_all_but(self, most: int) -> None:
        """Wait for clips whose members are being copied, until at most `most` of them are left."""
        while self._filling is not None and self._filling.waiting > most:
            settled = self._filling.settle()
            if isinstance(settled, NotCopied):
                self.fail(failure_of(settled.wanted, settled.error))
                for copying in settled.behind:  # they begin where the one that failed would have begun
                    self.add(copying.wanted, copying.members)
            else:
                self._take(settled, self._filling.number)

    def _take(self, clip: Clip, shard: int | None) -> None:
        row = self._media_row(clip.medium.media_id, lambda: media_columns(clip.medium))
        self._tables.clips.append(clip_row(clip, media_row=row, shard=shard))
        self._tables.recipes.append(recipe_row(clip))
        self._current.frames += len(clip.frames)
        self._item_done()

    def _media_row(self, identity: str, columns: Callable[[], Row]) -> int:
        """Return the row of a medium, which is added if it is new."""
        if identity not in self._media_rows:
            self._media_rows[identity] = len(self._media_rows)
            self._tables.media.append(columns())
        return self._media_rows[identity]

    def _item_done(self) -> None:
        self._current.items += 1
        self._checkpoint_if_due()

    def _checkpoint_if_due(self) -> None:
        if self._filling is not None and self._filling.is_begun:
            due = self._current.items >= MAX_ITEMS_A_TAR
        else:
            many = len(self._current.failures) >= FAILURES_PER_CHECKPOINT
            due = len(self._tables.clips) >= CLIPS_PER_PART or many
        if due:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Start to write the collected rows, and then the line of their checkpoint."""
        if not self._current.items:
            return
        self._progress.wait()
        tar = None if self._filling is None else self._filling.take()
        self._progress.complete(self._current, self._tables, tar)
        self._current, self._tables = Checkpoint(), Tables(self._schema)

    def check_clips(self, index: Index) -> None:
        """Raise NoClipsError if all items of the plan were failures. The folder is then removed at the end."""
        self.settle()
        if not self._progress.clips + len(self._tables.clips):
            failures = failures_of(self._progress.checkpoints) + self._current.failures
            raise no_clips(index, (Failure(**row) for row in failures))

    def commit(self, *, index: Index, resolved: Row, facts: Row) -> ShardReport:
        """Write what is left, give the dataset its name, and return what it holds.

        Args:
            facts: What tars hold, and other keys of the header.
        """
        self.settle()
        self._checkpoint()
        self._progress.wait()
        done = self._progress.checkpoints
        write_whole(self.folder, done, self._schema, index=index, resolved=resolved, facts=facts, job=self._job)
        publish(self.folder, self._destination.out, overwrite=self._destination.overwrite)
        return ShardReport(
            out=self._destination.named,
            clips=self._progress.clips,
            media=sum(checkpoint.media for checkpoint in done),
            frames=sum(checkpoint.frames for checkpoint in done),
            shards=self._progress.shards,
            resumed=self.done,
            failures=failures_of(done),
        )
