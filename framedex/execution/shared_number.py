"""A number whose changes worker processes see: the epoch of random draws, and whether a warning was given."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from collections.abc import Callable
from typing import Any

TOKEN_BYTES, NUMBER_BYTES = 16, 8


class SharedNumber:
    """A whole number of 0 or more that all copies of this object on this machine share: forked, spawned or pickled.

    It is in anonymous memory that lives as long as a process uses it. A copy that can no longer reach that memory (on
    another machine, or after the first process ended) keeps the number that it was pickled with, and shares it with no
    other copy.
    """

    def __init__(self, number: int = 0) -> None:
        self._create(number)

    def _create(self, number: int) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        descriptor = os.memfd_create("framedex-epoch")
        os.write(descriptor, self._token + bytes(NUMBER_BYTES))
        self._memory = mmap.mmap(descriptor, TOKEN_BYTES + NUMBER_BYTES)
        self._descriptor: int | None = descriptor  # other processes find the memory by it
        self._place = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.set(number)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # a default, as `os` may be gone at exit
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)

    def get(self) -> int:
        """Return the number."""
        return int.from_bytes(self._memory[TOKEN_BYTES:], "little")

    def set(self, number: int) -> None:
        """Change the number for all copies."""
        self._memory[TOKEN_BYTES:] = number.to_bytes(NUMBER_BYTES, "little")

    def claim(self) -> bool:
        """Change the number from 0 to 1. Return whether this copy did so: of all copies, a single one does."""
        if self.get():
            return False
        try:
            descriptor = os.open(self._place, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # the first process ended: nobody else sees the number
            self.set(1)
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_first = self.get() == 0
            self.set(1)
            return is_first
        finally:
            os.close(descriptor)

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self._place, "token": self._token, "number": self.get()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        try:
            descriptor = os.open(state["place"], os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.pread(descriptor, TOKEN_BYTES, 0) != state["token"]:
                    raise FileNotFoundError(state["place"])  # a later process has the same process id
                self._memory = mmap.mmap(descriptor, TOKEN_BYTES + NUMBER_BYTES)
            finally:
                os.close(descriptor)
        except (OSError, ValueError):
            self._create(state["number"])
            return
        self._descriptor, self._place, self._token = None, state["place"], state["token"]
