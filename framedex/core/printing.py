"""The output of commands: text, JSON, lists of failures, progress bars and warnings.

All text that commands print to a terminal passes through this module, which escapes control characters.
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
    """Print text and a line end. Control characters in the text are escaped, except for line ends."""
    click.echo(printable(text, lines=True), err=err)


def json_text(value: object) -> str:
    """Return a value as one line of JSON without control characters."""
    return escaped_json(json.dumps(value, ensure_ascii=False))


def escaped_json(text: str) -> str:
    r"""Replace the characters that `printable` would escape by JSON's `\u` escapes, except for line ends.

    Line ends are kept, since in JSON text they can only occur between values.
    """
    return UNPRINTABLE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


class PrintableFormatter(logging.Formatter):
    """A formatter of log records that escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as text of one or more lines."""
        return printable(super().format(record), lines=True)


class TerminalBytes:
    """A binary file that writes UTF-8 text to a terminal. Text is escaped as by `printable`, except for line ends."""

    def __init__(self, terminal: BinaryIO) -> None:
        self._terminal, self._decoder = terminal, codecs.getincrementaldecoder("utf-8")("replace")

    closed = False

    def write(self, data: Any) -> int:
        """Write some bytes. The bytes may end in the middle of a UTF-8 character."""
        text = self._decoder.decode(bytes(data))
        self._terminal.write(printable(text, lines=True).encode())
        return len(data)

    def flush(self) -> None:
        """Flush the underlying file."""
        self._terminal.flush()


def stdout_bytes() -> BinaryIO | TerminalBytes:
    """Return stdout as a binary file. If stdout is a terminal, written text is escaped as by `printable`."""
    return TerminalBytes(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer


def shown_error(error: click.ClickException) -> click.ClickException:
    """Return an error whose message has no unescaped control characters: the given error, or a new one."""
    message = error.format_message()
    safe = printable(message, lines=True)
    if safe == message:
        return error
    return click.UsageError(safe, error.ctx) if isinstance(error, click.UsageError) else click.ClickException(safe)


def internal_errors(count: int) -> str:
    """Return a message that says how many internal errors a run had and asks the user to report them."""
    errors, them = ("1 internal error", "it") if count == 1 else (f"{count} internal errors", "them")
    return f"{errors} of framedex (a bug: please report {them} with what framedex -v prints)"


SHOWN = 10  # number of failures that are printed, about half the height of a terminal


class FailureList:
    """A list of failures. `add` prints the first SHOWN failures. `end` prints the number of the other failures."""

    def __init__(self) -> None:
        self._kinds = Counter[str]()

    def add(self, kind: str, line: str) -> None:
        """Count a failure. Print a line about it if fewer than SHOWN failures were added before.

        Args:
            kind: The kind of the failure, such as `not_media`.
            line: The line to print, including the reason for the failure.
        """
        if self._kinds.total() < SHOWN:
            echo(line)
        self._kinds[kind] += 1

    def end(self, where: str) -> None:
        """Print the number of failures that were not printed, unless all were printed.

        Args:
            where: The command or file that shows all failures, for the message.
        """
        left = self._kinds.total() - SHOWN
        if left > 0:
            echo(f"… and {counted(left, 'more', 'more')}. By kind: {few(self._kinds)}. All of them: {where}")


@contextlib.contextmanager
def progress_bar(unit: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Provide a function show(done, total) that updates a progress bar on stderr.

    Args:
        unit: The unit of `done` and `total`, which the bar shows.
        shown: Whether to show the bar. Even if True, the bar is shown only if stderr is a terminal.
    """
    # With disable=None, tqdm shows the bar only on a terminal.
    with tqdm(unit=unit, disable=None if shown else True, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


PACKAGE = f"{Path(__file__).parents[1]}/"


def user_line() -> tuple[str, int]:
    """Return the (file, line) of the innermost call from the user's code into framedex."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def warn_at(line: tuple[str, int], message: str) -> None:
    """Issue a warning for a line that `user_line` returned in this or another process."""
    warnings.warn_explicit(printable(message), UserWarning, *line)
