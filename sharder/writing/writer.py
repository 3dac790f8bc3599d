"""Write a dataset into a folder `OUT.unfinished`, which is renamed to `OUT` when the dataset is complete.

The file `progress.jsonl` has one line per checkpoint. If a run is killed or the disk is full, the same command
continues after the last checkpoint, and writes all later items (clips and failures) again. Checkpoints are written in
the background, in this order: the tar is closed, the collected rows are written as parts, and the line is appended to
`progress.jsonl`.

If clips are packed into tars, there is one checkpoint for each complete tar. Therefore the same plan always gives the
same parts and the same tars, however often the run was interrupted.
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

from framedex.errors import NoClipsError, OutputError, StaleError
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
from framedex.sharder.writing.output import Checkpoint, First, check_output, note, publish, take_up, unfinished_of
from framedex.sharder.writing.planned_rows import PlannedRows, media_columns
from framedex.sharder.writing.report import ShardReport
from framedex.sharder.writing.tar_filling import TarFilling, TarLayout
from framedex.sharder.writing.whole import Tables, failures_of, write_whole

Row = dict[str, Any]

FAILURES_PER_CHECKPOINT = 65_536
# Maximum number of items (clips and failures) per tar. It limits the memory of a run, and the work that is repeated
# after an interruption.
MAX_ITEMS_A_TAR = 65_536
KEY_DIGITS = 9
COPIES_IN_FLIGHT = 4  # number of clips that are copied in the background, so that the copying thread is always busy
DEFAULT_TARS, NEW = TarLayout(), First()


@dataclass(slots=True, kw_only=True)
class Completion:
    """A task that writes one checkpoint in the background.

    Attributes:
        folder: The folder of the unfinished dataset.
        checkpoint: The checkpoint.
        tables: The rows that were collected since the previous checkpoint.
        tar: The tar with the checkpoint's samples, which `run` closes. None if no clips were packed.
        media_part: The number of the checkpoint's part of `media`.
        clips_part: The number of the checkpoint's first part of `clips`.
        on_tar: A function that is called with the path of the tar after the checkpoint's line is written.
        noted: Whether the checkpoint's line in `progress.jsonl` is written.
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
        """Close the tar, and write the parts and the line of the checkpoint.

        Raises:
            OSError: A file cannot be written. `rescue` may then write the parts and the line later.
        """
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
        """Try again to write the parts and the line after `run` failed, because there may be space on the disk now.

        If the tar could not be closed, its samples are lost, and nothing is written.

        Returns:
            Whether the checkpoint's line is written now.
        """
        if not self.noted and (self.tar is None or self.checkpoint.shards):
            self._write_rows()
        return self.noted

    def _write_rows(self) -> None:
        digests = self.tables.write(self.folder, media_part=self.media_part, clips_part=self.clips_part)
        content = b"".join([*digests, json.dumps(self.checkpoint.shards).encode()])
        self.checkpoint.digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        note(self.folder, self.checkpoint)
        self.noted = True


