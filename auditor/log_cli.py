"""The command `framedex log`: print the changes of an index or a dataset."""

from dataclasses import asdict

import click

from framedex.core.printing import echo, json_text
from framedex.files.changes import Change, read_changes
from framedex.options import PLACE_THAT_IS_THERE, json_option
from framedex.storage.places import Place


@click.command("log")
@click.argument("place", metavar="INDEX|DATASET", type=PLACE_THAT_IS_THERE)
@json_option("Print one JSON object for each change.")
def log(place: Place, as_json: bool) -> None:
    """List the changes of an index or a dataset, one per line, oldest first.

    A line has the generation, the date (UTC), the subcommand with the options that differ from their defaults, and what
    was changed. Operands that name sources or media are counted, not named. A run that changes nothing has no line.
    """
    for change in read_changes(place):
        echo(json_text(asdict(change)) if as_json else line_of(change))


def line_of(change: Change) -> str:
    """Return a change as a line of text."""
    options = [f"{name}={value}" for name, value in change.options.items()]
    counts = [f"{count:,} {name}" for name, count in (change.counts or {}).items()]
    done = ", ".join(counts) if change.counts is not None else "not complete"
    asked = " ".join([change.command, *options])
    return f"{change.generation}  {change.date}  framedex {change.version}  {asked}{': ' if done else ''}{done}"
