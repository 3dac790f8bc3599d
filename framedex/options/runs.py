"""Options about how a command runs: its processes, how long it waits, and how many failures it bears."""

from __future__ import annotations

import os

import click

from framedex.options.decorators import Decorator


def workers_option(help_text: str, *, least: int = 1) -> Decorator:
    """Return `--workers`.

    Args:
        help_text: What the processes do.
        least: How many there are at least.
    """
    return click.option(
        "--workers",
        type=click.IntRange(least),
        default=os.cpu_count() or 1,
        show_default="all cores",
        help=help_text,
    )


def time_limit_option(
    name: str = "--timeout", *, seconds: float, help_text: str = "Longest time for one medium."
) -> Decorator:
    """Return an option of a time limit in seconds.

    Args:
        name: Of the option.
        seconds: The limit, unless it is given.
        help_text: Of what it is the longest time.
    """
    return click.option(
        name,
        type=click.FloatRange(0, min_open=True),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help=help_text,
    )


def max_failures_option(what: str) -> Decorator:
    """Return `--max-failures`.

    Args:
        what: What may fail, in the plural.
    """
    return click.option(
        "--max-failures",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help=f"How many {what} still count as success.",
    )
