"""Options of commands that may do one slice of a run: `--task` and `--finish`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from framedex.execution.slices import Slice
from framedex.options.rules import OptionRule

FINISH_RULE = OptionRule(
    options=["task"],
    when=lambda values: not values["finish"],
    beside="--finish",
    why="--finish follows when all slices are done",
)


def slice_options(finished: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the options `--task` and `--finish`. `finished`: what the second one completes."""

    def with_slices(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option(
            "--finish", is_flag=True, help=f"Check that all slices are done, and complete the {finished}."
        )(command)
        return click.option(
            "--task",
            callback=_slice_value,
            metavar="I/N",
            help="Do one of N slices of the run, 0/N to N-1/N. Run the same command on every machine, then --finish.",
        )(command)

    return with_slices


def _slice_value(context: click.Context, parameter: click.Parameter, value: str | None) -> Slice | None:
    try:
        return None if value is None else Slice.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; say 0/8 for the first of eight") from error
