"""The choice of an engine by its name, and of the number of its processes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.execution.engine import Calls, Engine, Item, Outcome, Result, run_local

EngineName = Literal["local", "ray"]


def processes(workers: int | None, engine: EngineName = "local") -> int:
    """Return the number of processes for the argument `workers`.

    Args:
        workers: The number of processes. With 0, this process does the work. If None, there is one process per core.
        engine: The engine. A cluster needs at least one process.

    Raises:
        FramedexError: The number is too low.
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
    """The processes that make calls.

    Attributes:
        count: The number of processes. With 0, this process makes the calls.
        engine: The engine that runs the processes.
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
