"""Options for how a command runs: the number of processes, time limits and the number of allowed failures."""

from __future__ import annotations

import os

import click

from framedex.options.decorators import Decorator
from framedex.options.rules import OptionRule


def limits_rule(*options: str) -> OptionRule:
    """Return the rule that limits of time and memory need processes beside this one.

    Args:
        options: The parameter names of the limits.
    """
    why = "a process can limit others, not itself"
    return OptionRule(options=options, when=lambda values: values["workers"] > 0, beside="--workers 0", why=why)


def workers_option(help_text: str) -> Decorator:
    """Return the option `--workers`.

    Args:
        help_text: What the processes do.
    """
    return click.option(
        "--workers",
        type=click.IntRange(0),
        default=os.cpu_count() or 1,
        show_default="all cores",
        help=help_text + " 0: none; this process does the work.",
    )


def time_limit_option(
    name: str = "--timeout", *, seconds: float, help_text: str = "Longest time for one medium."
) -> Decorator:
    """Return an option for a time limit in seconds.

    Args:
        name: The name of the option.
        seconds: The default limit.
        help_text: What the limit applies to.
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
    """Return the option `--max-failures`.

    Args:
        what: What may fail, in the plural.
    """
    return click.option(
        "--max-failures",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help=f"Exit with 3 if there are more than this many {what}.",
    )
