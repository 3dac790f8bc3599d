"""Choosing an engine by its name."""

from __future__ import annotations

from typing import Literal

from framedex.indexer.engine import Engine
from framedex.indexer.local_pool import run_local

EngineName = Literal["local", "ray"]


def engine_of(name: EngineName, ray_address: str | None = None) -> Engine:
    """Return an engine by its name. Raises MissingExtraError where Ray is not installed."""
    if name == "local":
        return run_local
    from framedex.indexer.ray_engine import RayEngine

    return RayEngine(ray_address)
