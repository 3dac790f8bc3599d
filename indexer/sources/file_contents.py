"""Find what a tar or a Parquet file holds."""

from __future__ import annotations

from collections.abc import Sequence

from framedex.indexer.sources.file_member import FileContents
from framedex.indexer.sources.named_medium import Holder
from framedex.indexer.sources.parquet_members import read_parquet
from framedex.indexer.sources.sidecars import Sidecar
from framedex.indexer.sources.tar_members import read_tar
from framedex.storage.reader import Read


def contents_of(holder: Holder, read: Read, size_bytes: int, *, sidecars: Sequence[Sidecar]) -> FileContents:
    """Return what a file with several media holds.

    Args:
        holder: which kind of file it is.
        read: reads ranges of it.
        size_bytes: of the file.
        sidecars: of a tar: kinds of sidecars that are read, too.

    Raises:
        MediaError: the file is not readable.
    """
    if holder == "parquet":
        return read_parquet(read, size_bytes)
    return read_tar(read, size_bytes, sidecars=sidecars)
