"""Completing a checkpoint beside what goes on: its tar closed, its rows in parts, and then the line that says so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from framedex.sharder.packing.tars import Tar
from framedex.sharder.writing.checkpoints import Checkpoint, note
from framedex.sharder.writing.tables import Tables


@dataclass(slots=True, kw_only=True)
class Completion:
    """A checkpoint that is to be written into a folder. tar: with samples, closed by this. media_part, clips_part: the numbers
    of its first parts. on_tar: given the tar once it counts. noted: it does.
    """

    folder: Path
    schema: pa.Schema
    checkpoint: Checkpoint
    tables: Tables
    tar: Tar | None
    media_part: int
    clips_part: int
    on_tar: Callable[[Path], None] | None = None
    noted: bool = False

    def run(self) -> None:
        """Write it. Raises OSError; then `rescue` may do what is left."""
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
        """Write the rows after all, once there is room; return whether the tar had been closed, which that takes."""
        if self.noted:  # what went wrong came after it
            return True
        if self.tar is not None and not self.checkpoint.shards:
            return False
        self._write_rows()
        return True

    def _write_rows(self) -> None:
        parts = {"media_part": self.media_part, "clips_part": self.clips_part}
        digests = self.tables.write(self.folder, self.schema, **parts)
        content = b"".join([*digests, json.dumps(self.checkpoint.shards).encode()])
        self.checkpoint.digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        note(self.folder, self.checkpoint)
        self.noted = True
