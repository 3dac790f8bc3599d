"""Functions that choose an engine by its name, and the number of processes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.execution.engine import Calls, Engine, Item, Outcome, Result, run_local

EngineName = Literal["local", "ray"]


def processes(workers: int | None, engine: EngineName = "local") -> int:
    """Check the argument `workers` and return the number of processes.

    Args:
        workers: The number of processes. If 0, the current process does the work. If None, one process per core.
        engine: The name of the engine. With "ray", at least one process is needed.

    Raises:
        FramedexError: The number is too low for the engine.
    """
    if workers is None:
        return os.cpu_count() or 1
    least = 0 if engine == "local" else 1
    if workers < least:
        what = f"too few workers for the engine {engine!r}"
        raise FramedexError(what, where="workers", found=workers, allowed=f"{least} or more, or None")
    return workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """An engine with the number of its processes.

    Attributes:
        count: The number of processes. If 0, the current process makes the calls.
        engine: The engine that starts the processes.
    """

    count: int = os.cpu_count() or 1
    engine: Engine = run_local

    @property
    def alone(self) -> bool:
        """Whether a single process of this machine makes all calls."""
        return self.count < 2 and self.engine is run_local

    def run(self, calls: Calls[Item, Result]) -> Iterator[Outcome[Item, Result]]:
        """Make calls, and yield the outcomes in the order of items."""
        return self.engine(calls, workers=self.count)


def engine_of(name: EngineName, ray_address: str | None = None) -> Engine:
    """Return an engine by its name.

    Args:
        name: The name of the engine.
        ray_address: The address of a Ray cluster, as for `RayEngine`.

    Raises:
        FramedexError: The name is unknown.
        MissingExtraError: Ray is needed, but not installed.
    """
    check_choices(engine=(name, get_args(EngineName)))
    if name == "local":
        return run_local
    from framedex.execution.ray_engine import RayEngine

    return RayEngine(ray_address)
