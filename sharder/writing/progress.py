"""The checkpoints of a dataset: those that count, and the one that is being completed while clips are added."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from framedex.files.parquet_parts import part_path
from framedex.files.row_groups import read_all
from framedex.sharder.packing.tars import Tar
from framedex.sharder.schema import MEDIA_FOLDER
from framedex.sharder.writing.checkpoints import Checkpoint, take_up
from framedex.sharder.writing.completion import Completion
from framedex.sharder.writing.tables import Tables

Row = dict[str, Any]


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
