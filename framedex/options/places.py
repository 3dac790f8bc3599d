"""Types of command line parameters for folders and files, on this machine or in object storage."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from framedex.errors import FramedexError
from framedex.storage.outputs import check_writable
from framedex.storage.places import Place, local_of, place


class PlaceType(click.ParamType[Place]):
    """A folder of this machine, or a uri.

    Args:
        there: Whether it must exist. Checked only where no request to a store is needed.
        written: Whether the command writes to it.
    """

    name = "folder or uri"

    def __init__(self, *, there: bool = False, written: bool = False) -> None:
        self._there, self._written = there, written

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Return the place that a path or uri names."""
        try:
            found = place(value)
            if self._written:
                check_writable(found)
        except FramedexError as error:
            self.fail(error.text(), param, ctx)
        if local_of(found) is None:  # only a request to the store would show it
            return found
        if self._there and not found.exists():
            self.fail(f"Directory {str(value)!r} does not exist.", param, ctx)
        if found.exists() and not found.is_dir():
            self.fail(f"Directory {str(value)!r} is a file.", param, ctx)
        return found


class FileType(click.ParamType[Path]):
    """A file of this machine, or a small object. An object is copied to this machine until the program ends."""

    name = "file or uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path of a file, or of a temporary copy of an object."""
        try:
            found = place(value)
            path = local_of(found)
            if path is not None:
                return path
            folder = tempfile.TemporaryDirectory(prefix="framedex-")
            (ctx or click.get_current_context()).call_on_close(folder.cleanup)
            copy = Path(folder.name) / found.name
            copy.write_bytes(found.read_bytes())
        except FileNotFoundError:
            self.fail(f"{value}: the object is not there", param, ctx)
        except FramedexError as error:
            self.fail(error.text(), param, ctx)
        return copy


PLACE_TO_WRITE, PLACE_THAT_IS_THERE, FILE = PlaceType(written=True), PlaceType(there=True), FileType()
FILE_TO_WRITE: click.Path = click.Path(path_type=Path, dir_okay=False)
