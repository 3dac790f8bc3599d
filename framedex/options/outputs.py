"""Options for the output of commands."""

from __future__ import annotations

import click

from framedex.options.decorators import Decorator
from framedex.options.places import PLACE_TO_WRITE


def out_folder_option(help_text: str) -> Decorator:
    """Return the option `--out` for commands that write a folder of this machine or a uri of object storage."""
    return click.option("--out", type=PLACE_TO_WRITE, required=True, help=help_text)


def overwrite_option(what: str) -> Decorator:
    """Return the option `--overwrite`.

    Args:
        what: What is replaced, and the verb: "a dataset that is".
    """
    return click.option("--overwrite", is_flag=True, help=f"Replace {what} already there.")


def json_option(help_text: str = "Print one JSON object.") -> Decorator:
    """Return the option `--json`. The command gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)
