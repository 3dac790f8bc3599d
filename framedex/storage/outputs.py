"""Output folders. They are written in place on this machine, or through a local folder to object storage."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from framedex.errors import OutputError, StorageError
from framedex.storage.objects import Facts, delete, exists, fetch, put, upload
from framedex.storage.places import Place, Stored

SINGLE_BYTES = 64 << 20  # the size up to which a file is written with one request, which a store can refuse


class Output:
    """A folder of this machine. Files are written below `local`, and `publish` makes them visible to readers."""

    def __init__(self, local: Path) -> None:
        self.local = local
        self.where: Place = local  # the place that readers open

    def publish(self, path: Path) -> None:
        """Make a file below `local` visible to readers. Raises OutputError, StorageError."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        (self.local / name).unlink(missing_ok=True)


class StoredOutput(Output):
    """A folder of object storage, in which this run does not replace the objects of other runs.

    Each object must be new, or replace the exact object that was taken.
    """

    def __init__(self, stored: Stored, local: Path) -> None:
        super().__init__(local)
        self.where = self._stored = stored
        self._taken: dict[str, Facts] = {}

    def take(self, name: str) -> None:
        """Copy an object that this run may replace into the local folder, if the object exists."""
        uri = f"{self._stored.uri}/{name}"
        facts = exists(uri)
        if facts is None:
            return
        data, facts = fetch(uri, 0, facts.size_bytes, facts)
        (self.local / name).write_bytes(data)
        self._taken[name] = facts

    def publish(self, path: Path) -> None:
        name = path.relative_to(self.local).as_posix()
        try:
            if name in self._taken:
                self._taken[name] = put(f"{self._stored.uri}/{name}", path.read_bytes(), replaces=self._taken[name])
                return
            facts = write_new(path, f"{self._stored.uri}/{name}")
        except StorageError as error:
            if error.kind not in ("exists", "changed"):
                raise
            raise OutputError(
                "another run is writing here",
                where=self._stored.uri,
                found=f"{error.where}: {error.what}",
                remedy="wait for it and run again, or choose another place; what was written stays",
            ) from error
        if path.parent == self.local:
            self._taken[name] = facts  # a file directly in the folder may be written again
        else:
            path.unlink()

    def remove(self, name: str) -> None:
        delete([f"{self._stored.uri}/{name}"])


def write_new(path: Path, uri: str) -> Facts:
    """Write a file as a new object. Raises StorageError of kind `exists` if the object exists already.

    Stores check this condition only for objects that are written with one request. Before writing a file in parts, this
    function checks it with a request of its own.
    """
    if path.stat().st_size <= SINGLE_BYTES:
        return put(uri, path.read_bytes())
    if exists(uri) is not None:
        raise StorageError("something has been written there already", kind="exists", where=uri)
    return upload(path, uri)


def check_writable(where: Place) -> None:
    """Raise OutputError if a place is read-only: a web server or the Hub."""
    if isinstance(where, Stored) and not where.uri.startswith(("s3://", "gs://", "az://")):
        raise OutputError(
            "cannot write to a web server or the Hub", where=where.uri, allowed="s3://, gs://, az:// or a folder"
        )


@contextlib.contextmanager
def stored_output(stored: Stored, *names: str) -> Iterator[StoredOutput]:
    """Provide a folder of object storage for writing. `names` are the files directly in it that may be replaced."""
    check_writable(stored)
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        output = StoredOutput(stored, Path(folder))
        for name in names:
            output.take(name)
        yield output