class Progress:
    """The checkpoints of an unfinished dataset. While the last checkpoint is being written, more clips may be added.

    Args:
        folder: The folder of the unfinished dataset.
        on_tar: A function that is called in the background with the path of each tar, after the line of its checkpoint
            is written.
    """

    def __init__(self, folder: Path, on_tar: Callable[[Path], None] | None) -> None:
        self.checkpoints: list[Checkpoint] = []
        self._folder, self._on_tar = folder, on_tar
        self._executor = ThreadPoolExecutor(1)  # writes checkpoints while clips are added
        self._completing: Future[None] | None = None
        self._completion: Completion | None = None  # the completion that is running or has failed

    def media_ids(self) -> list[str]:
        """Return the media_ids of all rows of `media` that are written, in order."""
        parts = [part_path(self._folder / MEDIA_FOLDER, number) for number in range(self._media_parts)]
        return [name for part in parts for name in read_all(part, ["media_id"])["media_id"].to_pylist()]

    @property
    def clips(self) -> int:
        """The number of clips in all checkpoints."""
        return sum(sum(checkpoint.parts) for checkpoint in self.checkpoints)

    @property
    def shards(self) -> int:
        """The number of complete tars."""
        return sum(len(checkpoint.shards) for checkpoint in self.checkpoints)

    @property
    def _media_parts(self) -> int:
        return sum(checkpoint.media > 0 for checkpoint in self.checkpoints)

    def complete(self, checkpoint: Checkpoint, tables: Tables, tar: Tar | None) -> None:
        """Start to write a checkpoint in the background. The previous checkpoint must be complete (see `wait`)."""
        checkpoint.parts, checkpoint.media = tables.parts, len(tables.media)
        self._completion = Completion(
            folder=self._folder,
            checkpoint=checkpoint,
            tables=tables,
            tar=tar,
            media_part=self._media_parts,
            clips_part=sum(len(earlier.parts) for earlier in self.checkpoints),
            on_tar=self._on_tar,
        )
        self.checkpoints.append(checkpoint)
        self._completing = self._executor.submit(self._completion.run)

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is complete. Raises its error if it failed."""
        if self._completing is None:
            return
        error = self._completing.exception()  # if Ctrl-C interrupts this wait, `close` waits again
        self._completing = None
        if error is not None:
            self.checkpoints.pop()
            raise error
        self._completion = None

    def close(self) -> None:
        """Wait until the checkpoint that is being written is complete, or try again if it failed.

        The caller has deleted the unfinished tar. If the disk was full, there may now be space for the checkpoint.
        """
        self._executor.shutdown()
        with contextlib.suppress(Exception):
            self.wait()
        with contextlib.suppress(Exception):  # if this fails, the next run repeats the work of one checkpoint
            if self._completion is not None and self._completion.rescue():
                self.checkpoints.append(self._completion.checkpoint)


class DatasetWriter:
    """A context manager that writes a dataset. The clips and failures of a plan are added in order.

    Within the `with` block, the folder `OUT.unfinished` is locked, and the attribute `done` is the number of items that
    earlier runs processed. These items must not be added again.

    Args:
        out: The folder of the dataset.
        job: The values that identify the job, as JSON values. If the folder has an unfinished dataset of another job,
            OutputError is raised, unless `overwrite` is True.
        user_schema: The schema of the user's columns of `clips`.
        overwrite: Whether a dataset at `out` may be replaced.
        tars: The names and the maximum size of the tars, for clips with members.
        first: The first numbers, if the clips are appended to another dataset.
        on_tar: A function that is called in the background with the path of each tar, after the line of its checkpoint
            is written.

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
        tars: TarLayout = DEFAULT_TARS,
        first: First = NEW,
        on_tar: Callable[[Path], None] | None = None,
    ) -> None:
        self._first = first
        self.folder = unfinished_of(out)
        self._named, self._out, self._overwrite = out, Path(os.path.realpath(out)), overwrite
        self._job, self._layout = job, tars
        self._schema = pa.unify_schemas([CLIPS, user_schema])
        self._progress = Progress(self.folder, on_tar)
        self._media_rows: dict[str, int] = {}
        self._current, self._tables = Checkpoint(), Tables(self._schema)

    def __enter__(self) -> DatasetWriter:
        check_output(self._out, overwrite=self._overwrite)
        with contextlib.ExitStack() as stack:
            check_unfinished(self.folder)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(held(self.folder))
                self._progress.checkpoints = take_up(
                    self.folder, self._job, overwrite=self._overwrite, first_tar=self._first.tar
                )
                written = enumerate(self._progress.media_ids(), self._first.medium)
                self._media_rows = {name: row for row, name in written}
            except OSError as error:
                raise OutputError("the output folder cannot be written", where=str(self.folder), found=error) from error
            self._held = stack.pop_all()
        self._filling = TarFilling(
            self.folder / SHARDS_FOLDER, self._layout, number=self._first.tar + self._progress.shards
        )
        self.done = sum(checkpoint.items for checkpoint in self._progress.checkpoints)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._filling.abandon()  # done first, because it frees disk space for the last checkpoint
        self._progress.close()
        self._held.close()
        if self.folder.exists() and (not self._progress.checkpoints or isinstance(error, NoClipsError)):
            shutil.rmtree(self.folder, ignore_errors=True)
        full = full_disk(error, "the dataset", self.folder, lambda: f"{self._progress.clips} clips are kept")
        if full is not None:
            raise full from error

    def add(self, clip: Clip, members: Sequence[Member] = ()) -> None:
        """Add a clip to the dataset, and copy its members, if any, into a tar.

        Members are copied in the background. If a source is missing or has changed, the clip becomes a failure.

        Args:
            clip: The clip. If there are members, the clip's byte ranges are offsets into the concatenated content of
                the members.
            members: The members of the clip's sample. Empty if the clip is not packed.

        Raises:
            OSError: Writing failed for this item or for an earlier item.
        """
        if not members:
            self.settle()
            self._take(clip, None)
            return
        self.settle(COPIES_IN_FLIGHT - 1)
        if self._current.items + len(self._filling.copying) >= MAX_ITEMS_A_TAR or not self._filling.has_room(members):
            self.settle()
        # Checked again, because `settle` may have dropped a stale clip, which makes room in the tar.
        if not self._filling.has_room(members):
            self._checkpoint()
        number = self._first.clip + self._progress.clips + len(self._tables.clips) + len(self._filling.copying)
        self._filling.add(f"{number:0{KEY_DIGITS}d}", clip, members)

    def add_planned(self, planned: PlannedRows) -> None:
        """Add items of the plan that have no members.

        Checkpoints are written after the same items as if the items were added one by one.
        """
        self.settle()
        while len(planned.is_clip):
            every = len(self._tables.clips) + np.cumsum(planned.is_clip)
            failures = len(self._current.failures) + np.cumsum(~planned.is_clip)
            due = (every >= CLIPS_PER_PART) | (failures >= FAILURES_PER_CHECKPOINT)
            count = int(np.argmax(due)) + 1 if due.any() else len(due)
            clips = int(np.count_nonzero(planned.is_clip[:count]))
            self._take_rows(planned, clips)
            self._current.failures += map(asdict, planned.failures[: count - clips])
            self._current.items += count
            planned = planned.behind(count)
            self._checkpoint_if_due()

    def _take_rows(self, planned: PlannedRows, count: int) -> None:
        """Add the rows of the first `count` clips, and the rows of the media that these clips are the first to use."""
        clips = planned.clips.slice(0, count)
        own = clips["media_row"].to_numpy()
        used, begins = np.unique(own, return_index=True)
        rows = np.zeros(len(planned.media), np.int64)
        for medium in used[np.argsort(begins)].tolist():
            columns = planned.media[medium]
            rows[medium] = self._media_row(columns["media_id"], columns.copy)
        place = self._schema.get_field_index("media_row")
        kind = self._schema.field(place)
        self._tables.clips.extend(clips.set_column(place, kind, pa.array(rows[own], kind.type)))
        self._tables.recipes.extend(planned.recipes.slice(0, count))
        self._current.frames += int(planned.frames[:count].sum())

    def fail(self, failure: Failure) -> None:
        """Record the failure of a clip."""
        self.settle()
        self._current.failures.append(asdict(failure))
        self._item_done()

    def settle(self, left: int = 0) -> None:
        """Wait until the members of all but the last `left` clips are copied. Raises OSError."""
        while len(self._filling.copying) > left:
            try:
                packed = self._filling.settle()
            except StaleError as error:
                stale, *later = self._filling.drop()
                self.fail(failure_of(stale.wanted, error))
                for copying in later:  # copied again, because the tar must not have a gap in place of the stale clip
                    self.add(copying.wanted, copying.members)
            else:
                self._take(packed, self._filling.number)

    def _take(self, clip: Clip, shard: int | None) -> None:
        row = self._media_row(clip.medium.media_id, lambda: media_columns(clip.medium))
        self._tables.clips.append(clip_row(clip, media_row=row, shard=shard))
        self._tables.recipes.append(recipe_row(clip))
        self._current.frames += len(clip.frames)
        self._item_done()

    def _media_row(self, identity: str, columns: Callable[[], Row]) -> int:
        """Return the row number of a medium in `media`. If the medium has no row yet, add the row."""
        if identity not in self._media_rows:
            self._media_rows[identity] = self._first.medium + len(self._media_rows)
            self._tables.media.append(columns())
        return self._media_rows[identity]

    def _item_done(self) -> None:
        self._current.items += 1
        self._checkpoint_if_due()

    def _checkpoint_if_due(self) -> None:
        if self._filling.tar is not None:
            due = self._current.items >= MAX_ITEMS_A_TAR
        else:
            due = len(self._tables.clips) >= CLIPS_PER_PART or len(self._current.failures) >= FAILURES_PER_CHECKPOINT
        if due:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Start to write a checkpoint with the rows that were collected since the previous checkpoint."""
        if not self._current.items:
            return
        self._progress.wait()
        self._progress.complete(self._current, self._tables, self._filling.take())
        self._current, self._tables = Checkpoint(), Tables(self._schema)

    def check_clips(self, index: Index) -> None:
        """Raise NoClipsError if all items of the plan are failures. The unfinished dataset is then removed on exit."""
        self.settle()
        if not self._progress.clips + len(self._tables.clips):
            failures = failures_of(self._progress.checkpoints) + self._current.failures
            raise no_clips(index, (Failure(**row) for row in failures))

    def commit(self, *, index: Index, resolved: Row, facts: Row) -> ShardReport:
        """Write the last checkpoint and all remaining files, rename the folder to `out`, and return the report.

        Args:
            index: The index from which the clips were planned.
            resolved: The policy, with all defaults filled in.
            facts: The options of packing, and other keys of the header.
        """
        self.settle()
        self._checkpoint()
        self._progress.wait()
        done = self._progress.checkpoints
        write_whole(
            self.folder,
            done,
            self._schema,
            index=index,
            resolved=resolved,
            facts=facts,
            job=self._job,
            first_medium=self._first.medium,
        )
        publish(self.folder, self._out, overwrite=self._overwrite)
        return ShardReport(
            out=self._named,
            clips=self._progress.clips,
            media=sum(checkpoint.media for checkpoint in done),
            frames=sum(checkpoint.frames for checkpoint in done),
            shards=self._progress.shards,
            resumed=self.done,
            failures=failures_of(done),
        )
