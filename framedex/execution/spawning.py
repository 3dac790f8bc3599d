"""Starts worker processes that do not run the caller's script again, where they need nothing of it.

A spawned process imports the script of its parent under another name, so that what is pickled can refer to it. A script without an
`if __name__ == "__main__"` guard then starts its work anew in each worker, and dies. framedex sends its own functions and plain
data, so the script is needed only where the caller handed over something that it defines.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import sys
import threading
from collections.abc import Iterator
from multiprocessing import context
from typing import Any

MAIN = b"__main__"
_lock = threading.Lock()


class _Process(context.SpawnProcess):
    def start(self) -> None:
        with _hidden_main():
            super().start()


class _Context(context.SpawnContext):
    Process = _Process


def spawning(*handed_over: object) -> context.SpawnContext:
    """Return the context of processes that get these objects: one that leaves the caller's script alone, if it can."""
    return multiprocessing.get_context("spawn") if needs_main(handed_over) else _Context()


def needs_main(handed_over: object) -> bool:
    """Return whether objects, once pickled, refer to the caller's script."""
    try:
        return MAIN in pickle.dumps(handed_over)
    except Exception:  # starting the process will say what cannot be pickled
        return True


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Have `multiprocessing.spawn.get_preparation_data` find no script: it looks at these two attributes."""
    main = sys.modules["__main__"]
    with _lock:
        kept: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
        main.__spec__ = None
        vars(main).pop("__file__", None)
        try:
            yield
        finally:
            vars(main).update(kept)
