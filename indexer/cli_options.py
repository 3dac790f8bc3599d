"""Values of options of `framedex index` that have a form of their own."""

from __future__ import annotations

from fractions import Fraction

import click

from framedex.indexer.sources.image_times import rate_of
from framedex.indexer.sources.sidecars import Sidecar, sidecars_of


def rate_value(context: click.Context, parameter: click.Parameter, value: str | None) -> Fraction | None:
    """Return a rate in frames per second."""
    try:
        return None if value is None else rate_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def sidecars_value(context: click.Context, parameter: click.Parameter, value: str) -> tuple[Sidecar, ...]:
    """Return kinds of sidecars."""
    try:
        return sidecars_of(() if value == "none" else value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{error}, or none") from error
