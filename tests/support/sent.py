"""Functions that tests send to worker processes. This module imports little, so that workers start at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def process_id(_: object) -> int:
    return os.getpid()


def blas_threads(_: object) -> str | None:
    """Return the number of threads that the environment asks OpenBLAS for, as it was when this process began."""
    variables = dict(line.split("=", 1) for line in Path("/proc/self/environ").read_text().split("\0") if "=" in line)
    return variables.get("OPENBLAS_NUM_THREADS")


def process_id_then_hang(path: str) -> None:
    """Write this process's id into a file; do not end."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def stop_at(number: int) -> int:
    """Return a number; stop this process if it is 3."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return number


def large(number: int) -> str:
    """Return a text that is larger than a pipe's buffer."""
    return "x" * (8 << 20) if number else ""


def wait_long(text: str) -> int:
    """Return a text's length; wait for long if it is not empty."""
    time.sleep(60.0 if text else 0.0)
    return len(text)


def sleep_die_or_echo(item: str) -> str:
    if item == "hang":
        time.sleep(60)
    if item == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "raise":
        raise RuntimeError("mine")
    return item


def allocate(size_bytes: int) -> int:
    return len(bytearray(size_bytes))


def raise_as_libav_does(code: int) -> None:
    import av.error

    raise av.error.MemoryError(code, "Cannot allocate memory")


def imported_pydantic(frames: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return, in place of a clip's frames, whether this process has imported pydantic."""
    return np.array(["pydantic" in sys.modules])


def convert(number: int) -> tuple[list[int], bool]:
    """Convert a number to Arrow and back; return it, and whether pandas was imported."""
    import pyarrow as pa

    return pa.array([number]).to_pylist(), "pandas" in sys.modules


class Echo:
    """Returns its task, or raises, dies, hangs or counts open files on request."""

    def __call__(self, task: Any) -> Any:
        match task if isinstance(task, str) else None:
            case "raise":
                raise KeyError("no such thing")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(60)
            case "count files":
                return len(os.listdir("/proc/self/fd"))
        return task
