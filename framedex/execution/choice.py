"""Choosing an engine by its name."""

from __future__ import annotations

from typing import Literal

from framedex.execution.engine import Engine
from framedex.execution.local_pool import run_local

EngineName = Literal["local", "ray"]


def engine_of(name: EngineName, ray_address: str | None = None) -> Engine:
    """Return an engine by its name. Raises MissingExtraError where Ray is not installed."""
    if name == "local":
        return run_local
    from framedex.execution.ray_engine import RayEngine

    return RayEngine(ray_address)
