"""The command `framedex log`: print the changes of an index or a dataset."""

from dataclasses import asdict

import click

from framedex.core.printing import echo, json_text
from framedex.errors import FormatError
from framedex.files.changes import LOG_NAME, Change, read_changes
from framedex.files.headers import remedy_for
from framedex.indexer.schema import HEADER as INDEX_HEADER
from framedex.options import PLACE_THAT_IS_THERE, json_option
from framedex.sharder.schema import HEADER as DATASET_HEADER
from framedex.storage.places import Place

EXAMPLE = "\b\nExample:\n  framedex log INDEX\n  framedex log s3://bucket/INDEX --json\n"


@click.command("log", epilog=EXAMPLE)
@click.argument("place", metavar="INDEX|DATASET", type=PLACE_THAT_IS_THERE)
@json_option("Print one JSON object for each change.")
def log(place: Place, as_json: bool) -> None:
    """List the changes of an index or a dataset, one per line, oldest first.

    A line has the generation, the date (UTC), the subcommand with the options that differ from their defaults, and what
    was changed. Operands that name sources or media are counted, not named. A run that changes nothing has no line.

    Exit codes: 0 success; 1 the log cannot be read; 2 wrong usage.
    """
    if not any((place / name).exists() for name in (INDEX_HEADER, DATASET_HEADER, LOG_NAME)):
        raise FormatError("is neither an index nor a dataset", where=str(place), remedy=remedy_for(place))
    for change in read_changes(place):
        echo(json_text(asdict(change)) if as_json else line_of(change))


def line_of(change: Change) -> str:
    """Return a change as a line of text."""
    options = [
        f"{name}={value if isinstance(value, str) else json_text(value)}" for name, value in change.options.items()
    ]
    counts = [f"{count:,} {name}" for name, count in (change.counts or {}).items()]
    done = ", ".join(counts) if change.counts is not None else "not complete"
    asked = " ".join([change.command, *options])
    return f"{change.generation}  {change.date}  framedex {change.version}  {asked}{': ' if done else ''}{done}"
