"""The errors framedex raises: each says what, where, what was found, what is allowed, and what mends it.

Also `printable`, which every text from outside passes before a person sees it, in errors as in all that commands print.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

INDENT = 11  # characters before the text of a part of a message
INTERNAL_ERROR = "internal_error"  # the kind of a failure that is a bug of framedex's own
PLEASE_REPORT = "this is a bug of framedex: please report it with its traceback and the output of framedex --version"

# Control characters (C0 with the line end, DEL, C1), separators and changes of direction, and halves of characters, which stand
# for bytes of file names that are not UTF-8.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, lines: bool = False) -> str:
    """Return text that no terminal acts on: control characters and changes of direction are written as escapes.

    lines: line ends are kept, in text whose lines are framedex's own; a name has none.
    """
    return UNPRINTABLE.sub(lambda match: match[0] if lines and match[0] == "\n" else _escape(match[0]), text)


def _indented(part: str) -> str:
    """Return a part of a message whose further lines cannot be taken for lines of framedex's own."""
    return part.replace("\n", "\n" + " " * INDENT)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


class FramedexError(Exception):
    """Base of every error meant for the person at the keyboard.

    `what` is one sentence; the other parts are optional and appear only where they help.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        found: object = None,
        allowed: object = None,
        remedy: str | None = None,
    ) -> None:
        self.what, self.where, self.found, self.allowed, self.remedy = what, where, found, allowed, remedy
        super().__init__(self.text())

    def text(self) -> str:
        """Return the message as one line per part, with nothing in it that a terminal acts on."""
        parts = [self.what if self.where is None else f"{printable(self.where)}: {self.what}"]
        named = {"found": self.found, "allowed": self.allowed, "remedy": self.remedy}
        parts += [_indented(f"  {name + ':':<8} {part}") for name, part in named.items() if part is not None]
        return printable("\n".join(parts), lines=True)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by parts: these errors cross process borders."""
        return _rebuild, (type(self), self.__dict__.copy(), self.args)


def _rebuild(cls: type[FramedexError], state: dict[str, object], args: tuple[object, ...]) -> FramedexError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class SourceError(FramedexError):
    """A source given on the command line or in a listing cannot be understood."""


class MissingSourceError(SourceError):
    """A source given on the command line is not there, and no index knows it: most likely it is mistyped."""


class MediaError(FramedexError):
    """One medium cannot be used.

    `kind` is a short stable word, `refused` tells readable from broken. `traceback` is that of an INTERNAL_ERROR.
    """

    def __init__(
        self, kind: str, what: str, *, refused: bool = False, where: str | None = None, traceback: str | None = None
    ) -> None:
        self.kind, self.refused, self.traceback = kind, refused, traceback
        super().__init__(what, where=where)


class FormatError(FramedexError):
    """An index or a dataset on disk is not one, or is of another major version."""


class OutputError(FramedexError):
    """The output folder cannot be written, or holds something else."""


class PolicyError(FramedexError):
    """A sampling policy or a clip request is malformed or asks for what does not exist."""


class DamageError(PolicyError):
    """A clip wants frames of a damaged GOP."""


class UncuttableError(PolicyError):
    """A clip cannot become a file of its own that any decoder reads right."""


class StaleError(FramedexError):
    """A source changed after it was indexed."""


class DecodeError(FramedexError):
    """A clip's byte ranges did not yield the frames that the manifest promises."""


class StorageError(FramedexError):
    """An object store did not do what was asked. `kind` is a short stable word: missing, exists, changed, denied, …"""

    def __init__(self, what: str, *, kind: str = "unanswered", **parts: Any) -> None:
        self.kind = kind
        super().__init__(what, **parts)


class EngineError(FramedexError):
    """What is to run the work cannot be had."""


class InternalError(FramedexError):
    """framedex itself failed, which says nothing about the medium. `traceback` is what Python prints of the error."""

    def __init__(self, what: str, traceback: str) -> None:
        self.traceback = traceback
        super().__init__(f"framedex itself failed: {what}", remedy=PLEASE_REPORT)
        self.add_note(traceback)  # so that Python prints it where nobody catches this


def internal_error(error: BaseException) -> InternalError:
    """Return the InternalError that an unexpected exception stands for, with the traceback it has or brought along."""
    if isinstance(error, InternalError):
        return error
    # pebble hands the traceback of another process over as an attribute.
    found = getattr(error, "traceback", None) or "".join(traceback.format_exception(error))
    return InternalError(f"{type(error).__name__}: {error}", found)


class MissingExtraError(FramedexError):
    """An optional library is not installed; the remedy names the extra."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {library}, which is not installed",
            remedy=f"pip install 'framedex[{extra}]'",
        )
