"""The choice of an execution engine by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from framedex.core.hints import check_choices
from framedex.errors import FramedexError
from framedex.execution.engine import Calls, Engine, Item, Outcome, Result
from framedex.execution.local_pool import run_local

EngineName = Literal["local", "ray"]


def processes(workers: int | None, engine: EngineName = "local") -> int:
    """Return the number of processes for the argument `workers`. None: one per core; 0: this process does the work.

    Raises:
        FramedexError: the number is negative, or 0 with a cluster.
    """
    if workers is None:
        return os.cpu_count() or 1
    least = 0 if engine == "local" else 1
    if workers < least:
        what, allowed = f"too few workers for the engine {engine!r}", f"{least} or more, or None"
        raise FramedexError(what, where="workers", found=workers, allowed=allowed)
    return workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Where calls are made: in so many processes of an engine.

    Attributes:
        count: Number of processes. 0: this process makes the calls.
    """

    count: int = os.cpu_count() or 1
    engine: Engine = run_local

    @property
    def alone(self) -> bool:
        """Whether one process of this machine does everything."""
        return self.count < 2 and self.engine is run_local

    def run(self, calls: Calls[Item, Result]) -> Iterator[Outcome[Item, Result]]:
        """Yield the outcomes of calls, in the order of their items."""
        return self.engine(calls, workers=self.count)


def engine_of(name: EngineName, ray_address: str | None = None) -> Engine:
    """Return the engine with this name. Raises MissingExtraError if Ray is not installed."""
    check_choices(engine=(name, get_args(EngineName)))
    if name == "local":
        return run_local
    from framedex.execution.ray_engine import RayEngine

    return RayEngine(ray_address)
