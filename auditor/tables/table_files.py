"""A read-only file system for DuckDB. It contains only the files of the index or dataset, by framedex's names.

DuckDB's own restriction to directories still allows writing into them, and its parser treats data-modifying CTEs as
SELECT statements. A file system that cannot write prevents both.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from framedex.auditor.tables.views import PROTOCOL
from framedex.errors import MissingExtraError

try:
    from fsspec import AbstractFileSystem
except ModuleNotFoundError as error:
    raise MissingExtraError("fsspec", "audit", "framedex audit") from error


class TableFiles(AbstractFileSystem):  # type: ignore[misc]
    """Local files by their names in queries. No files can be added."""

    protocol = PROTOCOL

    def __init__(self, files: Mapping[str, Path]) -> None:
        super().__init__(skip_instance_cache=True)
        self._files = dict(files)

    def _path(self, name: str) -> Path:
        try:
            return self._files[str(self._strip_protocol(name))]
        except KeyError:
            raise FileNotFoundError(f"{name} is no table of what is audited") from None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> TableFile:
        if mode != "rb":
            raise PermissionError(f"{path} is only to be read")
        return TableFile(self._path(path))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": self._strip_protocol(path), "size": self._path(path).stat().st_size, "type": "file"}

    def exists(self, path: str, **options: Any) -> bool:
        return str(self._strip_protocol(path)) in self._files

    def glob(self, path: str, **options: Any) -> list[str]:
        return [str(self._strip_protocol(path))] if self.exists(path) else []

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._path(path).stat().st_mtime)


class TableFile:
    """An open file that several threads read. Each thread has its own position."""

    def __init__(self, path: Path) -> None:
        self.closed = True
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise PermissionError(f"{path} is no regular file")
        self._size = status.st_size
        self._local = threading.local()
        self.closed = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._size}[whence]
        self._local.position = begin + offset
        return self.tell()

    def tell(self) -> int:
        return int(getattr(self._local, "position", 0))

    def read(self, size: int = -1) -> bytes:
        data = os.pread(self._descriptor, self._size - self.tell() if size < 0 else size, self.tell())
        self._local.position = self.tell() + len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
            self.closed = True

    def __del__(self) -> None:
        self.close()
