"""Completes a checkpoint in the background: closes its tar, writes its rows into parts, and then writes its line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from framedex.sharder.packing.tars import Tar
from framedex.sharder.writing.checkpoints import Checkpoint, note
from framedex.sharder.writing.tables import Tables


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
