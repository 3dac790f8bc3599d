"""The command line options that choose an execution engine."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import Any

import click

from framedex.execution.choice import EngineName, engine_of
from framedex.options.decorators import Command
from framedex.options.rules import OptionRule

ENGINE_RULES = (
    OptionRule(options=["ray_address"], when=lambda values: values["engine_name"] == "ray", needs="--engine ray"),
    OptionRule(
        options=["engine_name"],
        when=lambda values: values["engine_name"] == "local" or values["workers"] > 0,
        needs="--workers 1 or more",
    ),
)


def engine_options(command: Command) -> Command:
    """Add the options that choose an engine. The command gets an engine.Engine as `engine`. Use with ENGINE_RULES."""

    @click.option(
        "--engine",
        "engine_name",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where the work runs: in processes of this machine, or as tasks of a Ray cluster, --workers at a time.",
    )
    @click.option(
        "--ray-address",
        help="Address of the Ray cluster.  [default: RAY_ADDRESS, else a new cluster on this machine]",
    )
    @functools.wraps(command)
    def with_engine(*, engine_name: EngineName, ray_address: str | None, **others: Any) -> None:
        engine = engine_of(engine_name, ray_address)
        if engine_name == "local":
            command(engine=engine, **others)
            return
        with contextlib.redirect_stdout(_OfThisThread()):  # Ray reports lost workers there, from its own thread
            command(engine=engine, **others)

    return with_engine


class _OfThisThread:
    """Standard output for the thread that creates this object. The output of other threads goes to standard error."""

    def __init__(self) -> None:
        self._stdout, self._thread = sys.stdout, threading.get_ident()

    def write(self, text: str) -> int:
        """Write text to standard output or standard error."""
        return (self._stdout if threading.get_ident() == self._thread else sys.stderr).write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)
