"""What happened in all processes of a stream: a log in memory that its workers share with the process that made it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import orjson

TOKEN_BYTES = 16


class SharedLog:
    """Records that all copies of this object on this machine share: forked, spawned or pickled.

    They are in anonymous memory, as the number of a `SharedNumber`. A copy that can no longer reach it begins a log of
    its own, with the last restart.
    """

    def __init__(self) -> None:
        self._create()

    def _create(self) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._descriptor = os.memfd_create("framedex-stream")
        os.write(self._descriptor, self._token)
        self._place = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def _begin_own(self, records: list[dict[str, Any]]) -> None:
        self._create()
        for record in records:
            self.add(record)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # a default, as `os` may be gone at exit
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record of plain values."""
        end = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(end, orjson.dumps(record) + b"\n")  # one write, so that records of two processes do not mix
        finally:
            os.close(end)

    def records(self, *events: str) -> list[dict[str, Any]]:
        """Return the records of some kinds of events, in the order in which they were added."""
        size = os.fstat(self._descriptor).st_size
        lines = os.pread(self._descriptor, size - TOKEN_BYTES, TOKEN_BYTES).splitlines()
        return [record for record in map(orjson.loads, lines) if record["event"] in events]

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self._place, "token": self._token, "last": self.records("restart")[-1:]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        try:
            descriptor = os.open(state["place"], os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._begin_own(state["last"])
            return
        self._descriptor, self._place, self._token = descriptor, state["place"], state["token"]
        if os.pread(descriptor, TOKEN_BYTES, 0) != self._token:  # a later process has the same process id
            os.close(descriptor)
            self._begin_own(state["last"])
