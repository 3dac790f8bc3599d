"""What commands print: everything that reaches a terminal goes through this module, and cannot act on it."""

from __future__ import annotations

import codecs
import json
import logging
import sys
from typing import Any, BinaryIO

import click

from framedex.errors import UNPRINTABLE, printable


def echo(text: str, *, err: bool = False) -> None:
    """Print text of framedex's own lines; what stands in them of names and messages cannot act on a terminal."""
    click.echo(printable(text, lines=True), err=err)


def json_text(value: object) -> str:
    """Return a value as one line of JSON that no terminal acts on."""
    return escaped_json(json.dumps(value, ensure_ascii=False))


def escaped_json(text: str) -> str:
    r"""Return the same JSON with `\u` escapes for what `printable` would escape; line ends stand between values alone."""
    return UNPRINTABLE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


class PrintableFormatter(logging.Formatter):
    """Formats log records as text that no terminal acts on."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's lines."""
        return printable(super().format(record), lines=True)


class TerminalBytes:
    """A binary file over a terminal's: text in UTF-8 arrives there as `printable` writes it, with its line ends."""

    def __init__(self, terminal: BinaryIO) -> None:
        self._terminal, self._decoder = terminal, codecs.getincrementaldecoder("utf-8")("replace")

    closed = False

    def write(self, data: Any) -> int:
        """Write some bytes, which may end within a character."""
        text = self._decoder.decode(bytes(data))
        self._terminal.write(printable(text, lines=True).encode())
        return len(data)

    def flush(self) -> None:
        """Write what the terminal's file holds back."""
        self._terminal.flush()


def stdout_bytes() -> BinaryIO | TerminalBytes:
    """Return what takes the bytes of an answer: standard output, where a terminal gets text as `printable` writes it."""
    return TerminalBytes(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer


def shown_error(error: click.ClickException) -> click.ClickException:
    """Return an error of usage whose message no terminal acts on: itself, or one in its place."""
    message = error.format_message()
    safe = printable(message, lines=True)
    if safe == message:
        return error
    if isinstance(error, click.UsageError):
        return click.UsageError(safe, error.ctx)
    return click.ClickException(safe)


def internal_errors(count: int) -> str:
    """Return how many internal errors a run met, and what to do about them."""
    errors = "1 internal error" if count == 1 else f"{count} internal errors"
    them = "it" if count == 1 else "them"
    return f"{errors} of framedex (a bug: please report {them} with what framedex -v prints)"
