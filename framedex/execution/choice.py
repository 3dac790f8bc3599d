"""The choice of an execution engine by name."""

from __future__ import annotations

from typing import Literal

from framedex.execution.engine import Engine
from framedex.execution.local_pool import run_local

EngineName = Literal["local", "ray"]


def engine_of(name: EngineName, ray_address: str | None = None) -> Engine:
    """Return the engine with this name. Raises MissingExtraError if Ray is not installed."""
    if name == "local":
        return run_local
    from framedex.execution.ray_engine import RayEngine

    return RayEngine(ray_address)
