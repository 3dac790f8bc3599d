"""The choice of an execution engine by name."""

from __future__ import annotations

import os
from typing import Literal

from framedex.errors import FramedexError
from framedex.execution.engine import Engine
from framedex.execution.local_pool import run_local

EngineName = Literal["local", "ray"]


def processes(workers: int | None) -> int:
    """Return the number of processes for the argument `workers`. None: one per core.

    Raises:
        FramedexError: the number is not positive.
    """
    if workers is None:
        return os.cpu_count() or 1
    if workers < 1:
        raise FramedexError("work needs a process", where="workers", found=workers, allowed="1 or more, or None")
    return workers


def engine_of(name: EngineName, ray_address: str | None = None) -> Engine:
    """Return the engine with this name. Raises MissingExtraError if Ray is not installed."""
    if name == "local":
        return run_local
    from framedex.execution.ray_engine import RayEngine

    return RayEngine(ray_address)
