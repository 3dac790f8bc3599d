"""The errors of framedex. A message says what is wrong, where, what was found, what is allowed, and what to do.

`printable` escapes control characters in text that comes from files or users, before errors and commands print it.
"""

import copy
import re
import traceback
from typing import Any, Self

# Before the second and later lines of a part of a message, so that they do not look like separate messages. They begin
# below the text after `found:` etc.
NEXT = "\n" + " " * 11
INTERNAL_ERROR = "internal_error"  # the `kind` of a failure that is caused by a bug of framedex
PLEASE_REPORT = "this is a bug of framedex: please report it with its traceback and the output of framedex --version"

# Control characters (C0 including line ends, DEL, C1), line and paragraph separators, changes of text direction, and
# surrogates. Python represents bytes of file names that are not UTF-8 as surrogates.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, lines: bool = False) -> str:
    """Return text with control characters and changes of text direction replaced by escapes.

    Args:
        text: Any text.
        lines: Whether line ends are kept. True for messages that framedex formats, False for names of files or columns.
    """
    return UNPRINTABLE.sub(lambda match: match[0] if lines and match[0] == "\n" else _escape(match[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


class FramedexError(Exception):
    """The base class of all errors that framedex raises. Their messages are for the user.

    Attributes:
        what: The problem, in one sentence.
        where: The file, argument or clip that has the problem. None if unknown.
        found: The value or state that was found, or None.
        allowed: The values or states that are allowed, or None.
        remedy: The action that fixes the problem, or None.
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
        """Return the message without control characters. `found`, `allowed` and `remedy` begin on new lines."""
        parts = [self.what if self.where is None else f"{printable(self.where)}: {self.what}"]
        named = {"found": self.found, "allowed": self.allowed, "remedy": self.remedy}
        parts += [f"  {name + ':':<8} {part}".replace("\n", NEXT) for name, part in named.items() if part is not None]
        return printable("\n".join(parts), lines=True)

    def inside(self, where: str) -> Self:
        """Return a copy of the error whose location begins with an outer location: `where: …`."""
        outer = copy.copy(self)
        outer.where = where if self.where is None else f"{where}: {self.where}"
        outer.args = (outer.text(),)
        return outer

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all attributes, because errors are sent between processes."""
        return _rebuild, (type(self), self.__dict__.copy(), self.args)


def _rebuild(cls: type[FramedexError], state: dict[str, object], args: tuple[object, ...]) -> FramedexError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class SourceError(FramedexError):
    """A source cannot be interpreted. Sources are given on the command line, or in a listing (a table of sources)."""


class MissingSourceError(SourceError):
    """A source given on the command line neither exists nor is in the index. Most likely, the name is mistyped."""


class MediaError(FramedexError):
    """One medium cannot be used.

    Attributes:
        kind: The cause as a short word that does not change between versions.
        refused: Whether the medium is readable, but refused since its clips might be wrong. False if the medium is not
            readable.
        traceback: The traceback as text if `kind` is INTERNAL_ERROR, else None.
    """

    def __init__(self, kind: str, what: str, *, refused: bool = False, traceback: str | None = None) -> None:
        self.kind, self.refused, self.traceback = kind, refused, traceback
        super().__init__(what)


class FormatError(FramedexError):
    """A folder is not an index or a dataset, is damaged, or has another major version."""


class OutputError(FramedexError):
    """An output file or folder cannot be written, for example because another run is writing to it."""


class PolicyError(FramedexError):
    """A sampling policy or a clip request is malformed, or refers to a medium, frame or column that does not exist."""


class NoClipsError(PolicyError):
    """A policy or a list of clips gives no clip, so no dataset can be written or opened.

    Attributes:
        failures: One row for each clip that could not be made, with the columns of failures.parquet.
    """

    def __init__(self, what: str, *, failures: list[dict[str, Any]], **parts: Any) -> None:
        self.failures = failures
        super().__init__(what, **parts)


class DamageError(PolicyError):
    """A clip needs frames of a damaged GOP."""


class UncuttableError(PolicyError):
    """A clip cannot be written as a separate file that every decoder decodes correctly."""


class StaleError(FramedexError):
    """A source changed after it was indexed."""


class DecodeError(FramedexError):
    """Decoding a clip's byte ranges did not produce the frames that the manifest lists."""


class TransformError(FramedexError):
    """The user's transform of a clip's frames failed."""


REOPEN = "reopen"  # the kind of a StorageError if a dataset was changed, so that it must be opened again


class StorageError(FramedexError):
    """A request to an object store failed. `kind` is the cause as a short word: missing, exists, changed, denied, …"""

    def __init__(self, what: str, *, kind: str = "unanswered", **parts: Any) -> None:
        self.kind = kind
        super().__init__(what, **parts)


class EngineError(FramedexError):
    """The execution engine cannot be used, for example because a Ray cluster cannot be reached."""


class InternalError(FramedexError):
    """A bug of framedex. The medium may be correct. `traceback` is the traceback as text."""

    def __init__(self, what: str, traceback: str) -> None:
        self.traceback = traceback
        super().__init__(f"framedex itself failed: {what}", remedy=PLEASE_REPORT)
        self.add_note(traceback)  # Python prints the note if the error is not caught


def internal_error(error: BaseException) -> InternalError:
    """Return an InternalError for an unexpected exception, with the traceback in the process that raised it."""
    if isinstance(error, InternalError):
        return error
    # For an exception from another process, pebble sets the attribute `traceback`.
    found = getattr(error, "traceback", None) or "".join(traceback.format_exception(error))
    return InternalError(f"{type(error).__name__}: {error}", found)


class MissingExtraError(FramedexError):
    """An optional library is not installed. The remedy is the pip command that installs the extra."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {library}, which is not installed",
            remedy=f"pip install 'framedex[{extra}]'",
        )
