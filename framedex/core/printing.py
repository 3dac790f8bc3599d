"""The output of commands. All text for a terminal passes through this module, which escapes control characters."""

from __future__ import annotations

import codecs
import json
import logging
import sys
from typing import Any, BinaryIO

import click

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
    """Return a message with the number of internal errors of a run, and what to do about them."""
    errors = "1 internal error" if count == 1 else f"{count} internal errors"
    them = "it" if count == 1 else "them"
    return f"{errors} of framedex (a bug: please report {them} with what framedex -v prints)"
