"""The output of commands: text, JSON, lists of failures, progress bars and warnings.

All text for a terminal passes through this module, which escapes control characters.
"""

import codecs
import contextlib
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
from tqdm import tqdm

from framedex.core.words import counted, few
from framedex.errors import UNPRINTABLE, printable


def echo(text: str, *, err: bool = False) -> None:
    """Print text as whole lines. Control characters in names and messages are escaped."""
    click.echo(printable(text, lines=True), err=err)


def json_text(value: object) -> str:
    """Return a value as one line of JSON without control characters."""
    return escaped_json(json.dumps(value, ensure_ascii=False))


def escaped_json(text: str) -> str:
    r"""Return JSON text with `\u` escapes for the characters that `printable` would escape, except for line ends.

    A line end in JSON text can only stand between values, so it is kept.
    """
    return UNPRINTABLE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


class PrintableFormatter(logging.Formatter):
    """Formats log records as text without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return printable(super().format(record), lines=True)


class TerminalBytes:
    """A binary file that writes to a terminal. UTF-8 text is escaped as `printable` does; line ends are kept."""

    def __init__(self, terminal: BinaryIO) -> None:
        self._terminal, self._decoder = terminal, codecs.getincrementaldecoder("utf-8")("replace")

    closed = False

    def write(self, data: Any) -> int:
        """Write some bytes. They may end in the middle of a character."""
        text = self._decoder.decode(bytes(data))
        self._terminal.write(printable(text, lines=True).encode())
        return len(data)

    def flush(self) -> None:
        """Flush the terminal's file."""
        self._terminal.flush()


def stdout_bytes() -> BinaryIO | TerminalBytes:
    """Return standard output as a binary file. If it is a terminal, text is escaped as `printable` does."""
    return TerminalBytes(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer


def shown_error(error: click.ClickException) -> click.ClickException:
    """Return the error if its message has no control characters, else a new error with these characters escaped."""
    message = error.format_message()
    safe = printable(message, lines=True)
    if safe == message:
        return error
    if isinstance(error, click.UsageError):
        return click.UsageError(safe, error.ctx)
    return click.ClickException(safe)


def internal_errors(count: int) -> str:
    """Return a message with the number of internal errors of a run, which asks the user to report them."""
    errors, them = ("1 internal error", "it") if count == 1 else (f"{count} internal errors", "them")
    return f"{errors} of framedex (a bug: please report {them} with what framedex -v prints)"


SHOWN = 10  # failures that are printed in full, about half a terminal


class FailureList:
    """Prints the first failures of a run as they are added. `end` prints the number of the others."""

    def __init__(self) -> None:
        self._kinds = Counter[str]()

    def add(self, kind: str, line: str) -> None:
        """Count a failure, and print its line if it is one of the first.

        Args:
            kind: The kind of the failure, such as `not_media`.
            line: The whole line, with its reason.
        """
        if self._kinds.total() < SHOWN:
            echo(line)
        self._kinds[kind] += 1

    def end(self, where: str) -> None:
        """Print how many failures were not printed, if any.

        Args:
            where: A command or a file that shows all failures.
        """
        left = self._kinds.total() - SHOWN
        if left > 0:
            echo(f"… and {counted(left, 'more', 'more')}. By kind: {few(self._kinds)}. All of them: {where}")


@contextlib.contextmanager
def progress_bar(unit: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Provide a function that shows (done, total) on a terminal. With `shown=False`, the bar is never shown."""
    with tqdm(unit=unit, disable=None if shown else True, file=sys.stderr) as bar:  # None: disabled off a terminal

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


PACKAGE = f"{Path(__file__).parents[1]}/"


def user_line() -> tuple[str, int]:
    """Return the file and the line of the user's program that led to this call."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def warn_at(line: tuple[str, int], message: str) -> None:
    """Issue a warning at a line that `user_line` returned, perhaps in another process."""
    warnings.warn_explicit(printable(message), UserWarning, *line)
