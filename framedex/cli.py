"""The `framedex` command. The module of a subcommand is imported only when the subcommand is called."""

import importlib
import logging
import sys
import warnings
from typing import Any

import click

from framedex.core.interrupts import INTERRUPTED, terminated_as_interrupted
from framedex.core.printing import PrintableFormatter, echo, shown_error
from framedex.core.version import __version__
from framedex.errors import FramedexError, InternalError, internal_error

COMMANDS = {
    "index": ("framedex.indexer.cli", "Probe videos and write an index."),
    "shard": ("framedex.sharder.cli", "Plan clips from an index into a dataset."),
    "verify": ("framedex.loader.cli", "Compare a dataset's clips with a full decode."),
    "inspect": ("framedex.auditor.inspect_cli", "Draw clips as a contact sheet, or browse them."),
    "log": ("framedex.auditor.log_cli", "List the changes of an index or a dataset."),
    "audit": ("framedex.auditor.cli", "Describe an index or a dataset, and list its problems."),
    "bench": ("framedex.bench.cli", "Measure how fast a dataset loads."),
}


class Stages(click.Group):
    """A click group that imports the module of a command only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[name][0]), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except click.ClickException as error:
            raise shown_error(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise shown_error(error) from None
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as interrupt:
            echo(f"interrupted: {interrupt or 'no incomplete output is left; run the same command again'}", err=True)
            # If an interrupt ends code that Python runs from a string (such as the generated code of a dataclass), the
            # interpreter sets a flag. With the flag, `python -m` ends by SIGINT and ignores the exit code. Running
            # another string clears the flag.
            exec("")
            sys.exit(INTERRUPTED)
        except OSError as error:
            echo(f"error: {error.filename or 'input or output'}: {error.strerror or error}", err=True)
            sys.exit(1)
        except Exception as error:
            found = error if isinstance(error, FramedexError) else _missing_package(error) or internal_error(error)
            if isinstance(found, InternalError):
                echo(found.traceback, err=True)
            echo(f"error: {found}", err=True)
            sys.exit(1)


def _missing_package(error: Exception) -> FramedexError | None:
    """Return the error for a required package that is not installed. Return None if `error` has another cause."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name in ("", "framedex"):
        return None
    return FramedexError(f"framedex needs the package {name}, which is not installed", remedy="pip install framedex")


@click.group(
    cls=Stages,
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 done with more failures than allowed, 130 interrupted.",
)
@click.version_option(__version__, prog_name="framedex")
@click.option("-v", "--verbose", is_flag=True, help="Log more details to stderr.")
@click.pass_context
def main(context: click.Context, verbose: bool) -> None:
    """Frame-exact video datasets: index, shard, verify, inspect, load."""
    context.with_resource(terminated_as_interrupted())
    context.with_resource(warnings.catch_warnings())  # restores `showwarning` when the command ends
    # Print each warning as one line, without the position in Python code that `warnings` adds.
    warnings.showwarning = lambda message, *_details, **_more: echo(f"warning: {message}", err=True)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO if verbose else logging.WARNING)
