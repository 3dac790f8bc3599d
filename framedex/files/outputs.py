"""Folders that are written by one run at a time: held by a lock on this machine, by conditions on objects in a store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from framedex.files.locks import LOCK_NAME, held
from framedex.storage.outputs import Output, stored_output
from framedex.storage.places import Place, Stored


@contextlib.contextmanager
def opened_output(
    out: Place, *names: str, lock: str = LOCK_NAME, shared: bool = False, wait: bool = False
) -> Iterator[Output]:
    """Open a folder to be written, made where it is missing. Raises OutputError where another run writes it.

    Args:
        out: the folder.
        names: of files right in it that may be replaced, in a store.
        lock: what is held of a folder of this machine; a store has no locks, and nobody replaces what another wrote.
        shared: with others that share it.
        wait: until others let go of it.
    """
    if isinstance(out, Stored):
        with stored_output(out, *names) as output:
            yield output
        return
    out.mkdir(parents=True, exist_ok=True)
    with held(out, lock, shared=shared, wait=wait):
        yield Output(out)


def has_locks(out: Place) -> bool:
    """Return whether runs that write a folder can lock each other out."""
    return not isinstance(out, Stored)
